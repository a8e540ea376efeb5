"""Placements of a value on one axis of ranks: replicated, sharded along a dimension, or partial."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wavecast.traces.step import TensorSpec

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
    one, other = left.ranks, right.ranks
    known = np.where(one == UNKNOWN, other, one)
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
