"""Measured compiled steps: what was read, and what the shipped fit of fused kernels says of it."""

from __future__ import annotations

import tomllib
from functools import cache

import numpy as np
import pytest

from lab.fit.fused import digest
from lab.measured.compiled import GPU, SMALL, FusedKernel, kernels, lines, op_of, steps
from lab.places import MODELS
from lab.score.compiled import blind_test, compared, table
from lab.score.fused_transfer import as_fused
from lab.steps.compiled import STEPS
from lab.steps.compiled_blind import BLIND
from lab.steps.compiled_blind_2 import BLIND_2
from wavecast.hardware.devices import device
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op, TensorSpec


@cache
def fitted() -> list[FusedKernel]:
    return [kernel for kernel in kernels() if kernel.family != "host"]


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


def test_no_fit_reads_the_blind_steps_and_all_were_measured() -> None:
    measured = {row["step"] for row in lines("blind")}
    assert measured == {step.name for step in BLIND}
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
    assert "| resnet18-fp32 | +0.0% |" in table({"resnet18-fp32": said}, blind=None)


def test_an_eager_op_as_the_kernel_of_its_bytes() -> None:
    spec = TensorSpec((512, 4096), "float32")
    add = as_fused(Op("aten.add.Tensor", (spec, spec), (spec,)))
    softmax = as_fused(Op("aten._softmax", (spec,), (spec,), (("dim", -1),)))
    assert add is not None
    assert softmax is not None
    assert (add.name, add.attr("read_bytes")) == ("inductor.pointwise", 2 * spec.nbytes)
    assert (softmax.name, softmax.attr("reduction")) == ("inductor.reduction", 4096)


def test_the_second_blind_test_has_twenty_new_steps_of_its_own_name() -> None:
    names = [step.name for step in BLIND_2]
    assert len(set(names)) == len(names) == 20
    assert {blind_test(name) for name in names} == {"blind_2"}
    assert {blind_test(step.name) for step in BLIND} == {"blind"}
    assert {blind_test(step.name) for step in STEPS} == {None}
    assert not set(names) & {kernel.source for kernel in kernels()}
