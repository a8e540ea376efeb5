"""`--setup habitat` and `--predictor daydream`: methods as published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made import relu, step
from shell import run

import wavecast
from wavecast.cli.steps import sources as steps
from wavecast.traces.step import Call, Kernel, Measurement, Phase, Trace

LAUNCH: dict[str, Any] = {"grid": (4096, 1, 1), "block": (256, 1, 1), "registers": 32}


@pytest.fixture
def measured(tmp_path: Path) -> str:
    """A step that was measured on a T4: one kernel that only moves bytes."""
    kernel = Kernel("k", 1e-3, **LAUNCH, flops=0.0, dram_bytes=1e6)
    call = Call(relu(), Phase.FORWARD, kernels=(kernel,), host_s=1e-6)
    trace = Trace(calls=(call,), samples=8, measurement=Measurement("t4", 1e-3, host_s=1e-6))
    trace.save(tmp_path / "measured.json.gz")
    return str(tmp_path / "measured.json.gz")


def predicted(*words: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(run("predict", *words, "--json").out)["predictions"][0]
    return record


def test_the_setup_has_the_papers_numbers_and_prices(measured: str) -> None:
    words = ("predict", measured, "--gpu", "p100-pcie-16gb", "--gpu", "l4", "--setup", "habitat")
    outcome = run(*words)
    assert "1.46" in outcome.out
    assert "$/h: USD per GPU (Habitat, table 2)" in outcome.out
    assert "setup: habitat" in outcome.out
    assert "not in the paper: l4" in outcome.out
    assert "without a prediction" not in outcome.out
    record = predicted(measured, "--gpu", "p100-pcie-16gb", "--setup", "habitat")
    assert record["usd_per_hour"] == 1.46
    assert record["gpu_s"] == pytest.approx(0.47705e-3, rel=1e-4)


def test_daydreams_rule_can_be_taken_alone(measured: str) -> None:
    words = (measured, "--gpu", "t4", "--precision", "fp16", "--predictor", "daydream")
    record = predicted(*words)
    assert record["by_source"][0]["name"] == "fp16 by Daydream's rule"
    assert record["gpu_s"] == pytest.approx(0.5e-3)
    published = predicted(measured, "--gpu", "t4", "--precision", "fp16", "--setup", "habitat")
    assert published["gpu_s"] == pytest.approx(0.5e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--predictor", "daydream"), "say which with --precision bf16 or fp16"),
        (("--predictor", "wave", "--setup", "habitat"), "has its own predictor"),
        (("--setup", "habitat", "--precision", "tf32"), "bf16 or fp16"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    measured: str, words: tuple[str, ...], message: str
) -> None:
    outcome = run("predict", measured, "--gpu", "t4", *words)
    assert outcome.code == 1
    assert message in outcome.err


def test_a_step_that_was_not_measured_has_no_setup(tmp_path: Path) -> None:
    step().save(tmp_path / "traced.json.gz")
    path = str(tmp_path / "traced.json.gz")
    outcome = run("predict", path, "--gpu", "t4", "--setup", "habitat")
    assert outcome.code == 1
    assert "--setup habitat is for measured steps" in outcome.err


def test_measure_hands_the_setup_on(
    monkeypatch: pytest.MonkeyPatch, measured: str, tmp_path: Path
) -> None:
    given: list[dict[str, Any]] = []

    def measure(step: Callable[[], Any], **protocol: Any) -> Trace:
        given.append(protocol)
        return wavecast.load_trace(measured)

    monkeypatch.setattr(steps, "require_gpu", lambda: None)
    monkeypatch.setattr(wavecast, "measure", measure)
    script = tmp_path / "train.py"
    script.write_text("def make_step():\n    return lambda: None\n")
    outcome = run("measure", f"{script}:make_step", "--setup", "habitat")
    assert outcome.code == 0, outcome.err
    assert given[0]["setup"] == "habitat"
    assert given[0]["repeats"] is None


def test_layers_without_a_network_are_not_predicted() -> None:
    trace = Path(__file__).parents[2] / "examples" / "traces" / "dcgan-b128.json.gz"
    outcome = run("predict", str(trace), "--gpu", "t4", "--setup", "habitat")
    assert outcome.code == 3
    # Transposed convolutions; the others are of a batch above those that the network knows.
    assert "aten.convolution (5 calls), aten.convolution_backward (5 calls)" in outcome.out
    assert "not ranked" in outcome.out
    own = run("predict", str(trace), "--gpu", "t4")
    assert own.code == 0
    assert "without a prediction" not in own.out


def test_kernels_are_scaled_in_whole_waves_on_request(measured: str) -> None:
    words = (measured, "--gpu", "v100-sxm-16gb", "--setup", "habitat")
    many, whole = (predicted(*words, *more)["gpu_s"] for more in ((), ("--equation", "1")))
    # 4,096 blocks are 26 waves of 160 on a T4, and 7 of 640 on a V100.
    assert many == pytest.approx(1e-3 * 239 / 739)
    assert whole == pytest.approx(1e-3 * 7 / 26 * (239 / 739 * 640 / 160))
    outcome = run("predict", measured, "--gpu", "t4", "--equation", "1")
    assert outcome.code == 1
    assert "--equation is for --setup habitat or --predictor wave" in outcome.err
