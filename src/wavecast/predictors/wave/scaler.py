"""Calls, scaled kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavecast.hardware.device import Device
from wavecast.predictors.base import Estimate, Scaler
from wavecast.predictors.wave.kernel import UNKNOWN_WORK, scale_between, work_of
from wavecast.predictors.wave.pair import GpuPair, pair_of
from wavecast.traces.step import Call

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
