"""Ranges of steps on several GPUs, widened until they hold nine in ten published ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lab.fit.parallel_ranges import APART, LEAST, NARROW, RangedStep, fit, read_steps, table
from wavecast.parallel.strategy import Parallel
from wavecast.steps.ranges import shipped_widening, widened

END = math.log(1.2)


def _source(*measured: float) -> list[RangedStep]:
    return [RangedStep(math.log(one), -END, END) for one in measured]


def test_steps_in_the_range_leave_it_as_it_is() -> None:
    assert fit({"one": _source(0.9, 1.0, 1.1)}) == NARROW


def test_each_end_is_widened_by_the_steps_beyond_it() -> None:
    widening = fit({"one": _source(1.0, 1.43)})
    assert widening.below == 1.0
    assert widening.above == pytest.approx(2.0)
    assert _source(1.43)[0].lies_in(widening)
    assert not _source(1.43)[0].lies_in(NARROW)


def test_a_source_is_judged_by_the_others() -> None:
    steps = {"one": _source(*[1.43] * 9), "other": _source(*[1.0] * 9)}
    assert fit(steps, left_out="one") == NARROW
    lines = table(steps)
    assert "| one | 9 | 0% | 1.00, 1.00; 1.00, 1.00 | 0% |" in lines
    assert "| other | 9 | 100% | 1.00, 2.00; 1.00, 2.00 | 100% |" in lines
    assert lines[-1] == "| **all but those apart** | 18 | 50% | | 50% |"


def test_flagged_steps_are_left_out_and_mixtures_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    head = "row_id,source,strategy,predicted_s,ops_low_s,ops_high_s,measured_s,flags"
    rows = [
        "a,one,DP,1,0.9,1.2,1.1,",
        "b,one,DP,1,0.9,1.2,9,far_below_best_of_same_size",
        "c,one,EP,1,0.9,1.2,5,",
    ]
    path.write_text("\n".join([head, *rows]))
    facts = [{"row_id": name, "n_experts": None, "task": "pretrain"} for name in "ab"]
    steps = read_steps([path], [*facts, {"row_id": "c", "n_experts": 8, "task": "pretrain"}])
    assert {name: len(own) for name, own in steps.items()} == {"one": 1, APART: 1}
    assert fit(steps) == NARROW


def test_layered_steps_have_exponents_of_their_own_if_they_are_enough() -> None:
    layered = [replace(step, layered=True) for step in _source(*[1.43] * LEAST)]
    steps = {"one": [*_source(*[1.0] * 400), *layered]}
    assert fit(steps) == NARROW
    assert fit(steps, layered=True).above == pytest.approx(2.0)
    few = {"one": [*_source(*[1.0] * 400), *layered[1:]]}
    assert fit(few, layered=True) == NARROW


@pytest.mark.parametrize("layered", [False, True])
def test_the_shipped_ranges_are_not_narrower_than_those_of_the_ops(layered: bool) -> None:
    low, high = shipped_widening(layered).widened(0.8, 1.2)
    assert low <= 0.8
    assert high >= 1.2


def test_stated_habits_make_ranges_of_layered_steps_narrower() -> None:
    plain, stated = (Parallel(tensor=2, pipeline=2, triton_functions=on) for on in (False, True))
    ends = (0.9, 1.1)
    assert widened(1.0, ends, stated)[1] < widened(1.0, ends, plain)[1]
    alone = replace(stated, pipeline=1)
    assert widened(1.0, ends, alone) == widened(1.0, ends, replace(plain, pipeline=1))
