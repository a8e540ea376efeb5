"""A model of torch's caching allocator (c10/cuda/CUDACachingAllocator.cpp).

The allocator reserves segments from CUDA and hands out blocks of them. Blocks are split, kept when
freed, and merged with free neighbours, so more is reserved than is in use. Small blocks (up to 1
MiB) share segments of 2 MiB. Larger ones share segments of 20 MiB, or get a segment each from 10
MiB on. With expandable segments there is one growing segment for each of the two pools.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from wavecast.errors import WavecastError

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
        block = self._best_fit(size, small) or self._grown(size, small)
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

    def _best_fit(self, size: int, small: bool) -> MemoryBlock | None:
        free = self._free[small]
        index = bisect.bisect_left(free, (size, -1))
        return free.pop(index)[2] if index < len(free) else None

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
