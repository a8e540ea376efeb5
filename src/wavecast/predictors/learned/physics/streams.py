"""The time of ops that pass over memory: elementwise, norms, softmax, copies, optimizers, ..."""

from __future__ import annotations

import numpy as np

from wavecast.ops import Kind
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.passes import CASTS, SORTS, STRIDES
from wavecast.predictors.learned.physics.tiles import Bounds, Columns, Theta, TimeLimits, overlapped

STREAM_PARAMETERS: dict[str, Bounds] = {
    "floor_us": (1.5, 0.3, 6.0),
    "dram": (0.8, 0.4, 1.0),  # share of the bandwidth
    "resident": (0.3, 0.0, 1.0),  # share of L2 that holds operands from the op before
    "l2_bytes": (40.0, 24.0, 64.0),  # that an SM reads through L2 in a clock
    "per_clock": (32.0, 8.0, 256.0),  # elements that an SM handles in a clock
    "strided_per_clock": (1.3, 0.5, 8.0),  # the same where operands are stored in several ways
    "cast_per_clock": (0.95, 0.3, 8.0),  # the same of operands of several types
    "odd_per_clock": (4.0, 0.5, 64.0),  # the same of random numbers, windows and lookups
    "flops": (0.3, 0.2, 1.0),  # share of the plain cores' rate
    "again": (0.5, 0.0, 1.5),  # of a second read, when it misses L2
    "held": (0.5, 0.02, 4.0),  # how much of L2 the first read may fill for the second to hit
    "row_blocks": (4.0, 0.5, 32.0),  # rows in flight on an SM
    "twisted": (4.0, 0.0, 32.0),  # more traffic with L2 for what is stored in another order
    "tensor_us": (0.05, 0.0, 1.0),  # for each tensor of a list
    "block_elements": (2.0, 0.5, 8.0),  # that a block reads or writes in a clock
    "atomic": (0.6, 0.05, 8.0),  # sums into places that an SM adds to in a clock
    "row_clocks": (400.0, 50.0, 2000.0),  # that an SM takes for a row with a block of its own
    "serial_clocks": (330.0, 50.0, 1000.0),  # that a thread takes for one element after another
}

ODD = [
    SORTS.index(kind)
    for kind in (Kind.RANDOM, Kind.POOLING, Kind.RESAMPLING, Kind.INDEXING, Kind.EMBEDDING)
]
"""Sorts that do more for an element than to read, compute and write it."""
BLOCKS = 2.0
"""Of 512 threads or more, that an SM runs at a time."""


def stream_limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
    """Of passes over memory; a second read costs what of it misses L2."""
    moved = columns["read"] + columns["written"]
    rows_in_flight = gpu.sm * theta["row_blocks"] * columns["width"] * columns["item"]
    between = np.where(
        columns["by_row"] > 0, np.minimum(rows_in_flight, columns["again"]), columns["again"]
    )
    miss = np.clip(between / (theta["held"] * gpu.l2_bytes) - 0.5, 0.0, 1.0)
    hit = np.minimum(theta["resident"] * gpu.l2_bytes / np.maximum(columns["footprint"], 1.0), 0.9)
    dram = moved * (1.0 - hit) + columns["again"] * miss * theta["again"]
    memory_s = dram / (gpu.bytes_per_s * theta["dram"])
    # Each access to memory in another order takes a sector of its own; L2 has the rest of it.
    through_l2 = moved + columns["again"] + columns["twisted"] * theta["twisted"]
    l2_s = through_l2 / (gpu.sm * gpu.clock_hz * theta["l2_bytes"])
    per_clock = np.where(np.isin(columns["sort"], ODD), theta["odd_per_clock"], theta["per_clock"])
    per_clock = np.where(columns["path"] == STRIDES, theta["strided_per_clock"], per_clock)
    per_clock = np.where(columns["path"] == CASTS, theta["cast_per_clock"], per_clock)
    issue_s = columns["elements"] / (gpu.sm * gpu.clock_hz * per_clock)
    flop_s = columns["flops"] / (gpu.fp32 * theta["flops"])
    block_s = _blocks_s(columns, gpu, theta)
    atomic_s = columns["atomic"] / (gpu.sm * gpu.clock_hz * theta["atomic"])
    row_s = columns["rows"] * theta["row_clocks"] / (gpu.sm * gpu.clock_hz)
    serial_s = columns["serial"] * theta["serial_clocks"] / gpu.clock_hz
    chip_s = overlapped(block_s, l2_s, issue_s, flop_s, atomic_s, row_s, serial_s)
    lists_s = (columns["tensors"] - 1.0) * theta["tensor_us"] * 1e-6
    launch_s = columns["kernels"] * theta["floor_us"] * 1e-6
    return TimeLimits(launch_s + lists_s, memory_s, chip_s)


def _blocks_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """What the slowest SM needs where a block takes a whole channel: few channels, few blocks."""
    groups = np.maximum(columns["groups"], 1.0)
    accesses = (columns["read"] + columns["written"] + columns["again"]) / columns["item"] / groups
    waves = np.ceil(groups / (gpu.sm * BLOCKS))
    block_s = waves * accesses / (gpu.clock_hz * theta["block_elements"])
    found: Floats = np.where(columns["groups"] > 0, block_s, 0.0)
    return found
