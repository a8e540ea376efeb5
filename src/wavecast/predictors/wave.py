"""Wave scaling: kernels measured on one GPU, scaled to another (Habitat, Yu et al., ATC 2021).

A GPU runs the blocks of a kernel in waves of W = (blocks that fit on one SM) x (SMs). Waves of the
same kernel differ between GPUs by memory bandwidth D, clock C and size W. Gamma is the share of
their time that is memory. Predictions use Eq. 2, as the paper does (section 3.3). Decisions that
the paper leaves open rest on `python -m lab score wave` and are documented where they are taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from wavecast import ops
from wavecast.hardware.devices import Device, available
from wavecast.hardware.occupancy import SmLimits, blocks_per_sm, limits_of
from wavecast.ops import Kind, Unit
from wavecast.predictors.attainable import demand
from wavecast.predictors.base import Estimate, Scaler
from wavecast.traces import kernel_names
from wavecast.traces.step import Call, Kernel, Op, Phase

__all__ = ["SOURCE", "WaveScaling", "kernels_that_matter"]


# One kernel, scaled from the GPU where it was measured to another.


CONTRACTIONS = frozenset({Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.RNN})
"""Ops whose kernels vary from GPU to GPU, which Habitat leaves to its MLPs (section 3.2)."""

STREAMING = frozenset({Kind.ELEMENTWISE, Kind.COPY, Kind.FILL, Kind.OPTIMIZER})
"""Ops that read and write each byte once."""

CONTRACTION_GAMMA = 0.5
"""Gamma of a contraction of unknown shape: the best of 0, 1/4, 1/2 and 1 (an error of 42 %, against
49, 44 and 44 %) on 363,392 pairs of runs of bmm, linear and convolution on five GPUs."""

# Factors that give the range: about nine in ten measured times, or more, lay within the estimate
# divided and multiplied by them. Kernels above 0.2 ms between five GPUs: elementwise; layer norm
# and softmax; contractions.
STREAMING_SPREAD = 1.25
OTHER_SPREAD = 1.65
CONTRACTION_SPREAD = 2.2
ONE_WAVE_SPREAD = 2.0
"""The same for kernels below one wave, whose times are not scaled."""


@dataclass(frozen=True, slots=True, eq=False)
class KernelWork:
    """The work of a kernel, as far as its op shows it. Equal ones are the same object."""

    intensity: float | None = None
    """FLOPs per byte; None if shapes are not known."""
    unit: Unit = Unit.FP32
    contraction: bool = False
    spread: float = OTHER_SPREAD
    """How far off the estimate may be, as a factor."""


UNKNOWN_WORK = KernelWork()
"""The work of a kernel whose op is unknown: without hardware counters its gamma is 1."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """The ratio Td / To of a kernel, its range, and where its gamma comes from."""

    ratio: float
    low: float
    high: float
    gamma: float | None
    """None where Eq. 2 was not used."""
    source: str
    """"counters", "op" (its FLOPs and bytes) or "assumed"; else why there is no gamma."""


def scale(
    kernel: Kernel,
    origin: Device,
    target: Device,
    intensity: float | None = None,
    kind: Kind | None = None,
    unit: Unit = Unit.FP32,
) -> Scaled | None:
    """How many times as long a kernel takes on the target as on the origin; None if unknown.

    Gamma comes from the kernel's hardware counters, else from `intensity`, else it is 1 (section
    4.2), or `CONTRACTION_GAMMA` for a contraction, with a range that covers every gamma. Where
    occupancy cannot be computed, numbers of SMs take the place of wave sizes, as in Habitat's code.
    A kernel that fits in one wave on both GPUs keeps its time, also as in that code: more SMs do
    not help it and bandwidth does not limit it. On 3,874 such kernels this had a smaller error
    (35 %) than the ratio of clocks (40 %) or Eq. 2 (50 to 111 %).
    """
    return scale_between(kernel, pair_of(origin, target), _work(kind, intensity, unit))


def scale_between(
    kernel: Kernel, pair: GpuPair, work: KernelWork, whole_waves: bool = False
) -> Scaled | None:
    """The same as `scale`, for two GPUs that are already compared."""
    if pair.same:
        return _SAME
    # The time of a collective depends on the links between GPUs, and on waiting for each other.
    if kernel_names.is_collective(kernel.name):
        return None
    if kernel.grid is None and kernel_names.is_copy(kernel.name):
        return _scale_copy(kernel.name, pair)
    launch = _Launch(kernel.grid, kernel.block, kernel.registers, kernel.shared_bytes)
    return _scale_launch(pair, work, launch, kernel.flops, kernel.dram_bytes, whole_waves)


class _Launch(NamedTuple):
    """How a kernel was launched; None where it is not known."""

    grid: Size | None
    block: Size | None
    registers: int | None
    shared_bytes: int | None


# Kernels repeat within a step, and a step is scaled to many GPUs.
@lru_cache(maxsize=1 << 17)
def _scale_launch(
    pair: GpuPair,
    work: KernelWork,
    launch: _Launch,
    flops: float | None,
    dram_bytes: float | None,
    whole_waves: bool,
) -> Scaled | None:
    waves = wave_sizes(pair, launch.block, launch.registers, launch.shared_bytes)
    if waves is None or pair.clock is None:
        return None
    blocks = None if launch.grid is None else math.prod(launch.grid)
    if blocks is not None and blocks <= min(waves):
        return _ONE_WAVE
    # Of bandwidths and clocks only the ratios matter.
    origin, target = Waves(waves[0], pair.memory, pair.clock), Waves(waves[1], 1.0, 1.0)

    def ratio_at(gamma: float) -> float:
        if whole_waves and blocks is not None:
            return whole_wave_ratio(origin, target, gamma, blocks)
        return wave_ratio(origin, target, gamma)

    counted = _counted_intensity(flops, dram_bytes)
    intensity = work.intensity if counted is None else counted
    if intensity is None and work.contraction:
        ratio = ratio_at(CONTRACTION_GAMMA)
        low, high = sorted((ratio_at(0.0), ratio_at(1.0)))
        return Scaled(ratio, low / work.spread, high * work.spread, CONTRACTION_GAMMA, "assumed")
    share = 1.0 if intensity is None else gamma(intensity, ridge(pair, work.unit))
    source = "assumed" if intensity is None else "op" if counted is None else "counters"
    ratio = ratio_at(share)
    return Scaled(ratio, ratio / work.spread, ratio * work.spread, share, source)


_SAME = Scaled(1.0, 1.0, 1.0, None, "same device")
_ONE_WAVE = Scaled(1.0, 1 / ONE_WAVE_SPREAD, ONE_WAVE_SPREAD, None, "one wave")


def _counted_intensity(flops: float | None, dram_bytes: float | None) -> float | None:
    """FLOPs per byte as counted by the hardware; 0 without FLOPs, else infinite without bytes."""
    if flops is None or dram_bytes is None:
        return None
    if not flops:
        return 0.0
    return flops / dram_bytes if dram_bytes else math.inf


def _scale_copy(name: str, pair: GpuPair) -> Scaled:
    """Copies and fills: at the speed of memory, of the link or, for pageable memory, of the host.

    Small ones take the same time everywhere, so the range includes 1.
    """
    ratio, source = pair.memory, "memory"
    if kernel_names.copies_to_gpu(name) or kernel_names.copies_to_host(name):
        on_link = not kernel_names.is_pageable_copy(name) and pair.link is not None
        ratio, source = (pair.link or 1.0, "link") if on_link else (1.0, "host")
    low, high = min(ratio, 1.0), max(ratio, 1.0)
    return Scaled(ratio, low / STREAMING_SPREAD, high * STREAMING_SPREAD, None, source)


@lru_cache(maxsize=1 << 16)
def work_of(op: Op) -> KernelWork:
    """The work of an op's kernels; unknown where a profiler recorded only the op's name."""
    kind = ops.kind(op)
    needs = demand(op)
    if needs is None or not needs.nbytes or (kind in CONTRACTIONS and not needs.flops):
        return _work(kind, None, Unit.FP32)
    return _work(kind, needs.flops / needs.nbytes, needs.unit)


@lru_cache(maxsize=65536)
def _work(kind: Kind | None, intensity: float | None, unit: Unit) -> KernelWork:
    if kind in CONTRACTIONS:
        return KernelWork(intensity, unit, True, CONTRACTION_SPREAD)
    return KernelWork(
        intensity, unit, False, STREAMING_SPREAD if kind in STREAMING else OTHER_SPREAD
    )


# Which kernels deserve hardware counters, whose collection is slow.


def kernels_that_matter(
    calls: Iterable[Call],
    percentile: float = 99.5,
    apart: frozenset[Kind] = CONTRACTIONS,
) -> tuple[Call, ...]:
    """The calls that are so long that their kernels deserve hardware counters (Habitat, 4.2).

    These are at or above the percentile of their phase; for the others gamma = 1 is good enough.
    As in Habitat's code, each phase has its own percentile, and ops that are not wave-scaled do
    not count.
    """
    timed: dict[Phase, list[tuple[int, Call, float]]] = {}
    for position, call in enumerate(calls):
        if call.kernels and ops.kind(call.op) not in apart:
            seconds = sum(kernel.seconds for kernel in call.kernels)
            timed.setdefault(call.phase, []).append((position, call, seconds))
    chosen = []
    for group in timed.values():
        least = np.percentile([seconds for _, _, seconds in group], percentile)
        chosen += [(position, call) for position, call, seconds in group if seconds >= least]
    return tuple(call for _, call in sorted(chosen, key=lambda pair: pair[0]))


# Habitat's equations 1 to 3 (Yu et al., ATC 2021, section 3.3).


@dataclass(frozen=True, slots=True)
class Waves:
    """How a GPU runs a kernel: W, D and C of Habitat's equations."""

    size: float
    """W, the blocks of one wave."""
    bytes_per_s: float
    """D, the memory bandwidth."""
    clock_hz: float
    """C, the clock."""


