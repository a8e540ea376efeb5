"""A step's memory played through the caching allocator, from the first iteration on.

A trace has one iteration of the steady state. Before it, the model was built and a first iteration
made the optimizer's state; what that left behind decides where later blocks find place.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest

from wavecast.footprint.allocator import Allocator, MemoryBlock
from wavecast.footprint.workspaces.libraries import first_uses
from wavecast.footprint.workspaces.recurrent import joined_weights
from wavecast.traces.step import Allocation, Phase, Role, Trace

_BUILT = (Role.PARAMETER, Role.BUFFER, Role.INPUT)


@dataclass(frozen=True, slots=True)
class Replay:
    """What the allocator counts."""

    allocated_bytes: int
    """The most at once: blocks, which may be larger than what was asked for."""
    reserved_bytes: int


def replay(trace: Trace, *, limit_bytes: int | None = None, expandable: bool = False) -> Replay:
    """Play the building of the model, a first and a later iteration.

    Raises:
        OutOfMemory: it does not fit under the limit.
    """
    player = _Player(trace, Allocator(limit_bytes=limit_bytes, expandable=expandable))
    player.first()
    player.later()
    counted = player.allocator
    return Replay(counted.peak_allocated_bytes, counted.peak_reserved_bytes)


class _Player:
    """Holds the blocks of a trace's allocations, by their position."""

    def __init__(self, trace: Trace, allocator: Allocator) -> None:
        self.allocator = allocator
        self._all = trace.allocations
        self._calls = len(trace)
        self._blocks: dict[int, MemoryBlock | None] = {}
        self._born: dict[int, list[int]] = defaultdict(list)
        self._freed: dict[int, list[int]] = defaultdict(list)
        for index, each in enumerate(self._all):
            if each.born is not None:
                self._born[each.born].append(index)
            if each.freed is not None:
                self._freed[each.freed].append(index)
        self._joined = joined_weights(trace)
        self._first_uses = first_uses(trace)
        phases = [call.phase for call in trace]
        self._update = phases.index(Phase.OPTIMIZER) if Phase.OPTIMIZER in phases else self._calls

    def first(self) -> None:
        """Build the model, and run an iteration in which gradients and states are new."""
        kept = [i for i, each in enumerate(self._all) if each.born is None and each.freed is None]
        built = [i for i in kept if self._all[i].role in _BUILT]
        made = [i for i in kept if self._all[i].role in (Role.GRADIENT, Role.OPTIMIZER_STATE)]
        for index in built:
            self._build(index)
        extra = defaultdict(list, {self._update: made})
        others = sorted(set(kept) - set(built) - set(made))
        for index, time in zip_longest(others, self._first_uses[: len(others)], fillvalue=0):
            extra[time].insert(0, index)  # libraries' buffers, when they are first used
        self._play(extra)

    def later(self) -> None:
        """Run an iteration as it was traced, with what the one before it left."""
        self._hand_over()
        self._play({})

    def _hand_over(self) -> None:
        """What is made in an iteration and stays is what the next one finds, and may free."""
        left: dict[int, list[int]] = defaultdict(list)
        for index in list(self._blocks):
            each = self._all[index]
            if each.born is not None:
                left[each.nbytes].append(index)
        for index, each in enumerate(self._all):
            if each.born is None and each.freed is not None:
                if left[each.nbytes]:
                    self._blocks[index] = self._blocks.pop(left[each.nbytes].pop(0))
                else:
                    self._take(index)
        for indices in left.values():
            for index in indices:
                self.allocator.release(self._blocks.pop(index))

    def _play(self, extra: dict[int, list[int]]) -> None:
        for time in range(self._calls + 1):
            for index in self._freed.get(time, ()):
                if index in self._blocks:
                    self.allocator.release(self._blocks.pop(index))
            for index in (*extra.get(time, ()), *self._born.get(time, ())):
                self._take(index)
                if self._all[index].freed == time == self._all[index].born:
                    self.allocator.release(self._blocks.pop(index))  # gone before the call ends

    def _build(self, index: int) -> None:
        """Weights of a recurrent layer are made one by one, and then joined to one."""
        each = self._all[index]
        parts = self._joined.get(each.nbytes, ()) if each.role is Role.PARAMETER else ()
        blocks = [self.allocator.allocate(nbytes) for nbytes in parts]
        self._take(index)
        for block in blocks:
            self.allocator.release(block)

    def _take(self, index: int) -> None:
        each: Allocation = self._all[index]
        self._blocks[index] = self.allocator.allocate(each.nbytes)
