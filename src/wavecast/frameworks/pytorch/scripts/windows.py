"""A part of a recording as a step of its own."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from wavecast.frameworks.pytorch.recording.recorded import Recording
from wavecast.traces.editing import Edit
from wavecast.traces.step import Allocation, Role, Trace
from wavecast.traces.values import compacted

_MADE_IN_A_STEP = (Role.INTERMEDIATE, Role.WEIGHT_COPY)


def window(recording: Recording, begin: int, end: int) -> Recording:
    """The calls from `begin` to before `end`, and the memory that exists while they run."""

    def cut(memory: Allocation) -> Allocation | None:
        born = -1 if memory.born is None else memory.born
        if born >= end or (memory.freed is not None and memory.freed <= begin):
            return None
        before = born < begin
        return replace(
            memory,
            born=None if before else born,
            freed=None if memory.freed is None or memory.freed >= end else memory.freed,
            role=Role.INPUT if before and memory.role in _MADE_IN_A_STEP else memory.role,
        )

    edit = Edit(Trace(recording.calls, recording.allocations, values=recording.values))
    edit.remove(chain(range(begin), range(end, len(recording.calls))))
    edit.change_memory(cut)
    part = compacted(edit.trace())
    return Recording(part.calls, part.allocations, part.values)
