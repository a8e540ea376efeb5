"""torch's caching allocator, replayed (c10/cuda/CUDACachingAllocator.cpp).

Memory is taken from CUDA in segments and handed out in blocks. Blocks are split, kept when freed,
and joined with free neighbours, so that what is reserved is more than what is in use. Small blocks
(to 1 MiB) share segments of 2 MiB; larger ones get segments of 20 MiB, or their own from 10 MiB
on. With expandable segments there is one segment for each of the two kinds, which grows.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from wavecast.errors import WavecastError

_MIB = 1 << 20
SMALLEST_BLOCK = 512
SMALL, SMALL_SEGMENT = _MIB, 2 * _MIB
LARGE_SEGMENT, OWN_SEGMENT_FROM, ROUND_OWN = 20 * _MIB, 10 * _MIB, 2 * _MIB


class AllocatorFull(WavecastError):
    """A block does not fit under the limit, not even after all unused segments were given back."""


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """A piece of a segment; neighbours are of the same segment."""

    address: int
    nbytes: int
    small: bool
    free: bool = False
    before: MemoryBlock | None = field(default=None, repr=False)
    after: MemoryBlock | None = field(default=None, repr=False)

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.before is None and self.after is None


def rounded(nbytes: int) -> int:
    """What a request takes at least."""
    return max(SMALLEST_BLOCK, -(-nbytes // SMALLEST_BLOCK) * SMALLEST_BLOCK)


def segment_bytes(nbytes: int) -> int:
    """What is asked of CUDA for a block that no free one can serve."""
    if nbytes <= SMALL:
        return SMALL_SEGMENT
    if nbytes < OWN_SEGMENT_FROM:
        return LARGE_SEGMENT
    return -(-nbytes // ROUND_OWN) * ROUND_OWN


class Allocator:
    """One GPU's memory as torch manages it, on one stream."""

    def __init__(self, *, limit_bytes: int | None = None, expandable: bool = False) -> None:
        self._limit = limit_bytes
        self._expandable = expandable
        self._free: dict[bool, list[tuple[int, int, MemoryBlock]]] = {True: [], False: []}
        self._last: dict[bool, MemoryBlock | None] = {True: None, False: None}
        # Each pool has addresses of its own: a segment that grows must not run into the other's.
        self._address = {True: 0, False: 1 << 56}
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self.peak_reserved_bytes = 0

    def allocate(self, nbytes: int) -> MemoryBlock | None:
        """A block for a request; none for an empty one.

        Raises:
            OutOfMemory: the limit does not allow it.
        """
        if nbytes <= 0:
            return None
        size = rounded(nbytes)
        small = size <= SMALL
        block = self._best_fit(size, small) or self._grown(size, small)
        self._split(block, size)
        block.free = False
        self.allocated_bytes += block.nbytes
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def release(self, block: MemoryBlock | None) -> None:
        """Take a block back, and join it with free neighbours."""
        if block is None:
            return
        self.allocated_bytes -= block.nbytes
        for other in (block.before, block.after):
            if other is not None and other.free:
                self._forget(other)
                self._join(block, other)
        self._offer(block)

    def _best_fit(self, size: int, small: bool) -> MemoryBlock | None:
        free = self._free[small]
        index = bisect.bisect_left(free, (size, -1))
        return free.pop(index)[2] if index < len(free) else None

    def _grown(self, size: int, small: bool) -> MemoryBlock:
        """A new segment, or more of the one that grows."""
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
            self._forget(last)  # so that it is not given back to make room for its own growth
            missing = size - last.nbytes
            grown = self._segment(-(-missing // page) * page, small)
            self._join(grown, last)
        self._last[small] = grown
        return grown

    def _segment(self, nbytes: int, small: bool) -> MemoryBlock:
        if self._limit is not None and self.reserved_bytes + nbytes > self._limit:
            self._give_back()
            if self.reserved_bytes + nbytes > self._limit:
                raise AllocatorFull(
                    f"{nbytes} bytes more than the {self.reserved_bytes} that are reserved do not "
                    f"fit into {self._limit}"
                )
        self.reserved_bytes += nbytes
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self._address[small] += nbytes
        return MemoryBlock(self._address[small] - nbytes, nbytes, small)

    def _give_back(self) -> None:
        """Return segments in which nothing lives; of a growing one, its free end."""
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
        self._offer(remaining)

    def _join(self, block: MemoryBlock, other: MemoryBlock) -> None:
        """Take a neighbour in; a block of a segment that has just grown has none before it."""
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

    def _offer(self, block: MemoryBlock) -> None:
        block.free = True
        bisect.insort(self._free[block.small], (block.nbytes, block.address, block))

    def _forget(self, block: MemoryBlock) -> None:
        free = self._free[block.small]
        index = bisect.bisect_left(free, (block.nbytes, block.address))
        free.pop(index)
        block.free = False
