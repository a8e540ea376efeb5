"""The time of kernels in which Inductor or XLA fused several ops."""

from __future__ import annotations

import numpy as np

from wavecast.hardware.devices import AMPERE_SHARE
from wavecast.ops.fused import FUSED, XLA_FUSED
from wavecast.ops.registry import Cost, integer
from wavecast.predictors.learned.columns import (
    LISTS,
    LOOPS,
    POINTS,
    ROWS,
    TILES,
    Columns,
    FusedRow,
)
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.tiles import (
    CLASSES,
    Bounds,
    Theta,
    class_parameters,
    from_memory,
    overlapped,
    picked,
    quantised,
    sustained,
    tiled_s,
)
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
    "points": (2.5, 0.5, 32.0),  # points of an SM in a clock
    "terms": (6.0, 0.5, 32.0),  # terms of sums of an SM in a clock
    "loads": (32.0, 4.0, 128.0),  # loads of an SM in a clock
    "scattered_loads": (16.0, 1.0, 128.0),  # the same where a kernel looks places up
    "flops": (0.3, 0.05, 1.0),  # share of the plain cores' rate
    "random": (60.0, 5.0, 600.0),  # operations of one random number
    "atomic": (1.0, 0.05, 8.0),  # atomic additions of an SM in a clock
    "collision": (0.006, 0.001, 0.2),  # the same where neighbours add to one place
    "window": (60.0, 0.0, 600.0),  # operations of a point that looks through windows
    "online": (20.0, 0.0, 200.0),  # operations of a term of an online softmax
    "angle": (40.0, 0.0, 600.0),  # operations of a sine or cosine
    "tensor_us": (0.02, 0.0, 1.0),  # microseconds for each tensor of a list
    "start": (900.0, 0.0, 4000.0),  # clocks until the first values arrive
    "sum": (600.0, 0.0, 4000.0),  # clocks to add up a block's values at the end
    "row": (600.0, 0.0, 6000.0),  # clocks of a block with rows in registers
    "turn": (600.0, 20.0, 6000.0),  # clocks of one turn of a block's loop, along memory
    "turn_across": (600.0, 20.0, 6000.0),  # the same across memory
}
SHAPES = dict(zip(FUSED, (POINTS, LOOPS, ROWS, LISTS), strict=True))
SHAPES |= dict(zip(XLA_FUSED, (POINTS, LOOPS, ROWS, TILES, POINTS), strict=True))
TURN, TURN_ACROSS, ACROSS = 2048.0, 32.0, 64.0
"""Terms of a sum that a block adds up in one turn of its loop, along memory and across; and points
of a block whose sums run across memory."""
BLOCKS = 8.0
"""Blocks that an SM runs at a time."""
_POOLED = ("max_pool2d_with_indices_backward", "avg_pool2d_backward")
_ONLINE = "prepare_softmax_online"
_ANGLES = ("cos", "sin")


def model_of(op: Op) -> str:
    """The model of a fused kernel: XLA's kernels have their own constants."""
    return "xla" if op.name in XLA_FUSED else "fused"


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
        collisions=integer(op, "colliding_bytes") / 4,
        windows=work * any(name in _POOLED for name in _names(op)),
        online=work * (_ONLINE in _names(op)),
        angles=work * sum(name in _ANGLES for name in _names(op)),
        loads=work * _number(op, "loads"),
        random=work * _number(op, "random"),
        flops=cost.flops,
        tensors=max(integer(op, "tensors", 1), 1),
        shape=SHAPES[op.name],
        inner=bool(op.attr("inner", False)),
        mixed=integer(op, "mixed"),
        buffers=len(op.inputs) + len(op.outputs),
    )


def _names(op: Op) -> list[str]:
    """The aten ops that are fused in the kernel."""
    return str(op.attr("fused", "")).split(",")


