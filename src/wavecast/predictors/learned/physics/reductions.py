"""How torch divides a sum among threads and blocks (`setReduceConfig` of Reduce.cuh).

A block has a row of threads for neighbours in memory and several such rows. Rows of threads share
one sum if it is long, else each has its own. Long sums are divided among blocks, and the last of
these adds up their partial sums, one after the other.
"""

from __future__ import annotations

import math

from wavecast.ops.registry import integers, item_bytes
from wavecast.predictors.learned.physics.loops import SM_BLOCKS, ThreadLoop
from wavecast.traces.step import Op, TensorSpec

WARP = 32
MOST_THREADS = 512
"""Threads of a block; fewer where each computes several sums."""
LONG, LOADS = 16, 4
"""Values of a thread from which rows of threads share a sum, and values that it loads at a time."""
RESIDENT = {1: 2048, 2: 1536, 4: 1152}
"""Threads that an SM runs at a time, by the sums that each computes: 32, 40 and 56 registers of
65,536."""
DIVIDED = 256
"""Values of a thread from which blocks share a sum."""
OFFSET = 12.0
"""Elements that finding a value takes where it is summed over dimensions that do not lie one behind
the other: divisions, for each vector (2.4 values of an SM in a clock on our H200)."""
_NAMES = {
    *("aten.sum", "aten.mean", "aten.prod", "aten.amax", "aten.amin", "aten.max", "aten.min"),
    *("aten.argmax", "aten.argmin", "aten.any", "aten.all", "aten.norm", "aten.nansum"),
    *("aten.linalg_vector_norm", "aten.var", "aten.std", "aten.var_mean", "aten.std_mean"),
}
"""Ops that run torch's kernel for sums (`reduce_kernel`)."""


def reduction(op: Op) -> ThreadLoop | None:
    """How an op's sums are divided; None for ops that do not run torch's kernel for sums."""
    if op.base not in _NAMES or not op.inputs or not op.outputs:
        return None
    whole = op.inputs[0]
    reduced, kept = _dims(op, whole)
    sums = math.prod(size for size, _ in kept)
    length = math.prod(size for size, _ in reduced)
    if not sums * length:
        return None
    along = not kept or (bool(reduced) and reduced[0][1] < kept[0][1])
    fastest = (reduced if along else kept)[:1] or [(1, 1)]
    vector, loaded = 1, LOADS
    x, y = (length, sums) if along else (sums, length)
    if fastest[0][1] == 1:
        if along and x >= 128 and len(reduced) == 1:
            loaded = _input_vector(op, whole)
            x //= loaded
        elif not along:
            vector = _output_vector(kept, reduced)
            x //= vector
    width, height = _block(x, y, MOST_THREADS // vector)
    step = width if along else 1
    terms = _up(length, step)
    together = terms >= min(height * LONG, DIVIDED)
    columns = 1 if along else width
    if together:
        step, terms = step * height, _up(length, step * height)
    else:
        columns *= height
    sharing = height * (width if along else 1) if together and terms >= DIVIDED else 0
    outputs = sums // vector
    ragged = not along and outputs % width > 0
    threads = width * height
    offsets = OFFSET / vector if len(reduced) > 1 else 0.0
    resident = min(RESIDENT[vector] // threads, SM_BLOCKS)
    return ThreadLoop(
        _up(outputs, columns), threads, resident, terms, loaded, sharing, ragged,
        strided=fastest[0][1] > 1, offsets=offsets,
    )  # fmt: skip


def _dims(op: Op, whole: TensorSpec) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The sizes and strides of the dimensions that are summed over and of the others.

    The fastest comes first; of the others, in the order of the result. Neighbours that lie one
    behind the other in memory are one dimension (`TensorIterator::coalesce_dimensions`).
    """
    rank = len(whole.shape)
    named = {dim % rank for dim in _named(op)} if rank else set()
    over = named or set(range(rank))
    sizes = [(n, _stride(whole, i)) for i, n in enumerate(whole.shape)]
    reduced = sorted((sizes[i] for i in over if sizes[i][0] != 1), key=lambda d: d[1])
    others = [i for i in range(rank) if i not in over]
    out = op.outputs[0]
    places = others if len(out.shape) == rank else range(len(others))
    order = dict(zip(others, (_stride(out, place) for place in places), strict=True))
    others = sorted(others, key=lambda i: (order[i], -i))
    return _joined(reduced), _joined([sizes[i] for i in others if sizes[i][0] != 1])


def _stride(t: TensorSpec, dim: int) -> int:
    return t.strides[dim] if t.strides else math.prod(t.shape[dim + 1 :])


def _named(op: Op) -> tuple[int, ...]:
    """The dimensions that an op names; none if it takes all."""
    dim = op.attr("dim")
    return (dim,) if isinstance(dim, int) else integers(op, "dim")


def _joined(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Dimensions, with those that lie one behind the other in memory as one."""
    joined: list[tuple[int, int]] = []
    for size, stride in dims:
        if joined and stride == joined[-1][0] * joined[-1][1]:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return joined


def _input_vector(op: Op, whole: TensorSpec) -> int:
    """Values of a sum that a thread loads at once: more of two bytes, where torch has a kernel."""
    return 8 if op.base in ("aten.sum", "aten.mean") and item_bytes(whole) == 2 else LOADS


def _output_vector(kept: list[tuple[int, int]], reduced: list[tuple[int, int]]) -> int:
    """Neighbouring sums that a thread computes: all sizes and strides are multiples of it."""
    numbers = (kept[0][0], *(stride for _, stride in (*kept[1:], *reduced)))
    return math.gcd(4, *numbers)


def _block(x: int, y: int, most: int) -> tuple[int, int]:
    """The width and the height of a block: powers of two, of at most `most` threads."""
    wide, high = (min(1 << (max(n, 1).bit_length() - 1), most) for n in (x, y))
    height = min(high, most // min(wide, WARP))
    return min(wide, most // height), height


def _up(count: int, size: int) -> int:
    return -(-count // size)
