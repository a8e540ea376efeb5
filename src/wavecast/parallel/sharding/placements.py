"""Placements of a value on one axis of ranks: replicated, sharded along a dimension, or partial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wavecast.traces.step import Op, TensorSpec

Ranks = NDArray[np.uint16]
Kind = Literal["features", "tokens", "context", "routed"]
UNKNOWN = 0xFFFF
"""The rank of an element that is zero on all ranks, beside the gradient of a slice."""


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Which rank has which element along a sharded dimension.

    A shard is not always one piece: each rank has some heads of the queries, of the keys and of
    the values of a fused weight.
    """

    owners: bytes
    """The rank of each element, as 16-bit numbers."""
    kind: Kind
    """Features of weights; tokens, of the hidden state only or in attention as well (context); or
    rows that were sent to their experts."""

    @property
    def size(self) -> int:
        """The elements of all ranks."""
        return len(self.owners) // 2

    @property
    def ranks(self) -> Ranks:
        """The rank of each element, as an array."""
        return np.frombuffer(self.owners, np.uint16)


def layout_of(owners: NDArray[Any], kind: Kind) -> ShardLayout:
    """The layout of an array of ranks."""
    return ShardLayout(np.ascontiguousarray(owners, np.uint16).tobytes(), kind)


@lru_cache(maxsize=1024)
def even(size: int, ranks: int, kind: Kind, balanced: bool = False) -> ShardLayout:
    """Pieces of equal size in order, the last ones smaller if need be.

    A balanced layout gives each rank one piece from the front and one from the back.
    """
    pieces = 2 * ranks if balanced else ranks
    piece = np.arange(size) // max(-(-size // pieces), 1)
    return layout_of(np.minimum(piece, 2 * ranks - 1 - piece) if balanced else piece, kind)


