"""Attention that is written by hand, run by torch's `scaled_dot_product_attention` instead.

The first run of a step shows which matmuls are scores: their result is scaled, masked, passed
through softmax and perhaps dropout, multiplied with the values, and used for nothing else. Later
runs leave all of this out and call the one function, whose backward pass then follows by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils.weak import WeakTensorKeyDictionary

from wavecast.frameworks.pytorch.changes.placeholders import (
    CASTS,
    VIEWS,
    LearningMode,
    SeenUses,
    placeholder,
    returns_tensors,
    tensors_in,
)

_MATMULS = frozenset({"matmul", "__matmul__", "bmm"})
_SCALES = frozenset({"mul", "mul_", "div", "div_", "__mul__", "__rmul__", "__imul__"}) | frozenset(
    {"true_divide", "__truediv__", "__itruediv__", "__div__"}
)
_MASKS = frozenset({"masked_fill", "masked_fill_", "where", "add", "add_", "__add__"}) | frozenset(
    {"__radd__", "__iadd__", "sub", "__sub__"}
)
_TRIANGLES = frozenset({"tril", "triu", "tril_", "triu_"})
_OF_MASKS = (
    VIEWS
    | CASTS
    | frozenset({"eq", "ne", "lt", "gt", "__eq__", "__ne__", "logical_not", "__invert__", "bool"})
    | frozenset({"masked_fill", "masked_fill_", "clone", "detach", "mul", "log", "cuda"})
)


@dataclass(frozen=True)
class _Scores:
    """Scores of attention, on their way to the values."""

    key: Any
    """The shapes of query and key."""
    query: Any
    key_transposed: Any
    scale: float = 1.0
    mask: Any = None
    causal: bool = False
    dropout: float = 0.0
    is_probability: bool = False


class FusedAttention(SeenUses):
    """What is known of the attention of one step: which matmuls are scores."""

    def __init__(self) -> None:
        super().__init__()
        self.triangles: Any = WeakTensorKeyDictionary()
        """Masks that let each token see the earlier ones."""

    def mode(self) -> LearningMode:
        """The mode that looks for attention in one run."""
        return _FusingMode(self)

    def is_triangle(self, name: str, given: list[Any], out: Any) -> bool:
        """Whether the result of a function is such a mask."""
        if name in _TRIANGLES:
            return True
        if name in _OF_MASKS and given and given[0] in self.triangles:
            return True
        # A module that moves its buffers to the GPU gives torch another object than it was given.
        shapes = {tuple(mask.shape) for mask in self.triangles}
        return name.startswith("_to_copy") and out.dim() > 1 and tuple(out.shape) in shapes


class _FusingMode(LearningMode):
    def __init__(self, fusion: FusedAttention) -> None:
        super().__init__(fusion)
        self._fusion = fusion

    def may_begin(self, name: str, given: list[Any]) -> bool:
        """Whether a function is a matmul of two tensors, which may give scores or use them."""
        return name in _MATMULS and len(given) == 2

    def begun(self, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        """The result of a matmul."""
        return self._matmul(func, args, kwargs, *given)

    def see(self, name: str, given: list[Any], out: Any) -> None:
        """Note masks that let each token see the earlier ones."""
        if isinstance(out, torch.Tensor) and self._fusion.is_triangle(name, given, out):
            self._fusion.triangles[out] = True

    def _matmul(self, func: Any, args: Any, kwargs: Any, left: Any, right: Any) -> Any:
        scores = self.followed.get(left)
        if scores is not None:
            if not scores.is_probability or right.dim() != scores.query.dim():
                self.spoil(scores.key)
                return func(*args, **kwargs)
            return _attend(scores, right) if self.end(scores.key) else func(*args, **kwargs)
        if right in self.followed:
            self.spoil(self.followed[right].key)
        if left.dim() not in (3, 4) or left.dim() != right.dim():
            return func(*args, **kwargs)
        key = tuple(left.shape), tuple(right.shape), torch.is_grad_enabled()
        if self.begin(key):
            out = placeholder(left, (*left.shape[:-1], right.shape[-1]))
        else:
            out = func(*args, **kwargs)
        self.followed[out] = _Scores(key, left, right)
        return out

    def use(self, func: Any, name: str, tensor: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function that is given scores."""
        scores = self.followed[tensor]
        changed = self._changed(scores, name, tensor, args, kwargs)
        if changed is None:
            out = func(*args, **kwargs)
            if returns_tensors(out):
                self.spoil(scores.key)
            return out
        is_replaced = self.is_replaced(scores.key) and name not in VIEWS
        out = placeholder(tensor, tensor.shape) if is_replaced else func(*args, **kwargs)
        self.followed[out] = changed
        return out

    def _changed(
        self, scores: _Scores, name: str, tensor: Any, args: Any, kwargs: Any
    ) -> _Scores | None:
        """The scores after a function; None if it does not belong to attention."""
        if name in CASTS or name in VIEWS or name in ("contiguous", "clone"):
            return scores
        if name in ("dropout", "dropout_", "feature_dropout"):
            rate = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            is_on = kwargs.get("training", args[2] if len(args) > 2 else True)
            return replace(scores, dropout=float(rate) if is_on else 0.0)
        if scores.is_probability:
            return None
        if name in ("softmax", "_softmax"):
            return replace(scores, is_probability=True)
        others = [value for value in tensors_in((args, kwargs)) if value is not tensor]
        if name in _SCALES:
            number = next((value for value in args if isinstance(value, int | float)), None)
            divides = "div" in name
            if number is None or not number:
                return scores if all(value.numel() == 1 for value in others) else None
            return replace(scores, scale=scores.scale * (1 / number if divides else number))
        if name in _MASKS:
            masks = [value for value in others if value.dim() > 1]
            if len(masks) != 1:
                return scores if not masks else None
            is_causal = masks[0] in self._fusion.triangles and scores.mask is None
            return replace(scores, causal=is_causal, mask=None if is_causal else masks[0])
        return None


def _attend(scores: _Scores, values: Any) -> Any:
    """The one function, called with what was found."""
    parts = [scores.query, scores.key_transposed.transpose(-2, -1), values]
    is_flat = values.dim() == 3
    if is_flat:
        parts = [part.unsqueeze(0) for part in parts]
    mask = scores.mask
    if mask is not None and mask.dtype is not torch.bool:
        mask = mask.to(parts[0].dtype)
    query, key, value = parts
    out = F.scaled_dot_product_attention(
        query, key, value, mask, scores.dropout, scores.causal, scale=scores.scale
    )
    return out.squeeze(0) if is_flat else out
