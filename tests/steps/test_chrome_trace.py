"""Predicted timelines as files for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made import step

import wavecast
from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto import read_kineto


def _events(path: Path) -> list[dict[str, Any]]:
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["generator"] == "wavecast"
    events: list[dict[str, Any]] = whole["traceEvents"]
    return events


def test_every_call_is_there_in_order(tmp_path: Path) -> None:
    prediction = wavecast.predict(step(), "t4")
    path = tmp_path / "step.json"
    prediction.to_chrome_trace(path)
    events = _events(path)
    spans = [event for event in events if event["ph"] == "X"]
    assert [event["ts"] for event in spans] == sorted(event["ts"] for event in spans)
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in spans)
    on_gpu = [event for event in spans if event["cat"] == "gpu"]
    assert len(on_gpu) == int((prediction.call_s > 0).sum())
    total_s = sum(event["dur"] for event in on_gpu) * 1e-6
    assert total_s == pytest.approx(prediction.gpu_s, rel=1e-3)
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"t4 (predicted)", "compute"} <= names
    products = [event for event in on_gpu if event["name"] == "aten.mm"]
    assert products[0]["args"]["module"] == "net.0"
    assert products[0]["args"]["inputs"] == ["float32[32, 64]", "float32[64, 128]"]


def test_the_reader_of_profiles_does_not_take_it_for_a_measurement(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    wavecast.predict(step(), "t4").to_chrome_trace(path)
    with pytest.raises(InvalidInput, match=r"torch\.profiler wrote"):
        read_kineto(path)


def test_ranks_have_a_row_for_communication(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from parallel_steps import small_gpt2_step

    strategy = wavecast.Parallel(data=4)
    prediction = wavecast.predict(small_gpt2_step(), "h100-sxm-80gb", parallel=strategy)
    [(name, table)] = prediction.timetables.items()
    assert name == "each GPU"
    assert table.seconds == pytest.approx(prediction.seconds - prediction.waiting_s)
    path = tmp_path / "ranks.json"
    prediction.to_chrome_trace(path)
    names = {event["args"]["name"] for event in _events(path) if event["ph"] == "M"}
    assert any(name.startswith("communication") for name in names)
    assert any(name.startswith("4 x h100-sxm-80gb") for name in names)


def test_each_stage_of_a_pipeline_has_a_timetable() -> None:
    pytest.importorskip("torch")
    from parallel_steps import small_gpt2_step

    strategy = wavecast.Parallel(pipeline=2, microbatches=4)
    prediction = wavecast.predict(small_gpt2_step(), "h100-sxm-80gb", parallel=strategy)
    assert list(prediction.timetables) == ["stage 0", "stage 1"]
