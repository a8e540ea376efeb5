"""The answers of a worker: what it does for each kind of question, and in which form it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import wavecast
from wavecast.errors import MissingExtra, UnknownName
from wavecast.hardware.device import Device
from wavecast.hardware.devices import known_device
from wavecast.server.catalogue import catalogue
from wavecast.server.decisions import advised_changes, chosen_gpus
from wavecast.server.plans import planned_jobs
from wavecast.server.presentation import detail_parts, report_page, summary_parts
from wavecast.server.questions import ChoiceQuestion, PlanQuestion, PredictionQuestion
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
        "origin": None if measured is None else _known(measured.gpu),
        "has_memory": bool(trace.allocations),
        "notes": list(trace.notes),
    }


def _known(gpu: str) -> str | None:
    """The id of a GPU by the name that a file gives it; None if that fits none, or several."""
    try:
        return known_device(gpu).id
    except UnknownName:
        return None


def _predict(question: Mapping[str, Any]) -> dict[str, Any]:
    """The step on each GPU that a question names."""
    asked, step = _step(question)
    rows, failed = predicted_rows(asked, step, _gpus(asked))
    return {
        "target": step.name,
        "parts": summary_parts(rows),
        "measured": step.measured,
        "question": asked.model_dump(),
        "rows": [row.record() for row in rows],
        "failed": failed,
        "notes": list(dict.fromkeys(note for row in rows for note in row.step.trace.notes)),
    }


def _details(question: Mapping[str, Any]) -> dict[str, Any]:
    """Where time and memory go on one of the GPUs of a question."""
    asked, step = _step(question)
    gpu = wavecast.device(question["gpu"])
    (row,), _ = predicted_rows(asked, step, [gpu])
    return {"gpu": gpu.id, **detail_parts(step.name, row)}


def _advise(question: Mapping[str, Any]) -> dict[str, Any]:
    """What would make the step better on one of the GPUs of a question."""
    _, step = _step(question)
    return advised_changes(step.target, wavecast.device(question["gpu"]))


def _choose(question: Mapping[str, Any]) -> dict[str, Any]:
    """The GPUs to rent for the whole training of a question."""
    asked, step = _step(question)
    return chosen_gpus(asked, step.target, ChoiceQuestion.model_validate(question["limits"]))


def _plan(question: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of many jobs."""
    return planned_jobs(PlanQuestion.model_validate(question["plan"]))


def _report(question: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer as a page that needs nothing but itself."""
    asked, step = _step(question)
    rows, _ = predicted_rows(asked, step, _gpus(asked))
    return {"html": report_page(step.name, rows, asked.plan)}


def _gpus(asked: PredictionQuestion) -> list[Device]:
    return [wavecast.device(gpu) for gpu in asked.gpus]


def _step(question: Mapping[str, Any]) -> tuple[PredictionQuestion, QuestionedStep]:
    asked = PredictionQuestion.model_validate(question["question"])
    file, folder = question.get("file"), question.get("traces")
    _shelf.folder = None if folder is None else Path(folder)
    step = questioned_step(asked.step(), _gpus(asked), None if file is None else Path(file), _shelf)
    return asked, step


ANSWERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "warm": _warm,
    "catalogue": _catalogue,
    "inspect": _inspect,
    "predict": _predict,
    "details": _details,
    "advise": _advise,
    "choose": _choose,
    "plan": _plan,
    "report": _report,
}
"""What a worker answers, by the name of the question."""
