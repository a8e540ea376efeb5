"""The protocols of predictors and scalers. Their contract is tested for all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from wavecast.hardware.devices import Device
from wavecast.results import Shown
from wavecast.traces.step import Call, Op


@dataclass(frozen=True, slots=True)
class Estimate(Shown):
    """A predicted time, its range, and where it comes from.

    Example:
        >>> Estimate(seconds=2e-3, low_s=1.5e-3, high_s=3e-3, source="roofline")
    """

    seconds: float
    low_s: float
    """The low end of the range of about nine in ten real times."""
    high_s: float
    """The high end of that range."""
    source: str
    """The name of the predictor or scaler, for reports."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The range of true times, divided by the predicted time."""

    low: float
    high: float


class Familiarity(StrEnum):
    """How well a predictor was fitted for a GPU. The ranges of steps depend on it."""

    MEASURED = "measured"
    """Ops of every kind were measured on the GPU's chip."""
    PARTLY = "partly"
    """Some ops were measured on the GPU's chip."""
    UNSEEN = "unseen"
    """Ops were measured on other chips of the GPU's vendor only."""
    FOREIGN = "foreign"
    """Ops were measured on GPUs of other vendors only."""


@runtime_checkable
class Predictor(Protocol):
    """Predicts the time of an op on a GPU, or answers None for an op it does not know.

    Subclass it and write `predict`; override the other methods only where you can do better. Your
    predictor is used by `wavecast.predict(trace, gpu, predictor=...)`.

    Example:
        >>> from wavecast.predictors.attainable import bound
        >>> class TwiceTheBound(Predictor):
        ...     def predict(self, op, device):
        ...         least = bound(op, device)
        ...         if least is None or not least.seconds:
        ...             return None
        ...         return Estimate(2 * least.seconds, least.seconds, 10 * least.seconds, "twice")
    """

    @abstractmethod
    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The time of one run of an op on a GPU."""

    def predict_all(self, ops: Sequence[Op], device: Device) -> Sequence[Estimate | None]:
        """The time of each op on a GPU: the same answers as `predict`, often much faster."""
        return [self.predict(op, device) for op in ops]

    def ratios(self, ops: Sequence[Op], origin: Device, target: Device) -> Sequence[float | None]:
        """How many times as long each op takes on the target as on the origin."""
        here, there = self.predict_all(ops, origin), self.predict_all(ops, target)
        return [
            b.seconds / a.seconds if a is not None and b is not None else None
            for a, b in zip(here, there, strict=True)
        ]

    def familiarity(self, device: Device) -> Familiarity | None:
        """How well the predictor knows a GPU.

        None if steps that it predicted were never compared with measured ones. Then a predicted
        step has no range.
        """
        return None

    def assumptions(self, device: Device) -> tuple[str, ...]:
        """What the predictor assumes because the device's file lacks a fact, in sentences."""
        return ()


@runtime_checkable
class Scaler(Protocol):
    """Scales a call measured on one GPU to another GPU, or answers None where it cannot.

    Subclass it and write `scale_call`; override `scale_all` only where you can do better.

    Example:
        >>> class ByBandwidth(Scaler):
        ...     def scale_call(self, call, origin, target):
        ...         measured_s = sum(kernel.seconds for kernel in call.kernels)
        ...         if not measured_s:
        ...             return None
        ...         seconds = measured_s * origin.memory_bytes_per_s / target.memory_bytes_per_s
        ...         return Estimate(seconds, seconds, seconds, "bandwidth")
    """

    @abstractmethod
    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The time of a measured call on the target; None if the scaler does not know."""

    def scale_all(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> Sequence[Estimate | None]:
        """The time of each call on the target: the same answers as `scale_call`."""
        return [self.scale_call(call, origin, target) for call in calls]

    def familiarity(self, device: Device) -> Familiarity | None:
        """How well the scaler knows a GPU.

        None if steps that it scaled were never compared with measured ones. Then a scaled step has
        no range.
        """
        return None
