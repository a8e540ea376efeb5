"""Wave scaling: what a kernel measured on one GPU takes on another (Habitat, Yu et al., ATC 2021).

A GPU runs the blocks of a kernel in waves of W = (blocks that fit on one SM) x (SMs). Waves of the
same kernel differ between GPUs by memory bandwidth D, clock C and size W; gamma says how much of
their time is memory.

Predictions use Eq. 2, as the paper does (section 3.3). Eq. 1, which counts whole waves, is here to
compare with: below one wave it makes bigger GPUs slower. Decisions that the paper leaves open
follow from `python -m lab.score.wave`, named where they are taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wavecast import ops
from wavecast.hardware.device import Device
from wavecast.hardware.occupancy import SmLimits, blocks_per_sm, limits_of
from wavecast.hardware.rates import available
from wavecast.ops import Kind, Unit
from wavecast.predictors.base import Estimate, Scaler
from wavecast.predictors.roofline import demand
from wavecast.traces import kernel_names
from wavecast.traces.step import Call, Kernel, Op, Phase

CONTRACTIONS = frozenset({Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.RNN})
"""Ops whose kernels vary from GPU to GPU, which Habitat leaves to its MLPs (section 3.2)."""

STREAMING = frozenset({Kind.ELEMENTWISE, Kind.COPY, Kind.FILL, Kind.OPTIMIZER})
"""Ops that read and write each byte once."""

CONTRACTION_GAMMA = 0.5
"""For a contraction of unknown shape: the best of 0, 1/4, 1/2 and 1 (42 % against 49, 44, 44) on
363,392 pairs of runs of bmm, linear and convolution on five GPUs."""

# About nine in ten measured times, or more, lay within the estimate divided and multiplied by
# these: elementwise; layer norm and softmax; contractions; above 0.2 ms, between five GPUs.
STREAMING_SPREAD = 1.25
OTHER_SPREAD = 1.65
CONTRACTION_SPREAD = 2.2
ONE_WAVE_SPREAD = 2.0
"""The same for kernels below one wave, whose times are left as they are."""


# The equations.


@dataclass(frozen=True, slots=True)
class Waves:
    """How a GPU runs a kernel: W, D and C of Habitat's equations."""

    size: float
    """Blocks of one wave."""
    bytes_per_s: float
    clock_hz: float


def wave_size(blocks_per_sm: int, sm_count: int) -> int:
    """W, the blocks of a kernel that a GPU runs at a time (Habitat, section 3.3)."""
    return blocks_per_sm * sm_count


def gamma(intensity: float, ridge: float) -> float:
    """How much of a kernel's time is memory, from 1 to 0 (Habitat, Eq. 3).

    Args:
        intensity: x, FLOPs per byte of DRAM.
        ridge: R, peak FLOP/s over bandwidth of the destination, where gamma is one half.
    """
    if intensity < ridge:
        return 1 - 0.5 * intensity / ridge
    return 0.5 * ridge / intensity


def whole_waves_ratio(blocks: int, origin: Waves, target: Waves, gamma: float) -> float:
    """Td / To by whole waves (Habitat, Eq. 1); a slow-down on bigger GPUs below one wave."""
    waves = math.ceil(blocks / target.size) / math.ceil(blocks / origin.size)
    memory = origin.bytes_per_s / target.bytes_per_s * (target.size / origin.size)
    clock = origin.clock_hz / target.clock_hz
    return _mix(memory, clock, gamma) * waves


def wave_ratio(origin: Waves, target: Waves, gamma: float) -> float:
    """Td / To of a kernel of many waves (Habitat, Eq. 2)."""
    memory = origin.bytes_per_s / target.bytes_per_s
    compute = origin.size / target.size * (origin.clock_hz / target.clock_hz)
    return _mix(memory, compute, gamma)


def _mix(memory: float, compute: float, gamma: float) -> float:
    mixed: float = memory**gamma * compute ** (1 - gamma)
    return mixed


# One kernel.


@dataclass(frozen=True, slots=True, eq=False)
class KernelWork:
    """What is known of a kernel's work from its op; equal ones are the same object."""

    intensity: float | None = None
    """FLOPs per byte; None when shapes are not known."""
    unit: Unit = Unit.FP32
    contraction: bool = False
    spread: float = OTHER_SPREAD
    """How far off the estimate may be, as a factor."""