@lru_cache(maxsize=4096)
def _part(layout: ShardLayout) -> int:
    if layout.kind == "routed":  # a rank receives as many rows as it sends
        return layout.size
    owners = layout.ranks
    known = owners[owners != UNKNOWN]
    if len(known) < len(owners):
        return -(-len(owners) // (int(known.max(initial=0)) + 1))
    return int(np.bincount(owners).max()) if layout.size else 0


@lru_cache(maxsize=4096)
def merged(left: ShardLayout, right: ShardLayout) -> ShardLayout | None:
    """The layout of two tensors that go together; None if they are on other ranks."""
    if left == right:
        return left
    if left.size != right.size or left.kind != right.kind:
        return None
    if left.kind != "features":  # shifted by a token, as labels are
        return left
    own, other = left.ranks, right.ranks
    known = np.where(own == UNKNOWN, other, own)
    same = (known == other) | (other == UNKNOWN)
    return layout_of(known, left.kind) if same.all() else None


@lru_cache(maxsize=1024)
def stretched(layout: ShardLayout, size: int) -> ShardLayout:
    """The layout of another number of rows that belong to the same tokens."""
    if size == layout.size:
        return layout
    return layout_of(layout.ranks[np.arange(size) * layout.size // size], layout.kind)


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank has the whole tensor."""


@dataclass(frozen=True, slots=True)
class Partial:
    """Every rank has a term of the sum."""

    routed: bool = False
    """Whether rows are still in the order of experts: they are summed in the order of tokens."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Every rank has a part along one dimension."""

    dim: int
    layout: ShardLayout


Placement = Replicate | Partial | Shard
Placements = tuple[Placement, ...]
REPLICATE, PARTIAL = Replicate(), Partial()


def local(tensor: TensorSpec, placement: Placement) -> TensorSpec:
    """One rank's part of a tensor: the largest, where parts differ."""
    return _sharded(tensor, placement) if isinstance(placement, Shard) else tensor


@lru_cache(maxsize=65536)
def _sharded(tensor: TensorSpec, shard: Shard) -> TensorSpec:
    size, layout = tensor.shape[shard.dim], shard.layout
    # Another axis may have sharded the dimension before.
    part = -(-size * _part(layout) // max(layout.size, 1))
    shape = (*tensor.shape[: shard.dim], part, *tensor.shape[shard.dim + 1 :])
    strides = tensor.strides
    if strides is not None:
        strides = _strides(strides, shape, strides[shard.dim] * size, size, part)
    return TensorSpec(shape, tensor.dtype, strides, tensor.device)


def _strides(
    strides: tuple[int, ...], shape: tuple[int, ...], span: int, size: int, part: int
) -> tuple[int, ...] | None:
    """The strides of a shard: those that span the sharded dimension become shorter."""
    if span:
        strides = tuple(s // size * part if s >= span else s for s in strides)
    contiguous, step = [], 1
    for length in reversed(shape):
        contiguous.append(step)
        step *= length
    return None if strides == tuple(reversed(contiguous)) else strides


# Ops that move elements without computing: what they do to an array of marks on a tensor.
#
# An array has one mark an element. It has size 1 along dimensions that all have the same marks, so
# the heads of a (batch, sequence, heads, features) tensor are marked by a (1, 1, heads, 1) array.


Marks = NDArray[Any]


def compressed(marks: Marks) -> Marks:
    """The marks with size 1 along dimensions that have equal ones."""
    for dim, size in enumerate(marks.shape):
        if size > 1:
            first = marks.take([0], dim)
            if (marks == first).all():
                marks = first
    return marks


def reshaped(marks: Marks, before: Sequence[int], after: Sequence[int]) -> Marks:
    """The marks after a view of another shape."""
    wide, shape = [], []
    for old, new in _groups(before, after):
        varies = any(marks.shape[dim] > 1 for dim in old)
        wide += [before[dim] if varies else 1 for dim in old]
        shape += [after[dim] if varies else 1 for dim in new]
    return compressed(np.broadcast_to(marks, wide).reshape(shape))


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """The runs of dimensions with as many elements before a view as after it."""
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        start, first = i, j
        left, i = (before[i], i + 1) if i < len(before) else (1, i)
        right, j = (after[j], j + 1) if j < len(after) else (1, j)
        while left != right and (i < len(before) or j < len(after)):
            if (left < right and i < len(before)) or j == len(after):
                left, i = left * before[i], i + 1
            else:
                right, j = right * after[j], j + 1
        groups.append((range(start, i), range(first, j)))
    return groups


def dim_of(op: Op, rank: int, name: str = "dim", default: int = 0) -> int:
    """A dimension among an op's attributes, counted from the front."""
    dim = op.attr(name, default)
    return dim % rank if isinstance(dim, int) and rank else 0


def _number(op: Op, name: str, default: int) -> int:
    value = op.attr(name, default)
    return value if isinstance(value, int) else default


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    value = op.attr(name, ())
    return tuple(int(number) for number in value) if isinstance(value, tuple) else ()


def _view(op: Op, marks: Marks) -> list[Marks]:
    return [reshaped(marks, op.inputs[0].shape, op.outputs[0].shape)]


def _transposed(op: Op, marks: Marks) -> list[Marks]:
    rank = marks.ndim
    if op.base == "aten.permute":
        return [marks.transpose([dim % rank for dim in _numbers(op, "dims")])]
    if op.base in ("aten.t", "aten.numpy_T"):
        return [marks.T]
    return [np.swapaxes(marks, dim_of(op, rank, "dim0"), dim_of(op, rank, "dim1", 1))]


def _sliced(op: Op, marks: Marks) -> list[Marks]:
    dim = dim_of(op, marks.ndim)
    if marks.shape[dim] == 1:
        return [marks]
    start, step = _number(op, "start", 0), _number(op, "step", 1)
    size, length = op.inputs[0].shape[dim], op.outputs[0].shape[dim]
    start = max(start + size if start < 0 else start, 0)
    return [compressed(marks.take(start + step * np.arange(length), dim))]


def _selected(op: Op, marks: Marks) -> list[Marks]:
    dim = dim_of(op, marks.ndim)
    index = _number(op, "index", 0) if marks.shape[dim] > 1 else 0
    return [compressed(marks.take(index, dim))]


def _unbound(op: Op, marks: Marks) -> list[Marks]:
    dim = dim_of(op, marks.ndim)
    wide = marks.shape[dim] > 1
    return [compressed(marks.take(i if wide else 0, dim)) for i in range(len(op.outputs))]


def _split(op: Op, marks: Marks) -> list[Marks]:
    dim = dim_of(op, marks.ndim)
    if marks.shape[dim] == 1:
        return [marks] * len(op.outputs)
    ends = np.cumsum([result.shape[dim] for result in op.outputs])[:-1]
    return [compressed(piece) for piece in np.split(marks, ends, dim)]


def _expanded(op: Op, marks: Marks) -> list[Marks]:
    new = len(op.outputs[0].shape) - marks.ndim
    return [marks.reshape((1,) * new + marks.shape)]


def _repeated(op: Op, marks: Marks) -> list[Marks]:
    marks = _expanded(op, marks)[0]
    repeats = _numbers(op, "repeats")
    times = [n if size > 1 else 1 for n, size in zip(repeats, marks.shape, strict=True)]
    return [np.tile(marks, times)]


def _flipped(op: Op, marks: Marks) -> list[Marks]:
    return [np.flip(marks, tuple(dim % marks.ndim for dim in _numbers(op, "dims")))]


MOVES: dict[str, Callable[[Op, Marks], list[Marks]]] = {
    f"aten.{name}": move
    for move, names in (
        (_view, "view _unsafe_view reshape _reshape_alias unsqueeze squeeze flatten view_as"),
        (_transposed, "t transpose permute numpy_T"),
        (_sliced, "slice narrow"),
        (_selected, "select"),
        (_unbound, "unbind"),
        (_split, "split split_with_sizes chunk split_with_sizes_copy"),
        (_expanded, "expand"),
        (_repeated, "repeat"),
        (_flipped, "flip"),
    )
    for name in names.split()
}
"""The ops on one tensor that only move elements."""
