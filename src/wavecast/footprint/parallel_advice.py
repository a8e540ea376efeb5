"""Advice on how to make a rank of a parallel step need less memory.

The changes for one GPU (`advice`) are applied to the trace of each rank, since a pipeline also
holds the activations of other micro-batches. Strategies that shard more over the same GPUs are
tried, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from wavecast.footprint.advice import SEGMENTS, Advice, best_first, edited
from wavecast.footprint.memory import Memory, unlimited_memory
from wavecast.footprint.parallel_memory import fullest_trace
from wavecast.hardware.device import Device
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.spreading import exchanging_ranks, spread
from wavecast.parallel.strategy import Parallel
from wavecast.retargeting.rewriting import retarget
from wavecast.traces.step import Trace

Retraced = Mapping[str, tuple[Callable[[], Trace | None], int]]
"""By the name of a change, a function that traces the changed micro-batch, and how many times as
many micro-batches it needs. The function returns None if the step cannot be changed so."""


def advise_ranks(
    trace: Trace,
    strategy: Parallel,
    gpu: Device | None,
    retraced: Retraced | None = None,
    *,
    expandable_segments: bool = False,
) -> tuple[Advice, ...]:
    """Changes that would save memory on the fullest rank, the largest saving first.

    Args:
        trace: one micro-batch on one GPU.
        strategy: how the step is spread.
        gpu: the GPU, which decides the sizes of workspaces.
        retraced: changes that need another trace.
        expandable_segments: whether torch's allocator is already set to `expandable_segments:True`.

    Raises:
        InvalidInput: the step cannot be spread that way.
    """
    chosen = trace if gpu is None else retarget(trace, gpu)[0]
    step = spread(chosen, strategy)

    def memory(changed: ParallelStep, expandable: bool = expandable_segments) -> Memory:
        return unlimited_memory(fullest_trace(changed), gpu, expandable_segments=expandable)

    before = memory(step)
    advice = [
        Advice(name, how, before, memory(changed)) for name, how, changed in _changed_ranks(step)
    ]
    if not exchanging_ranks(chosen):
        advice += [
            Advice(name, how, before, memory(spread(chosen, other)))
            for name, how, other in _other_strategies(strategy)
        ]
    for name, (trace_again, times) in (retraced or {}).items():
        smaller = trace_again()
        if smaller is not None:
            more = replace(strategy, microbatches=strategy.microbatches * times)
            advice.append(Advice(name, "traced", before, memory(spread(smaller, more))))
    advice.append(Advice("expandable segments", SEGMENTS, before, memory(step, True)))
    return best_first(advice)


def _changed_ranks(step: ParallelStep) -> Iterator[tuple[str, str, ParallelStep]]:
    """Name, price and step of each change that can be computed from what the ranks run."""
    # One trace for each part of the model, in the same order for every change.
    parts = [[list(edited(part.last, 1)) for part in group.parts] for group in step.groups]
    prices: dict[str, str] = {}
    for group_changes in parts:
        for part_changes in group_changes:
            for name, price, _ in part_changes:
                prices.setdefault(name, price)
    for name, price in prices.items():
        groups = []
        for group, group_changes in zip(step.groups, parts, strict=True):
            made = []
            for part, part_changes in zip(group.parts, group_changes, strict=True):
                changed = next((t for n, _, t in part_changes if n == name), part.last)
                made.append(replace(part, last=changed))
            groups.append(replace(group, parts=tuple(made)))
        yield name, price, replace(step, groups=tuple(groups))


def _other_strategies(strategy: Parallel) -> Iterator[tuple[str, str, Parallel]]:
    """Strategies for the same GPUs that shard more of the memory over them."""
    shared = {1: "the optimizer's states", 2: "gradients too", 3: "weights too (FSDP)"}
    if strategy.data > 1:
        for stage in range(strategy.shard + 1, 4):
            how = f"the ranks of the data axis share {shared[stage]}"
            yield f"shard={stage}", how, replace(strategy, shard=stage)
    if strategy.shard_group not in (None, strategy.data):
        whole = replace(strategy, shard_group=None)
        yield "no shard_group", "all ranks of the data axis share one copy", whole
    if strategy.shard == 3 and not strategy.reshard:
        yield "reshard", "weights are freed after the forward pass", replace(strategy, reshard=True)
    if strategy.tensor > 1 and not strategy.sequence:
        how = "the tensor ranks also shard the activations between their matmuls"
        yield "sequence", how, replace(strategy, sequence=True)
    if strategy.pipeline > 1 and strategy.schedule == "gpipe":
        how = "fewer micro-batches are in flight"
        yield "schedule=1f1b", how, replace(strategy, schedule="1f1b")
