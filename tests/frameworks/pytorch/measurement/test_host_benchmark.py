"""The host benchmark: which patterns it times, and that it leaves torch as it was."""

from __future__ import annotations

import time

import pytest
import torch

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.measurement import calibration
from wavecast.hardware.kept_hosts import calibrated, reference_times


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_ROUNDS", 4)
    monkeypatch.setattr(calibration, "_ROUND_S", 1e-4)


def test_the_benchmark_runs_without_a_gpu_and_has_what_the_reference_has() -> None:
    times = calibration.time_host()
    assert times.keys() == reference_times()["cpu"].keys()
    assert all(0 < seconds < 1 for seconds in times.values())
    host = calibrated(
        "here", {"cpu": times}, {}, software=calibration.versions(), source="a test"
    ).host
    assert host.known


def test_the_benchmark_leaves_threads_and_gradients_as_they_were() -> None:
    threads = torch.get_num_threads()
    calibration.time_host()
    assert torch.get_num_threads() == threads
    assert torch.is_grad_enabled()


def test_what_needs_a_gpu_says_so() -> None:
    for run in (calibration.time_gpu, lambda: calibration.time_host("cuda")):
        with pytest.raises(CaptureError, match="needs a GPU"):
            run()


def test_a_pattern_is_timed_by_what_it_issues(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    patterns: list[calibration.Pattern] = [
        ("one_s", 1, lambda: pass_time(2e-6)),
        ("one_s", 1, lambda: pass_time(4e-6)),
        ("many_s", 10, lambda: pass_time(5e-5)),
    ]
    assert calibration._time(patterns, rounds=4) == pytest.approx({"one_s": 3e-6, "many_s": 5e-6})


def test_versions_and_processor_are_named() -> None:
    assert calibration.versions().startswith("Python 3.")
    assert f"torch {torch.__version__.split('+')[0]}" in calibration.versions()
    assert calibration.processor().strip()
