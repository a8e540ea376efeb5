"""From the GPU you have to the one you want (Habitat, Yu et al., ATC 2021, section 3).

Ops whose kernels are the same on every GPU are scaled by their waves. Ops whose kernels vary
(matrix products, convolutions, recurrent layers, attention) take the measured time times the
ratio of two predictions, so that a predictor's error on the op cancels as far as it is the same
on both GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from wavecast import ops
from wavecast.devices import Device
from wavecast.ops import Kind
from wavecast.prediction import Estimate, Predictor
from wavecast.predictors.mlp import Mlp
from wavecast.predictors.wave import CONTRACTIONS, WaveScaling
from wavecast.trace import Call


@dataclass(frozen=True)
class Habitat:
    """Wave scaling, and the ratio of learned predictions where kernels vary."""

    learned: Predictor
    wave: WaveScaling = field(default_factory=WaveScaling)
    spread: float = 1.0
    """Of ratios between five public GPUs, nine in ten were off by less than this factor and one
    (convolutions 1.55, products 2.1; docs/accuracy.md)."""

    @classmethod
    def shipped(cls) -> Habitat:
        """With the predictor that is the default without a measurement."""
        return _shipped()

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The target's time for a measured call; communication is nobody's to scale."""
        measured_s = sum(kernel.seconds for kernel in call.kernels)
        if not measured_s:
            return None
        if origin == target:
            return Estimate(measured_s, measured_s, measured_s, "measured")
        kind = ops.kind(call.op)
        if kind is Kind.COLLECTIVE:
            return None
        ways = [self.wave.scale_call, self._by_ratio]
        # Waves need clocks and SMs, which are not known of every GPU; shapes are not always known.
        for way in reversed(ways) if kind in CONTRACTIONS else ways:
            answer = way(call, origin, target)
            if answer is not None:
                return answer
        return None

    def _by_ratio(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        ratio = self._ratio(call, origin, target)
        if ratio is None:
            return None
        seconds = ratio * sum(kernel.seconds for kernel in call.kernels)
        wide = 1 + self.spread
        source = f"ratio of {type(self.learned).__name__.lower()}"
        return Estimate(seconds, seconds / wide, seconds * wide, source)

    def _ratio(self, call: Call, origin: Device, target: Device) -> float | None:
        if not ops.has_shapes(call.op):
            return None
        if isinstance(self.learned, Mlp):  # has a ratio of its own, not held to any bound
            return self.learned.ratio(call.op, origin, target)
        here = self.learned.predict(call.op, origin)
        there = self.learned.predict(call.op, target)
        return None if here is None or there is None else there.seconds / here.seconds


@cache
def _shipped() -> Habitat:
    from wavecast.predictors.attainable import Attainable

    return Habitat(Attainable.shipped())
