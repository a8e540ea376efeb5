"""Functions of torch that are replaced once a first run has shown what their results are used for.

Where a result is not computed any more, a placeholder stands for it: one element, seen as many.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.optim import optimizer as optimizer_hooks
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint
from torch.utils.weak import WeakTensorKeyDictionary

VIEWS = frozenset({"view", "reshape", "flatten", "unflatten", "__getitem__", "unsqueeze"}) | (
    frozenset({"squeeze", "transpose", "permute", "expand", "narrow", "view_as", "select"})
)
"""Functions whose result sees the same elements in another shape."""
CASTS = frozenset({"to", "float", "half", "bfloat16", "type", "type_as"})
"""Functions whose result has another type, or is elsewhere."""


def name_of(func: Any) -> str:
    """The name of a function of torch."""
    return str(getattr(func, "__name__", ""))


def tensors_in(values: Any) -> list[Any]:
    """The tensors among the arguments of a function."""
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def returns_tensors(out: Any) -> bool:
    """Whether a result has tensors; sizes and types have none."""
    return bool(tensors_in(out))


def placeholder(like: Any, shape: Any) -> Any:
    """A tensor of a shape with the memory of one element."""
    with torch.no_grad():
        return like.detach().new_empty(1).expand(tuple(shape))


class SeenUses(ABC):
    """What the runs of one step have shown: the shapes whose results are used in one way only."""

    def __init__(self) -> None:
        self.known: frozenset[Any] = frozenset()

    @abstractmethod
    def mode(self) -> LearningMode:
        """The mode that looks at the functions of one run."""

    @contextmanager
    def active(self) -> Iterator[None]:
        """Run the block with functions replaced, as far as earlier runs have shown what they do.

        What this run shows is learned at each update of weights and at its end.
        """
        mode = self.mode()

        def learn(*_: Any) -> None:
            self.known |= mode.found()

        hook = optimizer_hooks.register_optimizer_step_post_hook(learn)
        try:
            with mode:
                yield
        finally:
            hook.remove()
        learn()


class LearningMode(TorchFunctionMode, ABC):
    """Looks at each call of a function of torch, and counts what begins and ends as expected."""

    def __init__(self, learned: SeenUses) -> None:
        super().__init__()
        self._learned = learned
        self._begun: Counter[Any] = Counter()
        self._ended: Counter[Any] = Counter()
        self._spoiled: set[Any] = set()
        self.followed: Any = WeakTensorKeyDictionary()
        """The results whose use is looked at, and what is known of them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The result of a function of torch, or what stands for it."""
        kwargs, name = kwargs or {}, name_of(func)
        given = tensors_in((args, kwargs))
        if self.may_begin(name, given):
            return self.begun(func, args, kwargs, given)
        for tensor in given:
            if tensor in self.followed:
                return self.use(func, name, tensor, args, kwargs)
        out = func(*args, **kwargs)
        self.see(name, given, out)
        return out

    @abstractmethod
    def may_begin(self, name: str, given: list[Any]) -> bool:
        """Whether the result of a function may be one whose use is to be looked at."""

    @abstractmethod
    def begun(self, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        """The result of a function that may begin something."""

    @abstractmethod
    def use(self, func: Any, name: str, tensor: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function that is given a tensor whose use is looked at."""

    def see(self, name: str, given: list[Any], out: Any) -> None:
        """Look at the result of any other function."""

    def found(self) -> frozenset[Any]:
        """The keys of which each that began has ended, and none was used otherwise."""
        whole = (key for key, times in self._ended.items() if self._begun[key] == times)
        return frozenset(whole) - self._spoiled

    def begin(self, key: Any) -> bool:
        """Note that something of a key begins, and return whether it is replaced."""
        self._begun[key] += 1
        return key in self._learned.known

    def end(self, key: Any) -> bool:
        """Note that something of a key ended as expected, and return whether it is replaced."""
        self._ended[key] += 1
        return key in self._learned.known

    def spoil(self, key: Any) -> None:
        """Note that something of a key was used otherwise."""
        self._spoiled.add(key)

    def is_replaced(self, key: Any) -> bool:
        """Whether what has this key is replaced."""
        return key in self._learned.known


# Attention that is written by hand, run by torch's `scaled_dot_product_attention` instead.
#
# The first run of a step shows which matmuls are scores: their result is scaled, masked, passed
# through softmax and perhaps dropout, multiplied with the values, and used for nothing else. Later
# runs leave all of this out and call the one function, whose backward pass then follows by itself.


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


# The loss of a language model, computed in chunks of tokens so that not all logits exist at once.
#
# As for attention, the first run of a step shows which output layers feed only a cross-entropy;
# later runs compute both together, a chunk of tokens at a time, and again in the backward pass.


CHUNKS = 8
"""The number of chunks, as in torchtune."""
_LEAST_CLASSES = 8192
"""Output layers with fewer classes are no language models'."""


@dataclass(frozen=True)
class _Logits:
    """Logits, and what they are computed from."""

    key: Any
    hidden: Any
    weight: Any
    bias: Any


class ChunkedLoss(SeenUses):
    """What is known of the loss of one step: which output layers feed only the loss."""

    def mode(self) -> LearningMode:
        """The mode that looks for the loss in one run."""
        return _ChunkingMode(self)


class _ChunkingMode(LearningMode):
    def may_begin(self, name: str, given: list[Any]) -> bool:
        """Whether a function is the output layer of a language model."""
        return name == "linear" and len(given) >= 2 and given[1].shape[0] >= _LEAST_CLASSES

    def begun(self, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
        """The logits, or what stands for them."""
        hidden, weight, *bias = given
        key = tuple(hidden.shape), tuple(weight.shape), torch.is_grad_enabled()
        if self.begin(key):
            out = placeholder(hidden, (*hidden.shape[:-1], weight.shape[0]))
        else:
            out = func(*args, **kwargs)
        self.followed[out] = _Logits(key, hidden, weight, bias[0] if bias else None)
        return out

    def use(self, func: Any, name: str, tensor: Any, args: Any, kwargs: Any) -> Any:
        """The result of a function that is given logits."""
        logits = self.followed[tensor]
        is_replaced = self.is_replaced(logits.key)
        if name == "cross_entropy" and tensor is (args[0] if args else kwargs.get("input")):
            self.end(logits.key)
            target = args[1] if len(args) > 1 else kwargs["target"]
            return _loss(logits, target) if is_replaced else func(*args, **kwargs)
        if name in CASTS or name in VIEWS or name == "contiguous":
            out = tensor if is_replaced and name not in VIEWS else func(*args, **kwargs)
            self.followed[out] = logits
            return out
        out = func(*args, **kwargs)
        if returns_tensors(out):
            self.spoil(logits.key)
        return out


def _loss(logits: _Logits, target: Any) -> Any:
    """The mean of the losses of all tokens, summed over chunks."""
    classes = target.flatten()
    hidden = logits.hidden.flatten(0, -2)[: classes.numel()]

    def part(rows: Any, classes: Any) -> Any:
        logits_of_rows = F.linear(rows, logits.weight, logits.bias)
        return F.cross_entropy(logits_of_rows, classes, reduction="sum")

    pairs = zip(hidden.chunk(CHUNKS), classes.chunk(CHUNKS), strict=True)
    sums = [checkpoint(part, *pair, use_reentrant=False) for pair in pairs]
    return torch.stack(sums).sum() / classes.numel()
