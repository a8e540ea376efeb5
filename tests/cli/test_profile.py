"""`wavecast profile` and `wavecast suite`."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made import mm, relu
from shell import run

from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace, load_trace

pytest.importorskip("torch")


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    path = tmp_path / "measured.json.gz"
    calls = (
        Call(mm(512, 512, 512), Phase.FORWARD, kernels=(Kernel("sgemm", 3e-3, start_s=0.0),)),
        Call(relu(512, 512), Phase.FORWARD, kernels=(Kernel("relu", 1e-3, start_s=4e-3),)),
    )
    whole = Measurement("Tesla T4", seconds=8e-3, gpu_s=4e-3, host_s=7e-3, cpu_s=8e-3, cores=4)
    Trace(calls, samples=16, measurement=whole).save(path)
    return path


def test_a_measured_trace_is_profiled(measured: Path) -> None:
    done = run("profile", measured)
    assert done.code == 0
    for part in ("2,000", "GPU utilisation", "50%", "25.0%", "GPU idle: host", "sgemm", "bound by"):
        assert part in done.out


def test_its_numbers_are_in_the_json(measured: Path) -> None:
    [record] = json.loads(run("profile", measured, "--json").out)
    assert record["gpu"] == "t4"
    assert record["measured"] is True
    assert record["gpu_utilisation"] == pytest.approx(0.5)
    assert record["cpu_utilisation"] == pytest.approx(0.25)
    assert record["throughput_per_s"] == pytest.approx(2000)
    assert record["kernels"][0]["name"] == "sgemm"
    assert record["memory_bytes"]["weights"] is None


def test_utilisation_is_unknown_where_no_flops_are_known(tmp_path: Path) -> None:
    path = tmp_path / "named.json.gz"
    call = Call(Op("aten.mm", (), ()), Phase.FORWARD, kernels=(Kernel("k", 1e-3, start_s=0.0),))
    known = Call(relu(8), Phase.FORWARD, kernels=(Kernel("r", 1e-3, start_s=1e-3),))
    whole = Measurement("Tesla T4", seconds=4e-3)
    Trace((call,), measurement=whole).save(path)
    assert re.search(r"FP32 utilisation +\?", run("profile", path).out)
    assert json.loads(run("profile", path, "--json").out)[0]["utilisation"] is None
    Trace((call, known), measurement=whole).save(path)
    assert "at least 0.0%" in run("profile", path).out


def test_several_looks_are_joined(measured: Path, tmp_path: Path) -> None:
    seen = load_trace(measured)
    slower = replace(seen.measurement or Measurement("Tesla T4"), seconds=10e-3, cores=8)
    path = tmp_path / "again.json.gz"
    replace(seen, measurement=slower).save(path)
    [record] = json.loads(run("profile", measured, path, "--json").out)
    assert record["seconds"] == pytest.approx(9e-3)
    refused = run("profile", measured, measured, "--gpu", "l4")
    assert refused.code == 1
    assert "leave --gpu out" in refused.err


def test_gpus_are_predicted_side_by_side_and_held_to_the_first() -> None:
    done = run("profile", "dcgan", "--batch", 8, "--gpu", "t4", "--gpu", "a100-sxm-80gb")
    assert done.code == 0
    assert "/ t4" in done.out
    assert "predicted" in done.out
    assert "feature maps" in done.out


def test_a_trace_that_was_not_measured_needs_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "traced.json.gz"
    Trace((Call(relu(8), Phase.FORWARD),)).save(path)
    done = run("profile", path)
    assert done.code == 1
    assert "--gpu" in done.err


def test_a_step_without_a_gpu_says_what_to_do() -> None:
    done = run("profile", "dcgan")
    assert done.code == 1
    assert "needs a GPU" in done.err


def test_the_suite_is_listed() -> None:
    assert "resnet50" in run("suite", "list").out
    [first, *_] = json.loads(run("suite", "list", "--json").out)
    assert first["published_parameters"] == 25_557_032


def test_the_suite_is_predicted_as_table_json_and_page(tmp_path: Path) -> None:
    page = tmp_path / "suite.html"
    words = ("suite", "predict", "--gpu", "l4", "-m", "dcgan", "-p", "bf16", "--scale", 0.25)
    done = run(*words, "--html", page)
    assert done.code == 0
    assert "dcgan" in done.out
    assert "samples/s" in done.out
    text = page.read_text()
    assert "<td" in text
    assert "{{" not in text
    [row] = json.loads(run(*words, "--json").out)
    assert (row["model"], row["batch"], row["precision"]) == ("dcgan", 32, "bf16")
    assert row["status"] == "predicted"
    assert 0 < row["gpu_utilisation"] <= 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("suite", "predict", "--gpu", "l4", "-p", "fp12"), "unknown precision 'fp12'"),
        (("suite", "predict", "--gpu", "l4", "-m", "resnet51"), "did you mean resnet50"),
        (("suite", "predict", "--gpu", "l4", "--scale", "0"), "above 0"),
        (("suite", "run", "-o", "x.csv"), "needs a GPU"),
    ],
    ids=["precision", "model", "scale", "no GPU"],
)
def test_what_the_suite_cannot_do_is_said(words: tuple[str, ...], says: str) -> None:
    done = run(*words)
    assert done.code == 1
    assert says in done.err
