"""The memory of each strategy against that of code which is parallel itself, traced on one rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch
from parallel import own_strategies as own
from parallel.own_strategies import Sizes

import wavecast
from wavecast.frameworks.pytorch.capture import capture
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Trace

slow = pytest.mark.slow
SMALL, NARROW = Sizes(), Sizes(dtype=torch.bfloat16)


@dataclass(frozen=True)
class Row:
    """Code that is parallel itself, and the strategy that says the same."""

    step: Callable[[Sizes], own.Step]
    strategy: Parallel
    sizes: Sizes = SMALL


ROWS = {
    "DDP": Row(own.ddp, Parallel(data=8)),
    # Torch gives whole parameters to ranks: the fullest has a little more than its share.
    "ZeRO 1": Row(own.zero_1, Parallel(data=8, shard=1), Sizes(layers=8)),
    # Weights are gathered once and stay, which is what reshard says.
    "ZeRO 2": Row(partial(own.fsdp, reshard=False), Parallel(data=8, shard=3, reshard=False)),
    "ZeRO 3": Row(own.fsdp, Parallel(data=8, shard=3)),
    "ZeRO 3, weights in bfloat16": Row(own.fsdp, Parallel(data=8, shard=3), NARROW),
    "ZeRO 3, mixed precision": Row(own.fsdp, Parallel(data=8, shard=3), Sizes(autocast=True)),
    "HSDP": Row(
        partial(own.fsdp, mesh=(2, 4)), Parallel(data=8, shard=3, shard_group=4), Sizes(layers=6)
    ),
    "TP": Row(own.tensor, Parallel(tensor=8), Sizes(2, sequence=1024, foreach=False)),
    "SP": Row(
        partial(own.tensor, sequence=True),
        Parallel(tensor=8, sequence=True),
        Sizes(2, sequence=1024, foreach=False),
    ),
    # Torch's stages keep a receive buffer for each micro-batch.
    "PP": Row(
        partial(own.pipeline, stages=4, microbatches=8),
        Parallel(pipeline=4, microbatches=8),
        Sizes(8),
    ),
    "CP": Row(
        partial(own.context, ranks=4),
        Parallel(context=4),
        Sizes(2, batch=1, sequence=4096, dtype=torch.bfloat16),
    ),
    "EP": Row(
        partial(own.experts, ranks=4),
        Parallel(data=4, expert=4),
        Sizes(2, batch=4, sequence=512, dtype=torch.bfloat16, experts=4),
    ),
}


@cache
def plain_trace(sizes: Sizes) -> Trace:
    return capture(partial(own.plain, sizes))


QUICK = {(name, False) for name in ROWS} | {("ZeRO 3", True), ("PP", True)}


@pytest.mark.parametrize(
    ("name", "recompute"),
    [
        (name, again) if (name, again) in QUICK else pytest.param(name, again, marks=slow)
        for name in ROWS
        for again in (False, True)
    ],
)
def test_a_rank_needs_the_memory_of_code_that_is_parallel_itself(
    name: str, recompute: bool
) -> None:
    row = ROWS[name]
    sizes = replace(row.sizes, recompute=recompute)
    traced = capture(partial(row.step, sizes), ranks=row.strategy.gpus)
    needed = wavecast.memory(plain_trace(sizes), parallel=row.strategy)
    assert needed.peak_bytes == pytest.approx(wavecast.memory(traced).peak_bytes, rel=0.03)
