"""The memory of a step that is spread over several GPUs: that of the fullest rank."""

from __future__ import annotations

from dataclasses import replace

from wavecast.footprint.kinds import peak_bytes
from wavecast.footprint.memory import Memory, memory
from wavecast.hardware.device import Device
from wavecast.parallel.rank_memory import communicator_bytes, memory_trace
from wavecast.parallel.ranks import ParallelStep
from wavecast.parallel.strategy import Parallel
from wavecast.traces.step import Trace


def fullest_rank(step: ParallelStep, gpu: Device | None, expandable: bool = False) -> Memory:
    """The memory of the group of ranks that needs most."""
    return memory_of_rank(fullest_trace(step), step.strategy, gpu, expandable)


def memory_of_rank(
    trace: Trace, strategy: Parallel, gpu: Device | None, expandable: bool = False
) -> Memory:
    """The memory of a rank, from what it runs (`fullest_trace`), with NCCL's buffers."""
    needed = memory(trace, gpu, expandable_segments=expandable)
    if needed.context_bytes is None:
        return needed
    nccl_bytes = communicator_bytes(strategy)
    return replace(needed, context_bytes=needed.context_bytes + nccl_bytes)


def fullest_trace(step: ParallelStep) -> Trace:
    """What the ranks that need most memory run, with all memory that they hold."""
    traces = [memory_trace(step, group) for group in step.groups]
    if len(traces) == 1:
        return traces[0]
    # The peak without the allocator's caching is enough to find the fullest stage.
    return max(traces, key=lambda trace: peak_bytes(trace.allocations))
