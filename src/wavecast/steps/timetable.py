"""When each call of a predicted step is issued by the host, and when it runs on the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from wavecast.hardware.hosts import Seconds
from wavecast.steps.streams import COMPUTE, StreamTimes
from wavecast.traces.step import Call, Op, Phase, Trace


class Work(NamedTuple):
    """Equal calls of one module and phase, taken together."""

    op: Op
    phase: Phase
    module: str
    seconds: float
    """Their time on the GPU."""
    calls: int


@dataclass(frozen=True, eq=False)
class Timetable:
    """One iteration in the steady state of many: where each call is on the host and on the GPU.

    Times are seconds from the beginning of the iteration. Where the host is ahead of the GPU, the
    calls that it issues meanwhile are those of a later iteration (`host_ahead`).
    """

    calls: tuple[Call, ...]
    seconds: float
    """The wall-clock time of one iteration: the next one begins then."""
    issued_s: Seconds
    """When the host begins to issue each call."""
    issue_s: Seconds
    """How long that takes."""
    begin_s: Seconds
    """When each call begins on the GPU."""
    gpu_s: Seconds
    """How long it runs there; 0 for calls without a kernel, and for those without a prediction."""
    host_ahead: bool = False
    """Whether the host works on a later iteration than the GPU."""

    def __repr__(self) -> str:
        return f"Timetable({len(self.calls)} calls, seconds={self.seconds:.4g})"

    @cached_property
    def streams(self) -> tuple[int, ...]:
        """The streams that run something, the compute stream first."""
        used = {call.stream for call, gpu_s in zip(self.calls, self.gpu_s, strict=True) if gpu_s}
        return (COMPUTE, *sorted(used - {COMPUTE}))

    @cached_property
    def works(self) -> tuple[Work, ...]:
        """The calls that run on the GPU, equal ones of a module and phase taken together."""
        sums: dict[tuple[Op, Phase, str], list[float]] = {}
        for call, gpu_s in zip(self.calls, self.gpu_s.tolist(), strict=True):
            if gpu_s > 0:
                one = sums.setdefault((call.op, call.phase, call.module), [0.0, 0.0])
                one[0] += gpu_s
                one[1] += 1
        return tuple(Work(*key, seconds, int(calls)) for key, (seconds, calls) in sums.items())

    @cached_property
    def waits(self) -> tuple[tuple[float, float], ...]:
        """When the host begins and ends to wait for the GPU, at each synchronisation."""
        after = [*self.issued_s[1:].tolist(), self.seconds + float(self.issued_s[:1].sum())]
        ends = (self.issued_s + self.issue_s).tolist()
        pairs = zip(self.calls, ends, after, strict=True)
        return tuple(
            (end, later) for call, end, later in pairs if call.syncs and later > end + 1e-12
        )

    @property
    def end_s(self) -> float:
        """When all calls have ended; later than `seconds` if the GPU ends after the host."""
        return float(max(self.seconds, np.max(self.begin_s + self.gpu_s, initial=0.0)))


def timetable(
    calls: tuple[Call, ...],
    issue_s: Seconds,
    gpu_s: Seconds,
    sync_after: Sequence[int],
    sync_s: float = 0.0,
    gap_s: Seconds | float = 0.0,
) -> Timetable:
    """The timetable of a step that runs on one stream, as `timeline.play` adds it up.

    Args:
        calls: the calls of the step.
        issue_s: the host's time for each call.
        gpu_s: the GPU time of each call.
        sync_after: positions of the calls after which the host waits for the GPU.
        sync_s: seconds that one synchronisation costs beyond waiting for the GPU.
        gap_s: the GPU's idle time between the kernels of each call.
    """
    busy_s = gpu_s + gap_s
    if not sync_after and busy_s.sum() >= issue_s.sum():
        # Nothing holds the host back, so that it is ahead and the GPU never waits.
        begin_s = np.cumsum(busy_s) - busy_s
        issued_s = np.cumsum(issue_s) - issue_s
        seconds = float(busy_s.sum())
        return Timetable(calls, seconds, issued_s, issue_s, begin_s, gpu_s, host_ahead=True)
    state, start_s = (0.0, 0.0), 0.0
    issued_s, begin_s = np.zeros(len(calls)), np.zeros(len(calls))
    for _ in range(2):  # the second iteration is that of the steady state
        start_s, last = state[0], 0
        for end in (*(position + 1 for position in sync_after), len(calls)):
            part = slice(last, end)
            issued_s[part], begin_s[part], state = _run(issue_s[part], busy_s[part], state)
            if end - 1 in sync_after and end > last:
                state = (max(state) + sync_s, state[1])
            last = end
    seconds = state[0] - start_s
    return Timetable(calls, seconds, issued_s - start_s, issue_s, begin_s - start_s, gpu_s)


def _run(
    issue_s: Seconds, busy_s: Seconds, state: tuple[float, float]
) -> tuple[Seconds, Seconds, tuple[float, float]]:
    """When calls are issued and begin on the GPU; and when host and GPU are done with them.

    Args:
        issue_s: the host's time for each call.
        busy_s: the GPU's time for each call.
        state: when the host and the GPU are done with what came before.
    """
    host_s, free_s = state
    if not len(issue_s):
        return issue_s, busy_s, state
    issued_s = host_s + np.cumsum(issue_s)
    before_s = np.cumsum(busy_s) - busy_s
    # A call begins when the one before has ended and it was issued; so what delayed any earlier
    # call delays it too.
    begin_s = before_s + np.maximum.accumulate(np.maximum(issued_s - before_s, free_s))
    return issued_s - issue_s, begin_s, (float(issued_s[-1]), float(begin_s[-1] + busy_s[-1]))


def of_streams(calls: Sequence[Call], issue_s: Seconds, times: StreamTimes) -> Timetable:
    """The timetable of a step that runs on several streams, as `play_streams` adds it up."""
    first_s = float(times.issued_s[0]) if len(calls) else 0.0
    # Drawn beside the GPU's work: what the host issues then belongs to a later iteration.
    ahead = first_s < -1e-12
    return Timetable(
        calls=tuple(calls),
        seconds=times.seconds,
        issued_s=times.issued_s - first_s if ahead else times.issued_s,
        issue_s=issue_s,
        begin_s=times.begin_s,
        gpu_s=times.end_s - times.begin_s,
        host_ahead=ahead,
    )


def of_measured(trace: Trace) -> Timetable:
    """The timetable of a measured step: when its kernels ran, as far as that was recorded.

    Kernels without a recorded time follow each other. The host's calls follow each other, too.
    """
    begin_s, gpu_s = np.zeros(len(trace)), np.zeros(len(trace))
    free_s = 0.0
    for index, call in enumerate(trace):
        starts = [kernel.start_s for kernel in call.kernels if kernel.start_s is not None]
        gpu_s[index] = sum(kernel.seconds for kernel in call.kernels)
        begin_s[index] = min(starts, default=free_s)
        free_s = max(free_s, float(begin_s[index] + gpu_s[index]))
    issue_s = np.array([call.host_s or 0.0 for call in trace], dtype=float)
    whole = None if trace.measurement is None else trace.measurement.seconds
    return Timetable(
        calls=trace.calls,
        seconds=whole or free_s or float(issue_s.sum()),
        issued_s=np.cumsum(issue_s) - issue_s,
        issue_s=issue_s,
        begin_s=begin_s,
        gpu_s=gpu_s,
    )