@dataclass(frozen=True, slots=True)
class Scaled:
    """Td / To of a kernel, the range it may lie in, and where its gamma comes from."""

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
    """How much longer a kernel takes on the target than on the origin; None where unknown.

    Gamma comes from the kernel's own counters, else from `intensity`, else it is 1 (section 4.2),
    or `CONTRACTION_GAMMA` for a contraction, with a range as wide as gamma. Where occupancy cannot
    be computed, SM counts stand for waves, as in Habitat's code. A kernel that fits in one wave on
    both GPUs is left as it is, also as in that code: more SMs do not help it, bandwidth does not
    limit it, and on 3,874 such kernels this was closer (35 %) than the ratio of clocks (40 %) or
    Eq. 2 (50 to 111 %).

    Args:
        kernel: as measured on the origin.
        origin: where it was measured.
        target: where it would run.
        intensity: FLOPs per byte of its op, if known.
        kind: of its op, if known.
        unit: the arithmetic unit that its op asks for.
    """
    return _scale(kernel, _pair_of(origin, target), _work(kind, intensity, unit))


def _scale(kernel: Kernel, pair: _Pair, work: KernelWork) -> Scaled | None:
    if pair.same:
        return _SAME
    # A collective takes as long as the links between GPUs, and waiting for each other.
    if kernel_names.is_collective(kernel.name):
        return None
    if kernel.grid is None and kernel_names.is_copy(kernel.name):
        return _scale_copy(kernel.name, pair)
    launch = kernel.grid, kernel.block, kernel.registers, kernel.shared_bytes
    return _scale_launch(pair, work, launch, kernel.flops, kernel.dram_bytes)


# Kernels repeat within a step, and a step is scaled to many GPUs.
@lru_cache(maxsize=1 << 17)
def _scale_launch(
    pair: _Pair, work: KernelWork, launch: _Launch, flops: float | None, dram_bytes: float | None
) -> Scaled | None:
    waves = _waves(pair, launch)
    if waves is None or pair.clock is None:
        return None
    if launch[0] is not None and math.prod(launch[0]) <= min(waves):
        return _ONE_WAVE
    compute = waves[0] / waves[1] * pair.clock
    counted = _counted_intensity(flops, dram_bytes)
    known = work.intensity if counted is None else counted
    if known is None and work.contraction:
        ratio = _mix(pair.memory, compute, CONTRACTION_GAMMA)
        low, high = min(pair.memory, compute), max(pair.memory, compute)
        return Scaled(ratio, low / work.spread, high * work.spread, CONTRACTION_GAMMA, "assumed")
    share = 1.0 if known is None else gamma(known, _ridge(pair, work.unit))
    source = "assumed" if known is None else "op" if counted is None else "counters"
    ratio = _mix(pair.memory, compute, share)
    return Scaled(ratio, ratio / work.spread, ratio * work.spread, share, source)


_Size = tuple[int, int, int]
_Launch = tuple[_Size | None, _Size | None, int | None, int | None]
_SAME = Scaled(1.0, 1.0, 1.0, None, "same device")
_ONE_WAVE = Scaled(1.0, 1 / ONE_WAVE_SPREAD, ONE_WAVE_SPREAD, None, "one wave")


def _counted_intensity(flops: float | None, dram_bytes: float | None) -> float | None:
    """FLOPs per byte as the hardware counted; no FLOPs is 0, else no bytes is infinite."""
    if flops is None or dram_bytes is None:
        return None
    if not flops:
        return 0.0
    return flops / dram_bytes if dram_bytes else math.inf


def _scale_copy(name: str, pair: _Pair) -> Scaled:
    """Copies and fills: at the pace of memory, of the link, or, from pageable memory, of the host.

    Small ones take the same everywhere, so the range reaches 1.
    """
    ratio, source = pair.memory, "memory"
    if kernel_names.copies_to_gpu(name) or kernel_names.copies_to_host(name):
        on_link = not kernel_names.is_pageable_copy(name) and pair.link is not None
        ratio, source = (pair.link or 1.0, "link") if on_link else (1.0, "host")
    low, high = min(ratio, 1.0), max(ratio, 1.0)
    return Scaled(ratio, low / STREAMING_SPREAD, high * STREAMING_SPREAD, None, source)


# Two GPUs.


@dataclass(frozen=True, slots=True, eq=False)
class _Pair:
    """What two GPUs are to each other, whatever the kernel; ratios are origin over target."""

    origin: Device
    target: Device
    same: bool
    measured: bool
    """Whether both bandwidths are measured ones; they are never mixed with nominal ones."""
    memory: float
    clock: float | None
    link: float | None
    limits: tuple[SmLimits, SmLimits] | None


