"""The numbers of a GPU that the op models use."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.hardware.devices import Device, available
from wavecast.ops import Unit

Floats = NDArray[np.float64]
Number = Any
"""A number of one GPU, or an array of one number for each row if rows are of several GPUs."""

UNITS = tuple(Unit)
CODES = {unit: code for code, unit in enumerate(UNITS)}
"""The number of each arithmetic unit in columns and arrays."""

USUAL_CLOCK_HZ = 1.6e9
"""The clock of a GPU whose clock is not known."""
USUAL_L2_PER_SM = 49152.0
"""L2 bytes for each SM where the size is not known: 2 MiB for 40 SMs, the least since Volta."""
USUAL_COPY = 0.83
"""The share of the nominal bandwidth that a measured copy reaches on most GPUs."""
CONSUMER = r"GeForce|GTX|TITAN|^RTX [2345]0[5-9]0"
"""Names of cards for consumers."""
CONSUMER_BOOST = {"Maxwell": 1.15, "Pascal": 1.15, "Turing": 1.15}
LATER_BOOST = 1.08
"""How far cards for consumers exceed the boost clock of their data sheet, which is typical, not the
highest as for data-centre cards. Since Ampere it is closer to the real clock."""
TENSOR_FLOP = {
    **{(7, 0): 1024, (7, 5): 1024, (8, 0): 2048, (8, 6): 1024, (8, 9): 1024},
    **{(8, 7): 2048, (9, 0): 4096, (10, 0): 8192, (10, 3): 8192, (12, 0): 1024, (12, 1): 1024},
}
"""FLOPs of an SM's tensor cores in one clock in float16, by compute capability (white papers).
Cards for consumers reach half of it when they sum in float32, as all libraries do."""
SMALLEST_CORES = 1024.0
"""The same of the smallest tensor cores."""
FULL_SHARE = {
    **{Unit.TF32_TENSOR: 0.5, Unit.FP16_TENSOR: 1.0, Unit.BF16_TENSOR: 1.0},
    Unit.FP8_TENSOR: 2.0,
}
"""The rate of each tensor-core unit relative to float16."""
EASILY_FED, FED_SHARE = 1.2, 0.66
"""Some cards limit tensor cores to half their rate. Operands arrive as fast as at the full rate, of
which cores without a limit reach about 0.8. So limited cores wait less for operands: they count as
1.2 times as fast, up to 0.66 of the full rate."""
DUAL_ISSUE = ("RDNA 3", "RDNA 3.5", "RDNA 4")
"""Architectures with two float32 instructions in a clock, which compilers can hardly ever pair."""
OPERAND_SHARE = 0.26
"""The power of a tensor core's size with which the energy of its FLOPs falls: larger cores take
larger blocks, whose operands are fetched once. B200's matmuls run at two thirds of the peak at
1,000 W, so a FLOP takes 0.6 times what it would in cores an eighth of the size."""
USUAL_WATTS = 300.0
"""The power limit of a GPU whose limit is not known."""
NODES = {
    **{"Kepler": (2.4, 1.0e9), "Maxwell": (2.0, 1.2e9), "Pascal": (1.15, 1.75e9)},
    **dict.fromkeys(("Volta", "Turing", "GCN 5"), (1.0, 1.75e9)),
    **dict.fromkeys(("Ampere", "RDNA", "CDNA", "CDNA 2", "RDNA 2"), (0.65, 1.75e9)),
}
"""By architecture, the energy of an operation relative to 12 nm, and the highest clock of such
chips, for which it holds. Both follow from the process: 28, 16, 12, and 7 or 8 nm."""
LATEST_NODE = (0.4, 2.5e9)
"""The same for 4 and 5 nm."""
LATEST_OPERANDS = 1.4
"""By how much less tensor cores gained from that process than plain cores: most of their energy
moves operands, through memory cells and wires that hardly shrank. It also fits L40S, and our H200,
which just begins to slow down at 700 W (measurements/h200/sustained.json)."""


SAME_CORES = {"Blackwell Ultra": "Blackwell"}
"""Architectures that libraries find built as another one: what B300's dies changed, FP4, FP64 and
the exponentials of attention, no model of an op depends on."""


@dataclass(frozen=True)
class GpuFacts:
    """The numbers of one GPU, or arrays with the numbers of each row's GPU."""

    sm: Number
    clock_hz: Number
    bytes_per_s: Number
    """Memory bandwidth, corrected by a measured copy where there is one."""
    nominal_bytes_per_s: Number
    l2_bytes: Number
    fp32: Number
    """FLOP/s of the plain cores in float32."""
    watts: Number
    node: Number
    """The energy of an operation relative to 12 nm at the full clock. It grows with the square of
    the voltage, which grows with the clock."""
    winograd: Any
    """Whether cuDNN has Winograd's algorithm for all passes; on compute capability 9 it was seen
    only for weight gradients."""
    groups: Any
    """Whether torch has a kernel for grouped matmuls: on compute capability 9 and 10."""
    architecture: Any
    """The name of the architecture, or of the one that has the same cores (`SAME_CORES`)."""
    generation: Any
    """The major compute capability, or the architecture's name: SMs of one are built alike."""
    vendor: Any
    rates: Floats
    """FLOP/s by unit code (last axis), or of the unit that runs such ops instead if the GPU lacks
    it; NaN if it cannot run them."""
    nominal_rates: Floats
    """The same as the data sheet states it."""
    tensor: NDArray[np.bool_]
    """Whether the unit is a tensor core, by unit code."""
    flop_energy: Floats
    """The energy of a FLOP by unit code, relative to plain cores in float32, or to the smallest
    tensor cores in float16."""

    def energy(self, unit: NDArray[np.int64]) -> Floats:
        """The relative energy of a FLOP on each row's unit."""
        energies: Floats = self._of_rows(self.flop_energy, unit)
        return energies

    def rate(self, unit: NDArray[np.int64]) -> Floats:
        """FLOP/s of each row's unit."""
        rates: Floats = self._of_rows(self.rates, unit)
        return rates

    def on_tensor_cores(self, unit: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each row's unit is a tensor core on this GPU."""
        tensor: NDArray[np.bool_] = self._of_rows(self.tensor, unit)
        return tensor

    @staticmethod
    def _of_rows(table: NDArray[Any], unit: NDArray[np.int64]) -> Any:
        return table[unit] if table.ndim == 1 else table[np.arange(len(unit)), unit]


@lru_cache(maxsize=512)
def gpu_of(device: Device) -> GpuFacts | None:
    """The numbers of a device; None if the number of its SMs is not known."""
    if device.sm_count is None:
        return None
    energy, full_hz = NODES.get(device.architecture, LATEST_NODE)
    clock_hz = device.boost_clock_hz or USUAL_CLOCK_HZ
    faster = 1.0
    if re.search(CONSUMER, device.name):
        faster = CONSUMER_BOOST.get(device.architecture, LATER_BOOST)
    units = [available(unit, device) for unit in UNITS]
    fp32 = device.fp32_flops / (2.0 if device.architecture in DUAL_ISSUE else 1.0)
    products = device.fp32_tensor_flops or fp32  # AMD's matrix cores compute in float32
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
        architecture=SAME_CORES.get(device.architecture, device.architecture),
        generation=str((device.compute_capability or (device.architecture,))[0]),
        vendor=device.vendor,
        rates=np.array(fed) * faster,
        nominal_rates=np.array(rates),
        tensor=tensor,
        flop_energy=np.array([_flop_energy(unit, device) for unit in units]),
    )


