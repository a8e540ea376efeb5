"""The time of ops that pass over memory: elementwise, norms, softmax, copies, optimizers, ..."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from wavecast.ops import Kind
from wavecast.ops.registry import Cost, integer
from wavecast.predictors.learned.columns import CASTS, STRIDES, Columns, ConcatenationRow
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.passes import STREAM_KINDS
from wavecast.predictors.learned.tiles import Bounds, Theta, TimeLimits, overlapped
from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

STREAM_PARAMETERS: dict[str, Bounds] = {
    "floor_us": (1.5, 0.3, 6.0),  # microseconds of the smallest kernel
    "dram": (0.8, 0.4, 1.0),  # share of the bandwidth
    "resident": (0.3, 0.0, 1.0),  # share of L2 that holds operands from the op before
    "l2_bytes": (40.0, 24.0, 64.0),  # bytes that an SM reads through L2 in a clock
    "per_clock": (32.0, 8.0, 256.0),  # elements that an SM handles in a clock
    "strided_per_clock": (1.3, 0.5, 8.0),  # the same where operands are stored in different ways
    "cast_per_clock": (0.95, 0.3, 8.0),  # the same for operands of different types
    "listed_per_clock": (4.0, 0.5, 64.0),  # the same for lists of tensors
    "odd_per_clock": (4.0, 0.5, 64.0),  # the same for random numbers, windows and lookups
    "flops": (0.3, 0.2, 1.0),  # share of the plain cores' rate
    "again": (0.5, 0.0, 1.5),  # cost of a second read that misses L2, relative to the first
    "held": (0.5, 0.02, 4.0),  # share of L2 that a first read may fill so that a second one hits
    "row_blocks": (4.0, 0.5, 32.0),  # rows in flight on an SM
    "twisted": (4.0, 0.0, 32.0),  # additional L2 traffic for inputs stored in another order
    "tensor_us": (0.05, 0.0, 1.0),  # microseconds for each tensor of a list
    "block_elements": (2.0, 0.5, 8.0),  # elements that a block reads or writes in a clock
    "atomic": (0.6, 0.05, 8.0),  # atomic additions of an SM in a clock
    "row_clocks": (400.0, 50.0, 2000.0),  # clocks of an SM for a row that has a block to itself
    "block_clocks": (1.2, 0.3, 8.0),  # clocks of the GPU to launch a block of threads
    "serial_clocks": (330.0, 50.0, 1000.0),  # clocks of a thread for one element
    "wave_clocks": (3500.0, 500.0, 10000.0),  # clocks to begin and end a block of sums
    "load_clocks": (490.0, 100.0, 2000.0),  # clocks until values to be summed are loaded
    "partial_clocks": (430.0, 100.0, 2000.0),  # clocks until a partial sum is loaded from L2
    "shared_clocks": (6000.0, 500.0, 20000.0),  # clocks until all blocks know that sums are done
}

SLOW_KINDS = [
    STREAM_KINDS.index(kind)
    for kind in (Kind.RANDOM, Kind.POOLING, Kind.RESAMPLING, Kind.INDEXING, Kind.EMBEDDING)
]
"""Kinds that do more for an element than read, compute and write it."""
BLOCKS, BLOCKS_BACKWARD = 2.0, 4.0
"""Blocks of 512 threads that an SM runs at a time: those of a backward pass have few registers."""
SM_THREADS, FEWEST_TERMS, MOST_TERMS = 2048, 16, 256
"""Threads that torch believes an SM runs at a time, and the fewest and the most values of a thread
whose sum is divided among blocks."""
UNWRITTEN = 1.7
"""How much longer a partial sum takes to load that was never written, so that L2 does not hold it:
0.40 instead of 0.24 us on our H200."""


def stream_limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
    """The limits of passes over memory; a second read costs as much as misses L2."""
    moved = columns["read_bytes"] + columns["written_bytes"]
    reread = np.maximum(columns["reread_bytes"] - columns["kept_bytes"] * gpu.sm, 0.0)
    rows_in_flight = gpu.sm * theta["row_blocks"] * columns["row_width"] * columns["item_bytes"]
    between = np.where(
        columns["by_row"] > 0,
        np.minimum(rows_in_flight, reread),
        reread,
    )
    miss = np.clip(between / (theta["held"] * gpu.l2_bytes) - 0.5, 0.0, 1.0)
    hit = np.minimum(
        theta["resident"] * gpu.l2_bytes / np.maximum(columns["footprint_bytes"], 1.0), 0.9
    )
    dram = moved * (1.0 - hit) + reread * miss * theta["again"]
    memory_s = dram / (gpu.bytes_per_s * theta["dram"])
    # Each access in another order loads a whole sector; L2 keeps the rest of it.
    through_l2 = moved + reread + columns["reordered_bytes"] * theta["twisted"]
    l2_s = through_l2 / (gpu.sm * gpu.clock_hz * theta["l2_bytes"])
    per_clock = np.where(
        np.isin(columns["kind"], SLOW_KINDS), theta["odd_per_clock"], theta["per_clock"]
    )
    per_clock = np.where(columns["access"] == STRIDES, theta["strided_per_clock"], per_clock)
    per_clock = np.where(columns["access"] == CASTS, theta["cast_per_clock"], per_clock)
    per_clock = np.where(columns["tensors"] > 1, theta["listed_per_clock"], per_clock)
    issue_s = columns["elements"] / (gpu.sm * gpu.clock_hz * per_clock)
    flop_s = columns["flops"] / (gpu.fp32 * theta["flops"])
    block_s = _blocks_s(columns, gpu, theta)
    atomic_s = columns["atomic_adds"] / (gpu.sm * gpu.clock_hz * theta["atomic"])
    row_s = columns["rows"] * theta["row_clocks"] / (gpu.sm * gpu.clock_hz)
    serial_s = columns["serial_elements"] * theta["serial_clocks"] / gpu.clock_hz
    started_s = columns["blocks"] * theta["block_clocks"] / gpu.clock_hz
    sums_s, partial_s = _sums_s(columns, gpu, theta)
    chip_s = overlapped(
        block_s, l2_s, issue_s, flop_s, atomic_s, row_s, serial_s, started_s, sums_s
    )
    lists_s = (columns["tensors"] - 1.0) * theta["tensor_us"] * 1e-6
    launch_s = columns["kernels"] * theta["floor_us"] * 1e-6
    queued_s = columns["queued_clocks"] / gpu.clock_hz
    return TimeLimits(launch_s + lists_s + queued_s + partial_s, memory_s, chip_s)


def _sums_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> tuple[Floats, Floats]:
    """The time of sums in waves of blocks, and that of adding up the partial sums of blocks.

    A sum is divided among as many blocks as the GPU runs at a time, or as leave each thread 16
    values, but so that no thread has more than 256 (`setReduceConfig` of torch's Reduce.cuh).
    """
    blocks, terms = columns["loop_blocks"], columns["loop_terms"]
    target = gpu.sm * np.floor(SM_THREADS / columns["loop_threads"])
    shared = (columns["loop_sharing"] > 0) & (blocks <= target)
    pieces = np.minimum(np.ceil(target / np.maximum(blocks, 1.0)), np.ceil(terms / FEWEST_TERMS))
    parts = np.where(shared, np.maximum(pieces, np.ceil(terms / MOST_TERMS)), 1.0)
    loads = np.ceil(np.ceil(terms / parts) / columns["loop_loads"])
    waves = np.maximum(blocks * parts / (gpu.sm * columns["loop_resident"]), 1.0)
    clocks = waves * (theta["wave_clocks"] + loads * theta["load_clocks"])
    sums_s: Floats = np.where(blocks > 0, clocks / gpu.clock_hz, 0.0)
    rounds = parts / np.maximum(columns["loop_sharing"], 1.0)
    reading = np.where(columns["loop_ragged"] > 0, UNWRITTEN, 1.0) * theta["partial_clocks"]
    joining = (theta["shared_clocks"] + rounds * reading) / gpu.clock_hz
    partial_s: Floats = np.where(parts > 1, joining, 0.0)
    return sums_s, partial_s


def _blocks_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """The time of the slowest SM where a block takes a whole channel: few channels, few blocks."""
    blocks = np.maximum(columns["channel_blocks"], 1.0)
    nbytes = columns["read_bytes"] + columns["written_bytes"] + columns["reread_bytes"]
    accesses = nbytes / np.maximum(columns["access_bytes"], columns["item_bytes"]) / blocks
    together = np.where(columns["backward"] > 0, BLOCKS_BACKWARD, BLOCKS)
    waves = np.ceil(blocks / (gpu.sm * together))
    block_s = waves * accesses / (gpu.clock_hz * theta["block_elements"])
    seconds: Floats = np.where(columns["channel_blocks"] > 0, block_s, 0.0)
    return seconds


# The time of `cat`, whose kernel depends on how its inputs are stored (torch's Shape.cu).
#
# Contiguous inputs whose slices are multiples of 16 bytes move in pieces of 16 bytes, others
# element by element. Each input of either kind gets as many thread blocks as the largest one
# needs; those of a shorter input begin and end with nothing to move. Strided inputs need divisions
# for the place of each element. Each of these gets two blocks for each SM, so that one long input
# leaves SMs idle.


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
