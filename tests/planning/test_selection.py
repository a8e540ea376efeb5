"""Choices: their order, their limits, and which of them cannot be told apart."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace

from wavecast.hardware.devices import device
from wavecast.parallel.strategy import Parallel
from wavecast.planning.candidates import is_verified
from wavecast.planning.cost import Ranged, TrainingCost, exactly
from wavecast.planning.prices import Price
from wavecast.planning.selection import (
    SHARED_ERROR,
    Aim,
    Candidate,
    Limit,
    is_better,
    select,
    tells_apart,
)
from wavecast.report.results.selections import AskedStep, recipe

DAY = datetime.date(2026, 8, 22)


def candidate(
    gpu: str, seconds: float, usd: float | None, spread: float | None = 1.25, gpus: int = 1
) -> Candidate:
    def ranged(value: float) -> Ranged:
        return Ranged(value) if spread is None else Ranged(value, value / spread, value * spread)

    offer = Price(gpu, 1.0, "any", "", DAY)
    cost = TrainingCost(
        device_id=gpu,
        gpus=gpus,
        steps=1,
        accumulated=1,
        step_samples=None,
        step=ranged(seconds),
        seconds=ranged(seconds),
        training_s=ranged(seconds),
        validation_s=exactly(0),
        checkpoint_s=exactly(0),
        startup_s=0,
        energy_kwh=None,
        offer=None if usd is None else offer,
        usd=None if usd is None else ranged(usd),
    )
    return Candidate(device(gpu), gpus, 8, cost=cost)


FAST = candidate("h100-sxm-80gb", 100, 50)
CHEAP = candidate("l4", 1000, 10)
MIDDLE = candidate("a100-sxm-80gb", 300, 30)
WORSE = candidate("t4", 5000, 60)
ALL = (WORSE, FAST, CHEAP, MIDDLE)


def names(candidates: tuple[Candidate, ...]) -> list[str]:
    return [candidate.device.id for candidate in candidates]


def test_the_order_is_by_time_or_money_or_both() -> None:
    fast, middle, cheap, worse = "h100-sxm-80gb", "a100-sxm-80gb", "l4", "t4"
    assert names(select(ALL, Aim.TIME).ranked) == [fast, middle, cheap, worse]
    assert names(select(ALL, Aim.MONEY).ranked) == [cheap, middle, fast, worse]
    assert names(select(ALL, Aim.BOTH).ranked) == [fast, middle, cheap, worse]


def test_the_front_has_what_nothing_beats_in_both() -> None:
    front = {candidate.device.id for candidate in select(ALL).ranked if candidate.on_front}
    assert front == {"h100-sxm-80gb", "a100-sxm-80gb", "l4"}


def test_limits_are_kept_unsure_or_missed() -> None:
    chosen = select(ALL, Aim.TIME, budget_usd=35, deadline_s=1100)
    assert names(chosen.ranked) == ["a100-sxm-80gb", "l4"]
    assert names(chosen.beyond) == ["h100-sxm-80gb", "t4"]
    middle, cheap = chosen.ranked
    assert (middle.budget, middle.deadline) == (Limit.UNSURE, Limit.KEPT)  # 37.50 at most
    assert (cheap.budget, cheap.deadline) == (Limit.KEPT, Limit.UNSURE)
    assert chosen.beyond[0].budget is Limit.MISSED
    assert select(ALL, budget_usd=1).best is None


def test_a_choice_without_a_price_cannot_keep_a_budget() -> None:
    unpriced = candidate("l4", 10, None)
    assert select([unpriced]).best is not None
    chosen = select([unpriced], budget_usd=1e9)
    assert chosen.beyond[0].budget is Limit.UNKNOWN


def test_what_cannot_run_is_kept_apart_with_its_reason() -> None:
    too_small = Candidate(device("t4"), 1, 8, reason="does not fit")
    chosen = select([too_small, FAST])
    assert names(chosen.impossible) == ["t4"]
    assert names(chosen.ranked) == ["h100-sxm-80gb"]
    assert math.isinf(too_small.seconds.value)


def test_ranges_that_overlap_much_cannot_be_told_apart() -> None:
    near, far = candidate("l4", 105, 10), candidate("l4", 200, 10)
    assert not is_better(FAST, near, Aim.TIME)
    assert is_better(FAST, far, Aim.TIME)
    assert names(select([FAST, near, far], Aim.TIME).as_good) == ["l4"]


def test_the_shared_part_of_the_errors_cancels() -> None:
    """Ranges of 25% overlap up to a ratio of 1.56; half of the error is shared."""
    doubt = math.sqrt(2 - 2 * SHARED_ERROR) * math.log(1.25)
    just = candidate("l4", 100 * math.exp(1.01 * doubt), 1)
    not_quite = candidate("l4", 100 * math.exp(0.99 * doubt), 1)
    assert is_better(FAST, just, Aim.TIME)
    assert not is_better(FAST, not_quite, Aim.TIME)


def test_two_offers_of_the_same_gpus_differ_by_price_alone() -> None:
    dear = candidate("l4", 1000, 10.1)
    assert is_better(CHEAP, dear, Aim.MONEY)
    assert not is_better(CHEAP, dear, Aim.TIME)
    assert not is_better(CHEAP, candidate("l4", 1000, 10.1, gpus=2), Aim.MONEY)


def test_without_ranges_nothing_is_told_apart() -> None:
    one, other = candidate("l4", 1, 1, None), candidate("t4", 100, 100, None)
    assert not tells_apart(one, other, one.seconds, other.seconds)
    assert select([one, other]).as_good == ()


def test_by_both_a_better_time_must_not_cost_more() -> None:
    assert not is_better(FAST, CHEAP, Aim.BOTH)
    assert is_better(FAST, WORSE, Aim.BOTH)


def test_gpus_that_nobody_measured_are_listed_apart_and_win_only_if_asked() -> None:
    known = candidate("l4", 10, 5)
    unknown = replace(candidate("mi300x", 5, 1), is_verified=False)
    apart = select([known, unknown])
    assert (apart.best, [candidate.name for candidate in apart.unverified]) == (
        apart.ranked[0],
        ["mi300x"],
    )
    assert [candidate.name for candidate in apart.ranked] == ["l4"]
    asked = select([known, unknown], with_unverified=True)
    assert asked.best is not None
    assert (asked.best.name, asked.unverified) == ("mi300x", ())
    assert not is_verified(device("mi300x"))
    assert is_verified(device("h100-sxm-80gb"))


def test_a_choice_at_four_times_the_money_is_never_as_good() -> None:
    cheap, dear = candidate("l4", 10, 5.96, spread=3), candidate("a10", 9, 24.77, spread=3)
    near = candidate("t4", 11, 6.5, spread=3)
    for aim in (Aim.MONEY, Aim.BOTH):
        assert [candidate.name for candidate in select([cheap, dear, near], aim).as_good] == ["t4"]


def test_each_gpu_has_the_settings_that_suit_the_aim_and_the_step_as_it_is_stays_known() -> None:
    plain = candidate("l4", 100, 4.0)
    narrow = replace(candidate("l4", 50, 2.0), settings="bf16 autocast", changes=("bf16",))
    other = candidate("t4", 300, 3.0)
    found = select([plain, narrow, other])
    assert [candidate.settings for candidate in found.ranked] == ["bf16 autocast", ""]
    assert found.as_given == replace(other, on_front=False)
    lines = recipe(found, AskedStep("hf:gpt2", ("--seq 128",), has_trainer=True))
    assert "settings: batch 8 on each GPU, bf16 autocast" in lines
    assert (
        "look closer: wavecast predict hf:gpt2 --seq 128 --batch 8 --precision bf16 --gpu l4"
        in lines
    )
    assert any(
        line.startswith("run: python train.py --per_device_train_batch_size 8 --bf16")
        for line in lines
    )
    assert any(line.startswith("without changes to the step: t4") for line in lines)


def test_sharded_choices_are_run_by_accelerate_or_torchtitan() -> None:
    strategy = Parallel(data=8, shard=3)
    one = candidate("h100-sxm-80gb", 100, 4.0, gpus=8)
    many = replace(one, strategy=strategy, batch=4, changes=("checkpointing",))
    given = frozenset({"bf16"})
    asked = AskedStep("hf:llama-3.1-8b", given=given, has_trainer=True, sequence=2048)
    lines = recipe(select([many]), asked)
    [run] = [line for line in lines if line.startswith("run: ")]
    for words in ("accelerate launch --num_processes 8", "--mixed_precision bf16", "--use_fsdp"):
        assert words in run
    assert "--per_device_train_batch_size 4 --bf16 --gradient_checkpointing" in run
    [titan] = [line for line in lines if "torchtitan" in line]
    assert "--parallelism.data_parallel_shard_degree 8" in titan
    assert "--activation_checkpoint.mode full" in titan
    [closer] = [line for line in lines if line.startswith("look closer: ")]
    assert closer.endswith("--gpu h100-sxm-80gb --parallel data=8,shard=3")


def test_a_choice_that_rests_on_one_price_says_so() -> None:
    bargain, other = candidate("rtx-5090", 100, 1.0), candidate("l4", 300, 1.5)
    assert bargain.cost is not None
    assert bargain.cost.offer is not None
    dear = replace(bargain.cost.offer, provider="dear", usd_per_hour=2.0)

    def told_of(offer: Price | None) -> list[str]:
        lines = recipe(select([replace(bargain, next_offer=offer), other]), AskedStep())
        return [line for line in lines if "price" in line and not line.startswith("rent")]

    [line] = told_of(dear)
    assert line.startswith("the price is one provider's: dear asks 2.00 times as much")
    assert "; then l4 at any" in line
    assert told_of(replace(dear, usd_per_hour=1.1)) == []
    [line] = told_of(None)
    assert line.startswith("only any is known to offer it")
    [line] = told_of(replace(dear, usd_per_hour=1.4))
    assert line.endswith("it would still be the first")


def test_an_optimizer_on_the_host_is_run_by_deepspeed() -> None:
    one = replace(candidate("l4", 100, 1.0), strategy=Parallel(offload="optimizer"), batch=1)
    asked = AskedStep("hf:llama-3.1-8b", given=frozenset({"bf16"}), has_trainer=True)
    [run] = [line for line in recipe(select([one]), asked) if line.startswith("run: ")]
    assert "--use_deepspeed --zero_stage 2 --offload_optimizer_device cpu" in run
    lines = recipe(select([one]), AskedStep("train.py:make_step"))
    assert any('"offload_optimizer": {"device": "cpu"' in line for line in lines)
    assert any("optimizer states on the host" in line for line in lines)
