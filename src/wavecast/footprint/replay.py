"""The memory of a step, replayed through the caching allocator from the first iteration on.

A trace has one iteration of the steady state. Before it, the model was built, and a first iteration
allocated the optimizer's state. The free blocks that these left decide where later blocks fit.

Whether a step fits is decided by a replay with the limit in force: the allocator gives cached
memory back when it meets the limit, so a step may fit although it would reserve more on a larger
GPU.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from wavecast.errors import WavecastError
from wavecast.footprint.reduction_workspaces import first_uses, joined_weights
from wavecast.traces.graphs import compiled_gpu, graphs_of
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
        self._update_begins = (
            phases.index(Phase.OPTIMIZER) if Phase.OPTIMIZER in phases else self._calls
        )

    def first(self) -> None:
        """Build the model, and run an iteration that allocates gradients and optimizer state."""
        kept = [i for i, a in enumerate(self._all) if a.born is None and a.freed is None]
        built = [i for i in kept if self._all[i].role in _BUILT]
        lasting = [i for i in kept if self._all[i].role in (Role.GRADIENT, Role.OPTIMIZER_STATE)]
        for index in built:
            self._build(index)
        extra = defaultdict(list, {self._update_begins: lasting})
        others = sorted(set(kept) - set(built) - set(lasting))
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


# A model of torch's caching allocator (c10/cuda/CUDACachingAllocator.cpp).
#
# The allocator reserves segments from CUDA and hands out blocks of them. Blocks are split, kept
# when freed, and merged with free neighbours, so more is reserved than is in use. Small blocks (up
# to 1 MiB) share segments of 2 MiB. Larger ones share segments of 20 MiB, or get a segment each
# from 10 MiB on. With expandable segments there is one growing segment for each of the two pools.


_MIB = 1 << 20
SMALLEST_BLOCK = 512
"""Blocks are multiples of this, in bytes."""
SMALL, SMALL_SEGMENT = _MIB, 2 * _MIB
"""The largest small block, and the size of the segments for small blocks, in bytes."""
LARGE_SEGMENT, OWN_SEGMENT_FROM, ROUND_OWN = 20 * _MIB, 10 * _MIB, 2 * _MIB
"""The size of shared large segments; the block size from which on a block gets a segment alone;
the multiple to which that segment is rounded up. All in bytes."""


class AllocatorFull(WavecastError):
    """A block does not fit under the limit, even after all unused segments were released."""


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """A part of a segment."""

    address: int
    nbytes: int
    small: bool
    """Whether it is in the pool of small blocks."""
    free: bool = False
    before: MemoryBlock | None = field(default=None, repr=False)
    """The block before it in the same segment."""
    after: MemoryBlock | None = field(default=None, repr=False)
    """The block after it in the same segment."""

    @property
    def whole(self) -> bool:
        """Whether it fills its segment."""
        return self.before is None and self.after is None


def rounded(nbytes: int) -> int:
    """The size of the smallest block that serves a request, in bytes."""
    return max(SMALLEST_BLOCK, -(-nbytes // SMALLEST_BLOCK) * SMALLEST_BLOCK)


def segment_bytes(nbytes: int) -> int:
    """The size of the segment that is reserved for a new block, in bytes."""
    if nbytes <= SMALL:
        return SMALL_SEGMENT
    if nbytes < OWN_SEGMENT_FROM:
        return LARGE_SEGMENT
    return -(-nbytes // ROUND_OWN) * ROUND_OWN


class Allocator:
    """The memory of one GPU as torch manages it, on one stream.

    Args:
        limit_bytes: the most that may be reserved; None for no limit.
        expandable: whether segments grow, as with `expandable_segments:True`.
    """

    def __init__(self, *, limit_bytes: int | None = None, expandable: bool = False) -> None:
        self._limit = limit_bytes
        self._expandable = expandable
        self._free: dict[bool, list[tuple[int, int, MemoryBlock]]] = {True: [], False: []}
        self._last: dict[bool, MemoryBlock | None] = {True: None, False: None}
        # Each pool has a separate address range, so that a growing segment never meets the other.
        self._address = {True: 0, False: 1 << 56}
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0

    def allocate(self, nbytes: int) -> MemoryBlock | None:
        """A block for a request; None for a request of 0 bytes.

        Raises:
            AllocatorFull: it does not fit under the limit.
        """
        if nbytes <= 0:
            return None
        size = rounded(nbytes)
        small = size <= SMALL
        free = self._free[small]
        index = bisect.bisect_left(free, (size, -1))
        block = (free.pop(index)[2] if index < len(free) else None) or self._grown(size, small)
        self._split(block, size)
        block.free = False
        self.allocated_bytes += block.nbytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def release(self, block: MemoryBlock | None) -> None:
        """Free a block, and merge it with free neighbours."""
        if block is None:
            return
        self.allocated_bytes -= block.nbytes
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._remove_free(other)
                self._merge(block, other)
        self._add_free(block)

    def _grown(self, size: int, small: bool) -> MemoryBlock:
        """A block of a new segment, or of the growing segment."""
        if not self._expandable:
            return self._segment(segment_bytes(size), small)
        page = SMALL_SEGMENT if small else LARGE_SEGMENT
        last = self._last[small]
        if last is None or not last.free:
            grown = self._segment(-(-size // page) * page, small)
            grown.before = last
            if last is not None:
                last.after = grown
        else:
            self._remove_free(last)  # so that it is not released to make room for the growth
            missing = size - last.nbytes
            grown = self._segment(-(-missing // page) * page, small)
            self._merge(grown, last)
        self._last[small] = grown
        return grown

    def _segment(self, nbytes: int, small: bool) -> MemoryBlock:
        if self._limit is not None and self.reserved_bytes + nbytes > self._limit:
            self._release_segments()
            if self.reserved_bytes + nbytes > self._limit:
                raise AllocatorFull(
                    f"{nbytes} bytes do not fit: {self.reserved_bytes} of the limit of "
                    f"{self._limit} bytes are reserved"
                )
        self.reserved_bytes += nbytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self._address[small] += nbytes
        return MemoryBlock(self._address[small] - nbytes, nbytes, small)

    def _release_segments(self) -> None:
        """Return free segments to CUDA; of a growing segment, its free end."""
        for small, free in self._free.items():
            for entry in list(free):
                block = entry[2]
                if block.whole or (self._expandable and block.after is None):
                    free.remove(entry)
                    self.reserved_bytes -= block.nbytes
                    block.free = False
                    if self._last[small] is block:
                        self._last[small] = block.before
                    if block.before is not None:
                        block.before.after = None

    def _split(self, block: MemoryBlock, size: int) -> None:
        rest = block.nbytes - size
        if rest < SMALLEST_BLOCK if block.small else rest <= SMALL:
            return
        block.nbytes = size
        remaining = MemoryBlock(
            block.address + size, rest, block.small, before=block, after=block.after
        )
        if block.after is not None:
            block.after.before = remaining
        block.after = remaining
        if self._last[block.small] is block:
            self._last[block.small] = remaining
        self._add_free(remaining)

    def _merge(self, block: MemoryBlock, other: MemoryBlock) -> None:
        """Extend a block by its neighbour.

        A block that a growing segment has just gained has no `before` yet.
        """
        if other is block.after:
            block.after = other.after
            if other.after is not None:
                other.after.before = block
        else:
            block.address, block.before = other.address, other.before
            if other.before is not None:
                other.before.after = block
        block.nbytes += other.nbytes
        if self._last[block.small] is other:
            self._last[block.small] = block

    def _add_free(self, block: MemoryBlock) -> None:
        block.free = True
        bisect.insort(self._free[block.small], (block.nbytes, block.address, block))

    def _remove_free(self, block: MemoryBlock) -> None:
        free = self._free[block.small]
        index = bisect.bisect_left(free, (block.nbytes, block.address))
        free.pop(index)
        block.free = False


# The memory of CUDA graphs, which torch keeps apart from all other memory.
#
# What is allocated while a graph is recorded comes from a pool of its own. Graphs that run one
# after the other share the pool. A replayed graph allocates nothing, so torch does not count the
# pool as allocated; but it stays reserved.


@dataclass(frozen=True)
class Pools:
    """The allocations of a step, by torch's memory pool."""

    ordinary: tuple[Allocation, ...]
    first_uses: tuple[int, ...]
    """The position of the call that first needs each ordinary buffer of a library."""
    in_graphs: tuple[Allocation, ...] = ()


def pools(trace: Trace) -> Pools:
    """The allocations of a step, each in the pool from which torch takes it.

    A library's buffer that a graph needs is allocated for this graph, and lives as long as it.
    """
    ends = _ends(trace)
    if not ends:
        return Pools(trace.allocations, first_uses(trace))
    uses = iter(first_uses(trace))
    ordinary: list[Allocation] = []
    in_graphs: list[Allocation] = []
    times: list[int] = []
    for allocation in trace.allocations:
        born = allocation.born
        if allocation.role is Role.WORKSPACE and born is None:
            first = next(uses, 0)
            if first in ends:
                in_graphs.append(replace(allocation, born=first, freed=ends[first]))
                continue
            times.append(first)
        (in_graphs if born in ends else ordinary).append(allocation)
    return Pools(tuple(ordinary), tuple(times), tuple(in_graphs))


def _ends(trace: Trace) -> dict[int | None, int]:
    """For each call that a CUDA graph replays, the position after the graph's last call.

    None where XLA compiled the step: its graphs use memory that XLA allocated before.
    """
    if compiled_gpu(trace) is not None:
        return {}
    replayed = (graph for graph in graphs_of(trace) if graph.is_replayed)
    return {position: graph.end for graph in replayed for position in graph.members}
