"""The largest batch that fits in a GPU's memory.

Memory is nearly linear in the batch size, so a line through two small traces says where to search.
The answer itself is traced and replayed through the allocator with the limit in force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from wavecast.errors import InvalidInput
from wavecast.footprint.replay import replay, replay_within, usable_bytes
from wavecast.footprint.workspaces.estimate import with_workspaces
from wavecast.hardware.devices import Device
from wavecast.results import Shown
from wavecast.traces.step import Trace

Traced = Callable[[int], Trace]
"""A function that traces the step at a batch size."""

_MOST_TRACES = 16
_PRECISION = 200
"""The search stops when the answer is known to one part in this many."""


@dataclass(frozen=True, repr=False)
class LargestBatch(Shown):
    """The largest batch that fits, and how it was found; `wavecast.max_batch` makes it.

    ```python
    answer = wavecast.max_batch(make_step_of_batch, "l4")
    answer.batch, answer.peak_bytes
    ```
    """

    batch: int
    """The largest batch size that fits. 0 if not even one sample fits."""
    too_large: int
    """The smallest batch size above it that is known not to fit."""
    limit_bytes: int
    """The most that the allocator may reserve."""
    peak_bytes: int
    """The peak of allocated memory at that batch size; if none fits, at the smallest one tried."""
    traced: tuple[int, ...]
    """The batch sizes that were traced, in order."""


def largest_batch(
    traced: Traced, device: Device, limit_bytes: int, *, start: int = 8, expandable: bool = False
) -> LargestBatch:
    """The largest batch whose step fits under a limit of reserved memory.

    Args:
        traced: a function that traces the step at a batch size.
        device: the GPU, which decides the sizes of workspaces.
        limit_bytes: the most that the allocator may reserve.
        start: the first batch size to try, one that is likely to fit.
        expandable: whether the allocator's segments grow (`expandable_segments:True`).
    """
    if start < 1:
        raise InvalidInput(f"start is {start!r}; a batch has at least one sample")
    if limit_bytes < 1:
        raise InvalidInput(f"the limit is {limit_bytes!r} bytes; nothing fits")
    return _Search(traced, device, limit_bytes, expandable).run(start)


class _Search:
    def __init__(self, traced: Traced, device: Device, limit_bytes: int, expandable: bool) -> None:
        self._traced, self._device = traced, device
        self._limit, self._expandable = limit_bytes, expandable
        self._needs: dict[int, int] = {}
        self._fits: dict[int, bool] = {}
        self._since_full = 0
        """The number of batch sizes tried since one did not fit, that one included."""

    def run(self, start: int) -> LargestBatch:
        """The answer: try where the line through two traces meets the limit, then in between."""
        batch = start
        while len(self._needs) < _MOST_TRACES:
            self._try(batch)
            low, high = self._low, self._high
            if high is not None and high - low <= max(1, low // _PRECISION):
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
        """The largest batch size that fits."""
        return max((batch for batch, fits in self._fits.items() if fits), default=0)

    @property
    def _high(self) -> int | None:
        """The smallest batch size that does not fit, above the largest that does.

        A batch size below `_low` may not fit either: other block sizes leave other gaps.
        """
        low = self._low
        return min((b for b, fits in self._fits.items() if not fits and b > low), default=None)

    def _try(self, batch: int) -> None:
        """Trace one batch size, and note its peak and whether it fits."""
        trace = with_workspaces(self._traced(batch), self._device)
        self._needs[batch] = replay(trace, expandable=self._expandable).allocated_bytes
        within = replay_within(trace, self._limit, expandable=self._expandable)
        self._fits[batch] = within is not None
        self._since_full += not all(self._fits.values())

    def _next(self, low: int, high: int | None) -> int:
        """The next batch size to try."""
        if len(self._needs) == 1:
            return 2 * low if low else max(1, (high or 2) // 2)
        guess = self._where_full()
        if high is None:
            return max(low + 1, min(guess, 64 * low))
        if low == 0:
            return max(1, min(guess, high // 2))
        if low < guess < high and guess not in self._needs:
            return guess
        # Fragmentation is not in the line. Go down from the batch that failed in growing steps.
        nearby = max(1, low // _PRECISION) << self._since_full
        return max(high - nearby, (low + high) // 2)

    def _where_full(self) -> int:
        """The batch size where the line through the two largest ones tried meets the limit."""
        (first, a), (second, b) = sorted(self._needs.items())[-2:]
        slope = (b - a) / (second - first)
        return int(second + (usable_bytes(self._limit) - b) / slope) if slope > 0 else 2 * second
