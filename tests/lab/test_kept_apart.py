"""Predictors that know neither the GPU of a step nor the source that measured it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made import call, mm, trace

from lab.fit import kept_apart
from lab.fit.generations import Aged, PublishedStep
from lab.fit.kept_apart import Hidden, KeptApart, hidden_for
from lab.measured.op_makers import OpRow
from lab.measured.public_steps.case import Case
from lab.score.ranged_steps import OffStep, bound
from wavecast.hardware.devices import device
from wavecast.predictors.base import Familiarity
from wavecast.predictors.learned.predictor import Learned
from wavecast.steps.request import predict

ROWS = [
    OpRow((mm(),), gpu, 1.0, source)
    for gpu, source in (
        *(("a100-sxm-80gb", "kernels"), ("a40", "vidur"), ("v100-sxm-16gb", "neusight")),
        *(("t4", "neusight"), ("h200-sxm", "h200 steps")),
    )
]


def case(of_set: str, gpu: str, **more: Any) -> Case:
    def no_step() -> Callable[[], Any]:
        raise AssertionError

    return Case(of_set, gpu, "m", "m", "fp32", 8, "", 1.0, no_step, **more)


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> KeptApart:
    """`KeptApart` with a few measured ops, whose fits only record what they see."""

    def kept_fit(path: Path, rows: list[OpRow], *, chips: bool) -> Learned:
        fits.append((sorted({row.gpu for row in rows}), chips))
        return Learned.shipped()

    fits: list[tuple[list[str], bool]] = []
    monkeypatch.setattr(kept_apart, "rows_of", lambda _: ROWS)
    monkeypatch.setattr(kept_apart, "kept_fit", kept_fit)
    monkeypatch.setattr(kept_apart, "published", lambda *_: [])
    made = KeptApart(tmp_path, tmp_path)
    made.fits = fits  # type: ignore[attr-defined]
    return made


def test_a_fit_sees_neither_the_source_nor_the_architecture() -> None:
    hidden = hidden_for(case("lambda", "rtx-3090"), Familiarity.UNSEEN)
    assert hidden == Hidden("lambda", "Ampere")
    assert hidden.hides("neusight", ("Ampere", 108))
    assert hidden.hides("lambda", ("Volta", 80))
    assert not hidden.hides("neusight", ("Volta", 80))
    partly = hidden_for(case("neusight infer", "v100-sxm-16gb"), Familiarity.PARTLY)
    assert partly == Hidden("neusight")
    assert not partly.hides("deepbench", ("Volta", 80))


def test_a_chip_is_partly_known_only_if_others_measured_it(apart: KeptApart) -> None:
    partly, unseen = Familiarity.PARTLY, Familiarity.UNSEEN
    assert apart.familiarities(case("lambda", "v100-sxm-32gb")) == (partly, unseen)
    assert apart.familiarities(case("neusight infer", "v100-pcie-32gb")) == (unseen,)
    assert apart.familiarities(case("lambda", "rtx-3090")) == (unseen,)
    assert apart.familiarities(case("h200 suite", "h200-sxm")) == (unseen,)
    assert apart.familiarities(case("torchcnn train", "rx-6800")) == (Familiarity.FOREIGN,)


def test_equal_data_are_fitted_once_without_what_is_hidden(
    apart: KeptApart, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []

    def constants(steps: list[PublishedStep]) -> dict[str, dict[str, float]]:
        seen.append({step.source for step in steps})
        return {"compute": {}, "recurrent": {}, "depthwise": {}, "old": {"1.13": 0.1}}

    steps = [
        PublishedStep(("Ampere", 82), "timm train", 1.0, 1.0, {}),
        PublishedStep(("Volta", 80), "lambda", 1.0, 1.0, {}),
        PublishedStep(("Turing", 68), "torchcnn train", 1.0, 1.0, {}),
    ]
    monkeypatch.setattr(kept_apart, "steps_of", lambda *_: steps)
    monkeypatch.setattr(kept_apart, "constants", constants)
    assert isinstance(apart.predictor(case("lambda", "rtx-3090"), Familiarity.UNSEEN), Learned)
    old = case("lambda", "a100-sxm-80gb", era="1.13")
    assert isinstance(apart.predictor(old, Familiarity.UNSEEN), Aged)
    apart.predictor(old, Familiarity.PARTLY)
    apart.predictor(case("neusight infer", "t4"), Familiarity.UNSEEN)
    everything = ["a100-sxm-80gb", "a40", "h200-sxm", "t4", "v100-sxm-16gb"]
    assert apart.fits == [  # type: ignore[attr-defined]
        (["h200-sxm", "t4", "v100-sxm-16gb"], False),
        (everything, True),
        (["a100-sxm-80gb", "a40", "h200-sxm"], False),
    ]
    assert seen == [
        {"torchcnn train"},
        {"timm train", "torchcnn train"},
        {"timm train", "lambda"},
    ]


def test_a_step_is_scored_by_what_clearly_bounds_it() -> None:
    busy = predict(trace(call(mm(8192, 8192, 8192))), "rtx-3090", host="reference")
    measured = case("timm train", "rtx-3090")
    gpu = bound(busy, measured, Familiarity.UNSEEN)
    assert isinstance(gpu, OffStep)
    assert (gpu.part, gpu.known, gpu.owner, gpu.chip) == ("gpu", "unseen", "timm", "Ampere.82")
    assert gpu.modelled == 1
    slow = predict(trace(call(mm(8, 8, 8))), "rtx-3090", host="reference")
    host = bound(slow, measured, Familiarity.UNSEEN)
    assert isinstance(host, OffStep)
    assert (host.part, host.known) == ("host", "unknown")
    factor = busy.gpu_s / busy.host_s
    both = predict(trace(call(mm(8192, 8192, 8192))), device("rtx-3090"), host_factor=factor)
    assert bound(both, measured, Familiarity.UNSEEN) is None
