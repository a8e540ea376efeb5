"""The time of kernels that Inductor made of several ops."""

from __future__ import annotations

import numpy as np

from wavecast.ops.fused import FUSED
from wavecast.ops.registry import Cost, integer
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.columns import (
    LISTS,
    LOOPS,
    POINTS,
    ROWS,
    Columns,
    FusedRow,
)
from wavecast.predictors.learned.physics.tiles import Bounds, Theta, TimeLimits, overlapped
from wavecast.traces.step import Op

FUSED_PARAMETERS: dict[str, Bounds] = {
    "floor_us": (1.5, 0.3, 6.0),  # microseconds of the smallest kernel
    "dram": (0.85, 0.4, 1.0),  # share of the bandwidth
    "resident": (0.3, 0.0, 1.0),  # share of L2 that holds operands from the kernel before
    "l2_bytes": (40.0, 16.0, 64.0),  # bytes that an SM reads through L2 in a clock
    "twisted": (3.0, 0.0, 32.0),  # additional L2 traffic of accesses in strides
    "indirect": (0.5, 0.0, 16.0),  # additional L2 traffic of lookups
    "again": (0.5, 0.0, 1.5),  # cost of a second read that misses L2, relative to the first
    "held": (0.5, 0.02, 4.0),  # share of L2 that a first read may fill so that a second one hits
    "loads": (32.0, 4.0, 128.0),  # loads of an SM in a clock
    "flops": (0.3, 0.05, 1.0),  # share of the plain cores' rate
    "random": (60.0, 5.0, 600.0),  # operations of one random number
    "atomic": (1.0, 0.05, 8.0),  # atomic additions of an SM in a clock
    "tensor_us": (0.02, 0.0, 1.0),  # microseconds for each tensor of a list
    "row_clocks": (60.0, 0.0, 2000.0),  # clocks of an SM for a row that has a block to itself
    "block_bytes": (24.0, 2.0, 128.0),  # bytes that a block reads or writes in a clock
    "columns": (32.0, 4.0, 256.0),  # points of a block whose sums run across memory
    "latency": (700.0, 100.0, 4000.0),  # clocks of one turn of a block's loop
}
SHAPES = dict(zip(FUSED, (POINTS, LOOPS, ROWS, LISTS), strict=True))
BLOCK = 1024.0
"""Points of a block without sums."""
TURN = 2048.0
"""Terms that a block adds up in one turn of its loop."""
BLOCKS = 4.0
"""Blocks that an SM runs at a time."""


def row_of(op: Op, cost: Cost) -> FusedRow:
    """The columns of a fused kernel."""
    points, reduction = integer(op, "points"), max(integer(op, "reduction", 1), 1)
    work = points * reduction
    return FusedRow(
        points=points,
        reduction=reduction,
        read_bytes=cost.read_bytes,
        written_bytes=cost.written_bytes,
        strided_bytes=integer(op, "strided_bytes"),
        indirect_bytes=integer(op, "indirect_bytes"),
        again_bytes=integer(op, "again_bytes"),
        atomic_adds=integer(op, "atomic_bytes") / 4,
        loads=work * _number(op, "loads"),
        random=work * _number(op, "random"),
        flops=cost.flops,
        tensors=max(integer(op, "tensors", 1), 1),
        shape=SHAPES[op.name],
        inner=bool(op.attr("inner", False)),
        mixed=integer(op, "mixed"),
        buffers=len(op.inputs) + len(op.outputs),
    )


def _number(op: Op, name: str) -> float:
    value = op.attr(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def fused_limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
    """The limits of fused kernels: memory, L2, loads, arithmetic, and blocks that are too few."""
    clocks = gpu.sm * gpu.clock_hz
    moved = columns["read_bytes"] + columns["written_bytes"]
    miss = np.clip(columns["again_bytes"] / (theta["held"] * gpu.l2_bytes) - 0.5, 0.0, 1.0)
    hit = np.minimum(theta["resident"] * gpu.l2_bytes / np.maximum(moved, 1.0), 0.9)
    dram = moved * (1.0 - hit) + columns["again_bytes"] * miss * theta["again"]
    memory_s = dram / (gpu.bytes_per_s * theta["dram"])
    through_l2 = (
        moved
        + columns["again_bytes"]
        + columns["strided_bytes"] * theta["twisted"]
        + columns["indirect_bytes"] * theta["indirect"]
    )
    l2_s = through_l2 / (clocks * theta["l2_bytes"])
    load_s = columns["loads"] / (clocks * theta["loads"])
    operations = columns["flops"] + columns["random"] * theta["random"]
    flop_s = operations / (gpu.fp32 * theta["flops"])
    atomic_s = columns["atomic_adds"] / (clocks * theta["atomic"])
    block_s = _blocks_s(columns, gpu, theta)
    chip_s = overlapped(l2_s, load_s, flop_s, atomic_s, block_s)
    apart_s = (theta["floor_us"] + columns["tensors"] * theta["tensor_us"]) * 1e-6
    return TimeLimits(apart_s, memory_s, chip_s)


def _blocks_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """The time of blocks one wave after the other: few rows give few blocks, each with much work.

    Sums along memory have a row for each block. Sums across memory share a block, so that its
    accesses are neighbours.
    """
    summing = (columns["shape"] == ROWS) | (columns["shape"] == LOOPS)
    along = summing & (columns["inner"] > 0)
    each = np.where(along, 1.0, np.where(summing, theta["columns"], BLOCK))
    blocks = np.ceil(np.maximum(columns["points"], 1.0) / each)
    moved = columns["read_bytes"] + columns["written_bytes"] + columns["again_bytes"]
    turns = np.where(summing, columns["reduction"] * each / TURN, 1.0)
    waves = blocks / (gpu.sm * BLOCKS)
    first = np.maximum(waves, 1.0)
    of_bytes = moved / blocks / theta["block_bytes"]
    of_turns = np.where(summing & (columns["shape"] == LOOPS), turns * theta["latency"], 0.0)
    of_rows = np.where(summing, theta["row_clocks"], 0.0)
    clocks = np.maximum(of_bytes, of_turns) + of_rows
    seconds: Floats = first * clocks / gpu.clock_hz
    return seconds