def wave_size(blocks_per_sm: int, sm_count: int) -> int:
    """W, the blocks of a kernel that a GPU runs at a time (Habitat, section 3.3)."""
    return blocks_per_sm * sm_count


def gamma(intensity: float, ridge: float) -> float:
    """The share of a kernel's time that is memory, from 1 to 0 (Habitat, Eq. 3).

    Args:
        intensity: x, FLOPs per byte of DRAM.
        ridge: R, peak FLOP/s over bandwidth of the target, where gamma is one half.
    """
    if intensity < ridge:
        return 1 - 0.5 * intensity / ridge
    return 0.5 * ridge / intensity


def wave_ratio(origin: Waves, target: Waves, gamma: float) -> float:
    """Td / To, the time on the target over that on the origin, for many waves (Habitat, Eq. 2)."""
    memory = origin.bytes_per_s / target.bytes_per_s
    compute = origin.size / target.size * (origin.clock_hz / target.clock_hz)
    return mixed_ratio(memory, compute, gamma)


def whole_wave_ratio(origin: Waves, target: Waves, gamma: float, blocks: int) -> float:
    """Td / To for a kernel of so many blocks, in whole waves (Habitat, Eq. 1).

    Predictions take Eq. 2, as the paper does, unless they are asked for this one. Below one wave it
    would make kernels slower on bigger GPUs; such kernels keep their time.
    """
    waves = math.ceil(blocks / target.size) / math.ceil(blocks / origin.size)
    memory = origin.bytes_per_s / target.bytes_per_s * (target.size / origin.size)
    return waves * mixed_ratio(memory, origin.clock_hz / target.clock_hz, gamma)


