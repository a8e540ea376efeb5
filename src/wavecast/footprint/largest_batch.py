"""What fits: the largest batch in a GPU's memory.

Memory is nearly affine in the batch, so that two small traces say where to look; the answer is
traced itself, and played through the allocator with the limit in force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.footprint.allocator import AllocatorFull
from wavecast.footprint.replay import replay
from wavecast.footprint.workspaces.estimate import with_workspaces
from wavecast.hardware.device import Device
from wavecast.traces.step import Trace

Traced = Callable[[int], Trace]

_MOST_TRACES = 16
_PRECISE = 200
"""The answer is within one part in so many."""
RESERVE = 0.005
"""Of the limit, kept free: by so much the replay of fragments was too hopeful on an H200."""


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch that fits, and how it was found."""

    batch: int
    """0: not even one sample fits."""
    too_large: int
    """The smallest batch that is known not to fit."""
    limit_bytes: int
    """What the allocator may reserve."""
    peak_bytes: int
    """What it has allocated at once, with that batch; of one sample if that does not fit."""
    traced: tuple[int, ...]
    """The batches that were traced, in order."""


def largest_batch(
    traced: Traced, device: Device, limit_bytes: int, *, start: int = 8, expandable: bool = False
) -> LargestBatch:
    """The largest batch whose step fits under a limit of reserved memory.

    Args:
        traced: the trace of a step with so many samples.
        device: the GPU, for its workspaces.
        limit_bytes: what the allocator may reserve.
        start: a batch that is likely to fit, to begin with.
        expandable: whether the allocator's segments grow (`expandable_segments:True`).
    """
    if start < 1:
        raise InvalidInput(f"start is {start!r}; a batch has at least one sample")
    if limit_bytes < 1:
        raise InvalidInput(f"the limit is {limit_bytes!r} bytes; nothing fits")
    found = _Search(traced, device, int(limit_bytes * (1 - RESERVE)), expandable).run(start)
    return replace(found, limit_bytes=limit_bytes)


class _Search:
    def __init__(self, traced: Traced, device: Device, limit_bytes: int, expandable: bool) -> None:
        self._traced, self._device = traced, device
        self._limit, self._expandable = limit_bytes, expandable
        self._needs: dict[int, int] = {}
        self._fits: dict[int, bool] = {}
        self._since_full = 0
        """Batches that were looked at since one did not fit."""

    def run(self, start: int) -> LargestBatch:
        """Look where the line through the last two traces meets the limit, then between."""
        batch = start
        while len(self._needs) < _MOST_TRACES:
            self._look(batch)
            low, high = self._low, self._high
            if high is not None and high - low <= max(1, low // _PRECISE):
                break
            batch = self._next(low, high)
        low, high = self._low, self._high
        return LargestBatch(
            batch=low,
            too_large=low + 1 if high is None else high,
            limit_bytes=self._limit,
            peak_bytes=self._needs[low or min(self._needs)],
            traced=tuple(self._needs),
        )

    @property
    def _low(self) -> int:
        return max((batch for batch, fits in self._fits.items() if fits), default=0)

    @property
    def _high(self) -> int | None:
        """The smallest that does not fit above the largest that does.

        Smaller ones may not fit either: blocks of other sizes leave other gaps.
        """
        low = self._low
        return min((b for b, fits in self._fits.items() if not fits and b > low), default=None)

    def _look(self, batch: int) -> None:
        trace = with_workspaces(self._traced(batch), self._device)
        self._needs[batch] = replay(trace, expandable=self._expandable).allocated_bytes
        try:
            replay(trace, limit_bytes=self._limit, expandable=self._expandable)
        except AllocatorFull:
            self._fits[batch] = False
        else:
            self._fits[batch] = True
        self._since_full += not all(self._fits.values())

    def _next(self, low: int, high: int | None) -> int:
        if len(self._needs) == 1:
            return 2 * low if low else max(1, (high or 2) // 2)
        guess = self._where_full()
        if high is None:
            return max(low + 1, min(guess, 64 * low))
        if low == 0:
            return max(1, min(guess, high // 2))
        if low < guess < high and guess not in self._needs:
            return guess
        # Fragments make the line too hopeful: a little less than what failed, then less and less.
        nearby = max(1, low // _PRECISE) << self._since_full
        return max(high - nearby, (low + high) // 2)

    def _where_full(self) -> int:
        """Where the line through the two largest batches meets the limit."""
        (first, a), (second, b) = sorted(self._needs.items())[-2:]
        slope = (b - a) / (second - first)
        return int(second + (self._limit - b) / slope) if slope > 0 else 2 * second
