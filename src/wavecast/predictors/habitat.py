"""From the GPU you have to the one you want (Habitat, Yu et al., ATC 2021, section 3).

Ops whose kernels are the same on every GPU are scaled by their waves. Ops whose kernels vary
(matrix products, convolutions, recurrent layers, attention) take the measured time times the
ratio of two predictions, so that a predictor's error on the op cancels as far as it is the same
on both GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial

from wavecast import ops
from wavecast.devices import Device
from wavecast.ops import Kind
from wavecast.prediction import Estimate, Predictor
from wavecast.predictors.learned import Learned
from wavecast.predictors.mlp import Mlp
from wavecast.predictors.wave import CONTRACTIONS, WaveScaling
from wavecast.trace import Call, Op


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
        return self._scaled(call, origin, target, None)

    def scale_all(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> list[Estimate | None]:
        """The target's time for each call, with all ratios predicted at once."""
        ratios = self._ratios(calls, origin, target)
        return [
            self._scaled(call, origin, target, ratio)
            for call, ratio in zip(calls, ratios, strict=True)
        ]

    def _ratios(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> Sequence[float | None]:
        if origin == target or not isinstance(self.learned, Learned):
            return [None] * len(calls)
        here, there = (self.learned.predict_all(_ops(calls), gpu) for gpu in (origin, target))
        return [
            b.seconds / a.seconds if a and b and ops.has_shapes(call.op) else None
            for call, a, b in zip(calls, here, there, strict=True)
        ]

    def _scaled(
        self, call: Call, origin: Device, target: Device, ratio: float | None
    ) -> Estimate | None:
        measured_s = sum(kernel.seconds for kernel in call.kernels)
        if not measured_s:
            return None
        if origin == target:
            return Estimate(measured_s, measured_s, measured_s, "measured")
        kind = ops.kind(call.op)
        if kind is Kind.COLLECTIVE:
            return None
        by_waves = partial(self.wave.scale_call, call, origin, target)
        by_ratio = partial(self._by_ratio, call, origin, target, ratio)
        # Waves need clocks and SMs, which are not known of every GPU; shapes are not always known.
        if kind in CONTRACTIONS:
            return by_ratio() or by_waves()
        return by_waves() or by_ratio()

    def _by_ratio(
        self, call: Call, origin: Device, target: Device, known: float | None
    ) -> Estimate | None:
        ratio = known or self._ratio(call, origin, target)
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


_OPS: dict[int, tuple[Sequence[Call], tuple[Op, ...]]] = {}
_MOST_OPS = 8


def _ops(calls: Sequence[Call]) -> tuple[Op, ...]:
    """Always the same tuple for the same calls, by which `Learned` knows what it has seen."""
    known = _OPS.get(id(calls))
    if known is None or known[0] is not calls:
        if len(_OPS) >= _MOST_OPS:
            _OPS.clear()
        known = _OPS[id(calls)] = calls, tuple(call.op for call in calls)
    return known[1]


@cache
def _shipped() -> Habitat:
    return Habitat(Learned.shipped())
