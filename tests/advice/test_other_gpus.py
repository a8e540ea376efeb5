"""The same step on another GPU, and on several."""

from __future__ import annotations

import datetime
from dataclasses import replace

import pytest
from made import call, mm, relu

import wavecast
from wavecast.advice.proposals import StepAdvice, other_gpus
from wavecast.planning.prices import Price, PriceBook
from wavecast.report.advice import advice_lines
from wavecast.steps.prediction import Prediction
from wavecast.traces.step import Allocation, Phase, Role, Trace

DAY = datetime.date(2026, 8, 22)
BOOK = PriceBook(
    (
        Price("l4", 0.5, "any", "", DAY),
        Price("l4", 0.5, "any", "", DAY, gpus=8),
        Price("h100-sxm-80gb", 20.0, "any", "", DAY),
        Price("t4", 0.01, "any", "", DAY),
        Price("mi300x", 0.001, "any", "", DAY),
    ),
    DAY,
)


def _step(gib: int = 1) -> Prediction:
    calls = (
        call(mm(8192, 8192, 8192), module="net.0"),
        call(mm(8192, 8192, 8192), Phase.BACKWARD, "net.0"),
        call(relu(8192, 8192), Phase.OPTIMIZER),
    )
    held = (Allocation(gib << 30, None, None, Role.PARAMETER),)
    return wavecast.predict(Trace(calls, samples=8, allocations=held), "l4")


def test_the_fastest_the_cheapest_and_several_are_named() -> None:
    before = _step()
    found = {gpu.kind: gpu for gpu in other_gpus(before, BOOK)}
    assert found["fastest"].step.device.id == "h100-sxm-80gb"
    assert found["cheapest"].step.device.id == "t4"  # MI300X was never measured
    assert (found["several"].step.device.id, found["several"].step.gpus) == ("l4", 8)
    now, cheap = before.seconds / 8 * 1e6 * 0.5 / 3600, found["cheapest"].usd_per_million
    assert cheap is not None
    assert cheap < now
    whole = found["several"]
    assert whole.usd_per_million == pytest.approx((whole.sample_s or 0) * 1e6 * 4.0 / 3600)


def test_gpus_that_are_no_better_or_too_small_are_not_named() -> None:
    alone = replace(BOOK, offers=BOOK.offers[:2])
    assert [gpu.kind for gpu in other_gpus(_step(), alone)] == ["several"]
    assert "t4" not in {gpu.step.device.id for gpu in other_gpus(_step(17), BOOK)}


def test_each_is_told_in_a_line() -> None:
    before = _step()
    advice = StepAdvice(
        "net", before, (), None, BOOK.cheapest("l4"), tuple(other_gpus(before, BOOK))
    )
    lines = advice_lines(advice)
    assert any(line.startswith("the fastest other GPU: h100-sxm-80gb, ") for line in lines)
    [several] = [line for line in lines if line.startswith("several GPUs: 8 x l4, ")]
    assert "times the samples" in several
    assert " instead of $" in several
