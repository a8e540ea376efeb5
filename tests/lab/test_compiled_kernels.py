"""Measured compiled steps: what was read, and what the shipped fit of fused kernels says of it."""

from __future__ import annotations

import tomllib
from functools import cache

import numpy as np
import pytest

from lab.fit.fused import digest
from lab.measured.compiled import GPU, SMALL, FusedKernel, kernels, lines, op_of, steps
from lab.places import MODELS
from lab.score.compiled import compared, table
from wavecast.hardware.devices import device
from wavecast.predictors.learned.predictor import Learned


@cache
def fitted() -> list[FusedKernel]:
    return [kernel for kernel in kernels() if kernel.family != "host"]


@pytest.mark.slow
def test_the_card_is_of_these_kernels() -> None:
    card = tomllib.loads((MODELS / "fused.toml").read_text(encoding="utf-8"))
    assert card["rows"] == len(fitted())
    assert card["rows_sha256"] == digest(fitted())


def test_shipped_predictions_are_close_to_the_kernels_of_steps() -> None:
    chosen = [kernel for kernel in fitted() if kernel.family != SMALL][::7]
    estimates = Learned.shipped().predict_all([kernel.op for kernel in chosen], device(GPU))
    ratios = [
        estimate.seconds / kernel.seconds
        for estimate, kernel in zip(estimates, chosen, strict=True)
        if estimate is not None
    ]
    assert len(ratios) == len(chosen)
    assert np.median(np.abs(np.array(ratios) - 1)) < 0.15


def test_every_step_has_both_halves_and_described_kernels() -> None:
    rows = steps()
    assert len(rows) == 49
    for row in rows:
        assert row["compiled"]["wall_s"] > 0
        assert row["eager"]["busy_s"] > 0
        described = [op_of(op) for op in row["ops"].values()]
        assert sum(op is None for op in described) <= 0.1 * len(described)


def test_no_fit_reads_the_blind_steps() -> None:
    measured = {row["step"] for row in lines("blind")}
    assert len(measured) == 20
    assert not measured & {row["step"] for row in steps()}
    assert not measured & {kernel.source for kernel in kernels()}


def test_an_exact_prediction_has_no_error() -> None:
    row = next(row for row in steps() if row["step"] == "resnet18-fp32")
    said = {}
    for how in ("compiled", "eager"):
        half = row[how]
        fused = sum(kernel["name"] in row["ops"] for kernel in half["kernels"])
        said[how] = {
            "seconds": half["wall_s"],
            "gpu_s": half["busy_s"],
            "fused": fused,
            "peak_bytes": half["peak_bytes"],
            "followed": True,
        }
    errors = compared("resnet18-fp32", said, row)
    assert [errors[name] for name in ("fused", "gpu", "gain", "iteration", "peak")] == [
        pytest.approx(0.0)
    ] * 5
    assert "| resnet18-fp32 | +0.0% |" in table({"resnet18-fp32": said})
