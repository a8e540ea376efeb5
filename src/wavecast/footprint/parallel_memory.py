"""The memory of a step that is spread over several GPUs: that of the fullest rank."""

from __future__ import annotations

from dataclasses import replace

from wavecast.footprint.kinds import peak_bytes
from wavecast.footprint.memory import Memory, memory
from wavecast.hardware.device import Device
from wavecast.parallel.rank_memory import communicator_bytes, memory_trace
from wavecast.parallel.ranks import ParallelStep, RankGroup
from wavecast.traces.step import Trace


def rank_memory(
    step: ParallelStep, group: RankGroup, gpu: Device | None, expandable: bool = False
) -> Memory:
    """The memory of the ranks of one group."""
    needed = memory(memory_trace(step, group), gpu, expandable_segments=expandable)
    if needed.context_bytes is None:
        return needed
    nccl_bytes = communicator_bytes(step.strategy)
    return replace(needed, context_bytes=needed.context_bytes + nccl_bytes)


def fullest_rank(step: ParallelStep, gpu: Device | None, expandable: bool = False) -> Memory:
    """The memory of the group of ranks that needs most."""
    return rank_memory(step, _fullest(step), gpu, expandable)


def fullest_trace(step: ParallelStep) -> Trace:
    """What the ranks that need most memory run, with all memory that they hold."""
    return memory_trace(step, _fullest(step))


def _fullest(step: ParallelStep) -> RankGroup:
    if len(step.groups) == 1:
        return step.groups[0]
    # The peak without the allocator's caching is enough to find the fullest stage.
    return max(step.groups, key=lambda g: peak_bytes(memory_trace(step, g).allocations))
