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
    PARTS,
    OffStep,
    WidthTree,
    factors_of,
    judged,
    read_steps,
    to_toml,
)
from wavecast.steps.parallel_ranges import CLASSES, RangeParts, Spending
from wavecast.steps.ranges import Factors

ALONE = Factors(1 / 1.1, 1.1)
NO_HOST = Factors(1.0, 1.0)


def _step(measured: float, owner: str = "one", communication: float = 0.0) -> OffStep:
    spending = Spending(1 - communication, communication, 0.0, 0.0, 0.0)
    return OffStep(owner, math.log(measured), RangeParts("machine", spending, ALONE, NO_HOST))


def _source(owner: str, measured: float, count: int = 40) -> list[OffStep]:
    """Steps whose time is as predicted on average, up to a factor either way."""
    powers = [2 * at / (count - 1) - 1 for at in range(count)]
    return [_step(measured**power, owner) for power in powers]


def test_steps_within_the_range_of_one_gpu_need_no_factor() -> None:
    widths = WidthTree(_source("one", 1.05)).widths("machine")
    assert _step(1.09).factor(widths) == _step(0.92).factor(widths) == 0
    assert _step(1.5).factor(widths) > 0


def test_a_factor_just_holds_a_step() -> None:
    widths = WidthTree(_source("one", 1.5)).widths("machine")
    for measured in (1.7, 0.5):
        step = _step(measured)
        below, above = step.reach(widths.times(step.factor(widths)))
        assert max(-step.off - below, step.off - above) == pytest.approx(0, abs=1e-9)


def test_steps_that_lie_further_out_give_wider_ranges() -> None:
    near, far = (WidthTree(_source("one", of)).widths("machine") for of in (1.2, 2.0))
    assert far.above[0] > near.above[0]
    assert far.below[0] > near.below[0]


def test_communication_has_a_width_of_its_own() -> None:
    calm = _source("one", 1.1, 200)
    noisy = [replace(s, parts=_step(1, "one", 0.5).parts) for s in _source("one", 3.0, 200)]
    widths = WidthTree(calm + noisy).widths("machine")
    assert widths.above[PARTS.index("communication")] > 2 * widths.above[0]


def test_a_source_is_judged_by_the_others() -> None:
    steps = _source("calm", 1.05, 60) + _source("wild", 3.0, 60) + _source("other", 1.2, 60)
    reach = {one.step.owner: one.above for one in judged(steps)}
    assert reach["calm"] > reach["wild"]


def test_factors_hold_nine_in_ten_of_a_class() -> None:
    steps = _source("one", 1.6, 60) + _source("other", 1.3, 60)
    tree = WidthTree(steps)
    factor = factors_of(steps, lambda owner: tree)["machine"]
    widths = tree.widths("machine").times(factor)
    held = [-low <= s.off <= high for s in steps for low, high in [s.reach(widths)]]
    assert sum(held) >= 0.9 * len(steps)


def test_hosts_that_set_the_pace_widen_a_range() -> None:
    [step] = _source("one", 1.0, 2)[:1]
    slow = replace(step, parts=replace(step.parts, hosts=Factors(0.7, 1.5)))
    widths = WidthTree(_source("one", 1.05)).widths("machine")
    assert slow.waits
    assert slow.reach(widths)[1] == pytest.approx(math.log(1.5))


def test_flagged_steps_are_left_out_and_mixtures_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    ends = {"alone_low": 0.9, "alone_high": 1.1, "hosts_low": 1, "hosts_high": 1}
    parts = {"computing": 1, **dict.fromkeys(PARTS[1:], 0)}
    row = {"source": "one", "stated": "yes", "predicted_s": 1, "measured_s": 1.1, "flags": ""}
    row |= {"known": CLASSES[0], **ends, **parts}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for name, flags in (("a", ""), ("b", "far_below_best_of_same_size"), ("c", "")):
            writer.writerow({**row, "row_id": name, "flags": flags})
    facts = [{"row_id": name, "n_experts": None, "task": "pretrain"} for name in "ab"]
    steps = read_steps([path], [*facts, {"row_id": "c", "n_experts": 8, "task": "pretrain"}])
    assert [step.owner for step in steps] == ["one", APART]
    assert steps[0].off == pytest.approx(math.log(1.1))


def test_the_file_has_the_widths_of_all_parts() -> None:
    text = to_toml(_source("one", 1.5) + _source("other", 1.4))
    assert "[machine]" in text
    assert all(f"{name} = " in text for name in PARTS)
