"""Two GPUs compared: the ratios from origin to target that do not depend on the kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from wavecast.hardware.device import Device
from wavecast.hardware.occupancy import SmLimits, blocks_per_sm, limits_of
from wavecast.hardware.rates import available
from wavecast.ops import Unit
from wavecast.predictors.wave.equations import wave_size

Size = tuple[int, int, int]


@dataclass(frozen=True, slots=True, eq=False)
class GpuPair:
    """An origin and a target; ratios are origin over target. Equal pairs are the same object."""

    origin: Device
    target: Device
    same: bool
    measured: bool
    """Whether the bandwidths are measured ones, which are never mixed with nominal ones."""
    memory: float
    """Ratio of memory bandwidths."""
    clock: float | None
    """Ratio of boost clocks, or of base clocks; None if unknown."""
    link: float | None
    """Ratio of PCIe bandwidths; None if unknown."""
    limits: tuple[SmLimits, SmLimits] | None
    """The limits of one SM of each; None if unknown."""


@lru_cache(maxsize=1 << 16)
def pair_of(origin: Device, target: Device) -> GpuPair:
    """The comparison of two GPUs."""
    facts = [gpu.measured.get("memory_bytes_per_s") for gpu in (origin, target)]
    bandwidths = [fact.value for fact in facts if fact is not None]
    measured = len(bandwidths) == 2
    here, there = bandwidths if measured else (origin.memory_bytes_per_s, target.memory_bytes_per_s)
    boost = _quotient(origin.boost_clock_hz, target.boost_clock_hz)
    base = _quotient(origin.base_clock_hz, target.base_clock_hz)
    limits = limits_of(origin), limits_of(target)
    return GpuPair(
        origin=origin,
        target=target,
        same=origin == target,
        measured=measured,
        memory=here / there,
        clock=base if boost is None else boost,
        link=_quotient(origin.pcie_bytes_per_s, target.pcie_bytes_per_s),
        limits=None if limits[0] is None or limits[1] is None else (limits[0], limits[1]),
    )


def _quotient(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None else over / under


@lru_cache(maxsize=65536)
def ridge(pair: GpuPair, unit: Unit) -> float:
    """FLOPs per byte at which memory and arithmetic of the target take equally long."""
    target, used = pair.target, available(unit, pair.target) or Unit.FP32
    rate, bytes_per_s = target.rate(used) or target.fp32_flops, target.memory_bytes_per_s
    if pair.measured:
        bytes_per_s = target.measured["memory_bytes_per_s"].value
        fact = target.measured.get(f"{used}_flops")
        rate = rate if fact is None else fact.value
    return rate / bytes_per_s


def wave_sizes(
    pair: GpuPair, block: Size | None, registers: int | None, shared_bytes: int | None
) -> tuple[int, int] | None:
    """The wave sizes of a kernel on both GPUs, or their numbers of SMs if those are not known."""
    sms = pair.origin.sm_count, pair.target.sm_count
    if sms[0] is None or sms[1] is None:
        return None
    if block is None or registers is None or pair.limits is None:
        return sms[0], sms[1]
    fitting = [
        blocks_per_sm(limits, math.prod(block), registers, shared_bytes or 0)
        for limits in pair.limits
    ]
    if not all(fitting):
        return sms[0], sms[1]
    return wave_size(fitting[0], sms[0]), wave_size(fitting[1], sms[1])
