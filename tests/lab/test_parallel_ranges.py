"""Ranges of steps on several GPUs, widened until they hold nine in ten published ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from lab.fit.parallel_ranges import NARROW, RangedStep, fit, read_steps, share_in
from wavecast.steps.parallel_ranges import shipped_widening

END = math.log(1.2)


def _source(*measured: float) -> list[RangedStep]:
    return [RangedStep(math.log(one), -END, END) for one in measured]


def test_steps_in_the_range_leave_it_as_it_is() -> None:
    assert fit({"one": _source(0.9, 1.0, 1.1)}) == NARROW


def test_each_end_is_widened_by_the_steps_beyond_it() -> None:
    widening = fit({"one": _source(1.0, 1.43)})
    assert widening.below == 1.0
    assert widening.above == pytest.approx(2.0)
    assert share_in(_source(1.0, 1.43), widening) == 1.0
    assert share_in(_source(1.0, 1.43), NARROW) == 0.5


def test_a_source_with_many_steps_counts_as_much_as_one_with_few() -> None:
    few = fit({"many": _source(*[1.0] * 99), "few": _source(1.72)})
    assert few.above == pytest.approx(3.0)


def test_flagged_steps_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    head = "row_id,source,strategy,predicted_s,ops_low_s,ops_high_s,measured_s,flags"
    rows = ["a,one,DP,1,0.9,1.2,1.1,", "b,one,DP,1,0.9,1.2,9,far_below_best_of_same_size"]
    path.write_text("\n".join([head, *rows]))
    assert [round(step.measured, 3) for step in read_steps([path])["one"]] == [0.095]


def test_the_shipped_ranges_are_not_narrower_than_those_of_the_ops() -> None:
    low, high = shipped_widening().widened(0.8, 1.2)
    assert low <= 0.8
    assert high >= 1.2
