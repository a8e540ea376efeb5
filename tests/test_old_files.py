"""Files that version 0.1 wrote are read as they were: tests/samples/version-0.1."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import wavecast
from wavecast.campaigns.layer_times import read_rows
from wavecast.hardware.devices import read_device
from wavecast.hardware.kept_hosts import read_host
from wavecast.runs.suite_results import read_results

OLD = Path(__file__).parent / "samples" / "version-0.1"


def test_a_trace_is_read_and_predicted() -> None:
    trace = wavecast.load_trace(OLD / "trace.json.gz")
    assert trace.samples == 4
    assert len(trace) == 14
    assert wavecast.predict(trace, "l4").seconds > 0
    assert wavecast.memory(trace, "l4").peak_bytes > 0


def test_a_device_is_read_with_what_was_measured() -> None:
    gpu = read_device(OLD / "l4.toml")
    assert gpu.name == wavecast.device("l4").name
    assert gpu.measured["memory_bytes_per_s"].value == 2.5e11


def test_a_host_is_read() -> None:
    assert read_host(OLD / "host.toml").factor == pytest.approx(1.0, rel=1e-3)


def test_results_of_the_suite_are_read() -> None:
    (row,) = read_results(OLD / "suite.csv")
    assert (row.model, row.batch, row.seconds, row.iterations) == ("resnet50", 4, 0.5, 60)


def test_measured_layers_are_read() -> None:
    rows = read_rows(OLD / "layers.csv")
    assert [row.index for row in rows] == [0, 1, 2]
    assert {row.time.forward_s for row in rows} == {1e-3}


def test_a_store_of_runs_is_read(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    store_path = shutil.copy(OLD / "runs.sqlite", tmp_path)  # opening a store may write to it
    with wavecast.RunStore(store_path) as store:
        runs = list(store.runs())
    assert len(runs) == len(
        list(wavecast.read_runs(Path(__file__).parents[1] / "examples" / "runs.csv"))
    )
