"""The time of fused attention and of recurrent layers."""

from __future__ import annotations

import numpy as np

from wavecast.hardware.rates import AMPERE_SHARE
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.columns import Columns
from wavecast.predictors.learned.physics.tiles import (
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
    rate = rate * np.where(columns["cudnn"] > 0, 1.0, _ampere_share(gpu))
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


def _ampere_share(gpu: GpuFacts) -> Floats:
    shares = np.ones(np.shape(gpu.generation))
    for generation, share in AMPERE_SHARE.items():
        shares = np.where(np.equal(gpu.generation, str(generation)), share, shares)
    return shares


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
