"""The time of one op: who answers, and whether an answer is one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

from wavecast.columns import columns_of
from wavecast.devices import Device
from wavecast.errors import InvalidInput
from wavecast.trace import Call, Op, Trace


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time, the range it may lie in, and who said so."""

    seconds: float
    low_s: float
    high_s: float
    source: str


class Predictor(Protocol):
    """Answers for the ops it knows and returns None for the others."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The GPU's time for one run of an op."""


class Scaler(Protocol):
    """Takes what was measured on one GPU to another; returns None where it cannot."""

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        """The target's time for the kernels of a measured call."""


def predicted(trace: Trace, target: Device, predictor: Any) -> tuple[Estimate | None, ...]:
    """What a predictor says to each different piece of work; None: nobody knows, or no kernel."""
    if hasattr(predictor, "predict_all"):  # all at once is many times as fast
        columns = columns_of(trace)
        found = iter(predictor.predict_all(columns.launched, target))
        return tuple(
            _checked(next(found), call.op, predictor) if launches else None
            for call, launches in columns.work_items()
        )
    return tuple(
        _checked(predictor.predict(call.op, target), call.op, predictor) if launches else None
        for call, launches in columns_of(trace).work_items()
    )


def scaled(
    trace: Trace, target: Device, scaler: Any, origin: Device
) -> tuple[Estimate | None, ...]:
    """What a scaler makes of each measured call; None: it cannot, or no kernel ran."""
    columns = columns_of(trace)
    if hasattr(scaler, "scale_all"):
        answers = scaler.scale_all(columns.works, origin, target)
        return tuple(
            _checked(answer, call.op, scaler) if launches else None
            for (call, launches), answer in zip(columns.work_items(), answers, strict=True)
        )
    return tuple(
        _checked(scaler.scale_call(call, origin, target), call.op, scaler) if launches else None
        for call, launches in columns.work_items()
    )


def scales(predictor: object) -> bool:
    """Whether it takes measurements to another GPU, and does not predict from nothing."""
    return hasattr(predictor, "scale_call")


def knows_chip(predictor: Any, device: Device) -> bool:
    """Whether a predictor says that it was fitted on ops of all sorts on a GPU's very chip."""
    return bool(predictor.knows_chip(device)) if hasattr(predictor, "knows_chip") else False


def _checked(answer: Estimate | None, op: Op, predictor: object) -> Estimate | None:
    """The answer of a predictor, which may be a user's own."""
    if answer is None:
        return None
    who = type(predictor).__name__
    if not isinstance(answer, Estimate):
        raise InvalidInput(
            f"{who} answered {answer!r} for {op.name}; "
            "it should return an Estimate, or None for an op it does not know"
        )
    if not 0 < answer.low_s <= answer.seconds <= answer.high_s < math.inf:
        raise InvalidInput(
            f"{who} answered {answer.low_s:g} <= {answer.seconds:g} <= {answer.high_s:g} s "
            f"for {op.name}; times must be positive, finite and in this order"
        )
    return answer