def assumed_facts(device: Device) -> tuple[str, ...]:
    """A sentence for each fact of a device that is not known and was assumed."""
    if device.sm_count is None:
        return ("its number of SMs is not known, so that no op model can be used",)
    assumed = {
        f"its clock is not known; {USUAL_CLOCK_HZ / 1e9:.1f} GHz is assumed": device.boost_clock_hz,
        f"its power limit is not known; {USUAL_WATTS:.0f} W is assumed": device.tdp_w,
        "the size of its L2 is not known; "
        f"{USUAL_L2_PER_SM / 1024:.0f} KiB for each SM is assumed": device.l2_bytes,
    }
    return tuple(sentence for sentence, fact in assumed.items() if fact is None)


def chip_name(device: Device) -> str:
    """The name of a GPU's chip, "Hopper.132": its GPUs differ in memory and cooling only."""
    return f"{device.architecture}.{device.sm_count}"


def _fed(rate: float, unit: Unit | None, device: Device) -> float:
    """The rate of a tensor core, raised if the card limits it to half (`EASILY_FED`)."""
    full = TENSOR_FLOP.get(device.compute_capability or (0, 0))
    clock_hz, share = device.boost_clock_hz, FULL_SHARE.get(unit) if unit else None
    if full is None or share is None or clock_hz is None or device.sm_count is None:
        return rate
    most = FED_SHARE * share * full * clock_hz * device.sm_count
    return max(rate, min(EASILY_FED * rate, most))


def _flop_energy(unit: Unit | None, device: Device) -> float:
    """The relative energy of a FLOP; a tensor core draws the same power in each precision."""
    share = FULL_SHARE.get(unit) if unit else None
    if share is None:
        return 1.0
    gained = 1.0 if device.architecture in NODES else LATEST_OPERANDS
    larger: float = (_core_flop(device) / SMALLEST_CORES) ** OPERAND_SHARE
    return gained / (larger * share)


def _core_flop(device: Device) -> float:
    listed: float | None = TENSOR_FLOP.get(device.compute_capability or (0, 0))
    rate, clock_hz = device.rate(Unit.FP16_TENSOR), device.boost_clock_hz
    if listed is not None:
        return listed
    if rate is None or clock_hz is None or device.sm_count is None:
        return SMALLEST_CORES
    return max(float(rate / (device.sm_count * clock_hz)), SMALLEST_CORES)


def _bytes_per_s(device: Device) -> float:
    """The bandwidth, scaled by how far a measured copy was from the usual share."""
    nominal, measured = device.memory_bytes_per_s, device.measured.get("memory_bytes_per_s")
    if measured is None:
        return nominal
    return nominal * min(max(measured.value / (nominal * USUAL_COPY), 0.7), 1.1)


def joined(gpus: list[GpuFacts], which: NDArray[np.int64]) -> GpuFacts:
    """The numbers of each row's GPU, from the positions of these GPUs in a list."""
    names = (field.name for field in fields(GpuFacts))
    return GpuFacts(*(np.array([getattr(gpu, name) for gpu in gpus])[which] for name in names))


def _rate(unit: Unit | None, device: Device) -> float:
    return np.nan if unit is None else device.rate(unit) or np.nan
