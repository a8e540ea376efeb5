"""Whole trainings: steps are counted, ranges carried through, and whole machines are paid."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from made import call, mm, relu, step, trace

import wavecast
from wavecast.errors import InvalidInput
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import Ranged, TrainingCost, TrainingPlan, exactly, training_cost
from wavecast.planning.prices import Price
from wavecast.steps.prediction import Prediction
from wavecast.traces.step import Phase, Trace

DAY = datetime.date(2026, 8, 22)
NET = trace(
    call(mm(4096, 4096, 4096), module="net.0"),
    call(mm(4096, 4096, 4096), Phase.BACKWARD, "net.0"),
    call(mm(4096, 4096, 4096), Phase.BACKWARD, "net.0"),
    call(relu(4096, 8192), Phase.OPTIMIZER),
    samples=64,
)


@pytest.fixture(scope="module")
def prediction() -> Prediction:
    return wavecast.predict(NET, "h100-sxm-80gb")


def cost(prediction: Any, offer: Price | None = None, **plan: Any) -> TrainingCost:
    return training_cost(prediction, TrainingPlan(**plan), offer)


@pytest.mark.parametrize(
    ("plan", "steps"),
    [
        ({"iterations": 1000}, 1000),
        ({"samples": 6400}, 100),
        ({"samples": 6401}, 101),
        ({"samples": 1}, 1),
        ({"epochs": 3, "dataset_samples": 1000}, 47),
        ({"epochs": 0.5, "dataset_samples": 6400}, 50),
        ({"tokens": 64 * 512 * 10, "sample_tokens": 512}, 10),
        ({"samples": 6400, "global_batch": 256}, 25),
        ({"iterations": 7, "global_batch": 256}, 7),
    ],
)
def test_optimizer_steps_are_counted(
    prediction: Prediction, plan: dict[str, Any], steps: int
) -> None:
    assert cost(prediction, **plan).steps == steps


def test_tokens_of_a_step_that_counts_tokens_need_no_length() -> None:
    counted = Trace(NET.calls, samples=1024, unit="tokens")
    assert cost(wavecast.predict(counted, "l4"), tokens=10_240).steps == 10


def test_time_and_range_are_those_of_the_step(prediction: Prediction) -> None:
    done = cost(prediction, iterations=3600)
    assert prediction.low_s is not None
    assert prediction.high_s is not None
    assert done.hours.value == pytest.approx(prediction.seconds)
    assert done.hours.low == pytest.approx(prediction.low_s)
    assert done.hours.high == pytest.approx(prediction.high_s)
    assert done.usd is None
    assert done.machines is None


def test_money_and_energy_follow_the_time(prediction: Prediction) -> None:
    offer = Price("h100-sxm-80gb", 2.0, "any", "", DAY)
    done = cost(prediction, offer, iterations=1e6)
    assert done.usd is not None
    assert done.energy_kwh is not None
    hours = done.hours
    assert done.usd.value == pytest.approx(2 * hours.value)
    assert done.usd.high == pytest.approx(2 * (hours.high or 0))
    assert done.energy_kwh.value == pytest.approx(0.7 * hours.value)  # 700 W


def test_a_whole_machine_is_paid(prediction: Prediction) -> None:
    eight = Price("h100-sxm-80gb", 2.0, "any", "", DAY, gpus=8)
    done = cost(prediction, eight, iterations=1e6)
    assert done.usd is not None
    assert (done.machines, done.gpus) == (1, 1)
    assert done.usd.value == pytest.approx(16 * done.hours.value)


def test_accumulation_runs_the_optimizer_once(prediction: Prediction) -> None:
    share = prediction.by_phase()[Phase.OPTIMIZER] / prediction.gpu_s
    assert 0 < share < 0.5
    done = cost(prediction, iterations=1, global_batch=256)
    assert done.accumulated == 4
    assert done.step_samples == 256
    assert done.step.value == pytest.approx(prediction.seconds * (4 - 3 * share))


def test_validation_checkpoints_and_startup_are_added(prediction: Prediction) -> None:
    plain = cost(prediction, epochs=10, dataset_samples=6400)
    stated: dict[str, Any] = {
        "validation_s": 5.0,
        "checkpoint_s": 2.0,
        "checkpoint_every": 500,
        "startup_s": 60.0,
    }
    done = cost(prediction, epochs=10, dataset_samples=6400, **stated)
    assert done.validation_s == exactly(50.0)
    assert done.checkpoint_s == exactly(4.0)
    assert done.seconds.value == pytest.approx(plain.seconds.value + 114)
    assert done.seconds.high == pytest.approx((plain.seconds.high or 0) + 114)


def test_validation_samples_take_a_forward_pass_each(prediction: Prediction) -> None:
    done = cost(prediction, iterations=100, validation_samples=640, validation_every=10)
    share = prediction.by_phase()[Phase.FORWARD] / prediction.gpu_s
    assert done.validation_s.value == pytest.approx(10 * 10 * share * prediction.seconds)
    assert (done.validation_s.high or 0) > done.validation_s.value


def test_once_in_an_epoch_is_counted_from_the_data(prediction: Prediction) -> None:
    done = cost(prediction, iterations=1000, dataset_samples=6400, checkpoint_s=1.0)
    assert done.checkpoint_s == exactly(10.0)


def test_several_gpus_share_the_work_and_the_machine() -> None:
    spread = wavecast.predict(NET, "h100-sxm-80gb", parallel=Parallel(data=8, microbatches=2))
    eight = Price("h100-sxm-80gb", 2.0, "any", "", DAY, gpus=8)
    done = cost(spread, eight, samples=10_240, validation_samples=100, validation_every=1)
    assert (done.steps, done.gpus, done.accumulated, done.step_samples) == (10, 8, 2, 1024)
    assert done.usd is not None
    assert done.usd.value == pytest.approx(16 * done.hours.value)
    assert done.energy_kwh is not None
    assert done.energy_kwh.value == pytest.approx(8 * 0.7 * done.hours.value)
    assert 0 < done.validation_s.value < done.training_s.value
    with pytest.raises(InvalidInput, match="microbatches=4"):
        cost(spread, samples=10_240, global_batch=2048)


def test_a_step_without_a_range_gives_costs_without_one() -> None:
    measured = Ranged(1.0).times(3).plus(exactly(1.0))
    assert measured == Ranged(4.0, None, None)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ({}, "nothing was given"),
        ({"samples": 3, "epochs": 4}, "samples and epochs was given"),
        ({"epochs": 4}, "give dataset_samples"),
        ({"samples": -3}, "samples is -3"),
        ({"samples": float("nan")}, "samples is nan"),
        ({"iterations": 3, "checkpoint_s": -1.0}, "checkpoint_s is -1.0"),
        ({"tokens": 100}, "--sample-tokens"),
        ({"samples": 64, "global_batch": 65}, "no multiple of the 64"),
        ({"samples": 64, "global_batch": 32}, "no multiple of the 64"),
        ({"samples": 64, "checkpoint_s": 3}, "how often a checkpoint comes"),
        ({"samples": 64, "validation_samples": 3}, "how often a validation comes"),
    ],
)
def test_a_plan_that_does_not_suit_is_refused(
    prediction: Prediction, plan: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        cost(prediction, **plan)


@pytest.mark.parametrize(
    "plan",
    [
        {"samples": 64},
        {"iterations": 64, "global_batch": 8},
        {"iterations": 64, "validation_samples": 8, "validation_every": 2},
    ],
)
def test_a_step_of_unknown_samples_has_iterations_only(plan: dict[str, Any]) -> None:
    unknown = wavecast.predict(step(samples=None), "l4")
    assert cost(unknown, iterations=10).steps == 10
    with pytest.raises(InvalidInput, match="how many samples"):
        cost(unknown, **plan)
