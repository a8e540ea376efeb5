"""The memory of one rank: the trace that the allocator replays for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from wavecast.parallel.habits.accumulation import empty_gradients
from wavecast.parallel.ranks import ParallelStep, RankGroup
from wavecast.parallel.schedules import in_flight, order_of
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Allocation, Phase, Role, Trace

COMMUNICATOR_BYTES = 16 * 2 * (4 << 20)
"""NCCL's buffers for one group of ranks: 16 channels, each with 4 MiB to send and to receive
(`NCCL_BUFFSIZE`). The number of channels differs between machines; this one is usual."""


def memory_trace(step: ParallelStep, group: RankGroup) -> Trace:
    """The last micro-batch of a rank, with all memory that the rank holds during it.

    Gradients of the micro-batches before it stay. A pipeline stage also holds the activations of
    other micro-batches in flight, and the weights of its other parts.
    """
    strategy = step.strategy
    part = max(group.parts, key=lambda p: kept_bytes(p.last))
    trace = part.last
    if strategy.microbatches > 1:
        trace = replace(trace, allocations=tuple(_accumulated(trace)))
    extra: list[Allocation] = []
    for other in group.parts:
        if other is not part:
            staying = [a for a in other.last.allocations if a.freed is None]
            extra += [a for a in staying if a.born is None]
            extra += [
                replace(a, born=None)
                for a in staying
                if a.role is Role.GRADIENT and a.born is not None
            ]
    held = held_microbatches(strategy)[group.stage] - 1
    if held > 0:
        mean_bytes = sum(kept_bytes(p.last) for p in group.parts) // len(group.parts)
        extra.append(Allocation(held * mean_bytes, None, part.end, Role.INTERMEDIATE))
    if strategy.fused_accumulation:
        nbytes = empty_gradients(part.last for part in group.parts)
        extra.append(Allocation(nbytes, None, None, Role.INTERMEDIATE))
    return replace(trace, allocations=(*trace.allocations, *extra))


def held_microbatches(strategy: Parallel) -> tuple[int, ...]:
    """How many micro-batches' activations each stage holds at most, counted over its parts."""
    if strategy.pipeline == 1:
        return (1,)
    count, stages = strategy.microbatches, strategy.pipeline
    if strategy.schedule != "gpipe":
        count = min(count, _FILLING * stages)
    return _held(strategy.schedule, stages, stages * strategy.virtual, count)


_FILLING = 4
"""After so many micro-batches for each stage a pipeline is full: more of them hold no more, but
with "gpipe", which holds all of them."""


@lru_cache(maxsize=256)
def _held(schedule: str, stages: int, parts: int, microbatches: int) -> tuple[int, ...]:
    return in_flight(order_of(schedule, stages, parts, microbatches))


def communicator_bytes(strategy: Parallel) -> int:
    """The memory of NCCL on each rank: one communicator for each axis that is used."""
    axes = strategy.axes
    names = ["tensor", "context", "shard", "replica", "expert", "pipeline"]
    if strategy.expert > 1:
        names.append("expert_replica")
    return COMMUNICATOR_BYTES * sum(axes[name].size > 1 for name in names)


def kept_bytes(trace: Trace) -> int:
    """The activations that a micro-batch keeps from its forward to its backward pass."""
    turn = next((i for i, c in enumerate(trace.calls) if c.phase is Phase.BACKWARD), len(trace))
    return sum(
        a.nbytes
        for a in trace.allocations
        if a.role in (Role.INTERMEDIATE, Role.INPUT, Role.WEIGHT_COPY)
        and a.born is not None
        and a.born < turn
        and (a.freed is None or a.freed > turn)
    )


def _accumulated(trace: Trace) -> Iterator[Allocation]:
    """The allocations when the gradients of earlier micro-batches are there, to be added to."""
    for allocation in trace.allocations:
        if allocation.role is not Role.GRADIENT:
            yield allocation
        elif allocation.born is None and allocation.freed is not None:
            continue  # the gradients of the step before
        elif allocation.born is not None and allocation.freed is None:
            yield replace(allocation, born=None)
            yield replace(allocation, freed=allocation.born + 2, role=Role.INTERMEDIATE)
        else:
            yield allocation
