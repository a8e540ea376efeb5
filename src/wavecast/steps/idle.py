"""Why the GPU idled in a measured step: gaps between kernels, by cause."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

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
    runs = sorted(
        (interval, index, kernel)
        for index, call in enumerate(calls)
        for kernel in call.kernels
        if (interval := overlap.interval_of(kernel)) is not None
    )
    waiting = [i for i, call in enumerate(calls) if call.syncs]
    end = runs[0][0][0] if runs and not from_start else 0.0
    last = 0
    for (begin, finish), index, kernel in runs:
        if begin > end:
            gaps[_cause(calls, waiting, last, index, kernel)] += begin - end
        if finish > end:
            end, last = finish, index
    total = sum(gaps.values())
    if not total:
        return gaps | {"host": idle_s}
    return {cause: idle_s * gap / total for cause, gap in gaps.items()}


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
