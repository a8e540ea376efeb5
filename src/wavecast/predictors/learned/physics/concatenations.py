"""The time of `cat`, whose kernel depends on how its inputs are stored (torch's Shape.cu).

Contiguous inputs whose slices are multiples of 16 bytes move in pieces of 16 bytes, others element
by element. Each input of either kind gets as many thread blocks as the largest one needs; those of
a shorter input begin and end with nothing to move. Strided inputs need divisions for the place of
each element. Each of these gets two blocks for each SM, so that one long input leaves SMs idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wavecast.ops.registry import Cost, integer
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.columns import Columns, ConcatenationRow
from wavecast.predictors.learned.physics.tiles import Bounds, Theta, TimeLimits
from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

PIECES, CONTIGUOUS, STRIDED = 0.0, 1.0, 2.0
"""Values of `ConcatenationRow.inputs`."""
PIECE_BYTES = 16
"""Bytes that a thread moves at once."""
MOST_DIMENSIONS = 4
"""Tensors of more dimensions are copied one after the other."""
CONCATENATION_PARAMETERS: dict[str, Bounds] = {
    "floor_us": (1.5, 0.3, 6.0),  # microseconds of the smallest kernel
    "dram": (0.85, 0.4, 1.0),  # share of the bandwidth
    "resident": (0.3, 0.0, 1.0),  # share of L2 that holds operands from the op before
    "pieces_per_clock": (0.5, 0.1, 8.0),  # pieces of 16 bytes that an SM moves in a clock
    "contiguous_per_clock": (1.5, 0.2, 16.0),  # elements of contiguous inputs
    "strided_per_clock": (0.8, 0.2, 16.0),  # elements of strided inputs
    "alone": (0.7, 0.2, 1.0),  # share of that rate which the blocks of one strided input reach
    "idle": (0.2, 0.0, 1.0),  # cost of an item's place in a block that has nothing to move
}


def row_of(op: Op, cost: Cost) -> ConcatenationRow | None:
    """The columns of a `cat`; None where torch copies the inputs one after the other."""
    out, given = op.outputs[0], [t for t in op.inputs if t.numel]
    alike = len({t.dtype for t in op.inputs}) == 1 and len(given) > 1
    if not alike or len(out.shape) > MOST_DIMENSIONS:
        return None
    order = (0, 2, 3, 1) if out.channels_last else tuple(range(len(out.shape)))
    inputs = _stored_as(given, order)
    if inputs == STRIDED and out.channels_last:
        return None
    dim = integer(op, "dim") % max(len(out.shape), 1)
    inner = DTYPE_BYTES[out.dtype] * math.prod(out.shape[dim + 1 :])
    if inputs == CONTIGUOUS and not out.channels_last:
        whole = all(t.shape[dim] * inner % PIECE_BYTES == 0 for t in given)
        inputs = PIECES if whole else CONTIGUOUS
    item = PIECE_BYTES / DTYPE_BYTES[out.dtype] if inputs == PIECES else 1.0
    return ConcatenationRow(
        read_bytes=cost.read_bytes,
        written_bytes=cost.written_bytes,
        items=out.numel / item,
        largest_items=max(t.numel for t in given) / item,
        launched_items=len(given) * max(t.numel for t in given) / item,
        inputs=inputs,
    )


def _stored_as(given: Sequence[TensorSpec], order: Sequence[int]) -> float:
    """Whether all tensors are contiguous with their dimensions in this order."""

    def contiguous(tensor: TensorSpec) -> bool:
        if len(tensor.shape) != len(order):
            return False
        if tensor.strides is None:
            return list(order) == sorted(order)
        follows = 1
        for dim in reversed(order):
            if tensor.shape[dim] != 1 and tensor.strides[dim] != follows:
                return False
            follows *= tensor.shape[dim]
        return True

    return CONTIGUOUS if all(map(contiguous, given)) else STRIDED


def concatenation_limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
    """The limits of `cat`: memory, all inputs together, and the largest input by itself."""
    moved = columns["read_bytes"] + columns["written_bytes"]
    hit = np.minimum(theta["resident"] * gpu.l2_bytes / np.maximum(moved, 1.0), 0.9)
    memory_s = moved * (1.0 - hit) / (gpu.bytes_per_s * theta["dram"])
    rates = np.array(
        [theta[f"{name}_per_clock"] for name in ("pieces", "contiguous", "strided")],
    )[columns["inputs"].astype(np.int64)]
    unfilled = np.maximum(columns["launched_items"] - columns["items"], 0.0)
    items: Floats = np.where(
        columns["inputs"] == STRIDED,
        np.maximum(columns["items"], columns["largest_items"] / theta["alone"]),
        columns["items"] + theta["idle"] * unfilled,
    )
    chip_s: Floats = items / (gpu.sm * gpu.clock_hz * rates)
    return TimeLimits(theta["floor_us"] * 1e-6, memory_s, chip_s)
