"""The memory of a step that is spread over several GPUs: that of the fullest rank."""

from __future__ import annotations

from dataclasses import replace

from wavecast.footprint.kinds import peak_bytes
from wavecast.footprint.memory import Memory, memory
from wavecast.hardware.device import Device
from wavecast.parallel.rank_memory import communicator_bytes, memory_trace
from wavecast.parallel.ranks import ParallelStep, RankGroup


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
    if len(step.groups) == 1:
        return rank_memory(step, step.groups[0], gpu, expandable)
    # The peak without the allocator's caching is enough to find the fullest stage.
    fullest = max(step.groups, key=lambda g: peak_bytes(memory_trace(step, g).allocations))
    return rank_memory(step, fullest, gpu, expandable)
