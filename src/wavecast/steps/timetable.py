"""When each call of a step is issued by the host, and when it runs on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavecast.hardware.hosts import Seconds
from wavecast.traces.step import Call, Op, Phase, Trace

COMPUTE = 0
"""The stream of the kernels. All others carry collectives and copies."""


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

    @cached_property
    def compute_s(self) -> float:
        """The time of an iteration in which the compute stream is busy."""
        return self._covered_s(self._computing)

    @cached_property
    def communication_s(self) -> float:
        """The time of an iteration in which at least one other stream is busy."""
        return self._covered_s(~self._computing)

    @property
    def exposed_s(self) -> float:
        """The part of `communication_s` in which the compute stream waits."""
        either_s = self._covered_s(np.ones(len(self.calls), dtype=bool))
        return max(either_s - self.compute_s, 0.0)

    @cached_property
    def _computing(self) -> NDArray[np.bool_]:
        return np.array([call.stream == COMPUTE for call in self.calls], dtype=bool)

    def _covered_s(self, chosen: NDArray[np.bool_]) -> float:
        """The time of an iteration in which any of the chosen calls runs.

        Calls that run beyond the end of their iteration run at the beginning of the next one.
        """
        chosen = chosen & (self.gpu_s > 0)
        begin_s = np.mod(self.begin_s[chosen], self.seconds)
        end_s = begin_s + np.minimum(self.gpu_s[chosen], self.seconds)
        over_s = end_s[end_s > self.seconds] - self.seconds
        begin_s = np.concatenate((begin_s, np.zeros_like(over_s)))
        end_s = np.concatenate((np.minimum(end_s, self.seconds), over_s))
        order = np.argsort(begin_s, kind="stable")
        reached_s = np.maximum.accumulate(end_s[order])
        before_s = np.concatenate(([0.0], reached_s))[: len(reached_s)]
        return float(np.maximum(reached_s - np.maximum(begin_s[order], before_s), 0.0).sum())


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
