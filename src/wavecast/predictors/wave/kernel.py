"""One kernel, scaled from the GPU where it was measured to another."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from wavecast import ops
from wavecast.hardware.device import Device
from wavecast.ops import Kind, Unit
from wavecast.predictors.roofline import demand
from wavecast.predictors.wave.equations import Waves, gamma, wave_ratio, whole_wave_ratio
from wavecast.predictors.wave.pair import GpuPair, Size, pair_of, ridge, wave_sizes
from wavecast.traces import kernel_names
from wavecast.traces.step import Kernel, Op

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

    Args:
        kernel: The kernel as measured on the origin.
        origin: The GPU where it was measured.
        target: The GPU where it would run.
        intensity: FLOPs per byte of its op, if known.
        kind: The kind of its op, if known.
        unit: The arithmetic unit that its op is meant for.
    """
    return scale_between(kernel, pair_of(origin, target), _work(kind, intensity, unit))


def scale_between(
    kernel: Kernel, pair: GpuPair, work: KernelWork, whole_waves: bool = False
) -> Scaled | None:
    """The same as `scale`, for two GPUs that are already compared.

    Args:
        kernel: The kernel as measured on the origin.
        pair: The two GPUs.
        work: What is known of its op.
        whole_waves: Whether Eq. 1 is taken in place of Eq. 2, where the blocks are known.
    """
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
