"""Whole trainings: steps are counted, ranges carried through, and whole machines are paid."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from typing import Any

import pytest
from made import call, mm, relu, step, trace

import wavecast
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import device
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import (
    LLAMA_3_GPU_HOURS,
    Purchase,
    Ranged,
    TrainingCost,
    TrainingPlan,
    exactly,
    interruptions,
    training_cost,
)
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


# Failures, published batches and networks.


def test_llama_3_had_a_failure_every_three_hours() -> None:
    lost = interruptions(54 * 86400, 16384, checkpoint_s=1, restart_s=1)
    assert lost.hours_between == pytest.approx(54 * 24 / 419)
    assert lost.failures == pytest.approx(419, rel=0.03)


def test_no_interval_loses_less_than_that_of_young_and_daly() -> None:
    def lost(every_s: float | None) -> float:
        return interruptions(1e6, 1024, checkpoint_s=30, restart_s=300, every_s=every_s).share

    best = interruptions(1e6, 1024, checkpoint_s=30, restart_s=300)
    assert best.checkpoint_every_s == pytest.approx(
        math.sqrt(2 * 30 * LLAMA_3_GPU_HOURS * 3600 / 1024)
    )
    assert lost(None) < lost(best.checkpoint_every_s * 2)
    assert lost(None) < lost(best.checkpoint_every_s / 2)


def test_failures_that_come_faster_than_restarts_are_refused() -> None:
    with pytest.raises(InvalidInput, match="use fewer GPUs"):
        interruptions(1e6, 100_000, gpu_hours_between=100)


# Bought hardware: idle hours and power cost money, too.


def test_a_purchase_is_an_offer_of_one_gpu() -> None:
    gpu = device("rtx-4090")
    offer = Purchase(usd=2000, years=4, utilisation=0.5, usd_per_kwh=0.3).offer(gpu, DAY)
    assert gpu.tdp_w == 450
    assert offer.usd_per_hour == pytest.approx(2000 / (4 * 8766 * 0.5) + 0.45 * 0.3)
    assert (offer.provider, offer.gpus, offer.date) == ("bought", 1, DAY)


def test_idle_hours_make_the_used_ones_dearer() -> None:
    often, seldom = Purchase(2000, utilisation=1.0), Purchase(2000, utilisation=0.1)
    assert seldom.usd_per_used_hour(0) == pytest.approx(10 * often.usd_per_used_hour(0))


def test_power_needs_the_power_of_the_board() -> None:
    unknown = replace(device("l4"), tdp_w=None)
    assert Purchase(2000).offer(unknown, DAY).usd_per_hour > 0
    with pytest.raises(InvalidInput, match="board power of l4 is not known"):
        Purchase(2000, usd_per_kwh=0.3).offer(unknown, DAY)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"usd": 0}, "the price of a GPU is 0"),
        ({"usd": float("nan")}, "the price of a GPU is nan"),
        ({"usd": 1, "years": 0}, "0 years"),
        ({"usd": 1, "utilisation": 1.5}, "utilisation is 1.5"),
        ({"usd": 1, "usd_per_kwh": -1}, "price of power is -1"),
    ],
)
def test_impossible_purchases_are_refused(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Purchase(**values)
