"""Ranges of steps on several GPUs, fitted to published ones and judged without their source."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from lab.score.distributed import COLUMNS
from lab.score.parallel_ranges import (
    APART,
    RangedStep,
    fitted,
    judged,
    read_steps,
    table,
    to_toml,
)
from wavecast.predictors.base import Spread
from wavecast.steps.ranges import RangeParts

ALONE = Spread(1 / 1.1, 1.1)
NO_HOST = Spread(1.0, 1.0)


def _step(measured: float, owner: str = "one") -> RangedStep:
    return RangedStep(owner, math.log(measured), RangeParts(1.0, 1.0, ALONE, NO_HOST))


def _source(owner: str, measured: float, count: int = 60) -> list[RangedStep]:
    """Steps whose time is as predicted on average, up to a factor either way."""
    powers = [2 * at / (count - 1) - 1 for at in range(count)]
    return [_step(measured**power, owner) for power in powers]


def test_steps_within_the_range_of_one_gpu_need_no_factor() -> None:
    width = fitted(_source("one", 1.5)).width
    assert _step(1.09).factor(width) == _step(0.92).factor(width) == 0
    assert _step(1.5).factor(width) > 0


def test_a_factor_just_holds_a_step() -> None:
    width = fitted(_source("one", 1.5)).width
    for measured in (1.7, 0.5):
        step = _step(measured)
        factor = step.factor(width)
        below, above = step.reach((factor * width[0], factor * width[1]))
        assert max(-step.off - below, step.off - above) == pytest.approx(0, abs=1e-9)


def test_one_in_twenty_lie_beyond_each_end() -> None:
    steps = _source("one", 1.8, 200)
    width = fitted(steps).width
    ends = [step.reach(width) for step in steps]
    assert sum(s.off > high for s, (_, high) in zip(steps, ends, strict=True)) == 10
    assert sum(s.off < -low for s, (low, _) in zip(steps, ends, strict=True)) == 10


def test_a_source_is_judged_by_the_others() -> None:
    steps = _source("calm", 1.05) + _source("wild", 3.0) + _source("other", 1.2)
    reach = {step.step.owner: step.above for step in judged(steps)}
    assert reach["calm"] > reach["wild"]


def test_ranges_made_apart_hold_nine_in_ten() -> None:
    steps = _source("one", 1.6) + _source("other", 1.3) + _source("third", 1.4)
    made = fitted(steps)
    width = made.widened
    assert width > made.without("one").width
    held = [-low <= s.off <= high for s in steps for low, high in [s.reach(width)]]
    assert sum(held) >= 0.9 * len(steps)


def test_hosts_that_set_the_pace_widen_a_range_and_are_in_no_width() -> None:
    step = _step(1.0)
    slow = replace(step, parts=replace(step.parts, hosts=Spread(0.7, 1.5)), off=math.log(1.45))
    assert slow.waits
    assert slow.reach((0.0, 0.0)) == pytest.approx((-math.log(0.7), math.log(1.5)))
    steps = _source("one", 1.3)
    assert fitted([*steps, *[slow] * 50]).width == fitted(steps).width


def test_what_communicates_more_reaches_further() -> None:
    step = _step(1.0)
    more = replace(step, parts=replace(step.parts, weight=1.5))
    width = 0.1, 0.2
    assert step.reach(width)[1] == pytest.approx(math.hypot(math.log(1.1), 0.2))
    assert more.reach(width)[1] == pytest.approx(math.hypot(math.log(1.1), 0.3))


def test_flagged_steps_are_left_out_and_mixtures_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    ends = {"alone_low": 0.9, "alone_high": 1.1, "hosts_low": 1, "hosts_high": 1}
    row = {"source": "one", "stated": "yes", "predicted_s": 1, "measured_s": 1.1, "flags": ""}
    row |= {"computing": 1, "weight": 1, **ends}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for name, flags in (("a", ""), ("b", "far_below_best_of_same_size"), ("c", "")):
            writer.writerow({**row, "row_id": name, "flags": flags})
    facts = [{"row_id": name, "n_experts": None, "task": "pretrain"} for name in "ab"]
    steps = read_steps([path], [*facts, {"row_id": "c", "n_experts": 8, "task": "pretrain"}])
    assert [step.owner for step in steps] == ["one", APART]
    assert steps[0].off == pytest.approx(math.log(1.1))


def test_rows_without_options_are_judged_apart() -> None:
    steps = _source("one", 1.5) + _source("other", 1.4) + _source("third", 1.3)
    plain = [replace(step, rebuilt=False) for step in _source("one", 1.6, 20)]
    lines = list(table(judged([*steps, *plain])))
    assert any(line.startswith("| other | 60 |") for line in lines)
    assert lines[-1].startswith("| **all, once more without options** | 20 |")
    assert "# From 180 published steps of 3 sources." in to_toml([*steps, *plain])
