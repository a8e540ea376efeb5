"""The time of each op of a step: a predictor or a scaler is asked, and its answers are checked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.steps.work import work_of
from wavecast.traces.step import Op, Trace

Answers = tuple[Estimate | None, ...]
"""One for each distinct piece of work. None: no predictor could answer, or no kernel runs."""


def predict_ops(trace: Trace, target: Device, predictor: Predictor) -> Answers:
    """What a predictor answers for each distinct piece of work of a trace."""
    work = work_of(trace)
    return work.spread(
        _checked(predictor.predict_all(work.launched_ops, target), work.launched_ops, predictor)
    )


def scale_ops(trace: Trace, target: Device, scaler: Scaler, origin: Device) -> Answers:
    """What a scaler makes of each measured call of a trace."""
    work = work_of(trace)
    scaled = scaler.scale_all(work.launched_calls, origin, target)
    return work.spread(_checked(scaled, work.launched_ops, scaler))


def _checked(
    answers: Sequence[Estimate | None], ops: Sequence[Op], predictor: Predictor | Scaler
) -> Sequence[Estimate | None]:
    """The answers of a predictor, which may be a user's own.

    Raises:
        InvalidInput: an answer is no Estimate, or its times are not positive, finite and in order.
    """
    who = type(predictor).__name__
    if len(answers) != len(ops):
        raise InvalidInput(f"{who} was asked for {len(ops)} times and gave {len(answers)} answers")
    for op, answer in zip(ops, answers, strict=True):
        if answer is None:
            continue
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
    return answers
