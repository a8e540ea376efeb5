"""How a tensor is divided among ranks, and what the ops of PyTorch make of a divided tensor.

A trace has no tensor identities, only shapes. So a division is described by what is divided within
a dimension: `count` units of `inner` elements each. A view keeps the units, wherever they land.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.traces.step import Op, Scalar, TensorSpec


@dataclass(frozen=True)
class Split:
    """A dimension of a tensor that is divided among ranks.

    The dimension has `count` units of `inner` elements each, repeated if its size is larger: the
    flattened heads of three samples are three times the units, and each rank has its share of all.
    """

    dim: int
    count: int
    inner: int = 1


Splits = tuple[Split | None, ...]
"""The divisions of several tensors; None for a whole one."""


class Indivisible(InvalidInput):
    """Units, such as attention heads, that cannot be divided evenly."""


def share(tensor: TensorSpec, split: Split | None, ranks: int) -> TensorSpec:
    """One rank's part of a tensor: the largest, where parts differ."""
    if split is None:
        return tensor
    size = tensor.shape[split.dim]
    unit = split.count * split.inner
    part = size // unit * -(-split.count // ranks) * split.inner
    shape = (*tensor.shape[: split.dim], part, *tensor.shape[split.dim + 1 :])
    if tensor.strides is None:
        return replace(tensor, shape=shape)
    return replace(tensor, shape=shape, strides=_strides(tensor.strides, shape, split, size, part))


