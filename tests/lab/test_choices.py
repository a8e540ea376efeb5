"""Choices are judged by what was measured: right ones, wrong ones, and pairs told apart."""

from __future__ import annotations

import datetime
import math

import pytest
from made import step

from lab.measured.public_steps.case import Case
from lab.score.choices import (
    Judged,
    by_task,
    choice_table,
    fastest,
    report,
    shared_error,
    task_of,
    told_apart,
)
from wavecast.hardware.devices import device
from wavecast.planning.cost import Ranged, TrainingCost, exactly
from wavecast.planning.prices import Price
from wavecast.planning.selection import Aim, Candidate

DAY = datetime.date(2026, 8, 22)


def case(gpu: str, measured_s: float, batch: int = 8, **values: object) -> Case:
    named = {"set": "lambda", "model": "net", "family": "net", "precision": "fp32", "layout": ""}
    return Case(
        gpu=gpu,
        batch=batch,
        measured_s=measured_s,
        make_step=lambda: lambda: None,
        **{**named, **values},  # type: ignore[arg-type]
    )


def row(gpu: str, measured_s: float, predicted_s: float, usd: float | None = 1.0) -> Judged:
    seconds = Ranged(predicted_s, predicted_s / 1.1, predicted_s * 1.1)
    offer = None if usd is None else Price(gpu, usd, "any", "", DAY)
    cost = TrainingCost(
        device_id=gpu,
        gpus=1,
        steps=1,
        accumulated=1,
        step_samples=8,
        step=seconds,
        seconds=seconds,
        training_s=seconds,
        validation_s=exactly(0),
        checkpoint_s=exactly(0),
        startup_s=0,
        energy_kwh=None,
        offer=offer,
        usd=None if usd is None else seconds.times(usd / 3600),
    )
    return Judged(case(gpu, measured_s), Candidate(device(gpu), 1, 8, cost=cost))


def test_fp32_and_tf32_are_one_task() -> None:
    assert task_of(case("l4", 1, precision="tf32")) == task_of(case("t4", 1)) == "net, fp32 or TF32"
    assert task_of(case("l4", 1, precision="amp_fp16")) == "net, half precision"


def test_the_fastest_measured_step_of_each_gpu_counts() -> None:
    made = step()
    cases = [
        case("l4", 1.0),
        case("l4", 1.5, batch=16),
        case("t4", 2.0),
        case("t4", 1, newest=False),
    ]
    kept = [(one.gpu, one.batch, one.measured_s) for one, _ in fastest((c, made) for c in cases)]
    assert kept == [("l4", 16, 1.5), ("t4", 8, 2.0)]


def test_a_choice_is_right_if_little_is_lost() -> None:
    tasks = by_task([row("l4", 1.00, 2.0), row("t4", 1.04, 1.0), row("a10", 3.0, 3.0)])
    table, right, count = choice_table(tasks, Aim.TIME)
    assert (right, count) == (1, 1)
    assert "| net, fp32 or TF32 | 3 | t4 | l4 | 4.0% | none |" in table
    wrong = by_task([row("l4", 1.00, 2.0), row("t4", 1.06, 1.0)])
    assert choice_table(wrong, Aim.TIME)[1:] == (0, 1)


def test_gpus_without_a_price_are_not_among_the_cheapest() -> None:
    tasks = by_task([row("l4", 1, 1, None), row("t4", 2, 2, 1.0), row("a10", 3, 3, 0.1)])
    assert "| 2 | a10 | a10 | 0.0% |" in choice_table(tasks, Aim.MONEY)[0]


def test_pairs_that_are_told_apart_are_counted() -> None:
    tasks = by_task([row("l4", 1, 1), row("t4", 1, 1.01), row("a10", 0.5, 3)])
    assert told_apart(tasks, Aim.TIME) == (
        "2 of 3 pairs of GPUs are told apart, 0.0% of them rightly"
    )


def test_errors_that_are_the_same_on_all_gpus_are_shared() -> None:
    same = by_task([row("l4", 1, 1.2), row("t4", 2, 2.4)])
    assert shared_error(same) == pytest.approx(1.0)
    opposite = by_task([row("l4", 1, 1.2), row("t4", 2.4, 2.0)])
    assert shared_error(opposite) == pytest.approx(-1.0)
    assert same["net, fp32 or TF32"][0].error == pytest.approx(math.log(1.2))


def test_the_report_has_the_parts_of_the_page() -> None:
    parts = report([row("l4", 1, 1.2), row("t4", 2, 2.5)])
    assert set(parts) == {"cheapest", "fastest", "errors"}
    assert parts["fastest"].startswith("In 1 of 1 tasks the fastest GPU is chosen")