def mixed_ratio(memory: float, compute: float, gamma: float) -> float:
    """The right side of Eq. 2: memory^gamma * compute^(1 - gamma)."""
    mixed: float = memory**gamma * compute ** (1 - gamma)
    return mixed


# Two GPUs compared: the ratios from origin to target that do not depend on the kernel.


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


# Calls, scaled kernel by kernel.


SOURCE = "wave scaling"
"""What the estimates of waves are from, for reports."""


@dataclass(frozen=True)
class WaveScaling(Scaler):
    """Scales each kernel of a call by its waves, from the GPU on which it was measured.

    Example:
        >>> v100, a100 = wavecast.device("v100-sxm-16gb"), wavecast.device("a100-sxm-80gb")
        >>> WaveScaling().scale_call(call, v100, a100).seconds
    """

    counters_only: bool = False
    """Take gamma from hardware counters alone, and 1 for a kernel without them, as published
    (Habitat, section 4.2). By default the op's own FLOPs and bytes stand in for counters."""
    whole_waves: bool = False
    """Take Habitat's Eq. 1, in whole waves, in place of Eq. 2, which its predictions take."""

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The target's time for a call; None if no time was measured or a kernel has no answer."""
        return self._scale(call, pair_of(origin, target))

    def scale_all(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> list[Estimate | None]:
        """The target's time for each call; the two GPUs are compared once."""
        pair = pair_of(origin, target)
        return [self._scale(call, pair) for call in calls]

    def _scale(self, call: Call, pair: GpuPair) -> Estimate | None:
        work = UNKNOWN_WORK if self.counters_only else work_of(call.op)
        seconds = low_s = high_s = 0.0
        for kernel in call.kernels:
            scaled = scale_between(kernel, pair, work, self.whole_waves)
            if scaled is None:
                return None
            seconds += kernel.seconds * scaled.ratio
            low_s += kernel.seconds * scaled.low
            high_s += kernel.seconds * scaled.high
        return Estimate(seconds, low_s, high_s, SOURCE) if seconds > 0 else None
