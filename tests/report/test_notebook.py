"""Results in notebooks, as plain data, as tables of pandas and as pages."""

from __future__ import annotations

import builtins
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import call, mm, step

import wavecast
from wavecast.errors import InvalidInput, MissingExtra
from wavecast.showing import Shown
from wavecast.steps.profiling import profile_predicted
from wavecast.traces.script import ScriptRun

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"


def _results() -> dict[str, Shown]:
    odd = replace(step(), calls=(*step().calls, call(mm(), module=HOSTILE)), notes=(HOSTILE,))
    prediction = wavecast.predict(odd, "t4")
    other = wavecast.predict(step(), "t4")
    return {
        "trace": odd,
        "traces": wavecast.FamilyTraces((odd,)),
        "prediction": prediction,
        "memory": wavecast.memory(odd, "t4"),
        "anywhere": wavecast.memory(odd),
        "profile": profile_predicted(HOSTILE, prediction),
        "comparison": wavecast.compare(other, prediction),
        "run": ScriptRun(HOSTILE, odd, "train.py:1", 2, 3, (2, 3), "steps 2 and 3 are equal"),
        "batch": wavecast.LargestBatch(8, 9, 1 << 30, 1 << 29, (8, 9)),
    }


RESULTS = sorted(_results())


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_shows_a_small_safe_table(name: str) -> None:
    shown = _results()[name]._repr_html_()
    assert shown.startswith("<table>")
    assert len(shown) < 6000
    assert "<img" not in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("name", RESULTS)
def test_plain_data_is_json(name: str) -> None:
    record = _results()[name].to_dict()
    assert isinstance(record, Mapping)
    assert json.loads(json.dumps(record, allow_nan=False))


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_becomes_a_table_of_pandas(name: str) -> None:
    pytest.importorskip("pandas")
    frame = _results()[name].to_pandas()
    assert len(frame) >= 1
    assert len(frame.columns) >= 2


def test_the_rows_of_a_prediction_are_its_calls() -> None:
    pytest.importorskip("pandas")
    prediction = wavecast.predict(step(), "t4")
    frame = prediction.to_pandas()
    assert list(frame["op"]) == [call.op.name for call in step()]
    assert math.isclose(frame["gpu_s"].sum(), prediction.gpu_s)


def test_without_pandas_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_pandas(name: str, *others: Any, **more: Any) -> Any:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
        return real(name, *others, **more)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        step().to_pandas()


def test_predictions_and_memory_become_pages(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    wavecast.predict(step(), "t4").to_html(page)
    assert "One step takes about" in page.read_text(encoding="utf-8")
    wavecast.memory(step(), "t4").to_html(page)
    assert "fits" in page.read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match="Prediction"):
        step().to_html(page)


def test_several_gpus_and_their_scaling_are_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from parallel_steps import small_gpt2_step

    from wavecast.hardware.hosts import REFERENCE_HOST
    from wavecast.planning.scaling import scale
    from wavecast.steps.predicting import on_cluster

    traced, gpu = small_gpt2_step(), wavecast.device("h100-sxm-80gb")
    spread = wavecast.predict(traced, gpu, parallel=wavecast.Parallel(data=2))
    predictor = on_cluster(gpu, wavecast.Parallel())
    curve = scale(traced, wavecast.Parallel(), [1, 2], predictor, REFERENCE_HOST)
    for result in (spread, curve):
        assert "GPUs" in result._repr_html_()
        assert json.dumps(result.to_dict())
        result.to_html(tmp_path / "page.html")
    pytest.importorskip("pandas")
    assert list(curve.to_pandas()["gpus"]) == [1, 2]
    assert len(spread.to_pandas()) == 1
