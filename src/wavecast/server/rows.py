"""A step on one GPU model, or spread over several GPUs of it, as a row of the comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import wavecast
from wavecast.errors import WavecastError
from wavecast.hardware.device import Device
from wavecast.planning.cost import TrainingCost, training_cost
from wavecast.planning.prices import price_book
from wavecast.predictors.base import Scaler
from wavecast.report.fields import record
from wavecast.report.priced_steps import PricedStep, offer_for
from wavecast.server.questions import PredictionQuestion
from wavecast.server.traced import QuestionedStep
from wavecast.steps.prediction import Prediction


@dataclass(frozen=True)
class PredictedRow:
    """A GPU, and the step that was predicted on it."""

    device: Device
    step: Prediction
    cost: TrainingCost | None = None
    """What the whole training takes, if it was asked for."""

    def record(self) -> dict[str, Any]:
        """The row as plain data: times in seconds, sizes in bytes, unknown is null."""
        offer = offer_for(self.step, price_book())
        row = record(PricedStep(self.step, offer, "none", training=self.cost))
        return row | {"name": self.device.name, "memory_bytes": self.device.memory_bytes}


def predicted_rows(
    question: PredictionQuestion, step: QuestionedStep, gpus: list[Device]
) -> tuple[list[PredictedRow], dict[str, str]]:
    """The step on each GPU, and the reasons for those on which it could not be predicted.

    Raises:
        WavecastError: it could be predicted on none; gives the first reason.
    """
    rows, failed = [], {}
    first: WavecastError | None = None
    for gpu in gpus:
        try:
            rows.append(_predicted(question, step, gpu))
        except WavecastError as error:
            first = first or error
            failed[gpu.id] = str(error)
    if first is not None and not rows:
        raise first
    return sorted(rows, key=_place), failed


def _place(row: PredictedRow) -> tuple[bool, float]:
    """Where a row stands: GPUs with too little memory last, else the fastest first."""
    return row.step.fits is False, -(row.step.throughput or 1 / row.step.seconds)


def _predicted(question: PredictionQuestion, step: QuestionedStep, gpu: Device) -> PredictedRow:
    if question.parallel is None:
        scaler = _scaler(step, question.precision)
        alone = wavecast.predict(step.traces, gpu, predictor=scaler, origin=question.origin)
        return PredictedRow(gpu, alone, _cost(question, alone))
    spread = wavecast.predict(step.traces, gpu, parallel=question.parallel.strategy())
    return PredictedRow(gpu, spread, _cost(question, spread))


def _cost(question: PredictionQuestion, step: Prediction) -> TrainingCost | None:
    """What the whole training takes, with the cheapest offer; None if it was not asked for."""
    if question.plan is None:
        return None
    return training_cost(step, question.plan, offer_for(step, price_book()))


def _scaler(step: QuestionedStep, precision: str | None) -> Scaler | None:
    """The scaler that takes a measured step to another precision; None where there is no need."""
    if precision is None or not step.measured:
        return None
    from wavecast.predictors.mixed_precision import MixedPrecision

    return MixedPrecision.shipped(precision)
