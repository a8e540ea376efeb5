"""The command that traces models of transformers and torchvision, each in its own process."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from networks import mlp, training

from lab.score import zoo
from lab.score.timm_zoo import ZooResult
from lab.steps.transformers_models import MODELS, TASKS

DOCS = Path(__file__).parents[2] / "docs"


def _model(name: str, make_step: Callable[[], Any]) -> zoo.ZooModel:
    return zoo.ZooModel("small", "sums", name, make_step)


def _never() -> Any:
    threading.Event().wait()


def test_a_model_is_traced_in_a_process_of_its_own() -> None:
    models = [_model(name, training(mlp)) for name in ("a", "b", "c")]
    for model, result in zoo.trace_each(models, limit_s=300, jobs=2):
        models.remove(model)
        assert (result.model, result.failure, result.unknown) == (model.name, "", ())
        assert result.calls > 0
    assert not models


@pytest.mark.parametrize(
    ("make_step", "limit_s", "failure"),
    [
        (lambda: 1 / 0, 300, r"ZeroDivisionError at .*test_zoo\.py:\d+: division by zero"),
        (lambda: os._exit(3), 300, "its process ended with 3"),
        (_never, 0, "it took longer than 0 s"),
    ],
)
def test_a_model_that_fails_has_its_reason_in_the_result(
    make_step: Any, limit_s: float, failure: str
) -> None:
    ((_, result),) = zoo.trace_each([_model("bad", make_step)], limit_s)
    assert re.search(failure, result.failure)
    assert result.calls == 0


def test_kept_results_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    traced: list[str] = []

    def trace(missing: list[zoo.ZooModel], *_: Any) -> Iterator[tuple[zoo.ZooModel, ZooResult]]:
        for model in missing:
            traced.append(model.name)
            yield model, ZooResult(model.name, 3, 0.1, ("a note",), ())

    monkeypatch.setattr(zoo, "trace_each", trace)
    models, keep = [_model("a", list), _model("b", list)], tmp_path / "kept.jsonl"
    zoo.sweep(models[:1], 1, keep)
    results = zoo.sweep(models, 1, keep)
    assert traced == ["a", "b"]
    assert [(r.model, r.calls, len(r.notes)) for r in results] == [("a", 3, 1), ("b", 3, 1)]
    assert capsys.readouterr().out.count("3 ops") == 2


def test_each_listed_model_has_a_task_that_is_known() -> None:
    assert {task for tasks in MODELS.values() for task in tasks} == set(TASKS)
    listed = [n for tasks in MODELS.values() for names in tasks.values() for n in names.split()]
    assert len(set(listed)) >= 60
