"""`wavecast calibrate --step` and `--ops`: learned, kept in one file, used, and told of."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from made import mm, relu
from shell import run

from wavecast.frameworks.pytorch.measurement import calibration, sweep
from wavecast.hardware.devices import device
from wavecast.predictors import corrected
from wavecast.steps.request import default_predictor
from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace

OPS = mm(2048, 2048, 2048), relu(1 << 24), mm(512, 512, 512)


def measured(slower: float, gpu: str = "Tesla T4", ops: tuple[Op, ...] = OPS) -> Trace:
    """A step or a chunk of layers whose ops take so many times as long as predicted."""
    answers = default_predictor().predict_all(ops, device("t4"))
    times = [slower * answer.seconds for answer in answers if answer is not None]
    calls = [
        Call(op, Phase.FORWARD, kernels=(Kernel("k", seconds, start_s=0.0),), host_s=1e-6)
        for op, seconds in zip(ops, times, strict=True)
    ]
    whole = Measurement(gpu, seconds=sum(times), gpu_s=sum(times), host_s=1e-5)
    return Trace(tuple(calls), samples=8, measurement=whole)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file of the user's corrections, of a user without a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv(corrected.VARIABLE, raising=False)
    return tmp_path / "config" / "wavecast" / "corrections" / "t4.toml"


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[str, float], Path]:
    def save(name: str, slower: float) -> Path:
        path = tmp_path / f"{name}.json.gz"
        measured(slower).save(path)
        return path

    return save


@pytest.fixture
def a_t4(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A machine with a T4, on which layers take 1.5 times as long as predicted; the seconds."""
    asked: list[float] = []
    chunk = measured(1.5)

    def fake(seconds: float) -> list[Trace]:
        asked.append(seconds)
        return [chunk]

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(calibration, "gpu_name", lambda: "Tesla T4")
    monkeypatch.setattr(sweep, "sweep", fake)
    return asked


def test_layers_need_a_gpu(kept: Path) -> None:
    done = run("calibrate", "--ops")
    assert done.code == 1
    assert "needs a GPU, and torch sees none here" in done.err
    assert not kept.exists()


def test_layers_are_learned_from_and_then_steps(
    kept: Path, a_t4: list[float], saved: Callable[[str, float], Path]
) -> None:
    step = saved("step", 1.5)
    done = run("calibrate", "--ops", "--minutes", "3")
    assert (done.code, a_t4) == (0, [180.0])
    assert "3 single ops, saved as" in " ".join(done.out.split())
    found = json.loads(run("calibrate", "--step", step, "--json").out)
    assert (found["gpu"], found["ops"], found["file"]) == ("t4", 3, str(kept))
    [row] = found["steps"]
    assert abs(row["after"]) < abs(row["before"]) / 2
    assert corrected.read(kept).counted == "1 step and 3 single ops"
    assert "corrected by 1 step and 3 single ops" in " ".join(
        run("predict", "--gpu", "t4", "--batch", "8", "dcgan").out.split()
    )


def test_both_at_once_go_into_one_file_elsewhere(
    tmp_path: Path, kept: Path, a_t4: list[float], saved: Callable[[str, float], Path]
) -> None:
    done = run("calibrate", "--ops", "--step", saved("step", 1.5), "--out", tmp_path / "team")
    assert a_t4 == [600.0]
    assert "if $WAVECAST_CORRECTIONS names the file" in " ".join(done.out.split())
    assert corrected.read(tmp_path / "team" / "t4.toml").counted == "1 step and 3 single ops"
    assert not kept.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--minutes", "5"), "--minutes is for --ops"),
        (("--ops", "--minutes", "0"), "--minutes is for --ops, and is above 0"),
        (("--ops", "--seconds", "2"), "--ops measures layers only; leave out --seconds"),
        (("--ops", "--list"), "--ops measures layers only; leave out --list"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: tuple[str, ...], said: str) -> None:
    done = run("calibrate", *options)
    assert done.code == 1
    assert said in done.err


def test_steps_of_another_gpu_are_refused(tmp_path: Path, kept: Path, a_t4: list[float]) -> None:
    path = tmp_path / "l4.json.gz"
    measured(1.5, "NVIDIA L4").save(path)
    done = run("calibrate", "--ops", "--step", path)
    assert "measured on l4, and this machine's GPU is t4" in done.err
    assert a_t4 == []
    assert not kept.exists()


def test_an_evaluation_says_what_the_corrections_change(
    saved: Callable[[str, float], Path],
) -> None:
    step = saved("step", 1.5)
    assert "times from nothing" not in run("evaluate", step).out
    run("calibrate", "--step", step)
    said = " ".join(run("evaluate", step).out.split())
    assert "t4: times from nothing are corrected by 1 step that you measured" in said
