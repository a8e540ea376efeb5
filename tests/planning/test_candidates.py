"""Candidates: what fits, with which batch, on how many GPUs, and what is left out."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import replace
from typing import Any

import pytest
from made import call, mm, relu, step

from wavecast.hardware.devices import Device, device
from wavecast.parallel.strategy import Parallel
from wavecast.planning.candidates import (
    StepSetting,
    TrainingQuestion,
    find_candidates,
)
from wavecast.planning.cost import TrainingPlan
from wavecast.planning.prices import Price, PriceBook
from wavecast.planning.selection import Candidate
from wavecast.steps.prediction import Prediction, comparable, in_order
from wavecast.steps.request import predict
from wavecast.traces.step import Allocation, Phase, Role, Trace

DAY = datetime.date(2026, 8, 22)
GIB = 1 << 30
T4, A100 = device("t4"), device("a100-sxm-80gb")
BOOK = PriceBook(
    (
        Price("t4", 0.5, "any", "", DAY),
        Price("t4", 0.4, "any", "", DAY, gpus=4),
        Price("a100-sxm-80gb", 2.0, "any", "", DAY, gpus=8),
    ),
    DAY,
)


def traced(batch: int, each: int = 1, weights: int = GIB) -> Trace:
    """A step whose activations take a GiB for each sample."""
    calls = (
        call(mm(128 * batch, 2048, 2048), module="net.0"),
        call(mm(2048, 128 * batch, 2048), Phase.BACKWARD, "net.0"),
        call(relu(2048, 2048), Phase.OPTIMIZER),
    )
    memory = (
        Allocation(weights, None, None, Role.PARAMETER),
        Allocation(batch * GIB, 0, 1, Role.INTERMEDIATE),
    )
    return Trace(calls, samples=batch * each, allocations=memory)


def as_it_is(each: int = 1, batch: int = 8, weights: int = GIB) -> StepSetting:
    return StepSetting("", lambda _, asked: traced(asked or batch, each, weights))


def found(*devices: Device, plan: dict[str, Any] | None = None, **asked: Any) -> list[Candidate]:
    wanted = {"batch": 8, "plan": TrainingPlan(**(plan or {"samples": 1e6})), **asked}
    each = int(asked.get("each", 1))
    return find_candidates(devices, TrainingQuestion(**wanted), (as_it_is(each),), BOOK)


def test_the_batch_that_fits_is_kept_and_the_largest_is_found() -> None:
    [small, large] = found(T4, A100)
    assert (small.batch, small.largest_batch) == (8, 8)
    assert (large.batch, large.largest_batch) == (8, 64)
    assert small.cost is not None
    assert large.cost is not None
    assert (small.cost.accumulated, small.cost.step_samples) == (1, 8)
    assert large.cost.offer is not None
    assert large.cost.offer.gpus == 8
    assert large.cost.usd is not None
    assert large.cost.usd.value == pytest.approx(16 * large.cost.hours.value)


def test_a_step_that_does_not_fit_is_accumulated_from_smaller_ones() -> None:
    [small, large] = found(T4, A100, batch=32)
    assert small.batch == 8
    assert small.cost is not None
    assert (small.cost.accumulated, small.cost.step_samples) == (4, 32)
    assert large.cost is not None
    assert (large.batch, large.cost.accumulated) == (32, 1)
    assert small.cost.steps == large.cost.steps == 31_250


def test_with_a_global_batch_each_gpu_gets_the_most_that_fits() -> None:
    plan = {"samples": 1e6, "global_batch": 64}
    [small, large] = found(T4, A100, plan=plan, is_batch_fixed=False)
    assert (small.batch, large.batch) == (8, 64)
    for one, micro in ((small, 8), (large, 1)):
        assert one.cost is not None
        assert (one.cost.accumulated, one.cost.step_samples) == (micro, 64)


def test_a_batch_of_your_own_is_kept_with_a_global_batch() -> None:
    [large] = found(A100, plan={"samples": 1e6, "global_batch": 64}, batch=4)
    assert large.cost is not None
    assert (large.batch, large.cost.accumulated) == (4, 16)


def test_several_gpus_divide_the_global_batch() -> None:
    plan = {"samples": 1e6, "global_batch": 64}
    one, four = found(T4, plan=plan, is_batch_fixed=False, counts=(1, 4))
    assert four.cost is not None
    assert one.cost is not None
    assert (four.gpus, four.batch, four.cost.accumulated) == (4, 8, 2)
    assert four.cost.steps == one.cost.steps
    assert four.cost.offer is not None
    assert four.cost.offer.gpus == 4  # four offers of one GPU are no machine of four
    assert four.cost.step_samples == one.cost.step_samples == 64


def test_weights_that_fit_nowhere_are_a_reason() -> None:
    def on(count: int, weights_gib: int) -> Candidate:
        wanted = TrainingQuestion(TrainingPlan(samples=1e6), counts=(count,), batch=2)
        [one] = find_candidates(
            (T4,), wanted, (as_it_is(batch=1, weights=weights_gib * GIB),), BOOK
        )
        return one

    # On four GPUs the gradients need a copy in buckets.
    assert (on(1, 12).batch, on(4, 6).batch, on(4, 7).batch) == (2, 2, 1)
    for count, weights in ((1, 20), (4, 12)):
        none = on(count, weights)
        assert none.cost is None
        assert none.reason.startswith("does not fit: needs 2")


def test_a_global_batch_that_cannot_be_divided_is_a_reason() -> None:
    [four] = found(T4, plan={"samples": 1e6, "global_batch": 10}, counts=(4,))
    assert four.reason == "a global batch of 10 cannot be divided among 4 GPUs"


def test_gpus_without_an_offer_are_left_out_unless_asked_for() -> None:
    assert found(device("rtx-2070")) == []
    [named] = found(device("rtx-2070"), only_priced=False)
    assert named.cost is not None
    assert named.cost.usd is None


def test_a_saved_trace_has_one_batch() -> None:
    [one] = found(A100, batch=None)
    assert (one.batch, one.largest_batch) == (8, None)


def test_samples_of_a_batch_may_count_several_units() -> None:
    plan = {"tokens": 1e6, "sample_tokens": 1, "global_batch": 64 * 512}
    [one] = found(A100, plan=plan, each=512, is_batch_fixed=False)
    assert one.cost is not None
    assert (one.batch, one.cost.accumulated, one.cost.step_samples) == (64, 1, 64 * 512)


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    wanted = TrainingQuestion(TrainingPlan(samples=1e6), batch=1, find_largest=False)
    find_candidates((T4, A100), wanted, (as_it_is(batch=1),), BOOK, lambda *n: told.append(n))
    assert told == [(1, 2), (2, 2)]


def test_settings_are_tried_where_they_suit_and_less_memory_where_it_is_needed() -> None:
    """On a T4 the batch does not fit; with a GiB less for each sample it does."""

    def light(_: Device, batch: int | None) -> Trace:
        return traced(1, weights=(batch or 8) << 20)

    smaller = StepSetting("light", light, changes=("checkpointing",))
    never = StepSetting("never", light, suits=lambda _: False)
    plain = replace(as_it_is(), smaller=smaller)
    wanted = TrainingQuestion(TrainingPlan(iterations=10), batch=32, find_largest=False)
    on = {gpu.id: find_candidates((gpu,), wanted, (plain, never), BOOK) for gpu in (T4, A100)}
    assert [(candidate.settings, candidate.batch) for candidate in on["t4"]] == [
        ("", 8),
        ("light", 32),
    ]
    assert on["t4"][1].changes == ("checkpointing",)
    assert [candidate.settings for candidate in on["a100-sxm-80gb"]] == [""]


def test_a_batch_that_grew_on_one_gpu_is_kept_on_several() -> None:
    one, four = found(T4, batch=1, is_batch_fixed=False, counts=(1, 4))
    assert one.batch == four.batch == 8
    assert four.cost is not None
    assert four.cost.step_samples == 32


def test_a_number_of_steps_has_the_batch_of_the_step() -> None:
    [one] = found(T4, plan={"iterations": 10}, batch=1, is_batch_fixed=False)
    assert one.batch == 1


def test_states_that_do_not_fit_are_kept_by_the_host() -> None:
    def with_states(_: Device, batch: int | None) -> Trace:
        step = traced(batch or 1)
        states = Allocation(16 * GIB, None, None, Role.OPTIMIZER_STATE)
        return replace(step, allocations=(*step.allocations, states))

    wanted = TrainingQuestion(TrainingPlan(samples=1e6), batch=1)
    way = StepSetting("", with_states)
    [one] = find_candidates((T4,), wanted, (way,), BOOK)
    assert one.cost is not None
    assert one.strategy == Parallel(offload="optimizer")
    [none] = find_candidates((T4,), replace(wanted, offload=False), (way,), BOOK)
    assert none.reason.startswith("does not fit: needs 1")


def test_a_gpu_that_a_setting_does_not_suit_is_not_looked_at_unless_it_was_named() -> None:
    way = replace(as_it_is(), suits=lambda gpu: gpu.id != "t4")
    wanted = TrainingQuestion(TrainingPlan(samples=1e6), batch=8)
    small, large = find_candidates((T4, A100), wanted, (way,), BOOK)
    assert "no units" in small.reason
    assert large.cost is not None
    [named] = find_candidates((T4,), replace(wanted, only_priced=False), (way,), BOOK)
    assert named.cost is not None


def test_the_next_offer_is_another_providers() -> None:
    other = Price("t4", 0.9, "other", "", DAY)
    book = replace(BOOK, offers=(*BOOK.offers, other))
    wanted = TrainingQuestion(TrainingPlan(samples=1e6), batch=8)
    [one] = find_candidates((T4,), wanted, (as_it_is(),), book)
    assert one.next_offer == other
    assert one.usd_elsewhere is not None
    assert one.usd_elsewhere.value == pytest.approx(one.usd.value * 0.9 / 0.5)


# The order of GPUs: never a GPU on which the step does not fit before one on which it does.


LARGE = step(state_bytes=100 << 20)
"""A step that needs 20 GiB."""


def ids(predictions: list[Prediction], **rule: bool) -> list[str]:
    return [row.device.id for row in in_order(predictions, lambda row: row, **rule)]


def test_gpus_keep_their_order_but_those_too_small_come_last() -> None:
    rows = [predict(LARGE, gpu) for gpu in ("t4", "l4", "gtx-980", "h100-sxm-80gb")]
    kept = ids(rows, by_speed=False, bounds_last=False)
    assert kept == ["l4", "h100-sxm-80gb", "t4", "gtx-980"]


def test_the_fastest_gpus_come_first_but_those_too_small_last() -> None:
    given = [predict(LARGE, gpu) for gpu in ("t4", "l4", "gtx-980", "h100-sxm-80gb")]
    rows = in_order(given, lambda row: row)
    assert [row.fits for row in rows] == [True, True, False, False]
    for some in (rows[:2], rows[2:]):
        assert some[0].seconds <= some[1].seconds


def test_gpus_on_which_much_is_unknown_are_not_ranked() -> None:
    gpus = ("k80", "t4", "h100-sxm-80gb", "l4")
    rows = [predict(step(), gpu, host_factor=0) for gpu in gpus]
    nothing = tuple(None for _ in rows[0].answers)
    unknown = [dataclasses.replace(row, answers=nothing) for row in rows]
    assert not any(map(comparable, unknown))
    assert ids(unknown) == ["k80", "t4", "h100-sxm-80gb", "l4"]
    some = [unknown[0], rows[1], unknown[2], rows[3]]
    assert ids(some) == ["l4", "t4", "k80", "h100-sxm-80gb"]
