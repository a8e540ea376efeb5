"""The time of grouped matmuls: in one kernel where torch has it, else one matmul after another.

The kernel (CUTLASS's, for compute capability 9 and 10) has one tile shape: two SMs together compute
256 x 256 of a group, and SMs go on from group to group. Where groups end depends on the data. A
group that ends within a tile leaves the rest of the tile empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.columns import OF_K, OF_M, OF_N, Columns
from wavecast.predictors.learned.physics.tiles import (
    Bounds,
    Theta,
    overlapped,
    quantised,
    sustained,
)

if TYPE_CHECKING:
    from wavecast.predictors.learned.model import OpModel

SIDE, DEPTH = 256.0, 64.0
"""Elements of a side of the tile of two SMs, and of the sums that it takes at once."""
GROUPED_PARAMETERS: dict[str, Bounds] = {
    "efficiency": (0.8, 0.4, 1.0),  # share of the peak rate
    "prologue": (3000.0, 0.0, 20000.0),  # clocks to begin and end a tile
    "quantised": (0.7, 0.0, 1.0),  # share of the last, partial wave that counts as a whole one
    "dram": (0.8, 0.4, 1.0),  # share of the bandwidth
    "floor_us": (8.0, 1.0, 40.0),  # two kernels: the first makes a list of the groups
    "anywhere": (0.5, 0.0, 1.0),  # 0: groups have equal sizes; 1: they end anywhere
    "picojoules": (2.8, 0.01, 12.0),  # energy of a FLOP at 12 nm, as in other matmuls
}


def grouped_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of the kernel for all groups."""

    def blocks(name: str, dimension: float, side: float) -> Floats:
        """Blocks along a dimension; where groups end anywhere, half a block is empty on average."""
        exact = columns[name] / side
        ended = np.maximum(exact, 0.5) + 0.5
        mixed = np.ceil(exact) + theta["anywhere"] * (ended - np.ceil(exact))
        counts: Floats = np.where(columns["ragged"] == dimension, mixed, np.ceil(exact))
        return counts

    rate = _rate(columns, gpu, theta)
    pairs = columns["batch"] * blocks("m", OF_M, SIDE) * blocks("n", OF_N, SIDE)
    waves = quantised(2.0 * pairs / gpu.sm, theta["quantised"])
    work = SIDE * SIDE * DEPTH * blocks("k", OF_K, DEPTH)  # of one SM: half a tile, two FLOPs each
    compute_s = waves * (work * gpu.sm / rate + theta["prologue"] / gpu.clock_hz)
    memory_s = columns["moved_bytes"] / (gpu.bytes_per_s * theta["dram"])
    kernel_s: Floats = theta["floor_us"] * 1e-6 + overlapped(compute_s, memory_s)
    return kernel_s


def _rate(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """FLOP/s of the SMs in this kernel."""
    unit = columns["unit"].astype(np.int64)
    return sustained(unit, gpu, theta["picojoules"]) * theta["efficiency"]


def seconds(columns: Columns, gpu: GpuFacts, models: Mapping[str, OpModel]) -> Floats:
    """Seconds of each grouped matmul on one GPU, in one kernel or one matmul after another.

    Without a model of the kernel it counts as a batch of matmuls.
    """
    together = columns["one_kernel"].astype(bool) & gpu.groups
    kernel_s = models.get("grouped", models["product"]).seconds(columns, gpu)
    one_group = {
        name: columns[name] / np.maximum(columns["batch"], 1.0) for name in ("batch", "moved_bytes")
    }
    loop_s = columns["batch"] * models["product"].seconds({**columns, **one_group}, gpu)
    grouped: Floats = np.where(together, kernel_s, loop_s)
    return grouped
