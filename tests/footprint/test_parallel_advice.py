"""Memory advice and the largest batch of a step that is spread over several GPUs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

import wavecast
from wavecast.footprint.advice import Advice, advise_ranks
from wavecast.parallel.strategy import Parallel
from wavecast.suite import benchmark
from wavecast.traces.step import Trace

L4 = wavecast.device("l4")
SIZES = {"layers": 4, "width": 256, "heads": 4, "vocabulary": 1000, "sequence": 128}


def make_step(batch: int) -> Callable[[], Any]:
    return benchmark("gpt2").make_step(batch, "fp32", device="cuda", **SIZES)


@cache
def traced(batch: int = 8) -> Trace:
    return wavecast.trace(lambda: make_step(batch))


def _advice(strategy: Parallel) -> dict[str, Advice]:
    return {change.name: change for change in advise_ranks(traced(), strategy, L4)}


def test_dividing_more_is_advised_with_what_it_saves() -> None:
    strategy = Parallel(data=8)
    advice = _advice(strategy)
    for stage in (1, 3):
        change = advice[f"shard={stage}"]
        sharded = Parallel(data=8, shard=stage)
        after = wavecast.memory(traced(), L4, parallel=sharded).reserved_bytes
        assert change.after.reserved_bytes == after
        assert change.saved_bytes == change.before.reserved_bytes - after
    saved = [change.saved_bytes for change in advice.values()]
    assert saved == sorted(saved, reverse=True)
    assert min(saved) > 0


def test_checkpointing_also_saves_the_micro_batches_in_flight() -> None:
    strategy = Parallel(pipeline=4, microbatches=8)
    saved = _advice(strategy)["checkpointing"].saved_bytes
    alone = Parallel(pipeline=4, microbatches=1)
    once = _advice(alone).get("checkpointing")
    assert saved > 2 * (once.saved_bytes if once else 0)


def test_a_smaller_micro_batch_is_run_more_often() -> None:
    advice = advise_ranks(traced(), Parallel(data=2), L4, {"half": (lambda: traced(4), 2)})
    change = next(change for change in advice if change.name == "half")
    expected = wavecast.memory(traced(4), L4, parallel=Parallel(data=2, microbatches=2))
    assert change.after.reserved_bytes == expected.reserved_bytes


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Parallel(data=8, shard=3), Parallel(pipeline=4)])
def test_the_largest_micro_batch_is_that_of_the_fullest_rank(strategy: Parallel) -> None:
    limit = 256 << 20
    alone = wavecast.max_batch(make_step, L4, limit_bytes=limit)
    spread = wavecast.max_batch(make_step, L4, limit_bytes=limit, parallel=strategy)
    assert spread.batch > alone.batch
    fitting = wavecast.memory(traced(spread.batch), L4, parallel=strategy)
    assert spread.peak_bytes == fitting.peak_bytes


@pytest.mark.slow
def test_the_buffers_of_nccl_are_not_left_to_the_allocator() -> None:
    alone = wavecast.max_batch(make_step, L4, start=64)
    spread = wavecast.max_batch(make_step, L4, start=64, parallel=Parallel(data=8))
    assert alone.limit_bytes - spread.limit_bytes == 128 << 20
