"""The attention kernel that a GPU runs, chosen as in torch's `sdp_utils.cpp`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

_aten = torch.ops.aten

FLASH, EFFICIENT, CUDNN, MATH = "flash", "efficient", "cudnn", "math"

_HALF = (torch.float16, torch.bfloat16)
_FLASH_LARGEST_HEAD = 256


@dataclass(frozen=True)
class Query:
    """The facts that the choice of the kernel depends on."""

    dtype: Any
    head_dim: int
    value_dim: int
    q_length: int
    kv_length: int
    mask: bool
    mask_needs_grad: bool
    dropout: float
    causal: bool
    grouped: bool
    four_d: bool


def choose(query: Query, capability: tuple[int, int], enabled: frozenset[str]) -> str:
    """The backend that torch chooses on a GPU of this capability, among the enabled ones."""
    for backend in _order(capability):
        if backend in enabled and _SUPPORTS[backend](query, capability):
            return backend
    return MATH


def _order(capability: tuple[int, int]) -> tuple[str, ...]:
    # `check_prefer_cudnn_attention`: cuDNN comes first on Hopper and data-centre Blackwell
    # (observed on an H200 with torch 2.11).
    if capability in ((9, 0), (10, 0)):
        return (CUDNN, FLASH, EFFICIENT)
    return (FLASH, EFFICIENT, CUDNN)


def _flash(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (8, 0)
        and query.four_d
        and query.dtype in _HALF
        and not query.mask
        and query.head_dim == query.value_dim
        and query.head_dim <= _FLASH_LARGEST_HEAD
        and not (query.causal and query.q_length != query.kv_length and query.grouped)
    )


def _efficient(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (5, 0)
        and query.four_d
        and query.dtype in (torch.float32, *_HALF)
        and not (query.dtype is torch.bfloat16 and capability < (8, 0))
        and not query.grouped
        and not query.mask_needs_grad
        and not (query.mask and query.causal)
        and _aligned(query, capability)
    )


def _aligned(query: Query, capability: tuple[int, int]) -> bool:
    """Whether the last dimensions are whole numbers of aligned loads (`check_head_dim_size`)."""
    if query.dtype in _HALF and capability >= (7, 5):
        alignment = 8
    elif query.dtype in _HALF or capability >= (8, 0):
        alignment = 4
    else:
        alignment = 1
    return query.head_dim % alignment == 0 and query.value_dim % alignment == 0


def _cudnn(query: Query, capability: tuple[int, int]) -> bool:
    return (
        capability >= (8, 0)
        and query.four_d
        and query.dtype in _HALF
        and query.head_dim % 8 == 0
        and query.head_dim <= (256 if capability[0] == 9 else 128)
        and not query.mask_needs_grad
    )


_SUPPORTS = {FLASH: _flash, EFFICIENT: _efficient, CUDNN: _cudnn}


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
                mask = mask.expand(*query.shape[:3], key.shape[2])
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
        dtype=query.dtype,
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


def _additive_mask(query: Any, mask: Any) -> Any:
    """A boolean mask as one to add to the scores (`convert_boolean_attn_mask`)."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    never = torch.scalar_tensor(-math.inf, dtype=query.dtype, device=query.device)
    return torch.where(mask, 0.0, never)
