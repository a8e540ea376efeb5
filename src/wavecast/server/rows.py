"""A step on one GPU model, or spread over several GPUs of it, as a row of the comparison."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import wavecast
from wavecast.errors import WavecastError
from wavecast.footprint.memory import Memory
from wavecast.footprint.parallel_memory import fullest_rank
from wavecast.hardware.device import Device
from wavecast.planning.cost import TrainingCost, TrainingPlan, training_cost
from wavecast.planning.prices import price_book
from wavecast.predictors.base import Scaler
from wavecast.report import parallel as parallel_report
from wavecast.report import records
from wavecast.server.questions import PredictionQuestion
from wavecast.server.traced import QuestionedStep
from wavecast.steps.parallel_prediction import ParallelPrediction
from wavecast.steps.prediction import Prediction

_NO_BREAKDOWN = "none"


@dataclass(frozen=True)
class PredictedRow:
    """A GPU, and the step that was predicted on it."""

    device: Device
    step: Prediction | ParallelPrediction
    memory: Memory | None
    """The memory of the step; of its fullest rank if there are several. None when unknown."""
    cost: TrainingCost | None = None
    """What the whole training takes, if it was asked for."""

    def record(self) -> dict[str, Any]:
        """The row as plain data: times in seconds, sizes in bytes, unknown is null."""
        if isinstance(self.step, Prediction):
            record = records.prediction(self.step, _NO_BREAKDOWN) | {"gpus": 1}
        else:
            record = parallel_report.record(self.step, self.memory)
            # Under the names that a step on one GPU has.
            record["needed_bytes"] = record.pop("memory_bytes")
            record["throughput_per_s"] = record.pop("throughput")
        record["training"] = None if self.cost is None else _cost_record(self.cost)
        return record | {"name": self.device.name, "memory_bytes": self.device.memory_bytes}


def _cost_record(cost: TrainingCost) -> dict[str, Any]:
    return {
        "steps": cost.steps,
        "seconds": asdict(cost.seconds),
        "usd": None if cost.usd is None else asdict(cost.usd),
        "energy_kwh": None if cost.energy_kwh is None else asdict(cost.energy_kwh),
        "machines": cost.machines,
    }


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
    fits = row.memory is None or row.memory.fits is not False
    return not fits, -(row.step.throughput or 1 / row.step.seconds)


def _predicted(question: PredictionQuestion, step: QuestionedStep, gpu: Device) -> PredictedRow:
    if question.parallel is None:
        scaler = _scaler(step, question.precision)
        alone = wavecast.predict(step.traces, gpu, predictor=scaler, origin=question.origin)
        return PredictedRow(gpu, alone, alone.memory, _cost(question, alone))
    spread = wavecast.predict(step.traces, gpu, parallel=question.parallel.strategy())
    memory = fullest_rank(spread.step, gpu) if spread.trace.allocations else None
    return PredictedRow(gpu, spread, memory, _cost(question, spread))


def _cost(
    question: PredictionQuestion, step: Prediction | ParallelPrediction
) -> TrainingCost | None:
    """What the whole training takes, with the cheapest offer; None if it was not asked for."""
    if question.training is None:
        return None
    gpus = step.gpus if isinstance(step, ParallelPrediction) else 1
    plan = TrainingPlan(**question.training.model_dump())
    return training_cost(step, plan, price_book().cheapest(step.device.id, gpus))


def _scaler(step: QuestionedStep, precision: str | None) -> Scaler | None:
    """The scaler that takes a measured step to another precision; None where there is no need."""
    if precision is None or not step.measured:
        return None
    from wavecast.predictors.mixed_precision import MixedPrecision

    return MixedPrecision.shipped(precision)
