"""Times during which something ran: how long in all, and what ran while nothing else did."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from wavecast.traces.step import Call, Kernel

Interval = tuple[float, float]
"""Begin and end."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times without overlaps, in order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The time covered by intervals that do not overlap."""
    return sum(end - begin for begin, end in intervals)


def covered(interval: Interval, by: Sequence[Interval]) -> float:
    """How much of an interval lies within others, which are in order and do not overlap."""
    begin, end = interval
    total = 0.0
    for first, last in by[max(0, bisect.bisect_right(by, (begin, float("inf"))) - 1) :]:
        if first >= end:
            break
        total += max(0.0, min(end, last) - max(begin, first))
    return total


def interval_of(kernel: Kernel) -> Interval | None:
    """When a kernel ran, if that was recorded."""
    return None if kernel.start_s is None else (kernel.start_s, kernel.start_s + kernel.seconds)


def busy_s(kernels: Iterable[Kernel]) -> float:
    """The time in which at least one of these ran."""
    found = [(kernel, interval_of(kernel)) for kernel in kernels]
    alone = sum(kernel.seconds for kernel, interval in found if interval is None)
    return alone + length(union(interval for _, interval in found if interval is not None))


def exposed_s(calls: Sequence[Call], hidden: Sequence[bool]) -> list[float]:
    """The part of each call's GPU time that no other kernel covers; together, the busy time.

    Where kernels of several streams overlap, the one that began first counts. `hidden` marks
    calls that only count where nothing else runs: communication behind computation.
    """
    exposed = [0.0] * len(calls)
    runs = []
    for index, call in enumerate(calls):
        for kernel in call.kernels:
            interval = interval_of(kernel)
            if interval is None:
                exposed[index] += kernel.seconds
            else:
                runs.append((hidden[index], interval, index))
    front = [interval for later, interval, _ in runs if not later]
    known = union(front)
    until = {False: float("-inf"), True: float("-inf")}
    for later, (begin, end), index in sorted(runs):
        fresh = max(begin, until[later]), end
        until[later] = max(until[later], end)
        if fresh[0] < end:
            exposed[index] += max(0.0, end - fresh[0] - (covered(fresh, known) if later else 0.0))
    return exposed
