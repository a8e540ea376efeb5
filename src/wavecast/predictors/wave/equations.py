"""Habitat's equations 1 to 3 (Yu et al., ATC 2021, section 3.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
