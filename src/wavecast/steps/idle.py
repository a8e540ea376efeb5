"""Why the GPU idled in a measured step: gaps between kernels, by cause."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence

from wavecast import ops
from wavecast.ops import Kind
from wavecast.traces import kernel_names, overlap
from wavecast.traces.step import Call, Kernel

CAUSES = ("host", "synchronisation", "communication", "input")
"""The causes of a GPU's idle time."""


def idle_by_cause(calls: Sequence[Call], idle_s: float, *, from_start: bool) -> dict[str, float]:
    """The idle seconds of a step by cause, in proportion to the recorded gaps between kernels.

    A gap is caused by "input" if a copy to the GPU follows it, by "communication" if a collective
    is next to it, and by "synchronisation" if the host waited for the GPU before it, so that the
    queue was empty. Otherwise the cause is the "host".

    Args:
        calls: the recorded calls with their kernels.
        idle_s: the idle time to distribute, in seconds.
        from_start: whether the time before the first kernel is a gap, too.
    """
    gaps = dict.fromkeys(CAUSES, 0.0)
    for cause, _, gap_s in _gaps(calls, from_start=from_start):
        gaps[cause] += gap_s
    total = sum(gaps.values())
    if not total:
        return gaps | {"host": idle_s}
    return {cause: idle_s * gap / total for cause, gap in gaps.items()}


def idle_places(calls: Sequence[Call], *, from_start: bool) -> dict[str, tuple[str, float]]:
    """Where the GPU waits longest for each cause, and its share in the gaps of the cause.

    A place is the line of source that issued the kernel after a gap, else its module, else its op.
    """
    gaps: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cause, call, gap_s in _gaps(calls, from_start=from_start):
        gaps[cause][call.line or call.module or call.op.base] += gap_s
    longest = {cause: max(found, key=found.__getitem__) for cause, found in gaps.items()}
    return {
        cause: (place, gaps[cause][place] / sum(gaps[cause].values()))
        for cause, place in longest.items()
    }


def _gaps(calls: Sequence[Call], *, from_start: bool) -> Iterator[tuple[str, Call, float]]:
    """The gaps between kernels: the cause, the call after it, and its seconds."""
    runs = sorted(
        (
            (interval, index, kernel)
            for index, call in enumerate(calls)
            for kernel in call.kernels
            if (interval := overlap.interval_of(kernel)) is not None
        ),
        key=lambda run: run[:2],  # kernels that run together have no order of their own
    )
    waiting = [i for i, call in enumerate(calls) if call.syncs]
    end = runs[0][0][0] if runs and not from_start else 0.0
    last = 0
    for (begin, finish), index, kernel in runs:
        if begin > end:
            yield _cause(calls, waiting, last, index, kernel), calls[index], begin - end
        if finish > end:
            end, last = finish, index


def _cause(
    calls: Sequence[Call], waiting: Sequence[int], last: int, following: int, kernel: Kernel
) -> str:
    """The cause of the gap between call `last` and a kernel of call `following`.

    `waiting` holds the positions of the calls after which the host waits for the GPU, in order.
    """
    if kernel_names.copies_to_gpu(kernel.name):
        return "input"
    if any(ops.kind(calls[i].op) is Kind.COLLECTIVE for i in (last, following)):
        return "communication"
    first = bisect.bisect_left(waiting, last)
    return "synchronisation" if first < len(waiting) and waiting[first] <= following else "host"
