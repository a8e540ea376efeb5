"""The time of FlashAttention's first kernels (2022), which frameworks of 2023 ran.

The op models know FlashAttention 2 and what came later. Of the first kernels no times are public,
but the shares of the peak that they attained: 30 to 50% in the forward pass, 25 to 35% in the
backward pass on A100 (Dao, "FlashAttention-2", 2023, section 1). The middle of each is taken. The
version in Triton of that time is as fast within these ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.hardware.device import Device
from wavecast.predictors.base import Estimate
from wavecast.predictors.roofline import limits
from wavecast.traces.step import Op

FIRST = "first_flash"
"""The attribute of attention that these kernels compute."""
OLD_INSTRUCTIONS = 0.63
"""The share of a tensor core's peak on Hopper that Ampere's instructions (`mma.sync`) attain, which
these kernels are written in (Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU
Architecture", 2024: 62.9% on average). Later chips are taken to be alike."""
_HOPPER = (9, 0)


@dataclass(frozen=True, slots=True)
class _Attained:
    """The share of the peak rate that a pass attains."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


_FORWARD, _BACKWARD = _Attained(0.30, 0.50), _Attained(0.25, 0.35)


def first_flash(op: Op, device: Device, later: Estimate | None) -> Estimate | None:
    """The time of attention by the first kernels; None if a rate of the GPU is not known.

    Args:
        op: the attention.
        device: the GPU.
        later: the time of FlashAttention 2, which is never slower. Where sequences are few or
            short, both wait for the same things, and it counts.
    """
    bounds = limits(op, device)
    if not bounds:
        return later
    hopper = device.compute_capability is not None and device.compute_capability >= _HOPPER
    peak = OLD_INSTRUCTIONS if hopper else 1.0
    attained = _BACKWARD if "backward" in op.base else _FORWARD
    memory_s = max(limit.seconds for limit in bounds if limit.unit is None)
    compute_s = max((limit.seconds for limit in bounds if limit.unit is not None), default=0.0)
    shares = (attained.middle, attained.high, attained.low)
    middle, low, high = (max(memory_s, compute_s / (peak * share)) for share in shares)
    if later is not None and later.seconds >= middle:
        return later
    return Estimate(middle, low, high, "FlashAttention 1") if middle > 0 else None
