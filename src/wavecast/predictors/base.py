"""What a predictor and a scaler are: the protocols that every one of them obeys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from wavecast.hardware.device import Device
from wavecast.traces.step import Call, Op


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time, the range it may lie in, and who said so."""

    seconds: float
    low_s: float
    high_s: float
    source: str


@runtime_checkable
class Predictor(Protocol):
    """Predicts how long a GPU takes for an op, or answers None for an op it does not know.

    Subclass it and write `predict`; override the other methods only where you can do better.
    """

    @abstractmethod
    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The GPU's time for one run of an op."""

    def predict_all(self, ops: Sequence[Op], device: Device) -> Sequence[Estimate | None]:
        """The GPU's time for each op; the same answers as `predict`, often much faster."""
        return [self.predict(op, device) for op in ops]

    def ratios(self, ops: Sequence[Op], origin: Device, target: Device) -> Sequence[float | None]:
        """How many times as long the target takes for each op as the origin does."""
        here, there = self.predict_all(ops, origin), self.predict_all(ops, target)
        return [
            b.seconds / a.seconds if a is not None and b is not None else None
            for a, b in zip(here, there, strict=True)
        ]

    def knows_chip(self, device: Device) -> bool:
        """Whether it was fitted on ops of every kind, measured on the GPU's very chip."""
        return False


@runtime_checkable
class Scaler(Protocol):
    """Scales what was measured on one GPU to another, or answers None where it cannot.

    Subclass it and write `scale_call`; override `scale_all` only where you can do better.
    """

    @abstractmethod
    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The target's time for the kernels of a measured call."""

    def scale_all(
        self, calls: Sequence[Call], origin: Device, target: Device
    ) -> Sequence[Estimate | None]:
        """The target's time for each call; the same answers as `scale_call`."""
        return [self.scale_call(call, origin, target) for call in calls]