def _number(op: Op, name: str) -> float:
    value = op.attr(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def fused_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of fused kernels: memory, L2, loads, arithmetic, and blocks that are too few."""
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
    summing = (columns["shape"] == ROWS) | (columns["shape"] == LOOPS)
    work = columns["points"] * columns["reduction"]
    issue_s = work / (clocks * np.where(summing, theta["terms"], theta["points"]))
    # A thread takes several neighbours at once, but not where their places are looked up. XLA's
    # kernels were fitted without that difference.
    scattered = theta.get("scattered_loads", theta["loads"])
    per_clock = np.where(columns["indirect_bytes"] > 0, scattered, theta["loads"])
    load_s = columns["loads"] / (clocks * per_clock)
    operations = (
        columns["flops"]
        + columns["random"] * theta["random"]
        + columns["windows"] * theta["window"]
        + columns["online"] * theta["online"]
        + columns["angles"] * theta["angle"]
    )
    flop_s = operations / (gpu.fp32 * theta["flops"])
    atomic_s = columns["atomic_adds"] / (clocks * theta["atomic"])
    collision_s = columns["collisions"] / (clocks * theta["collision"])
    block_s = _blocks_s(columns, gpu, theta)
    work_s = overlapped(memory_s, l2_s, issue_s, load_s, flop_s, atomic_s, collision_s, block_s)
    apart_s = (theta["floor_us"] + columns["tensors"] * theta["tensor_us"]) * 1e-6
    seconds: Floats = apart_s + work_s
    return seconds


def _blocks_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """The time of blocks, one wave after the other, if each waits for memory in every turn.

    Sums along memory have a row for each block. Sums across memory share a block, so that its
    accesses are neighbours.
    """
    summing = (columns["shape"] == ROWS) | (columns["shape"] == LOOPS)
    along = summing & (columns["inner"] > 0)
    blocks = np.where(along, columns["points"], columns["points"] / ACROSS)
    waves = np.maximum(blocks / (gpu.sm * BLOCKS), 1.0)
    turns = np.maximum(columns["reduction"] / np.where(along, TURN, TURN_ACROSS), 1.0)
    turns *= 1.0 + (columns["again_bytes"] > 0)
    of_turns = turns * np.where(along, theta["turn"], theta["turn_across"])
    of_block = np.where(columns["shape"] == LOOPS, of_turns, theta["row"])
    start = theta["start"] * (columns["read_bytes"] > 0) + theta["sum"] * summing
    seconds: Floats = (start + np.where(summing, waves * of_block, 0.0)) / gpu.clock_hz
    return seconds


# The time of fused attention and of recurrent layers.


QUERIES = 128.0
"""Queries that a block of flash attention takes at a time (Dao, "FlashAttention-2", 2023,
section 3.3)."""

_ATTENTION: dict[str, Bounds] = {
    "efficiency": (0.6, 0.1, 1.0),  # share of the peak rate
    "backward": (0.7, 0.1, 1.5),  # rate of the backward pass, relative to the forward pass
    "efficient": (0.6, 0.1, 1.5),  # torch's memory-efficient kernels, relative to flash attention
    "cudnn": (1.0, 0.3, 1.5),
    "narrow": (0.3, 0.0, 1.5),  # loss with heads narrower than 128: a power
    "prologue": (2000.0, 0.0, 20000.0),  # clocks to begin and end a block
    "quantised": (0.5, 0.0, 1.0),
    "dram": (0.7, 0.2, 1.0),
    "floor_us": (6.0, 0.5, 15.0),
    "causal": (0.2, -0.5, 1.5),  # loss with a causal mask: blocks on the diagonal, uneven work
    "dropout": (0.6, 0.0, 3.0),  # loss with dropout in the forward pass: random numbers
}
ATTENTION_PARAMETERS: dict[str, Bounds] = {
    f"{kind}.{name}": bounds for kind in CLASSES for name, bounds in _ATTENTION.items()
} | {
    "cores.picojoules": (20.0, 0.01, 40.0),
    "tensor.picojoules": (1.4, 0.01, 12.0),  # half of a matmul's: they idle during the softmax
}

RECURRENT_PARAMETERS: dict[str, Bounds] = class_parameters() | {
    "floor_us": (20.0, 1.0, 100.0),
    "cores.step_us": (5.0, 0.2, 20.0),  # a step of a cell, however small
    "tensor.step_us": (3.0, 0.2, 20.0),
    "backward_us": (1.3, 0.5, 4.0),  # the same in the backward pass, relative
    "backward": (0.9, 0.3, 1.5),  # rate of a step in the backward pass, relative
    "cell": (1.0, 0.3, 4.0),  # rate at which cells read and write, relative to the bandwidth
    "together": (0.3, 0.0, 1.0),  # how far layers and directions run at the same time: a power
}


def attention_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of fused attention."""
    unit = columns["unit"].astype(np.int64)
    tensor = gpu.on_tensor_cores(unit)

    def pick(name: str) -> Floats:
        return picked(theta, tensor, name)

    rate = sustained(unit, gpu, pick("picojoules")) * pick("efficiency")
    rate = rate * np.where(columns["backward"] > 0, pick("backward"), 1.0)
    rate = rate * np.where(columns["efficient"] > 0, pick("efficient"), 1.0)
    rate = rate * np.where(columns["cudnn"] > 0, pick("cudnn"), 1.0)
    # FlashAttention 2 and the memory-efficient kernels are written with Ampere's instructions.
    shares = np.ones(np.shape(gpu.generation))
    for generation, share in AMPERE_SHARE.items():
        shares = np.where(np.equal(gpu.generation, str(generation)), share, shares)
    rate = rate * np.where(columns["cudnn"] > 0, 1.0, shares)
    rate = rate * np.minimum(columns["head_width"] / 128.0, 1.0) ** pick("narrow")
    rate = rate / (1.0 + pick("causal") * (columns["attended_share"] < 0.99))
    drawn = (columns["dropout"] > 0) & (columns["backward"] == 0)
    rate = rate / np.where(drawn, 1.0 + pick("dropout"), 1.0)
    along = np.where(columns["backward"] > 0, columns["k_len"], columns["q_len"])
    across = np.where(columns["backward"] > 0, columns["q_len"], columns["k_len"])
    blocks = np.ceil(along / QUERIES)
    waves = quantised(columns["sequences"] * blocks / gpu.sm, pick("quantised"))
    per_pair = columns["flops"] / np.maximum(
        columns["sequences"] * columns["q_len"] * columns["k_len"] * columns["attended_share"], 1.0
    )
    work = QUERIES * across * columns["attended_share"] * per_pair
    compute_s = waves * (work * gpu.sm / rate + pick("prologue") / gpu.clock_hz)
    memory_s = columns["moved_bytes"] / (gpu.bytes_per_s * pick("dram"))
    seconds: Floats = pick("floor_us") * 1e-6 + overlapped(compute_s, memory_s)
    return seconds


def recurrent_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of the steps of cuDNN's recurrent layers, without the matmuls over all steps.

    A step is a narrow matmul. Its weights come from L2 at every step, as far as they fit.
    """
    unit = columns["unit"].astype(np.int64)
    tensor, rate = gpu.on_tensor_cores(unit), gpu.rate(unit)
    backward = columns["backward"] > 0
    beside = columns["layers"] * columns["directions"]
    width, hidden = columns["gates"] * columns["hidden"], columns["hidden"]
    n, k = np.where(backward, hidden, width), np.where(backward, width, hidden)
    weights = from_memory(
        width * hidden * columns["item_bytes"], gpu, picked(theta, tensor, "resident")
    )
    step_rate = rate * np.where(backward, theta["backward"], 1.0)
    sizes = (np.ones(len(n)), columns["batch"], n, k)
    product_s = tiled_s(sizes, columns["item_bytes"], weights, step_rate, tensor, gpu, theta)
    step_s = picked(theta, tensor, "step_us") * 1e-6 * np.where(backward, theta["backward_us"], 1.0)
    # Besides the matmul, a cell reads and writes the gates (twice, and once more for the backward
    # pass), states and outputs. L2 still holds part of them.
    cell = columns["batch"] * hidden * (3.0 * columns["gates"] + 4.0) * columns["item_bytes"]
    step_s = step_s + cell / (gpu.bytes_per_s * theta["cell"])
    steps_s = columns["steps"] * beside ** (1.0 - theta["together"]) * (product_s + step_s)
    memory_s = columns["moved_bytes"] / (gpu.bytes_per_s * 0.8)
    seconds: Floats = theta["floor_us"] * 1e-6 + np.maximum(steps_s, memory_s)
    return seconds
