"""The time of each op of a step, from a predictor or a scaler whose answers are checked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.steps.work import work_of
from wavecast.traces.step import Op, Trace

Answers = tuple[Estimate | None, ...]
"""One estimate per distinct piece of work. None if no kernel runs or no predictor could answer."""


def predict_ops(trace: Trace, target: Device, predictor: Predictor) -> Answers:
    """A predictor's estimate for each distinct piece of work of a trace."""
    work = work_of(trace)
    return work.spread(
        _checked(predictor.predict_all(work.launched_ops, target), work.launched_ops, predictor)
    )


def scale_ops(trace: Trace, target: Device, scaler: Scaler, origin: Device) -> Answers:
    """A scaler's estimate on the target GPU for each measured call of a trace."""
    work = work_of(trace)
    scaled = scaler.scale_all(work.launched_calls, origin, target)
    return work.spread(_checked(scaled, work.launched_ops, scaler))


def _checked(
    answers: Sequence[Estimate | None], ops: Sequence[Op], predictor: Predictor | Scaler
) -> Sequence[Estimate | None]:
    """The answers as given, if they are valid. The predictor may be the user's.

    Raises:
        InvalidInput: an answer is no Estimate, or its times are not positive, finite and in order.
    """
    who = type(predictor).__name__
    if len(answers) != len(ops):
        raise InvalidInput(
            f"{who} was asked for the times of {len(ops)} ops and gave {len(answers)} answers; "
            "it should give one for each op"
        )
    for op, answer in zip(ops, answers, strict=True):
        if answer is None:
            continue
        if not isinstance(answer, Estimate):
            raise InvalidInput(
                f"{who} answered {answer!r} for {op.name}; "
                "it should return an Estimate, or None for an op that it cannot predict"
            )
        if not 0 < answer.low_s <= answer.seconds <= answer.high_s < math.inf:
            raise InvalidInput(
                f"{who} answered {answer.low_s:g} <= {answer.seconds:g} <= {answer.high_s:g} s "
                f"for {op.name}; times must be positive, finite and in this order"
            )
    return answers
