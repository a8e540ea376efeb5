"""How a tensor is divided among ranks, and what the ops of PyTorch make of a divided tensor.

A trace has no tensor identities, only shapes. So a division is described by what is divided within
a dimension: `count` units of `inner` elements each. A view keeps the units, wherever they land.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

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
    try:
        return _viewed(shape, split, made, ranks)
    except Indivisible:
        units = shape[split.dim] // split.inner
        if units == split.count:
            raise
        # Not side by side, as was thought: queries, keys and values of one head after another.
        return _viewed(shape, replace(split, count=units), made, ranks)


def _viewed(shape: Sequence[int], split: Split, made: Sequence[int], ranks: int) -> Split | None:
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
        if above % lowest or (count % ranks and lowest > below):
            raise Indivisible(str(count))
        return Split(dim, count, lowest // stride)
    return None


def _packs(sizes: Sequence[int], count: int, stride: int, below: int, ranks: int) -> bool:
    """Whether the units are two or three packed tensors, with heads and their sizes below."""
    inside = [size for size in sizes[1:] if size > 1]
    if sizes[0] != count or stride <= below or len(inside) < 2:
        return False
    return count == 3 or (count == 2 and ranks > 2)


@lru_cache(maxsize=4096)  # repeated blocks have the same ops
def after(op: Op, inputs: Splits, ranks: int) -> Splits:
    """The divisions of an op's outputs, given those of its inputs.

    Raises:
        Indivisible: units fall into fewer than can be divided, as heads do.
    """
    if not any(inputs):
        return (None,) * len(op.outputs)
    rule = _RULES.get(op.base, _attended if "attention" in op.base else _like_an_input)
    return tuple(rule(op, inputs, made, ranks) for made in op.outputs)


def _first(op: Op, inputs: Splits) -> tuple[TensorSpec, Split]:
    """The first input that is divided."""
    return next((t, s) for t, s in zip(op.inputs, inputs, strict=True) if s is not None)


def _like_an_input(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    return _as_in(*_first(op, inputs), made)


def _as_viewed(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    tensor, split = _first(op, inputs)
    return viewed(tensor.shape, split, made.shape, ranks)


def _as_stacked(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    _, split = _first(op, inputs)
    return replace(split, dim=split.dim + (split.dim >= _dim(op, len(made.shape))))


def _as_looked_up(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    return inputs[1] if inputs[0] is None else None


def _attended(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
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


def _moved(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    """The division after dimensions were swapped or one was dropped."""
    tensor, split = _first(op, inputs)
    rank = len(tensor.shape)
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


def _resized(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    """The division of a piece along the same dimension, or of several joined."""
    _, split = _first(op, inputs)
    if split.dim >= len(made.shape):
        return None
    size = made.shape[split.dim]
    if size % (split.count * split.inner) == 0:
        return split
    return replace(split, count=max(size // split.inner, 1)) if size % split.inner == 0 else None


def _reduced(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    tensor, split = _first(op, inputs)
    rank, dims = len(tensor.shape), op.attr("dim")
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


def _after_product(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    """The division of a product: by its rows, its columns or its batch, not by what it sums."""
    rank = len(made.shape)
    left, right = inputs[-2:]
    if left is not None and left.dim < rank - 1:
        return left
    if right is not None and right.dim != rank - 2:
        return right
    return None


def _after_grouped(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    """The division of a product of the rows of each group with the weight of its expert."""
    left, right = inputs[:2]
    if len(made.shape) == 3:  # the gradient of the weights: the rows are summed
        if left is not None and left.dim == 0:
            return replace(left, dim=1)
        return replace(right, dim=2) if right is not None and right.dim == 1 else None
    if left is not None and left.dim == 0:
        return left
    return replace(right, dim=1) if right is not None and right.dim == 2 else None


def _after_index(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    """The division of picked rows: by row, if the rows or their indices are divided so."""
    columns = inputs[0]
    if columns is not None and columns.dim > 0:
        return _as_in(op.inputs[0], columns, made)
    by_row = any(split is not None and split.dim == 0 for split in inputs)
    return Split(0, made.shape[0]) if by_row and made.shape else None


def _after_rows(op: Op, inputs: Splits, made: TensorSpec, ranks: int) -> Split | None:
    """The division of rows that several divided rows are added to, as words have several experts.

    A table that rows are added to has no part of the units, and stays whole.
    """
    tensor, split = _first(op, inputs)
    if (same := _as_in(tensor, split, made)) or not made.shape or split.dim > 0:
        return same
    rows, given = made.shape[0], tensor.shape[0]
    if not rows or given % rows or rows % split.count:
        return None
    return replace(split, inner=max(split.inner * rows // given, 1))


_Rule = Callable[[Op, Splits, TensorSpec, int], Split | None]
_RULES: dict[str, _Rule] = {
    f"aten.{name}": rule
    for rule, names in (
        (_as_viewed, "view _unsafe_view reshape _reshape_alias unsqueeze squeeze"),
        (_moved, "t transpose permute unbind select"),
        (_resized, "cat split split_with_sizes chunk slice slice_backward narrow"),
        (_reduced, "sum mean amax amin var any all argmax"),
        (_as_stacked, "stack select_backward"),
        (_as_looked_up, "embedding"),
        (_after_product, "mm addmm bmm baddbmm"),
        (_after_grouped, "_grouped_mm"),
        (_after_index, "index index_put index_put_ index_select"),
        (_after_rows, "new_zeros index_add index_add_"),
    )
    for name in names.split()
}


@lru_cache(maxsize=4096)  # repeated blocks have the same ops
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
