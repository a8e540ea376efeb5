"""The memory of a step, replayed through the caching allocator from the first iteration on.

A trace has one iteration of the steady state. Before it, the model was built, and a first iteration
allocated the optimizer's state. The free blocks that these left decide where later blocks fit.

Whether a step fits is decided by a replay with the limit in force: the allocator gives cached
memory back when it meets the limit, so a step may fit although it would reserve more on a larger
GPU.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import zip_longest

from wavecast.footprint.allocator import Allocator, AllocatorFull, MemoryBlock
from wavecast.footprint.graph_pools import pools
from wavecast.footprint.workspaces.recurrent import joined_weights
from wavecast.traces.step import Allocation, Phase, Role, Trace

_BUILT = (Role.PARAMETER, Role.BUFFER, Role.INPUT)

RESERVE = 0.005
"""The share of the limit that is kept free: on an H200 the allocator's fragmentation was
underestimated by this much."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The peaks that the allocator counts."""

    allocated_bytes: int
    """The peak of all blocks in use, without those of CUDA graphs. A block may be larger than the
    request that it serves."""
    reserved_bytes: int
    """The peak of all segments."""


def replay(trace: Trace, *, limit_bytes: int | None = None, expandable: bool = False) -> Replay:
    """The allocator's peaks when the model is built and two iterations run.

    Args:
        trace: one iteration of the steady state, with its allocations.
        limit_bytes: the most that the allocator may reserve; None for no limit.
        expandable: whether segments grow, as with `expandable_segments:True`.

    Raises:
        AllocatorFull: it does not fit under the limit.
    """
    parts = pools(trace)
    pool_bytes = 0
    if parts.in_graphs:
        pool = Allocator(limit_bytes=limit_bytes, expandable=expandable)
        _play(trace, parts.in_graphs, (), pool)
        pool_bytes = pool.peak_reserved_bytes
    left = None if limit_bytes is None else limit_bytes - pool_bytes
    counted = Allocator(limit_bytes=left, expandable=expandable)
    _play(trace, parts.ordinary, parts.first_uses, counted)
    return Replay(counted.peak_allocated_bytes, counted.peak_reserved_bytes + pool_bytes)


def usable_bytes(limit_bytes: int) -> int:
    """The most that a step may reserve under a limit and still be said to fit."""
    return int(limit_bytes * (1 - RESERVE))


def replay_within(trace: Trace, limit_bytes: int, *, expandable: bool = False) -> Replay | None:
    """The allocator's peaks under a limit of reserved memory; None if the step does not fit.

    Args:
        trace: one iteration, with its allocations and workspaces.
        limit_bytes: what the allocator could reserve; the `RESERVE` is taken from it.
        expandable: whether segments grow, as with `expandable_segments:True`.
    """
    try:
        return replay(trace, limit_bytes=usable_bytes(limit_bytes), expandable=expandable)
    except AllocatorFull:
        return None


def _play(
    trace: Trace, allocations: tuple[Allocation, ...], uses: tuple[int, ...], allocator: Allocator
) -> None:
    """Build the model and run two iterations with these allocations."""
    player = _Player(replace(trace, allocations=allocations), uses, allocator)
    player.first()
    player.later()


class _Player:
    """Runs iterations of a trace, and holds the block of each allocation by its position."""

    def __init__(self, trace: Trace, uses: tuple[int, ...], allocator: Allocator) -> None:
        self.allocator = allocator
        self._all = trace.allocations
        self._calls = len(trace)
        self._blocks: dict[int, MemoryBlock | None] = {}
        self._born: dict[int, list[int]] = defaultdict(list)
        self._freed: dict[int, list[int]] = defaultdict(list)
        for index, allocation in enumerate(self._all):
            if allocation.born is not None:
                self._born[allocation.born].append(index)
            if allocation.freed is not None:
                self._freed[allocation.freed].append(index)
        self._joined = joined_weights(trace)
        self._first_uses = uses
        phases = [call.phase for call in trace]
        self._update = phases.index(Phase.OPTIMIZER) if Phase.OPTIMIZER in phases else self._calls

    def first(self) -> None:
        """Build the model, and run an iteration that allocates gradients and optimizer state."""
        kept = [i for i, a in enumerate(self._all) if a.born is None and a.freed is None]
        built = [i for i in kept if self._all[i].role in _BUILT]
        made = [i for i in kept if self._all[i].role in (Role.GRADIENT, Role.OPTIMIZER_STATE)]
        for index in built:
            self._build(index)
        extra = defaultdict(list, {self._update: made})
        others = sorted(set(kept) - set(built) - set(made))
        for index, time in zip_longest(others, self._first_uses[: len(others)], fillvalue=0):
            extra[time].insert(0, index)  # buffers of libraries, at their first use
        self._play(extra)

    def later(self) -> None:
        """Run an iteration as it was traced, on the memory that the one before it left."""
        self._hand_over()
        self._play({})

    def _hand_over(self) -> None:
        """Make blocks that one iteration left behind those that the next iteration frees.

        In the trace these are two allocations of equal size: one that is never freed, and one that
        existed before the step. Blocks without such a partner are released.
        """
        left: dict[int, list[int]] = defaultdict(list)
        for index in list(self._blocks):
            allocation = self._all[index]
            if allocation.born is not None:
                left[allocation.nbytes].append(index)
        for index, allocation in enumerate(self._all):
            if allocation.born is None and allocation.freed is not None:
                if left[allocation.nbytes]:
                    self._blocks[index] = self._blocks.pop(left[allocation.nbytes].pop(0))
                else:
                    self._allocate(index)
        for indices in left.values():
            for index in indices:
                self.allocator.release(self._blocks.pop(index))

    def _play(self, extra: dict[int, list[int]]) -> None:
        """Run one iteration; `extra` has allocations to make beside the traced ones, by call."""
        for time in range(self._calls + 1):
            for index in self._freed.get(time, ()):
                if index in self._blocks:
                    self.allocator.release(self._blocks.pop(index))
            for index in (*extra.get(time, ()), *self._born.get(time, ())):
                self._allocate(index)
                if self._all[index].freed == time == self._all[index].born:
                    self.allocator.release(self._blocks.pop(index))  # freed within the call

    def _build(self, index: int) -> None:
        """Allocate a part of the model.

        The weights of a recurrent layer are first allocated one by one, and then joined.
        """
        allocation = self._all[index]
        is_weight = allocation.role is Role.PARAMETER
        parts = self._joined.get(allocation.nbytes, ()) if is_weight else ()
        blocks = [self.allocator.allocate(nbytes) for nbytes in parts]
        self._allocate(index)
        for block in blocks:
            self.allocator.release(block)

    def _allocate(self, index: int) -> None:
        allocation: Allocation = self._all[index]
        self._blocks[index] = self.allocator.allocate(allocation.nbytes)
