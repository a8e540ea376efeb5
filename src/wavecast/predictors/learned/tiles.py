"""The time of matmuls and convolutions: tiles in waves over the SMs.

A matmul is cut into tiles, each computed by one thread block, and blocks run in waves over
the SMs (Osama et al., "Stream-K", PPoPP 2023, section 3; NVIDIA, "Matrix Multiplication
Background User's Guide"). A library has kernels for about a dozen tile shapes and may split the
inner dimension. The fastest choice counts. Each choice has three limits, which overlap:
arithmetic, reads of the SMs through L2, and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.learned.columns import OF_K, OF_M, OF_N, Columns
from wavecast.predictors.learned.gpus import Floats, GpuFacts

if TYPE_CHECKING:
    from wavecast.predictors.learned.model import OpModel


Theta = Mapping[str, float]
"""The fitted constants of a model, by their names."""
Bounds = tuple[float, float, float]
"""A constant's value at the start of the fit, its smallest value and its largest."""

_SIDES: tuple[tuple[int, int], ...] = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128)),
    *((32, 64), (64, 32), (32, 32), (16, 64), (64, 16)),
)
_SPLITS = (1, 2, 4, 8, 16, 64)
_CHOICES = np.array([(tm, tn, s) for tm, tn in _SIDES for s in _SPLITS], dtype=np.float64)
TILE_M, TILE_N, SPLIT = _CHOICES.T
AREA = np.minimum(TILE_M * TILE_N / (128.0 * 128.0), 1.0)

_ONE: dict[str, Bounds] = {
    "efficiency": (0.8, 0.3, 1.0),  # share of the peak rate in a large tile's inner loop
    "small_tile": (0.15, 0.0, 0.8),  # loss of small tiles: a power of the area
    "prologue": (1200.0, 0.0, 8000.0),  # clocks to begin and end a tile
    "quantised": (0.7, 0.0, 1.0),  # share of the last, partial wave that counts as a whole one
    "l2_bytes": (40.0, 8.0, 200.0),  # bytes that an SM reads through L2 in a clock
    "dram": (0.8, 0.4, 1.0),  # share of the bandwidth
    "resident": (0.3, 0.0, 1.0),  # share of L2 that holds operands from the previous call
    "floor_us": (2.5, 0.5, 12.0),  # microseconds of the smallest kernel
    "split_us": (2.0, 0.0, 12.0),  # a kernel or barrier that adds up what was split
    "picojoules": (20.0, 0.01, 40.0),  # energy of a FLOP at 12 nm (`GpuFacts.flop_energy`)
}
"""The constants of one unit class."""
IDLE_WATTS = 25.0
"""Power that a board draws besides its cores: memory, converters, fans. This is much of the 70 W of
a T4. With 15 W instead, a fit that has not seen the T4 predicts its matmuls a quarter too fast."""
VECTOR_BYTES = 16.0
"""The largest load of a thread."""
CLASSES = ("cores", "tensor")
"""The unit classes: plain cores and tensor cores. Each has constants of its own."""


def class_parameters(which: Mapping[str, Bounds] = _ONE) -> dict[str, Bounds]:
    """Bounds of each constant, once for plain cores and once for tensor cores."""
    both = {f"{kind}.{name}": bounds for kind in CLASSES for name, bounds in which.items()}
    return both | {"tensor.picojoules": (2.8, 0.01, 12.0)}


LOADS: Bounds = (5.0, 1.0, 32.0)
"""Loads that an SM issues in a clock. Where rows do not begin at multiples of 16 bytes, each load
takes fewer elements, in the worst case one. This limits fast tensor cores but hardly slow ones."""
PRODUCT_PARAMETERS = class_parameters(_ONE | {"loads": LOADS})


def picked(theta: Theta, tensor: Any, name: str) -> Floats:
    """The value of a constant for each row: that of tensor cores or that of plain cores."""
    values: Floats = np.where(tensor, theta[f"tensor.{name}"], theta[f"cores.{name}"])
    return values


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
    """Seconds of the fastest choice for each row of matmuls, without the floor.

    Args:
        sizes: batch, m, n and k of `batch` matmuls (m, k) @ (k, n).
        item: Bytes of one element.
        dram_bytes: Bytes that come from memory.
        rate: FLOP/s.
        tensor: Whether the row runs on tensor cores.
        gpu: The GPU, or the GPU of each row.
        theta: The fitted constants.
        per_load: Elements that one load may take; None if loads do not limit.
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
        _fastest_s(_Rows(*(column[start : start + _BLOCK, None] for column in table)), *flops)
        for start in range(0, len(table[0]), _BLOCK)
    ]
    return np.concatenate(blocks) if blocks else np.zeros(0)


_BLOCK = 96
"""Rows that are computed at once. An array of so many rows and all choices fits into a core's
cache, which takes a third of the time."""


class _Rows(NamedTuple):
    """The numbers of each row from which the time of every choice follows."""

    batch: Any
    m: Any
    n: Any
    k: Any
    tensor: Any
    sm: Any
    quantised: Any
    flop_s: Any
    """Seconds of a FLOP on one SM at its peak."""
    tile_s: Any
    """Seconds to begin and end a tile."""
    load_s: Any
    """Seconds of an SM to load an element."""
    split_s: Any
    """Seconds of the kernel that adds up a split matmul, without its traffic."""
    added_s: Any
    """Seconds of all SMs to write the result once in float32."""
    memory_s: Any
    """Seconds of the traffic with memory."""


def _fastest_s(row: _Rows, on_cores: Floats, on_tensor: Floats) -> Floats:
    """Seconds of each row's fastest choice."""
    depth = np.where(row.tensor, 32.0, 8.0)
    k_part = np.maximum(np.ceil(row.k / SPLIT / depth), 1.0) * depth
    tiles = row.batch * np.ceil(row.m / TILE_M) * np.ceil(row.n / TILE_N) * SPLIT
    waves = quantised(tiles / row.sm, row.quantised)
    flops = np.where(row.tensor, on_tensor, on_cores)
    compute_s = waves * (flops * k_part * row.flop_s + row.tile_s)
    loads_s = waves * k_part * (TILE_M + TILE_N) * row.load_s
    split_s = np.where(SPLIT > 1, row.split_s + row.added_s * (SPLIT + 1), 0.0)
    best: Floats = (overlapped(compute_s, loads_s, row.memory_s) + split_s).min(axis=1)
    return best


