"""The time of matrix products and convolutions: tiles in waves over the SMs.

A product is cut into tiles, each computed by one thread block, and blocks run in waves over
the SMs (Osama et al., "Stream-K", PPoPP 2023, section 3; NVIDIA, "Matrix Multiplication
Background User's Guide"). A library has kernels for a dozen tiles and may split the inner
dimension; the fastest choice counts. Each choice has three limits, which overlap: arithmetic,
what the SMs read through L2, and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from wavecast.predictors.learned.gpus import Floats, GpuFacts

Columns = Mapping[str, Floats]
Theta = Mapping[str, float]
Bounds = tuple[float, float, float]
"""Where a fit begins, and the least and the most that a parameter may be."""

_SIDES: tuple[tuple[int, int], ...] = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128)),
    *((32, 64), (64, 32), (32, 32), (16, 64), (64, 16)),
)
_SPLITS = (1, 2, 4, 8, 16, 64)
_CHOICES = np.array([(tm, tn, s) for tm, tn in _SIDES for s in _SPLITS], dtype=np.float64)
TILE_M, TILE_N, SPLIT = _CHOICES.T
AREA = np.minimum(TILE_M * TILE_N / (128.0 * 128.0), 1.0)

_ONE: dict[str, Bounds] = {
    "efficiency": (0.8, 0.3, 1.0),  # of the peak rate, in a large tile's inner loop
    "small_tile": (0.15, 0.0, 0.8),  # how much less of it small tiles reach: a power of the area
    "prologue": (1200.0, 0.0, 8000.0),  # clocks that a tile takes to begin and to end
    "quantised": (0.7, 0.0, 1.0),  # how much of the last partial wave is waited for
    "l2_bytes": (40.0, 8.0, 200.0),  # that an SM reads through L2 in a clock
    "dram": (0.8, 0.4, 1.0),  # share of the bandwidth
    "resident": (0.3, 0.0, 1.0),  # share of L2 that holds operands from the call before
    "floor_us": (2.5, 0.5, 12.0),
    "split_us": (2.0, 0.0, 12.0),  # one more kernel, or a barrier, that adds up what was split
    "picojoules": (20.0, 0.01, 40.0),  # of a FLOP at 12 nm: what boards with power enough may draw
}
IDLE_WATTS = 25.0
"""What a board draws beside its cores: memory, converters, fans. Of the 70 W of a T4 that is much,
and it tells cards with little power from others: with 15 W a fit that has not seen the T4 lets its
products run a quarter too fast."""
VECTOR_BYTES = 16.0
"""The most that one load of a thread takes."""
CLASSES = ("cores", "tensor")


def class_parameters(which: Mapping[str, Bounds] = _ONE) -> dict[str, Bounds]:
    """Each parameter for products on plain cores and for those on tensor cores."""
    found = {f"{kind}.{name}": bounds for kind in CLASSES for name, bounds in which.items()}
    return found | {"tensor.picojoules": (2.0, 0.01, 6.0)}


LOADS: Bounds = (5.0, 1.0, 32.0)
"""Loads that an SM issues in a clock. Where rows do not begin at multiples of 16 bytes, each loads
fewer elements, one at worst: that bounds fast tensor cores, and hardly slow ones."""
PRODUCT_PARAMETERS = class_parameters(_ONE | {"loads": LOADS})


def picked(theta: Theta, tensor: Any, name: str) -> Floats:
    """Each row's value of a parameter."""
    found: Floats = np.where(tensor, theta[f"tensor.{name}"], theta[f"cores.{name}"])
    return found


def tiled_s(
    sizes: tuple[Floats, Floats, Floats, Floats],
    item: Floats,
    dram_bytes: Floats,
    rate: Floats,
    tensor: Any,
    gpu: GpuFacts,
    theta: Theta,
    per_load: Floats | None = None,
) -> Floats:
    """The fastest choice for `batch` products (m, k) @ (k, n), without the floor.

    `per_load`: elements that one load may take, where that is known.
    """
    batch, m, n, k = sizes

    def pick(name: str) -> Floats:
        return picked(theta, tensor, name)

    l2_rate = gpu.clock_hz * pick("l2_bytes")
    load_s = (item / l2_rate) ** 4
    if per_load is not None:
        load_s = load_s + (1.0 / (gpu.clock_hz * pick("loads") * per_load)) ** 4
    rows = _Rows(
        *(batch, m, n, k, tensor, gpu.sm, pick("quantised")),
        flop_s=gpu.sm / rate,
        tile_s=pick("prologue") / gpu.clock_hz,
        load_s=load_s**0.25,
        split_s=pick("split_us") * 1e-6,
        added_s=batch * m * n * 4.0 / (l2_rate * gpu.sm),
        memory_s=dram_bytes / (gpu.bytes_per_s * pick("dram")),
    )
    flops = [2.0 * TILE_M * TILE_N / _efficiency(theta, kind) for kind in CLASSES]
    table = np.broadcast_arrays(*rows)
    blocks = [
        _fastest_s(_Rows(*(each[start : start + _BLOCK, None] for each in table)), *flops)
        for start in range(0, len(table[0]), _BLOCK)
    ]
    return np.concatenate(blocks) if blocks else np.zeros(0)


