"""Attention while a step is traced: the call of the kernel that a GPU would run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from wavecast.retargeting.attention_kernels import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    Query,
    choose,
)

_aten = torch.ops.aten
_MASK_ALIGNMENT = 8
"""The efficient kernel reads rows of a mask from multiples of this many elements."""


@dataclass(frozen=True)
class AttentionCall:
    """`scaled_dot_product_attention` on a GPU of one compute capability."""

    capability: tuple[int, int]

    def __call__(
        self,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        """Call the chosen kernel, as in `aten/native/transformers/attention.cpp`."""
        facts = _facts(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        backend = choose(facts, self.capability, _enabled())
        if backend == FLASH:
            return _run_flash(query, key, value, dropout_p, is_causal, scale)
        if backend == MATH:
            options = {"scale": scale, "enable_gqa": enable_gqa}
            return _aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, **options
            )[0]
        mask = _additive_mask(query, attn_mask)
        needs_logsumexp = torch.is_grad_enabled() and any(
            t.requires_grad for t in (query, key, value)
        )
        if backend == EFFICIENT:
            if mask is not None:
                mask = _aligned(mask).expand(*query.shape[:3], key.shape[2])
            return _aten._scaled_dot_product_efficient_attention(
                query, key, value, mask, needs_logsumexp, dropout_p, is_causal, scale=scale
            )[0]
        return _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, needs_logsumexp, dropout_p, is_causal, False, scale=scale
        )[0]


def _enabled() -> frozenset[str]:
    """The backends that are not switched off, by flags or `torch.nn.attention.sdpa_kernel`."""
    switches = {
        FLASH: torch.backends.cuda.flash_sdp_enabled,
        EFFICIENT: torch.backends.cuda.mem_efficient_sdp_enabled,
        CUDNN: torch.backends.cuda.cudnn_sdp_enabled,
        MATH: torch.backends.cuda.math_sdp_enabled,
    }
    return frozenset(name for name, is_enabled in switches.items() if is_enabled())


def _facts(
    query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, gqa: bool
) -> Query:
    return Query(
        dtype=str(query.dtype).removeprefix("torch."),
        head_dim=query.shape[-1],
        value_dim=value.shape[-1],
        q_length=query.shape[-2],
        kv_length=key.shape[-2],
        mask=mask is not None,
        mask_needs_grad=mask is not None and mask.requires_grad,
        dropout=dropout,
        causal=causal,
        grouped=gqa and query.dim() == 4 and query.shape[1] != key.shape[1],
        four_d=query.dim() == key.dim() == value.dim() == 4,
        mask_strided=mask is not None and mask.stride(-1) != 1,
        uneven=not gqa and not query.shape[:-2] == key.shape[:-2] == value.shape[:-2],
    )


def _run_flash(
    query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: float | None
) -> Any:
    """Flash attention. A head size that is not a multiple of 8 is padded, and the result cut."""
    head_dim = query.shape[-1]
    scale = scale if scale is not None else 1 / math.sqrt(head_dim)
    missing = -head_dim % 8
    if missing:
        query, key, value = (_aten.constant_pad_nd(t, [0, missing]) for t in (query, key, value))
    out = _aten._scaled_dot_product_flash_attention(
        query, key, value, dropout, causal, False, scale=scale
    )[0]
    return out.narrow(-1, 0, head_dim) if missing else out


def _aligned(mask: Any) -> Any:
    """A mask whose rows begin at multiples of 8 elements; padded if need be (`preprocess_mask`)."""
    if all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]):
        return mask
    length = mask.shape[-1]
    missing = _MASK_ALIGNMENT - length % _MASK_ALIGNMENT
    return _aten.constant_pad_nd(mask, [0, missing]).narrow(-1, 0, length)


def _additive_mask(query: Any, mask: Any) -> Any:
    """A boolean mask as one to add to the scores (`convert_boolean_attn_mask`)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    never = torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device)
    return torch.where(mask, 0.0, never)