def quantised(waves: Any, share: Any) -> Any:
    """Waves, of which the last, partial one counts between its own size and a whole one."""
    whole = np.maximum(np.ceil(waves - 1e-9), 1.0)
    return whole - (1.0 - share) * np.where(waves > 1, whole - waves, 0.0)


def _efficiency(theta: Theta, kind: str) -> Floats:
    """The share of the peak rate that each choice reaches."""
    shares: Floats = theta[f"{kind}.efficiency"] * AREA ** theta[f"{kind}.small_tile"]
    return shares


def overlapped(*limits: Any) -> Any:
    """Seconds of limits that overlap: the largest, and somewhat more if others are close to it."""
    total: Any = 0.0
    for limit in limits:
        squared = limit * limit
        total = total + squared * squared
    return np.sqrt(np.sqrt(total))  # many times faster than a power


class TimeLimits(NamedTuple):
    """The limits of an op's time, each in seconds."""

    apart_s: Floats | float
    """Launches, which do not overlap with the rest."""
    memory_s: Floats | float
    """Traffic with memory."""
    chip_s: Floats
    """Work of the SMs and L2, at the rates that the physics model gives them."""

    def seconds(self, factor: Floats | float = 1.0) -> Floats:
        """The total, where the chip takes `factor` times as long as the physics model says.

        The factor describes how kernels use the SMs. On a GPU with less bandwidth for each SM,
        memory hides it.
        """
        total_s: Floats = self.apart_s + overlapped(self.memory_s, factor * self.chip_s)
        return total_s

    def factor(self, seconds: Floats, least: float) -> Floats:
        """The factor, at least `least`, with which the total is these seconds.

        1 where the chip has no work, since no factor would change the total.
        """
        own = np.maximum(seconds - self.apart_s, 0.0) ** 4 - self.memory_s**4
        chip_s = np.maximum(own, (least * self.chip_s) ** 4) ** 0.25
        factors: Floats = np.divide(
            chip_s, self.chip_s, out=np.ones_like(chip_s), where=self.chip_s > 0
        )
        return factors

    def share(self) -> Floats:
        """How much the total grows with the chip's time: the derivative of their logarithms."""
        together = overlapped(self.memory_s, self.chip_s)
        chip = np.divide(self.chip_s, together, out=np.zeros_like(together), where=self.chip_s > 0)
        shares: Floats = chip**4 * together / (self.apart_s + together)
        return shares


def sustained(unit: NDArray[np.int64], gpu: GpuFacts, picojoules: Any) -> Floats:
    """The rate that the card's power allows: clocks fall with the square root of the overload."""
    rate = gpu.rate(unit)
    joules = picojoules * 1e-12 * gpu.node * gpu.energy(unit)
    load = joules * rate / np.maximum(gpu.watts - IDLE_WATTS, 20.0)
    allowed: Floats = rate / np.sqrt(np.maximum(load, 1.0))
    return allowed


def from_memory(nbytes: Floats, gpu: GpuFacts, resident: Any) -> Floats:
    """Bytes that come from memory when a share of L2 still holds operands."""
    loaded: Floats = np.maximum(nbytes - resident * gpu.l2_bytes, 0.1 * nbytes)
    return loaded


def product_s(columns: Columns, gpu: GpuFacts, theta: Theta) -> Floats:
    """Seconds of matmuls."""
    unit = columns["unit"].astype(np.int64)
    tensor = gpu.on_tensor_cores(unit)
    rate = sustained(unit, gpu, picked(theta, tensor, "picojoules"))
    dram = from_memory(columns["moved_bytes"], gpu, picked(theta, tensor, "resident"))
    per_load = np.minimum(columns["alignment"], VECTOR_BYTES / columns["item_bytes"])
    sizes = (columns["batch"], columns["m"], columns["n"], columns["k"])
    seconds = tiled_s(sizes, columns["item_bytes"], dram, rate, tensor, gpu, theta, per_load)
    return picked(theta, tensor, "floor_us") * 1e-6 + seconds


# The time of grouped matmuls: in one kernel where torch has it, else one matmul after another.
#
# The kernel (CUTLASS's, for compute capability 9 and 10) has one tile shape: two SMs together
# compute 256 x 256 of a group, and SMs go on from group to group. Where groups end depends on the
# data. A group that ends within a tile leaves the rest of the tile empty.


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
