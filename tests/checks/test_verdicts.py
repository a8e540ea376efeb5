"""Verdicts on figures, on steps and on the choice of a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from wavecast.analysis.comparison import StepComparison, StepSummary
from wavecast.campaigns.checks.config import Tolerances
from wavecast.campaigns.checks.verdicts import (
    Outcome,
    best_gpu,
    exit_code,
    judge,
    judge_choices,
    overall,
)

STEP = StepSummary(
    gpu="l4",
    seconds=0.1,
    gpu_s=0.1,
    host_s=0.05,
    bound_by="gpu",
    kernels=10,
    syncs=1,
    needed_bytes=2000,
    peak_bytes=1000,
    fits=True,
)


USUAL = Tolerances()


def judged(allowed: Tolerances = USUAL, **now: Any) -> dict[str, Outcome]:
    after = replace(STEP, **now)
    verdict = judge("mine", StepComparison(STEP, after), allowed)
    return {figure.name: figure.outcome for figure in verdict.figures}


def test_an_equal_step_is_within_tolerance() -> None:
    assert set(judged(Tolerances(0, 0, 0, 0, 0, 0)).values()) == {Outcome.WITHIN}


@pytest.mark.parametrize(
    ("figure", "now", "outcome"),
    [
        ("time", {"seconds": 0.1019}, Outcome.WITHIN),
        ("time", {"seconds": 0.1021}, Outcome.WORSE),
        ("time", {"seconds": 0.0979}, Outcome.BETTER),
        ("memory", {"peak_bytes": 1021}, Outcome.WORSE),
        ("memory", {"peak_bytes": 1019, "needed_bytes": 9000}, Outcome.WITHIN),
        ("memory", {"peak_bytes": None}, Outcome.UNKNOWN),
        ("GPU time", {"gpu_s": 0.106}, Outcome.WORSE),
        ("host time", {"host_s": 0.056}, Outcome.WORSE),
        ("host time", {"host_s": 0.054}, Outcome.WITHIN),
        ("waits", {"syncs": 2}, Outcome.WORSE),
        ("waits", {"syncs": 0}, Outcome.BETTER),
        ("fits", {"fits": False}, Outcome.WORSE),
    ],
)
def test_a_figure_is_judged_by_its_tolerance(
    figure: str, now: dict[str, Any], outcome: Outcome
) -> None:
    assert judged(**now)[figure] is outcome


def test_a_figure_that_nobody_asks_for_is_left_out() -> None:
    assert "host time" not in judged(Tolerances(host=None), host_s=9.0)
    assert "fits" not in judged()


def test_a_step_that_was_hardly_predicted_gets_no_verdict() -> None:
    verdict = judge(
        "mine", StepComparison(STEP, replace(STEP, unpredicted_share=0.5)), Tolerances()
    )
    assert verdict.outcome is Outcome.UNKNOWN
    assert "20%" in verdict.problem


@pytest.mark.parametrize(
    ("outcomes", "whole", "code"),
    [
        ((), Outcome.WITHIN, 0),
        ((Outcome.WITHIN, Outcome.BETTER), Outcome.BETTER, 0),
        ((Outcome.BETTER, Outcome.UNKNOWN), Outcome.UNKNOWN, 2),
        ((Outcome.UNKNOWN, Outcome.CHANGED), Outcome.CHANGED, 1),
        ((Outcome.UNKNOWN, Outcome.WORSE), Outcome.WORSE, 1),
    ],
)
def test_the_worst_outcome_decides(
    outcomes: tuple[Outcome, ...], whole: Outcome, code: int
) -> None:
    assert overall(outcomes) is whole
    assert exit_code(outcomes) == code


PRICES = {"l4": 0.4, "h100": 2.0}


def steps(l4_s: float, h100_s: float, **others: Any) -> dict[str, StepSummary]:
    small = replace(STEP, seconds=l4_s, **others)
    return {"l4": small, "h100": replace(STEP, gpu="h100", seconds=h100_s)}


def test_the_fastest_and_the_cheapest_gpu_are_found() -> None:
    assert best_gpu(steps(0.3, 0.1), {"l4": 1.0, "h100": 1.0}) == "h100"
    assert best_gpu(steps(0.3, 0.1), PRICES) == "l4"
    assert best_gpu(steps(0.3, 0.1, fits=False), PRICES) == "h100"
    assert best_gpu(steps(0.3, 0.1), {}) == ""


def test_a_choice_changes_only_if_another_gpu_is_better_by_more_than_the_tolerance() -> None:
    before = steps(0.4, 0.1)  # by money: 0.16 on the L4, 0.20 on the H100
    choices = judge_choices("mine", before, steps(0.505, 0.1), PRICES, 0.02)
    assert [(row.by, row.after, row.outcome) for row in choices] == [
        ("time", "h100", Outcome.WITHIN),
        ("money", "h100", Outcome.WITHIN),  # 1% cheaper: both can be chosen
    ]
    [_, money] = judge_choices("mine", before, steps(0.6, 0.1), PRICES, 0.02)
    assert (money.before, money.after, money.outcome) == ("l4", "h100", Outcome.CHANGED)
    [_, money] = judge_choices("mine", before, steps(0.4, 0.1, fits=False), PRICES, 0.02)
    assert money.outcome is Outcome.CHANGED


def test_there_is_no_choice_without_two_gpus() -> None:
    one = {"l4": STEP}
    assert judge_choices("mine", one, one, PRICES, 0.02) == ()
    assert judge_choices("mine", steps(1, 1), steps(1, 1), PRICES, None) == ()