def _strides(
    strides: tuple[int, ...], shape: tuple[int, ...], split: Split, size: int, part: int
) -> tuple[int, ...] | None:
    """The strides of a part: those that span the divided dimension become shorter."""
    span = strides[split.dim] * size
    if span:
        strides = tuple(s // size * part if s >= span else s for s in strides)
    contiguous, step = [], 1
    for length in reversed(shape):
        contiguous.append(step)
        step *= length
    return None if strides == tuple(reversed(contiguous)) else strides


def viewed(shape: Sequence[int], split: Split, made: Sequence[int], ranks: int) -> Split | None:
    """The division of a tensor after a view of another shape.

    Raises:
        Indivisible: the units fall into fewer than can be divided, as heads do.
    """
    below = split.inner * math.prod(shape[split.dim + 1 :])
    above = below * split.count
    stride = math.prod(made)
    for dim, size in enumerate(made):
        stride //= max(size, 1)
        if size <= 1 or not stride < above <= stride * size:
            continue
        lowest = max(below, stride)
        count = above // lowest
        if _packs(made[dim:], count, stride, below, ranks):
            above = stride  # queries, keys and values side by side: each of them is divided
            continue
        if count % ranks and lowest > below:
            raise Indivisible(str(count))
        return Split(dim, count, lowest // stride)
    return None


def _packs(sizes: Sequence[int], count: int, stride: int, below: int, ranks: int) -> bool:
    """Whether the units are two or three packed tensors, with heads and their sizes below."""
    inside = [size for size in sizes[1:] if size > 1]
    if sizes[0] != count or stride <= below or len(inside) < 2:
        return False
    return count == 3 or (count == 2 and ranks > 2)


_VIEWS = frozenset(
    f"aten.{name}"
    for name in ("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze")
)
_SAME_DIM = frozenset(
    f"aten.{name}"
    for name in ("cat", "split", "split_with_sizes", "chunk", "slice", "slice_backward", "narrow")
)
_REDUCTIONS = frozenset(
    f"aten.{name}" for name in ("sum", "mean", "amax", "amin", "var", "any", "all", "argmax")
)


def after(op: Op, inputs: Splits, ranks: int) -> Splits:
    """The divisions of an op's outputs, given those of its inputs."""
    first = next(
        ((t, s) for t, s in zip(op.inputs, inputs, strict=True) if s is not None), (None, None)
    )
    tensor, split = first
    if tensor is None or split is None:
        return (None,) * len(op.outputs)
    base = op.base
    if base in _VIEWS:
        return tuple(viewed(tensor.shape, split, made.shape, ranks) for made in op.outputs)
    if base in ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"):
        return (_after_product(op, inputs),)
    if base in ("aten.t", "aten.transpose", "aten.permute", "aten.unbind", "aten.select"):
        return tuple(_moved(op, len(tensor.shape), split) for _ in op.outputs)
    if base in ("aten.stack", "aten.select_backward"):
        dim = _dim(op, len(op.outputs[0].shape))
        return (replace(split, dim=split.dim + (split.dim >= dim)),)
    if base in _SAME_DIM:
        return tuple(_resized(split, made) for made in op.outputs)
    if base in _REDUCTIONS:
        return tuple(_reduced(op, len(tensor.shape), split) for _ in op.outputs)
    if "attention" in base:
        return tuple(_attended(op, inputs, made) for made in op.outputs)
    if base == "aten.embedding":
        return (split,) if inputs[0] is None else (None,)
    return tuple(_as_in(tensor, split, made) for made in op.outputs)


def _attended(op: Op, inputs: Splits, made: TensorSpec) -> Split | None:
    """The division of what attention gives: keys and queries may differ in their heads."""
    for tensor, split in zip(op.inputs, inputs, strict=True):
        if split is not None and (same := _as_in(tensor, split, made, right=False)):
            return same
    return None


def adopted(op: Op, inputs: Splits, outputs: Splits) -> Splits:
    """The divisions of an elementwise op's inputs: whole tensors are cut to the parts of others.

    So are the heads of keys and values that attention reads.
    """
    heads = [split for split in inputs if split is not None and split.dim == 1]
    if "attention" in op.base and heads:
        return tuple(
            Split(1, tensor.shape[1]) if known is None and len(tensor.shape) == 4 else known
            for tensor, known in zip(op.inputs, inputs, strict=True)
        )
    if len(op.outputs) != 1 or outputs[0] is None or not _is_elementwise(op):
        return inputs
    split, made = outputs[0], op.outputs[0]
    cut = []
    for tensor, known in zip(op.inputs, inputs, strict=True):
        dim = split.dim - len(made.shape) + len(tensor.shape)
        fits = dim >= 0 and tensor.shape[dim] == made.shape[split.dim]
        cut.append(replace(split, dim=dim) if known is None and fits else known)
    return tuple(cut)


def _is_elementwise(op: Op) -> bool:
    made = op.outputs[0].shape
    return any(tensor.shape == made for tensor in op.inputs) and op.base not in (
        "aten.bmm",
        "aten.mm",
        "aten.cat",
        "aten.embedding",
    )


def _dim(op: Op, rank: int) -> int:
    dim = op.attr("dim", 0)
    return dim % rank if isinstance(dim, int) and rank else 0


def _moved(op: Op, rank: int, split: Split) -> Split | None:
    """The division after dimensions were swapped or one was dropped."""
    if op.base == "aten.t":
        return replace(split, dim=1 - split.dim)
    if op.base == "aten.transpose":
        one, other = (int(op.attr(name, 0)) % rank for name in ("dim0", "dim1"))  # type: ignore[arg-type]
        return replace(split, dim={one: other, other: one}.get(split.dim, split.dim))
    if op.base == "aten.permute":
        dims = op.attr("dims", ())
        order = [int(dim) % rank for dim in dims] if isinstance(dims, tuple) else []
        return replace(split, dim=order.index(split.dim))
    dropped = _dim(op, rank)
    if dropped == split.dim:
        return None
    return replace(split, dim=split.dim - (split.dim > dropped))


def _resized(split: Split, made: TensorSpec) -> Split | None:
    """The division of a piece along the same dimension, or of several joined."""
    if split.dim >= len(made.shape):
        return None
    size = made.shape[split.dim]
    if size % (split.count * split.inner) == 0:
        return split
    return replace(split, count=max(size // split.inner, 1)) if size % split.inner == 0 else None


def _reduced(op: Op, rank: int, split: Split) -> Split | None:
    dims = op.attr("dim")
    if dims is None:
        return None
    listed = dims if isinstance(dims, tuple) else (dims,)
    reduced = {int(dim) % rank for dim in listed if isinstance(dim, int)}
    if split.dim in reduced or not reduced:
        return None
    if op.attr("keepdim", False):
        return split
    return replace(split, dim=split.dim - sum(dim < split.dim for dim in reduced))


def _as_in(tensor: TensorSpec, split: Split, made: TensorSpec, right: bool = True) -> Split | None:
    """The division of an output that has the divided dimension of an input."""
    size = tensor.shape[split.dim]
    aligned = split.dim + len(made.shape) - len(tensor.shape)
    order = (aligned, split.dim) if right else (split.dim, aligned)
    for dim in order:
        if 0 <= dim < len(made.shape) and made.shape[dim] == size:
            return replace(split, dim=dim)
    return None


def _after_product(op: Op, inputs: Splits) -> Split | None:
    """The division of a product: by its rows, its columns or its batch, not by what it sums."""
    rank = len(op.outputs[0].shape)
    left, right = inputs[-2:]
    if left is not None and left.dim < rank - 1:
        return left
    if right is not None and right.dim != rank - 2:
        return right
    return None


def share_op(op: Op, inputs: Splits, outputs: Splits, ranks: int) -> Op:
    """The op as one rank runs it."""
    if not any(inputs) and not any(outputs):
        return op
    made = tuple(share(t, s, ranks) for t, s in zip(op.outputs, outputs, strict=True))
    taken = tuple(share(t, s, ranks) for t, s in zip(op.inputs, inputs, strict=True))
    attrs = tuple((name, _sized(name, value, op, made)) for name, value in op.attrs)
    return Op(op.name, taken, made, attrs)


def _sized(name: str, value: Scalar, op: Op, made: tuple[TensorSpec, ...]) -> Scalar:
    """A size among the attributes, as one rank has it."""
    if name in ("size", "input_sizes") and made and isinstance(value, tuple):
        return made[0].shape if len(value) == len(made[0].shape) else value
    if name == "num_weights" and made:
        return made[0].shape[0]
    return value
