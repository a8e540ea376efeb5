"""The search for the fastest way to spread a step, and scaling."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random
from statistics import median
from typing import Any

import pytest
from parallel_steps import small_gpt2_step

import wavecast
from wavecast.errors import InvalidInput
from wavecast.footprint.memory import peak_bytes
from wavecast.frameworks.pytorch.capture import capture
from wavecast.hardware.devices import Device
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.parallel.spreading import backward_end
from wavecast.parallel.strategy import SCHEDULES, Parallel
from wavecast.planning.layout_search import BUCKET_SIZES, fitting_changes, search_layouts
from wavecast.planning.layouts import (
    INTERRUPTED,
    OVERDUE,
    Layout,
    RankStates,
    RankWork,
    Search,
    candidates,
)
from wavecast.planning.scaling import Scaling, scale
from wavecast.steps.op_times import ClusterPredictor
from wavecast.steps.request import ParallelSteps, on_cluster, predict_parallel
from wavecast.steps.timed_trace import TimedTrace
from wavecast.suite.decoders import gpt
from wavecast.traces.step import Trace

FAST_HOST = REFERENCE_HOST.scaled(1e-3)


def _predictor(gpu: str = "h100-sxm-80gb", cluster: str | None = None) -> ClusterPredictor:
    return on_cluster(wavecast.device(gpu), Parallel(cluster=cluster))


def _found(gpus: int, batch: int, best: int | None = None) -> list[Layout]:
    search = Search(gpus, batch, (2,), best=best)
    return search_layouts(search, lambda *_: small_gpt2_step(4), _predictor(), FAST_HOST)


def test_every_candidate_uses_all_gpus_and_the_whole_batch() -> None:
    tried = list(candidates(Search(16, 64, (1, 2)), domain_gpus=8, blocks=12))
    assert {strategy.gpus for strategy, _ in tried} == {16}
    assert {s.data * s.microbatches * micro for s, micro in tried} == {64}
    assert max(strategy.tensor for strategy, _ in tried) == 8
    kinds = {(s.tensor > 1, s.pipeline > 1, s.shard) for s, _ in tried}
    assert {(False, False, 0), (False, False, 3), (True, False, 1), (False, True, 0)} <= kinds


def test_the_fastest_comes_first_and_failures_last_with_their_reason() -> None:
    found = _found(4, 8)
    working = [layout.seconds for layout in found if layout.seconds is not None]
    assert working == sorted(working)
    failed = found[len(working) :]
    assert failed
    assert all(layout.prediction is None and layout.reason for layout in failed)
    # Two heads cannot be divided among four GPUs.
    assert any("tensor=4" in layout.reason for layout in failed)


def test_other_sizes_of_buckets_are_tried_with_the_best() -> None:
    sizes = {"layers": 4, "hidden": 1024, "heads": 8, "seq": 256, "vocab": 1000}
    trace = wavecast.trace(partial(gpt, 2, "bf16", **sizes), gpu="h100-sxm-80gb")
    assert isinstance(trace, Trace)
    search = Search(4, 8, (2,), most_tensor=1)
    found = search_layouts(search, lambda *_: trace, _predictor(), FAST_HOST)
    times = {layout.strategy: layout.seconds for layout in found if layout.seconds is not None}
    best = next(time for time in times if time.data > 1 and time.shard in (1, 2))
    # 200 MB of gradients are less than a bucket of DeepSpeed, which hides nothing of its reduction.
    assert best.bucket_bytes in BUCKET_SIZES
    assert times[best] < times[replace(best, bucket_bytes=None)]


@pytest.mark.slow
def test_a_search_answers_as_each_strategy_alone_does() -> None:
    trace = small_gpt2_step(4)
    working = [layout for layout in _found(4, 16) if layout.prediction is not None]
    kinds = {
        _kind(strategy): layout
        for strategy, layout in zip(_strategies(working), working, strict=True)
    }
    assert len(kinds) >= 16
    for layout in kinds.values():
        alone = predict_parallel(trace, layout.strategy, _predictor(), FAST_HOST)
        found = layout.prediction
        assert found is not None
        assert (found.seconds, found.low_s, found.high_s) == pytest.approx(
            (alone.seconds, alone.low_s, alone.high_s), rel=1e-12
        )
        assert found.stages == alone.stages
        assert (found.single_s, found.notes) == (alone.single_s, alone.notes)
        assert layout.memory == alone.memory


@pytest.mark.slow
def test_a_bounded_search_finds_what_playing_all_strategies_finds() -> None:
    every, first = _found(4, 16), _found(4, 16, best=3)
    played = [layout for layout in first if layout.prediction is not None]
    assert len(played) < sum(layout.prediction is not None for layout in every) / 2
    assert [layout.seconds for layout in first[:3]] == [layout.seconds for layout in every[:3]]
    left_out = [layout for layout in first if layout.least_s is not None]
    times = {_key(layout): layout.seconds for layout in every}
    assert left_out
    for layout in left_out:
        seconds, least_s = times[_key(layout)], layout.least_s
        assert least_s is not None
        assert least_s > played[2].seconds  # type: ignore[operator]
        assert seconds is None or least_s <= seconds


@pytest.mark.slow
def test_no_random_strategy_is_faster_than_the_first_of_a_search() -> None:
    trace, chance = small_gpt2_step(4), Random(0)
    best_s = _found(8, 32, best=1)[0].seconds
    assert best_s is not None
    played = 0
    for _ in range(200):
        strategy = _random_strategy(chance, gpus=8, replicas=16)
        if strategy is None:
            continue
        try:
            step = predict_parallel(trace, strategy, _predictor(), FAST_HOST)
        except InvalidInput:
            continue
        if step.fits:
            played += 1
            assert step.seconds >= best_s * (1 - 1e-9), strategy
    assert played > 50


def _random_strategy(chance: Random, gpus: int, replicas: int) -> Parallel | None:
    """A strategy that `predict --parallel` takes, with as many micro-batches in all; or None."""
    tensor, pipeline = chance.choice((1, 2)), chance.choice((1, 2))
    data = gpus // (tensor * pipeline)
    try:
        return Parallel(
            data=data,
            tensor=tensor,
            sequence=tensor > 1 and chance.random() < 0.5,
            pipeline=pipeline,
            schedule=chance.choice(SCHEDULES),
            shard=chance.choice((0, 1, 2, 3)),
            shard_group=chance.choice((None, None, 2, 4)),
            reshard=chance.random() < 0.5,
            microbatches=replicas // data,
        )
    except InvalidInput:
        return None


def _kind(strategy: Parallel) -> tuple[object, ...]:
    grouped = strategy.shard_group is not None
    cut = strategy.pipeline > 1, strategy.virtual > 1, strategy.schedule
    return strategy.tensor > 1, strategy.sequence, strategy.shard, grouped, *cut


def _key(layout: Layout) -> str:
    return f"{layout.strategy} {layout.micro_batch}"


def test_activations_are_recomputed_only_where_they_would_not_fit() -> None:
    whole = small_gpt2_step(4)
    room = replace(wavecast.device("h100-sxm-80gb"), memory_bytes=81 << 30)
    predictor = on_cluster(room, Parallel(cluster="dgx-h100"))
    ways: list[str] = []

    def trace_of(_: int, recompute: str) -> wavecast.Trace:
        ways.append(recompute)
        return whole

    search = Search(2, 4, (2,), recompute=("none", "full"), best=1)
    search_layouts(search, trace_of, predictor, FAST_HOST)
    assert set(ways) == {"none"}


def test_what_is_stopped_gives_what_it_has() -> None:
    calls = 0

    def trace_of(*_: object) -> wavecast.Trace:
        return small_gpt2_step(4)

    def interrupt(done: int, total: int, best: Layout | None) -> None:
        nonlocal calls
        calls += 1
        if best is not None:
            raise KeyboardInterrupt

    asked = Search(4, 16, (2,)), trace_of, _predictor(), FAST_HOST, interrupt
    found = search_layouts(*asked, keeps_interrupted=True)
    assert found[0].prediction is not None
    assert (
        len([layout for layout in found if layout.reason == INTERRUPTED]) == len(found) - calls > 0
    )
    with pytest.raises(KeyboardInterrupt):
        search_layouts(*asked)


def test_a_search_ends_when_its_time_is_over() -> None:
    search = Search(4, 16, (2,), within_s=1e-9)
    found = search_layouts(search, lambda *_: small_gpt2_step(4), _predictor(), FAST_HOST)
    assert {layout.reason for layout in found} == {OVERDUE}
    assert all(layout.fits and not layout.is_tried for layout in found)


def test_a_margin_of_the_memory_stays_free() -> None:
    whole = wavecast.device("h100-sxm-80gb").memory_bytes
    needed = [layout.memory.needed_bytes for layout in _found(2, 4) if layout.memory is not None]
    middle = (min(needed) + max(needed)) / 2
    search = Search(2, 4, (2,), memory_margin=1 - middle / whole)
    found = search_layouts(search, lambda *_: small_gpt2_step(4), _predictor(), FAST_HOST)
    kept = [layout.memory.needed_bytes for layout in found if layout.prediction and layout.memory]
    assert 0 < len(kept) < len(needed)
    assert max(kept) <= middle
    with pytest.raises(InvalidInput, match="the memory margin is 1"):
        Search(2, 4, memory_margin=1.0)


@pytest.mark.parametrize("microbatches", [1, 8])
def test_no_strategy_holds_less_than_its_bounds(microbatches: int) -> None:
    trace, predictor = small_gpt2_step(4), _predictor()
    steps = ParallelSteps(trace, predictor, FAST_HOST)
    states = RankStates.of(trace)
    compared = 0
    for strategy, _ in candidates(Search(4, 4 * microbatches, (1,)), 8, blocks=2):
        try:
            step = steps.unplayed(steps.spread(strategy))
            timed = steps.rank_trace(strategy)
        except InvalidInput:
            continue
        held = peak_bytes(step.fullest.allocations)
        work = RankWork(timed, backward_end(timed.trace), predictor)
        assert states.least_with_activations(strategy) <= work.least_bytes(strategy) * 1.01 + 64
        assert work.least_bytes(strategy) <= held * 1.001 + 64, strategy
        compared += 1
    assert compared > 20


def test_a_search_finds_what_trying_each_strategy_alone_finds() -> None:
    sizes: dict[str, Any] = {"layers": 4, "hidden": 256, "heads": 4, "seq": 2048, "vocab": 512}
    traces = {
        (micro, way): capture(partial(gpt, micro, "bf16", recompute=way, **sizes))
        for micro in (1, 2)
        for way in ("none", "full")
    }
    search = Search(4, 8, (1, 2), recompute=("none", "full"), best=3)
    needed: dict[str, list[tuple[float, int]]] = {way: [] for way in search.recompute}
    for strategy, micro in candidates(search, 8, blocks=4):
        for way, steps in needed.items():
            with suppress(InvalidInput):
                step = predict_parallel(traces[micro, way], strategy, _predictor(), FAST_HOST)
                assert step.memory is not None
                steps.append((step.seconds, step.memory.needed_bytes))
    limit = median(nbytes for _, nbytes in needed["none"])
    best: list[tuple[float, str]] = []
    for both in zip(*needed.values(), strict=True):
        ways = zip(needed, both, strict=True)
        best += [(seconds, way) for way, (seconds, nbytes) in ways if nbytes <= limit][:1]
    assert {way for _, way in best} == {"none", "full"}
    device = replace(wavecast.device("h100-sxm-80gb"), memory_bytes=round(limit / 0.92))
    predictor = on_cluster(device, Parallel(cluster="dgx-h100"))
    found = search_layouts(search, lambda *asked: traces[asked], predictor, FAST_HOST)
    assert [(layout.seconds, layout.recompute) for layout in found[:3]] == sorted(best)[:3]


def test_frozen_weights_have_no_gradients_in_the_bound() -> None:
    sizes: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 2, "seq": 16, "vocab": 64}
    states = RankStates.of(capture(partial(gpt, 1, "bf16", lora=2, **sizes)))
    assert 0 < states.gradients[0] < states.weights[0] / 5


def test_what_cannot_fit_is_not_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    spread: list[Parallel] = []
    rank_trace = ParallelSteps.rank_trace

    def counted(steps: ParallelSteps, strategy: Parallel) -> TimedTrace:
        spread.append(strategy)
        return rank_trace(steps, strategy)

    monkeypatch.setattr(ParallelSteps, "rank_trace", counted)
    tiny = replace(wavecast.device("h100-sxm-80gb"), memory_bytes=1 << 16)
    predictor = on_cluster(tiny, Parallel(cluster="dgx-h100"))
    search_layouts(Search(4, 16, (2,)), lambda *_: small_gpt2_step(4), predictor, FAST_HOST)
    assert not spread


def _strategies(layouts: list[Layout]) -> list[Parallel]:
    return [layout.strategy for layout in layouts]


def test_what_does_not_fit_is_told_with_its_size() -> None:
    tiny = replace(wavecast.device("h100-sxm-80gb"), memory_bytes=1 << 16)
    predictor = on_cluster(tiny, Parallel(cluster="dgx-h100"))
    found = search_layouts(Search(2, 4, (2,)), lambda *_: small_gpt2_step(), predictor, FAST_HOST)
    assert all(layout.reason.startswith("does not fit: ") for layout in found)


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(InvalidInput, match="a global batch of 7 cannot be divided among 8 GPUs"):
        _found(8, 7)


def _curve(strong: bool, counts: list[int]) -> Scaling:
    strategy = Parallel(microbatches=8 if strong else 1)
    predictor = _predictor(cluster="tbd-ethernet") if not strong else _predictor()
    return scale(small_gpt2_step(), strategy, counts, predictor, FAST_HOST, strong=strong)


def test_weak_scaling_over_a_slow_network_has_a_knee() -> None:
    curve = _curve(False, [1, 2, 4])
    assert [point.gpus for point in curve.points] == [1, 2, 4]
    assert curve.points[0].relative == 1.0
    assert curve.points[-1].relative < 0.8
    assert curve.knee is not None


def test_strong_scaling_divides_the_micro_batches() -> None:
    curve = _curve(True, [1, 2, 8])
    assert [p.prediction.microbatches for p in curve.points] == [8, 4, 1]
    samples = {point.prediction.samples for point in curve.points}
    assert samples == {16}


def test_a_number_that_holds_no_whole_replica_is_refused() -> None:
    with pytest.raises(InvalidInput, match="use a multiple of 2"):
        scale(small_gpt2_step(), Parallel(tensor=2), [3], _predictor(), FAST_HOST)


# What to change where no strategy fits.


A100 = wavecast.device("a100-sxm-40gb")


def test_the_least_change_of_each_kind_is_named() -> None:
    asked: list[tuple[int, str, bool]] = []

    def fitting(search: Search, gpu: Device, has_adapters: bool) -> Layout | None:
        asked.append((search.gpus, gpu.id, has_adapters))
        assert search.first_fitting
        is_enough = has_adapters or search.gpus >= 32 or gpu.memory_bytes > 70e9
        return Layout(Parallel(data=search.gpus, shard=3), 1, "full") if is_enough else None

    told = fitting_changes(Search(8, 64), A100, fitting, adaptable=True)
    assert told[0] == (
        "it fits on 8 x a100-sxm-40gb with LoRA (--lora r=16): data=8,shard=3, micro-batch 1, "
        "recomputed: full"
    )
    assert told[1].startswith("it fits on 8 x a100-")
    assert "80gb" in told[1]
    assert told[2].startswith("it fits on 32 GPUs of this kind: data=32,shard=3")
    assert len(told) == 3
    larger = [gpu for gpus, gpu, adapted in asked if gpu != A100.id]
    sizes = [wavecast.device(gpu).memory_bytes for gpu in larger]
    assert sizes == sorted(sizes)
    assert all(size > A100.memory_bytes for size in sizes)


def test_what_fits_nowhere_is_told_so() -> None:
    def refusing(search: Search, gpu: Device, has_adapters: bool) -> Layout | None:
        assert not has_adapters
        if search.gpus > 8:
            raise InvalidInput("no network is known")
        return None

    [told] = fitting_changes(Search(8, 64), A100, refusing, adaptable=False)
    assert told.startswith("nor does it fit")
