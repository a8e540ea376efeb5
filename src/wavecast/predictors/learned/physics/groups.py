"""The time of grouped products: one kernel where torch has it, elsewhere one product by one.

The kernel (CUTLASS's, of compute capability 9 and 10) has one shape of tile for all: two SMs take
256 x 256 of a group together, and SMs go on from group to group. Where groups end is data: one
that ends within a tile leaves the rest of it empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.parts import OF_K, OF_M, OF_N
from wavecast.predictors.learned.physics.tiles import Bounds, Columns, Theta, overlapped, sustained

if TYPE_CHECKING:
    from wavecast.predictors.learned.model import OpModel

SIDE, DEPTH = 256.0, 64.0
"""Of the tile of two SMs, and of the terms it takes at once."""
GROUPED_PARAMETERS: dict[str, Bounds] = {
    "efficiency": (0.8, 0.4, 1.0),
    "prologue": (3000.0, 0.0, 20000.0),  # clocks that a tile takes to begin and to end
    "quantised": (0.7, 0.0, 1.0),  # how much of the last partial wave is waited for
    "dram": (0.8, 0.4, 1.0),  # share of the bandwidth
    "floor_us": (8.0, 1.0, 40.0),  # two kernels: the first makes a list of the groups
    "anywhere": (0.5, 0.0, 1.0),  # 0: groups are of one size; 1: they end anywhere
    "picojoules": (2.76, 0.01, 6.0),  # of a FLOP at 12 nm, as other products have it
}


def grouped_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of the kernel for all groups."""

    def blocks(name: str, share: float, side: float) -> Floats:
        """How many a dimension takes; where groups end anywhere, half a one is empty."""
        many = columns[name] / side
        ended = np.maximum(many, 0.5) + 0.5
        mixed = np.ceil(many) + theta["anywhere"] * (ended - np.ceil(many))
        found: Floats = np.where(columns["ragged"] == share, mixed, np.ceil(many))
        return found

    rate = _rate(columns, gpu, theta)
    pairs = columns["batch"] * blocks("m", OF_M, SIDE) * blocks("n", OF_N, SIDE)
    waves = 2.0 * pairs / gpu.sm
    whole = np.maximum(np.ceil(waves - 1e-9), 1.0)
    waves = whole - (1.0 - theta["quantised"]) * np.where(waves > 1, whole - waves, 0.0)
    work = SIDE * SIDE * DEPTH * blocks("k", OF_K, DEPTH)  # of one SM: half of two FLOPs each
    compute_s = waves * (work * gpu.sm / rate + theta["prologue"] / gpu.clock_hz)
    memory_s = columns["bytes"] / (gpu.bytes_per_s * theta["dram"])
    found: Floats = theta["floor_us"] * 1e-6 + overlapped(compute_s, memory_s)
    return found


def _rate(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """FLOP/s of the SMs in this kernel."""
    rate = gpu.rate(columns["unit"].astype(np.int64))
    return sustained(rate, gpu, theta["picojoules"]) * theta["efficiency"]


def seconds(columns: Columns, gpu: GpuFacts, models: Mapping[str, OpModel]) -> Floats:
    """Of each grouped product on one GPU, in a kernel or one by one.

    Models that know nothing of the kernel take it for a batch of products.
    """
    together = columns["kernel"].astype(bool) & gpu.groups
    kernel_s = models.get("grouped", models["product"]).seconds(columns, gpu)
    each = {name: columns[name] / np.maximum(columns["batch"], 1.0) for name in ("batch", "bytes")}
    loop_s = columns["batch"] * models["product"].seconds({**columns, **each}, gpu)
    found: Floats = np.where(together, kernel_s, loop_s)
    return found
