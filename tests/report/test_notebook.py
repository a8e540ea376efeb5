"""Results in notebooks, as plain data, as tables of pandas and as pages."""

from __future__ import annotations

import builtins
import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from made import call, mm, step

import wavecast
from wavecast import results
from wavecast.analysis.profile import profile_predicted
from wavecast.errors import InvalidInput, MissingExtra
from wavecast.planning.cost import TrainingPlan, training_cost
from wavecast.report.fields import schema_of
from wavecast.results import Shown
from wavecast.runs.run import Run
from wavecast.traces.script import ScriptPart, ScriptRun

HOSTILE = "<img src=x onerror=alert(1)>\x1b[2J"


def _results() -> dict[str, Shown]:
    odd = replace(step(), calls=(*step().calls, call(mm(), module=HOSTILE)), notes=(HOSTILE,))
    prediction = wavecast.predict(odd, "t4")
    other = wavecast.predict(step(), "t4")
    offer = wavecast.Price("l4", 0.5, HOSTILE, "", date(2026, 1, 2))
    return {
        "trace": odd,
        "traces": wavecast.FamilyTraces((odd,)),
        "prediction": prediction,
        "memory": wavecast.memory(odd, "t4"),
        "anywhere": wavecast.memory(odd),
        "profile": profile_predicted(HOSTILE, prediction),
        "comparison": wavecast.compare(other, prediction),
        "run": ScriptRun(HOSTILE, odd, "train.py:1", 2, 3, (2, 3), "steps 2 and 3 are equal"),
        "part": ScriptPart(HOSTILE, 3, 4e9),
        "batch": wavecast.LargestBatch(8, 9, 1 << 30, 1 << 29, (8, 9)),
        "larger": wavecast.extrapolate_batch({8: 0.012, 16: 0.020, 32: 0.036}, 128),
        "training": training_cost(other, TrainingPlan(iterations=1000), offer),
        "device": wavecast.device("l4"),
        "price": offer,
        "past run": Run("net", 8, 100, 2.5, gpu=HOSTILE),
        "estimate": wavecast.Estimate(2e-3, 1e-3, 3e-3, HOSTILE),
        "parallel": wavecast.Parallel(data=8, shard=3),
        "measurement": wavecast.Measurement("Tesla T4", 1e-2),
    }


RESULTS = sorted(_results())


@pytest.mark.parametrize("name", RESULTS)
def test_a_notebook_shows_a_small_safe_table(name: str) -> None:
    result = _results()[name]
    shown = result._repr_html_()
    assert shown.startswith("<table")
    assert type(result).__name__ in shown
    assert len(shown) < 9000
    assert "<img" not in shown
    assert "\x1b" not in shown
    cells = re.findall(r"<td[^>]*>(.*?)</td>", shown)
    assert len(cells) >= 2
    assert not [cell for cell in cells if cell.startswith("{") or "object at 0x" in cell]


@pytest.mark.parametrize("name", RESULTS)
def test_a_list_of_results_is_one_table_with_a_row_each(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    printers: dict[type, Callable[[Any], str | None]] = {}
    html = SimpleNamespace(type_printers=printers)
    formatter = SimpleNamespace(formatters={"text/html": html})
    shell = SimpleNamespace(display_formatter=formatter)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    results.show_lists()
    result = _results()[name]
    for kind in (list, tuple):
        shown = printers[kind](kind([result, result]))
        assert shown is not None
        assert shown.count("<tr>") == 3
        assert "<img" not in shown
        assert printers[kind](kind([result, "text"])) is None
        assert printers[kind](kind()) is None


@pytest.mark.parametrize("name", RESULTS)
def test_plain_data_is_json_as_the_schema_of_its_class_says(name: str) -> None:
    result = _results()[name]
    record = result.to_dict()
    assert isinstance(record, Mapping)
    read = json.loads(json.dumps(record, allow_nan=False))
    schema = schema_of(type(result))
    assert schema["properties"].keys() >= read.keys()
    jsonschema.Draft202012Validator(schema).validate(read)


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_becomes_a_table_of_pandas(name: str) -> None:
    pytest.importorskip("pandas")
    frame = _results()[name].to_pandas()
    assert len(frame) >= 1
    assert len(frame.columns) >= 2


def test_headings_say_what_they_mean() -> None:
    shown = wavecast.predict(step(), "l4")._repr_html_()
    assert 'title="What limits the step: ' in shown


def test_a_bar_shows_how_long_each_part_is() -> None:
    shown = wavecast.predict(step(), "l4")._repr_html_()
    lengths = [int(found) for found in re.findall(r"width:(\d+)%", shown)]
    assert lengths[0] == 100
    assert lengths == sorted(lengths, reverse=True)
    assert "width:" not in wavecast.device("l4")._repr_html_()


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
    from wavecast.steps.request import on_cluster

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
