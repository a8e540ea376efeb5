"""Verdicts as plain lines of text."""

from __future__ import annotations

from dataclasses import replace

from made import call, mm, relu, trace

import wavecast
from wavecast.analysis.comparison import StepComparison, StepSummary, summary_of
from wavecast.campaigns.checks.config import Tolerances
from wavecast.campaigns.checks.verdicts import StepVerdict, explained, judge

BIG = 2048


def summary(*, wide: bool = False, waits: bool = False) -> StepSummary:
    product = mm(BIG, BIG, BIG * (2 if wide else 1))
    calls = call(product, module="net.0", syncs=waits), call(relu(BIG, BIG), module="net.1")
    return summary_of(wavecast.predict(trace(*calls), "l4", host="reference"))


def test_a_slower_step_is_explained_by_op_and_module() -> None:
    verdict = judge("mine", StepComparison(summary(), summary(wide=True, waits=True)), Tolerances())
    text = explained(replace(verdict, cause="the ops of the step changed"))
    first, *lines = text.splitlines()
    assert first == "mine on l4: worse"
    assert any(line.startswith("  time ") and "2% allowed): worse" in line for line in lines)
    assert "  waits 0 -> 1 (0 allowed): worse" in lines
    assert any(line.startswith("    aten.mm: +") and line.endswith("(1 calls)") for line in lines)
    assert any(line.startswith("    net.0: +") for line in lines)
    assert lines[-1] == "  the ops of the step changed"


def test_an_equal_step_has_its_figures_only() -> None:
    text = explained(judge("mine", StepComparison(summary(), summary()), Tolerances()))
    assert text.startswith("mine on l4: within tolerance\n  time ")
    assert "->" not in text


def test_a_step_that_no_longer_fits_and_an_unknown_memory_are_named() -> None:
    before, after = (
        replace(summary(), fits=True, peak_bytes=3 << 20),
        replace(summary(), fits=False),
    )
    text = explained(judge("mine", StepComparison(before, after), Tolerances()))
    assert "  fits true -> false: worse" in text
    assert "  memory 3 MiB -> unknown (2% allowed): cannot say" in text


def test_a_problem_is_all_there_is_to_say() -> None:
    assert explained(StepVerdict("mine", "l4", problem="no")) == "mine on l4: no"