@lru_cache(maxsize=1 << 16)
def _pair_of(origin: Device, target: Device) -> _Pair:
    facts = [each.measured.get("memory_bytes_per_s") for each in (origin, target)]
    known = [fact.value for fact in facts if fact is not None]
    measured = len(known) == 2
    there, here = known if measured else (origin.memory_bytes_per_s, target.memory_bytes_per_s)
    boost = _quotient(origin.boost_clock_hz, target.boost_clock_hz)
    base = _quotient(origin.base_clock_hz, target.base_clock_hz)
    limits = limits_of(origin), limits_of(target)
    return _Pair(
        origin=origin,
        target=target,
        same=origin == target,
        measured=measured,
        memory=there / here,
        clock=base if boost is None else boost,
        link=_quotient(origin.pcie_bytes_per_s, target.pcie_bytes_per_s),
        limits=None if limits[0] is None or limits[1] is None else (limits[0], limits[1]),
    )


def _quotient(over: float | None, under: float | None) -> float | None:
    return None if over is None or under is None else over / under


@lru_cache(maxsize=65536)
def _ridge(pair: _Pair, unit: Unit) -> float:
    """Where memory and arithmetic of the target take equally long, in FLOPs per byte."""
    target, used = pair.target, available(unit, pair.target) or Unit.FP32
    rate, bytes_per_s = target.rate(used) or target.fp32_flops, target.memory_bytes_per_s
    if pair.measured:
        bytes_per_s = target.measured["memory_bytes_per_s"].value
        fact = target.measured.get(f"{used}_flops")
        rate = rate if fact is None else fact.value
    return rate / bytes_per_s


def _waves(pair: _Pair, launch: _Launch) -> tuple[int, int] | None:
    """The wave sizes of a kernel on both GPUs, or what stands for them: their SMs."""
    sms = pair.origin.sm_count, pair.target.sm_count
    if sms[0] is None or sms[1] is None:
        return None
    _, block, registers, shared_bytes = launch
    if block is None or registers is None or pair.limits is None:
        return sms[0], sms[1]
    fitting = [
        blocks_per_sm(limits, math.prod(block), registers, shared_bytes or 0)
        for limits in pair.limits
    ]
    if not all(fitting):
        return sms[0], sms[1]
    return wave_size(fitting[0], sms[0]), wave_size(fitting[1], sms[1])


# One call.


@dataclass(frozen=True)
class WaveScaling(Scaler):
    """A call's kernels, each scaled from the GPU on which it was measured."""

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The target's time for a call; None if nothing was measured or something has no answer."""
        return _scale_call(call, _pair_of(origin, target))

    def scale_all(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> list[Estimate | None]:
        """The target's time for each call; the two GPUs are compared once."""
        pair = _pair_of(origin, target)
        return [_scale_call(call, pair) for call in calls]


def _scale_call(call: Call, pair: _Pair) -> Estimate | None:
    if not call.kernels:
        return None
    work = work_of(call.op)
    seconds = low_s = high_s = 0.0
    for kernel in call.kernels:
        scaled = _scale(kernel, pair, work)
        if scaled is None:
            return None
        seconds += kernel.seconds * scaled.ratio
        low_s += kernel.seconds * scaled.low
        high_s += kernel.seconds * scaled.high
    return Estimate(seconds, low_s, high_s, "wave scaling")


@lru_cache(maxsize=1 << 16)
def work_of(op: Op) -> KernelWork:
    """What is known of an op's work; a profiler may tell its name and nothing else."""
    kind = ops.kind(op)
    asked = demand(op)
    if asked is None or not asked.nbytes or (kind in CONTRACTIONS and not asked.flops):
        return _work(kind, None, Unit.FP32)
    return _work(kind, asked.flops / asked.nbytes, asked.unit)


@lru_cache(maxsize=65536)
def _work(kind: Kind | None, intensity: float | None, unit: Unit) -> KernelWork:
    if kind in CONTRACTIONS:
        return KernelWork(intensity, unit, True, CONTRACTION_SPREAD)
    return KernelWork(
        intensity, unit, False, STREAMING_SPREAD if kind in STREAMING else OTHER_SPREAD
    )


# Which kernels deserve hardware counters.


def kernels_that_matter(
    calls: Iterable[Call],
    percentile: float = 99.5,
    apart: frozenset[Kind] = CONTRACTIONS,
) -> tuple[Call, ...]:
    """The calls so long that their kernels deserve hardware counters (Habitat, section 4.2).

    At or above the percentile of their phase; the others do with gamma = 1. Phases on their own,
    and without the ops that are not wave-scaled, as in Habitat's code.

    Args:
        calls: of a measured step.
        percentile: of their times.
        apart: kinds that are predicted in another way.
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
    return tuple(call for _, call in sorted(chosen, key=lambda each: each[0]))
