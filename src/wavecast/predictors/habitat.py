"""A measured step, scaled to another GPU (Habitat, Yu et al., ATC 2021, section 3).

Ops whose kernels are the same on every GPU are scaled by their waves. Ops whose kernels vary
(matmuls, convolutions, recurrent layers, attention) take the measured time times the ratio
of two predictions. The predictor's error cancels as far as it is the same on both GPUs. Collectives
are scaled by the links of the machines in which both GPUs usually are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from wavecast import ops
from wavecast.hardware.device import Device
from wavecast.ops import Kind
from wavecast.predictors.base import Estimate, Familiarity, Predictor, Scaler
from wavecast.predictors.collectives import Collectives
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.wave import WaveScaling
from wavecast.predictors.wave.kernel import CONTRACTIONS
from wavecast.traces.step import Call

VARYING = CONTRACTIONS | {Kind.FUSED}
"""Ops whose kernels vary from GPU to GPU. A compiler generates kernels for the GPU at hand."""


@dataclass(frozen=True)
class Habitat(Scaler):
    """Scales calls by their waves, or by a ratio of predictions where kernels vary.

    Example:
        >>> v100, a100 = wavecast.device("v100-sxm-16gb"), wavecast.device("a100-sxm-80gb")
        >>> Habitat.shipped().scale_call(call, v100, a100).seconds
    """

    learned: Predictor
    """The predictor whose ratios are used: `Learned`, or `Mlp` as in the paper."""
    wave: WaveScaling = field(default_factory=WaveScaling)
    collectives: Collectives = field(default_factory=Collectives.shipped)
    spread: float = 1.0
    """The range of a ratio is the ratio divided and multiplied by 1 + spread. Of the ratios between
    five public GPUs, nine in ten were within such a factor (convolutions 1.55, matmuls 2.1)."""

    @classmethod
    @cache
    def shipped(cls) -> Habitat:
        """The scaler with the predictor that is the default without a measurement."""
        return cls(Learned.shipped())

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The time of a measured call on the target; None if nothing is known of its kernels."""
        return self.scale_all((call,), origin, target)[0]

    def scale_all(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> list[Estimate | None]:
        """The time of each call on the target; all ratios are predicted at once."""
        if origin == target:
            return [_as_measured(call) for call in calls]
        by_waves = self.wave.scale_all(calls, origin, target)
        ratios = self.learned.ratios(tuple(call.op for call in calls), origin, target)
        rows = zip(calls, by_waves, ratios, strict=True)
        return [
            self._by_links(call, origin, target)
            if ops.kind(call.op) is Kind.COLLECTIVE
            else self._scaled(call, waved, ratio)
            for call, waved, ratio in rows
        ]

    def familiarity(self, device: Device) -> Familiarity | None:
        """As well as the predictor whose ratios are used."""
        return self.learned.familiarity(device)

    def _by_links(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """A collective, which takes as much longer as the links of the usual machines need."""
        ratio = self.collectives.ratio(call.op, origin, target)
        if ratio is None or not _measured_s(call):
            return None
        seconds, factor = ratio * _measured_s(call), 1 + self.spread
        return Estimate(seconds, seconds / factor, seconds * factor, "ratio of links")

    def _scaled(
        self, call: Call, by_waves: Estimate | None, ratio: float | None
    ) -> Estimate | None:
        kind = ops.kind(call.op)
        if not _measured_s(call):
            return None
        by_ratio = self._by_ratio(call, ratio if ops.has_shapes(call.op) else None)
        # Each may be unknown: waves need clocks and SMs of both GPUs, ratios need shapes.
        return by_ratio or by_waves if kind in VARYING else by_waves or by_ratio

    def _by_ratio(self, call: Call, ratio: float | None) -> Estimate | None:
        if ratio is None:
            return None
        seconds = ratio * _measured_s(call)
        factor = 1 + self.spread
        source = f"ratio of {type(self.learned).__name__.lower()}"
        return Estimate(seconds, seconds / factor, seconds * factor, source)


def _measured_s(call: Call) -> float:
    return sum(kernel.seconds for kernel in call.kernels)


def _as_measured(call: Call) -> Estimate | None:
    measured_s = _measured_s(call)
    return Estimate(measured_s, measured_s, measured_s, "measured") if measured_s else None
