"""What the learned efficiencies look at: ratios and shapes, never a number that tells a GPU.

None depends on the GPU's rates or bandwidth, so a GPU that is better in these is never slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.tiles import Columns


def _log(values: Floats) -> Floats:
    found: Floats = np.log2(np.maximum(values, 2.0**-20))
    return found


def _matrix(*columns: Any) -> Floats:
    found: Floats = np.stack(columns, axis=1).astype(np.float64)
    return found


TUNED = 0.4
"""Below the margin of the trees' ranges: of many chips only convolutions after cuDNN's search were
measured, and what is known of these holds well enough without it."""


def product(columns: Columns, gpu: GpuFacts) -> Floats:
    """Sides, waves of 128 x 128 tiles, how full they are, and what lies in L2."""
    batch, m, n, k = (columns[name] for name in ("batch", "m", "n", "k"))
    tiles = batch * np.ceil(m / 128) * np.ceil(n / 128)
    full = m * n / (np.ceil(m / 128) * np.ceil(n / 128) * 128**2)
    return _matrix(
        _log(batch),
        _log(m),
        _log(n),
        _log(k),
        _log(np.minimum(m, n)),
        _log(tiles / gpu.sm),
        full,
        _log(columns["bytes"] / gpu.l2_bytes),
        columns["aligned"],
        k % 16,
        columns["ta"],
        columns["tb"],
        gpu.on_tensor_cores(columns["unit"].astype(np.int64)) + 0.0,
        columns["item"],
    )


def convolution(columns: Columns, gpu: GpuFacts) -> Floats:
    """What an algorithm is chosen by: filters, channels, steps, points, and the product's shape;
    and whether the GPU is one for which cuDNN has all its float32 algorithms."""
    m, n = columns["m"], columns["n"]
    tiles = columns["groups"] * np.ceil(m / 128) * np.ceil(n / 128)
    nbytes = columns["image_bytes"] + columns["out_bytes"] + columns["weight_bytes"]
    return _matrix(
        columns["which"],
        _log(columns["groups"]),
        _log(m),
        _log(n),
        _log(columns["k"]),
        _log(columns["taps"]),
        _log(columns["steps"]),
        _log(columns["channels"]),
        _log(columns["filters"]),
        _log(columns["points"]),
        _log(columns["images"]),
        columns["channels"] % 8,
        columns["filters"] % 8,
        _log(tiles / gpu.sm),
        _log(nbytes / gpu.l2_bytes),
        gpu.on_tensor_cores(columns["unit"].astype(np.int64)) + 0.0,
        columns["item"],
        columns["converted"],
        np.zeros(len(m)) + gpu.winograd,
        columns["last"],
        TUNED * columns["tuned"],
        columns["dilated"],
    )


def attention(columns: Columns, gpu: GpuFacts) -> Floats:
    """Lengths, widths, waves of blocks, and which kernel."""
    blocks = columns["sequences"] * np.ceil(columns["q_len"] / 128)
    return _matrix(
        _log(columns["sequences"]),
        _log(columns["q_len"]),
        _log(columns["k_len"]),
        columns["width"],
        columns["share"] < 0.99,
        _log(blocks / gpu.sm),
        _log(columns["bytes"] / gpu.l2_bytes),
        columns["backward"],
        columns["efficient"],
        columns["cudnn"],
        columns["biased"],
    )


def recurrent(columns: Columns, gpu: GpuFacts) -> Floats:
    """The cell's sizes, how many follow each other, and whether its weights fit on the SMs."""
    weights = columns["gates"] * columns["hidden"] ** 2 * columns["item"]
    return _matrix(
        _log(columns["steps"]),
        _log(columns["batch"]),
        _log(columns["inputs"]),
        _log(columns["hidden"]),
        columns["gates"],
        columns["layers"],
        columns["directions"],
        columns["backward"],
        _log(weights / gpu.sm),
        _log(weights / gpu.l2_bytes),
        columns["batch"] % 8,
        columns["hidden"] % 8,
        columns["item"],
    )


def stream(columns: Columns, gpu: GpuFacts) -> Floats:
    """Bytes over L2 and over SMs, the width of rows, and how memory is accessed."""
    moved = columns["read"] + columns["written"]
    rows = columns["elements"] / np.maximum(columns["width"], 1.0)
    return _matrix(
        _log(moved / gpu.l2_bytes),
        _log(moved / gpu.sm),
        _log(columns["again"] / np.maximum(moved, 1.0)),
        _log(columns["flops"] / np.maximum(columns["elements"], 1.0)),
        _log(columns["width"]),
        _log(rows / gpu.sm),
        columns["item"],
        columns["twisted"] / np.maximum(moved, 1.0),
        _log(moved / np.maximum(columns["elements"], 1.0)),
        columns["by_row"],
        _log(columns["tensors"]),
        _log(columns["groups"] / gpu.sm),
        columns["last"],
        columns["sort"],
        columns["backward"],
        columns["path"],
    )


FEATURES: Mapping[str, Callable[[Columns, GpuFacts], Floats]] = {
    "product": product,
    "grouped": product,
    "convolution": convolution,
    "depthwise": convolution,
    "attention": attention,
    "recurrent": recurrent,
    "stream": stream,
}


def sorts_of(name: str, features: Floats) -> Floats:
    """What tells sorts of rows apart of which one says little of the other: for convolutions the
    filter's points and steps, each to half a power of two, and whether it is in groups."""
    if name != "convolution":
        return features[:, :0]
    groups, taps, steps = features[:, 1], features[:, 5], features[:, 6]
    return _matrix(np.round(2.0 * taps) / 2.0, np.round(2.0 * steps) / 2.0, groups > 0.0)
