"""Intervals of time in which kernels ran: their union, and the time of each that is not hidden."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

from wavecast.traces.step import Call, Kernel

Interval = tuple[float, float]
"""Begin and end, in seconds."""


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of intervals: in order, without overlaps."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """The total time of intervals that do not overlap."""
    return sum(end - begin for begin, end in intervals)


def covered(interval: Interval, by: Sequence[Interval]) -> float:
    """The time of an interval that lies within others, which are in order and do not overlap."""
    begin, end = interval
    total = 0.0
    for first, last in by[max(0, bisect.bisect_right(by, (begin, float("inf"))) - 1) :]:
        if first >= end:
            break
        total += max(0.0, min(end, last) - max(begin, first))
    return total


def interval_of(kernel: Kernel) -> Interval | None:
    """The interval in which a kernel ran; None if its start was not recorded."""
    return None if kernel.start_s is None else (kernel.start_s, kernel.start_s + kernel.seconds)


def busy_s(kernels: Iterable[Kernel]) -> float:
    """The seconds in which at least one kernel ran; kernels without a start count in full."""
    runs = [(kernel, interval_of(kernel)) for kernel in kernels]
    without_start = sum(kernel.seconds for kernel, interval in runs if interval is None)
    return without_start + length(union(interval for _, interval in runs if interval is not None))


def exposed_s(calls: Sequence[Call], hidden: Sequence[bool]) -> list[float]:
    """The busy time of the GPU, shared out among the calls, in seconds.

    Where kernels of several streams overlap, the time counts for the one that began first. Calls
    marked `hidden` count only where no other call runs: communication behind computation.
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
    in_front = union(interval for is_hidden, interval, _ in runs if not is_hidden)
    until = {False: float("-inf"), True: float("-inf")}
    for is_hidden, (begin, end), index in sorted(runs):
        rest = max(begin, until[is_hidden]), end
        until[is_hidden] = max(until[is_hidden], end)
        if rest[0] < end:
            behind_s = covered(rest, in_front) if is_hidden else 0.0
            exposed[index] += max(0.0, end - rest[0] - behind_s)
    return exposed
