from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import wavecast
from wavecast.errors import InvalidInput, UnknownName
from wavecast.server.answers import ANSWERS
from wavecast.server.questions import MOST_GPUS, PredictionQuestion, digest


def question(**fields: Any) -> PredictionQuestion:
    return PredictionQuestion.model_validate({"model": "resnet50", "gpus": ["l4"]} | fields)


def test_equal_questions_in_other_words_have_the_same_name() -> None:
    said = question(model="ResNet-50", gpus=["NVIDIA L4", "l4"], parallel={"data": 1})
    assert said.canonical() == question()
    assert digest(said.canonical().model_dump()) == digest(question().model_dump())


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "train.py:make_step"},
        {"model": "package.module:make_step"},
        {"model": "train.py"},
        {"model": "../../etc/passwd"},
        {"model": "hf:models/gpt2"},
        {"model": "hf:config.py"},
        {"model": "x" * 61},
        {"gpus": ["/etc/gpu.toml"]},
        {"gpus": ["gpu.TOML"]},
        {"parallel": {"data": 2, "cluster": "mine.toml"}},
    ],
)
def test_files_and_code_are_no_names(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="not a name"):
        question(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"trace": "0" * 64},
        {"model": None},
        {"gpus": []},
        {"gpus": ["l4"] * (MOST_GPUS + 1)},
        {"batch": 0},
        {"batch": 1.5},
        {"batch": float("nan")},
        {"batch": "8"},
        {"precision": "fp7"},
        {"sizes": {"layers": 10**9}},
        {"parallel": {"data": 0}},
        {"parallel": {"data": True}},
        {"training": {}},
        {"training": {"epochs": 3, "samples": 4}},
        {"training": {"samples": float("inf")}},
        {"label": "a label without a file"},
        {"run": "rm -rf /"},
    ],
)
def test_what_is_out_of_bounds_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        question(**fields)


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="resnet50"):
        question(model="resnet51").canonical()
    with pytest.raises(UnknownName, match="h100"):
        question(gpus=["h1000"]).canonical()


def test_a_strategy_is_checked_before_a_worker_sees_it() -> None:
    with pytest.raises(InvalidInput, match="16384"):
        question(parallel={"data": 4096, "tensor": 64}).canonical()


def test_a_step_is_predicted_once_for_its_answer_its_details_and_its_report(
    saved_step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = hashlib.sha256(saved_step.read_bytes()).hexdigest()
    file = saved_step.rename(saved_step.with_name(f"{name}.json.gz"))
    asked = PredictionQuestion.model_validate({"trace": name, "gpus": ["l4", "t4"]})
    question = {"question": asked.model_dump(), "file": str(file)}
    gpus: list[str] = []
    predict = wavecast.predict

    def counted(trace: Any, gpu: Any, **how: Any) -> Any:
        gpus.append(gpu.id)
        return predict(trace, gpu, **how)

    monkeypatch.setattr(wavecast, "predict", counted)
    rows = ANSWERS["predict"](question)["rows"]
    assert ANSWERS["details"](question | {"gpu": "l4"})["gpu"] == "l4"
    assert "<html" in ANSWERS["report"](question)["html"]
    assert ANSWERS["predict"](question)["rows"] == rows
    assert sorted(gpus) == ["l4", "t4"]
