"""What the op models need to know of a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.hardware.device import Device
from wavecast.hardware.rates import available
from wavecast.ops import Unit

Floats = NDArray[np.float64]
Number = Any
"""A number of one GPU, or an array with a number for each row, when rows are of several."""

UNITS = tuple(Unit)
CODES = {unit: code for code, unit in enumerate(UNITS)}

USUAL_CLOCK_HZ = 1.6e9
"""Where no clock is known."""
USUAL_L2_PER_SM = 49152.0
"""Where no cache size is known: 2 MiB for 40 SMs, the least of any GPU since Volta."""
USUAL_COPY = 0.83
"""The share of the nominal bandwidth that a measured copy reaches on most GPUs."""
CONSUMER = r"GeForce|GTX|TITAN|^RTX [2345]0[5-9]0"
CONSUMER_BOOST = {"Maxwell": 1.15, "Pascal": 1.15, "Turing": 1.15}
LATER_BOOST = 1.08
"""Cards for consumers go beyond the boost clock of their data sheet, a typical one; for data
centres it is the highest. Since Ampere the sheet is nearer to what cards do."""
TENSOR_FLOP = {
    **{(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024},
    **{(9, 0): 4096, (10, 0): 8192, (12, 0): 1024},
}
"""By compute capability: FLOP of an SM's tensor cores in a clock, in float16 (white papers).
Cards for consumers do half of it when they sum in float32, as all libraries do."""
FULL_SHARE = {
    **{Unit.TF32_TENSOR: 0.5, Unit.FP16_TENSOR: 1.0, Unit.BF16_TENSOR: 1.0},
    Unit.FP8_TENSOR: 2.0,
}
EASILY_FED, FED_SHARE = 1.2, 0.66
"""Cores at half their rate wait less for operands, which come as fast as to cores at the full one:
these reach some 0.8 of their rate. So they count as faster, up to this share of the full one."""
DUAL_ISSUE = ("RDNA 3", "RDNA 3.5", "RDNA 4")
"""Whose data sheets count two float32 instructions a clock, which compilers hardly ever pair."""
USUAL_WATTS = 300.0
NODES = {
    **{"Kepler": (2.4, 1.0e9), "Maxwell": (2.0, 1.2e9), "Pascal": (1.15, 1.75e9)},
    **dict.fromkeys(("Volta", "Turing", "GCN 5"), (1.0, 1.75e9)),
    **dict.fromkeys(("Ampere", "RDNA", "CDNA", "CDNA 2", "RDNA 2"), (0.65, 1.75e9)),
}
"""By process (28, 16, 12, 7 or 8 nm): the energy of an operation relative to 12 nm, at the clock
up to which chips of it are made to go."""
LATEST_NODE = (0.4, 2.5e9)
"""4 and 5 nm."""


@dataclass(frozen=True)
class GpuFacts:
    """Of one GPU, or arrays with the facts of each row's GPU."""

    sm: Number
    clock_hz: Number
    bytes_per_s: Number
    """As far as copies get it to its usual share, where one was measured."""
    nominal_bytes_per_s: Number
    l2_bytes: Number
    fp32: Number
    """FLOP/s."""
    watts: Number
    node: Number
    """The energy of an operation, relative to 12 nm at full clock: it goes with the voltage
    squared, and that goes with the clock."""
    winograd: Any
    """Whether cuDNN has Winograd's algorithm for all passes: on compute capability 9 it was seen
    only for weight gradients."""
    groups: Any
    """Whether torch has a kernel for grouped products on it: compute capability 9 and 10."""
    architecture: Any
    """Its name."""
    generation: Any
    """What GPUs have in common whose SMs are built alike: the major compute capability, or the
    architecture's name where there is none."""
    rates: Floats
    """FLOP/s by unit code (last axis), of what stands in for it where the unit is missing;
    NaN: it cannot."""
    nominal_rates: Floats
    tensor: NDArray[np.bool_]
    """By unit code: whether that is a tensor core."""

    def rate(self, unit: NDArray[np.int64]) -> Floats:
        """FLOP/s for each row's unit."""
        found: Floats = self._of_rows(self.rates, unit)
        return found

    def nominal_rate(self, unit: NDArray[np.int64]) -> Floats:
        """The same as the data sheet has it, whatever was measured."""
        found: Floats = self._of_rows(self.nominal_rates, unit)
        return found

    def on_tensor_cores(self, unit: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each row, whether its unit is a tensor core here."""
        found: NDArray[np.bool_] = self._of_rows(self.tensor, unit)
        return found

    @staticmethod
    def _of_rows(table: NDArray[Any], unit: NDArray[np.int64]) -> Any:
        return table[unit] if table.ndim == 1 else table[np.arange(len(unit)), unit]


@lru_cache(maxsize=512)
def gpu_of(device: Device) -> GpuFacts | None:
    """The facts of a device; None where the number of its SMs is not known."""
    if device.sm_count is None:
        return None
    energy, full_hz = NODES.get(device.architecture, LATEST_NODE)
    clock_hz = device.boost_clock_hz or USUAL_CLOCK_HZ
    faster = 1.0
    if re.search(CONSUMER, device.name):
        faster = CONSUMER_BOOST.get(device.architecture, LATER_BOOST)
    units = [available(unit, device) for unit in UNITS]
    fp32 = device.fp32_flops / (2.0 if device.architecture in DUAL_ISSUE else 1.0)
    products = device.fp32_tensor_flops or fp32  # AMD's matrix cores take float32 as it is
    rates = [products if unit is Unit.FP32 else _rate(unit, device) for unit in units]
    tensor = np.array([unit is not None and unit.endswith("_tensor") for unit in units])
    fed = [_fed(rate, unit, device) for rate, unit in zip(rates, units, strict=True)]
    return GpuFacts(
        sm=float(device.sm_count),
        clock_hz=clock_hz * faster,
        bytes_per_s=_bytes_per_s(device),
        nominal_bytes_per_s=device.memory_bytes_per_s,
        l2_bytes=float(device.l2_bytes or USUAL_L2_PER_SM * device.sm_count),
        fp32=fp32 * faster,
        watts=device.tdp_w or USUAL_WATTS,
        node=energy * (clock_hz / full_hz) ** 2,
        winograd=(device.compute_capability or (8, 0)) < (9, 0),
        groups=(device.compute_capability or (0, 0))[0] in (9, 10),
        architecture=device.architecture,
        generation=str((device.compute_capability or (device.architecture,))[0]),
        rates=np.array(fed) * faster,
        nominal_rates=np.array(rates),
        tensor=tensor,
    )


def chip_name(device: Device) -> str:
    """What GPUs share that differ in memory or cooling only: "Hopper.132"."""
    return f"{device.architecture}.{device.sm_count}"


def _fed(rate: float, unit: Unit | None, device: Device) -> float:
    """The rate of a tensor core, more where it is held to half of what it could do."""
    full = TENSOR_FLOP.get(device.compute_capability or (0, 0))
    clock_hz, share = device.boost_clock_hz, FULL_SHARE.get(unit) if unit else None
    if full is None or share is None or clock_hz is None or device.sm_count is None:
        return rate
    most = FED_SHARE * share * full * clock_hz * device.sm_count
    return max(rate, min(EASILY_FED * rate, most))


def _bytes_per_s(device: Device) -> float:
    """The bandwidth, less (or more) by what a measured copy reached beyond the usual share."""
    nominal, measured = device.memory_bytes_per_s, device.measured.get("memory_bytes_per_s")
    if measured is None:
        return nominal
    return nominal * min(max(measured.value / (nominal * USUAL_COPY), 0.7), 1.1)


def joined(gpus: list[GpuFacts], which: NDArray[np.int64]) -> GpuFacts:
    """The facts of each row's GPU, given its position in a list."""
    names = (each.name for each in fields(GpuFacts))
    return GpuFacts(*(np.array([getattr(gpu, name) for gpu in gpus])[which] for name in names))


def _rate(unit: Unit | None, device: Device) -> float:
    return np.nan if unit is None else device.rate(unit) or np.nan
