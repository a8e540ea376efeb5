"""A part of a recording as a step of its own."""

from __future__ import annotations

from wavecast.frameworks.pytorch.recorded import Recording
from wavecast.traces.step import Allocation, Role

_MADE_IN_A_STEP = (Role.INTERMEDIATE, Role.WEIGHT_COPY)


def window(recording: Recording, begin: int, end: int) -> Recording:
    """The calls from `begin` to before `end`, and the memory that exists while they run."""
    allocations = (_cut(memory, begin, end) for memory in recording.allocations)
    return Recording(
        recording.calls[begin:end], tuple(part for part in allocations if part is not None)
    )


def _cut(memory: Allocation, begin: int, end: int) -> Allocation | None:
    """Memory with its lifetime counted from `begin`; None if it does not exist in the window."""
    born = -1 if memory.born is None else memory.born
    if born >= end or (memory.freed is not None and memory.freed <= begin):
        return None
    before = born < begin
    outlives = memory.freed is None or memory.freed >= end
    return Allocation(
        nbytes=memory.nbytes,
        born=None if before else born - begin,
        freed=None if outlives or memory.freed is None else memory.freed - begin,
        role=Role.INPUT if before and memory.role in _MADE_IN_A_STEP else memory.role,
        module=memory.module,
    )
