"""The answers of a worker: what it does for each kind of question, and in which form it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import wavecast
from wavecast.errors import MissingExtra
from wavecast.hardware.device import Device
from wavecast.server.catalogue import catalogue
from wavecast.server.questions import PredictionQuestion
from wavecast.server.rows import predicted_rows
from wavecast.server.traced import QuestionedStep, TraceShelf, questioned_step, read_file

_shelf = TraceShelf()


def _warm(_: Mapping[str, Any]) -> dict[str, Any]:
    """Load what most questions need, so that the first one does not wait for it."""
    with suppress(MissingExtra):
        step = {"model": "resnet50", "batch": 2, "precision": None, "sizes": {"image": 64}}
        named = questioned_step(step, [wavecast.device("l4")], None, TraceShelf())
        wavecast.predict(named.traces, "l4").low_s  # noqa: B018  (the models are read)
    return {}


def _catalogue(_: Mapping[str, Any]) -> dict[str, Any]:
    return catalogue()


def _inspect(question: Mapping[str, Any]) -> dict[str, Any]:
    """What an uploaded file holds."""
    trace = read_file(Path(question["file"]))
    measured = trace.measurement
    return {
        "calls": len(trace),
        "samples": trace.samples,
        "unit": trace.unit,
        "framework": trace.framework,
        "measured_on": None if measured is None else measured.gpu,
        "has_memory": bool(trace.allocations),
        "notes": list(trace.notes),
    }


def _predict(question: Mapping[str, Any]) -> dict[str, Any]:
    """The step on each GPU that a question names."""
    asked, step = _step(question)
    rows, failed = predicted_rows(asked, step, _gpus(asked))
    return {
        "target": step.name,
        "measured": step.measured,
        "question": asked.model_dump(),
        "rows": [row.record() for row in rows],
        "failed": failed,
        "notes": list(dict.fromkeys(note for row in rows for note in row.step.trace.notes)),
    }


def _gpus(asked: PredictionQuestion) -> list[Device]:
    return [wavecast.device(gpu) for gpu in asked.gpus]


def _step(question: Mapping[str, Any]) -> tuple[PredictionQuestion, QuestionedStep]:
    asked = PredictionQuestion.model_validate(question["question"])
    file, folder = question.get("file"), question.get("traces")
    _shelf.folder = None if folder is None else Path(folder)
    step = questioned_step(
        asked.step(), _gpus(asked), None if file is None else Path(file), _shelf
    )
    return asked, step


ANSWERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "warm": _warm,
    "catalogue": _catalogue,
    "inspect": _inspect,
    "predict": _predict,
}
"""What a worker answers, by the name of the question."""
