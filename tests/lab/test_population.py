"""Random steps of many models: they are reproducible, and none is of a model of the blind test."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from lab.measured import campaigns
from lab.steps.population import BLIND, SEEN, TEXT, draw, make_step

MEASURED = campaigns.traces("population")


def test_no_model_of_a_blind_test_was_measured_for_a_fit() -> None:
    assert not set(BLIND) & set(SEEN)
    assert len(BLIND) == pytest.approx(len(SEEN) / 4, abs=1)
    models = {key.partition("-b")[0] for key in MEASURED}
    assert models
    assert models <= set(SEEN)


def test_a_draw_is_the_same_again_and_has_its_own_title() -> None:
    assert draw("vgg16", 0) == draw("vgg16", 0)
    assert draw("vgg16", 0) != draw("vgg16", 1)
    titles = {draw(name, seed).title for name in SEEN for seed in (0, 1)}
    assert len(titles) > 1.9 * len(SEEN)
    measured = set(MEASURED)
    assert measured <= {draw(name, 0).title for name in SEEN}


def test_a_drawn_step_runs_as_drawn() -> None:
    pytest.importorskip("transformers")
    import wavecast

    drawn = next(
        candidate
        for candidate in (draw("RobertaForMaskedLM", seed) for seed in range(50))
        if candidate.precision == "bf16" and not candidate.infers and (candidate.width or 0) <= 512
    )
    assert drawn.name in TEXT
    trace = wavecast.trace(lambda: make_step(drawn), gpu="h200-sxm")
    products = [call.op for call in trace if call.op.base == "aten.addmm"]
    assert {op.inputs[1].dtype for op in products} == {"bfloat16"}
    assert any(op.inputs[1].shape[0] == drawn.batch * drawn.length for op in products)
    assert any(drawn.width in op.inputs[1].shape for op in products)
