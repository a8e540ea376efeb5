"""The time of FlashAttention's first kernels (2022), which frameworks of 2023 ran.

The op models know FlashAttention 2 and what came later. No times of the first kernels are public.
What is published is how much of an A100's peak they attained: 30 to 50% in the forward pass, 25 to
35% in the backward pass (Dao, "FlashAttention-2", 2023, section 1). We take the middle of each. The
version in Triton of that time lies in the same ranges. Both are written with Ampere's instructions.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavecast.hardware.device import Device
from wavecast.hardware.rates import AMPERE_SHARE
from wavecast.predictors.base import Estimate
from wavecast.predictors.roofline import limits
from wavecast.traces.step import Op

FIRST = "first_flash"
"""The attribute of attention that these kernels compute."""


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
    peak = AMPERE_SHARE.get((device.compute_capability or (0,))[0], 1.0)
    attained = _BACKWARD if "backward" in op.base else _FORWARD
    memory_s = max(limit.seconds for limit in bounds if limit.unit is None)
    compute_s = max((limit.seconds for limit in bounds if limit.unit is not None), default=0.0)
    shares = (attained.middle, attained.high, attained.low)
    middle, low, high = (max(memory_s, compute_s / (peak * share)) for share in shares)
    if later is not None and later.seconds >= middle:
        return later
    return Estimate(middle, low, high, "FlashAttention 1") if middle > 0 else None