_BLOCK = 96
"""Rows at once: with the choices beside them an array fits a core's cache, and takes a third of
the time."""


class _Rows(NamedTuple):
    """What a choice needs to know of each row."""

    batch: Any
    m: Any
    n: Any
    k: Any
    tensor: Any
    sm: Any
    quantised: Any
    flop_s: Any
    """Of an SM at its peak."""
    tile_s: Any
    """To begin and to end one."""
    load_s: Any
    """Of an element, by an SM."""
    split_s: Any
    added_s: Any
    """Of the result once, in float32, by all SMs."""
    memory_s: Any


def _fastest_s(row: _Rows, on_cores: Floats, on_tensor: Floats) -> Floats:
    """Of each row the fastest choice, given what a step of k takes each tile: FLOP at its peak."""
    depth = np.where(row.tensor, 32.0, 8.0)
    k_part = np.maximum(np.ceil(row.k / SPLIT / depth), 1.0) * depth
    waves = row.batch * np.ceil(row.m / TILE_M) * np.ceil(row.n / TILE_N) * SPLIT / row.sm
    whole = np.maximum(np.ceil(waves - 1e-9), 1.0)
    waves = whole - (1.0 - row.quantised) * np.where(waves > 1, whole - waves, 0.0)
    flops = np.where(row.tensor, on_tensor, on_cores)
    compute_s = waves * (flops * k_part * row.flop_s + row.tile_s)
    loads_s = waves * k_part * (TILE_M + TILE_N) * row.load_s
    split_s = np.where(SPLIT > 1, row.split_s + row.added_s * (SPLIT + 1), 0.0)
    best: Floats = (overlapped(compute_s, loads_s, row.memory_s) + split_s).min(axis=1)
    return best


def _efficiency(theta: Theta, kind: str) -> Floats:
    found: Floats = theta[f"{kind}.efficiency"] * AREA ** theta[f"{kind}.small_tile"]
    return found


def overlapped(*limits: Any) -> Any:
    """What limits that overlap take together: the largest, and more where others are near it."""
    total: Any = 0.0
    for limit in limits:
        squared = limit * limit
        total = total + squared * squared
    return np.sqrt(np.sqrt(total))  # many times as fast as a power


class TimeLimits(NamedTuple):
    """What bounds an op: each in seconds."""

    apart_s: Floats | float
    """What adds to the others: launches."""
    memory_s: Floats | float
    chip_s: Floats
    """What goes on in the SMs and through L2, at the rates that physics gives them."""

    def seconds(self, factor: Floats | float = 1.0) -> Floats:
        """All together, where the chip takes `factor` times as long as physics says.

        What is learned of one GPU's kernels is how they use its SMs; on a GPU with less bandwidth
        for each of them, memory hides it.
        """
        found: Floats = self.apart_s + overlapped(self.memory_s, factor * self.chip_s)
        return found

    def factor(self, seconds: Floats, least: float) -> Floats:
        """By what the chip's time must be multiplied to take these seconds altogether."""
        own = np.maximum(seconds - self.apart_s, 0.0) ** 4 - self.memory_s**4
        found: Floats = np.maximum(own, (least * self.chip_s) ** 4) ** 0.25 / self.chip_s
        return found

    def share(self) -> Floats:
        """By what part the whole grows when the chip's time does."""
        together = overlapped(self.memory_s, self.chip_s)
        found: Floats = (self.chip_s / together) ** 4 * together / (self.apart_s + together)
        return found


def sustained(rate: Floats, gpu: GpuFacts, picojoules: Any) -> Floats:
    """The rate that the card's power allows: below full load clocks fall with the root of it."""
    load = picojoules * 1e-12 * gpu.node * rate / np.maximum(gpu.watts - IDLE_WATTS, 20.0)
    found: Floats = rate / np.sqrt(np.maximum(load, 1.0))
    return found


def from_memory(nbytes: Floats, gpu: GpuFacts, resident: Any) -> Floats:
    """Bytes that come from memory when part of L2 holds what was there before."""
    found: Floats = np.maximum(nbytes - resident * gpu.l2_bytes, 0.1 * nbytes)
    return found


def product_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of matrix products."""
    unit = columns["unit"].astype(np.int64)
    rate, tensor = gpu.rate(unit), gpu.on_tensor_cores(unit)
    rate = sustained(rate, gpu, picked(theta, tensor, "picojoules"))
    dram = from_memory(columns["bytes"], gpu, picked(theta, tensor, "resident"))
    per_load = np.minimum(columns["aligned"], VECTOR_BYTES / columns["item"])
    sizes = (columns["batch"], columns["m"], columns["n"], columns["k"])
    seconds = tiled_s(sizes, columns["item"], dram, rate, tensor, gpu, theta, per_load)
    return picked(theta, tensor, "floor_us") * 1e-6 + seconds
