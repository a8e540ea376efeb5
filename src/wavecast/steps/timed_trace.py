"""A trace with the times of its calls on one GPU and its host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from wavecast.hardware.hosts import HostModel, Seconds
from wavecast.steps.kernel_gaps import kernel_gaps
from wavecast.steps.op_times import Answers
from wavecast.steps.pace import Pace
from wavecast.steps.player import (
    ORDERING,
    StepTime,
    communicators,
    play_one_stream,
    play_streams,
)
from wavecast.steps.timetable import Timetable
from wavecast.steps.work import StepWork, work_of
from wavecast.traces.arrays import Codes, StepArrays, encode
from wavecast.traces.step import Call, Phase, Trace

_BACKWARD = list(Phase).index(Phase.BACKWARD)

Coded = tuple[Sequence[str], Codes]
"""Distinct names, and the position of each call's name among them."""


@dataclass(frozen=True, eq=False)
class TimedTrace:
    """What one GPU runs, the estimates of its ops, and the host that issues them."""

    trace: Trace
    answers: Answers
    """The estimate for each distinct piece of work of the trace."""
    host: HostModel
    pace: Pace | None = None
    """The corrections that make a measured step take its measured time. None for a traced step."""
    has_gaps: bool = False
    """Whether the GPU idles between kernels in a traced step, beyond the estimates of its ops."""
    slowdown: float = 0.0
    """A kernel takes 1 + this times as long while a collective runs beside it."""

    @property
    def arrays(self) -> StepArrays:
        """The calls as columns."""
        return self.trace.arrays

    @cached_property
    def work(self) -> StepWork:
        """The distinct pieces of work."""
        return work_of(self.trace)

    @cached_property
    def op_s(self) -> NDArray[np.float64]:
        """Seconds, low and high end of each distinct piece of work, one row each."""
        nothing = (0.0, 0.0, 0.0)
        rows = [(a.seconds, a.low_s, a.high_s) if a else nothing for a in self.answers]
        return np.array(rows).reshape(-1, 3)

    @cached_property
    def call_s(self) -> Seconds:
        """The GPU time of each call, in seconds."""
        seconds: Seconds = self.op_s[self.arrays.work, 0]
        return seconds if self.pace is None else seconds * self.pace.exposure

    def coded(self, names: Sequence[str]) -> Coded:
        """The name of each call, from one for each distinct piece of work."""
        distinct, codes = encode(names)
        return distinct, codes[self.arrays.work]

    @cached_property
    def step(self) -> StepTime:
        """The times of one iteration in the steady state of many."""
        return self.play()

    @property
    def turn(self) -> int:
        """The position where the backward pass begins."""
        backward = np.flatnonzero(self.arrays.phase == _BACKWARD)
        return int(backward[0]) if len(backward) else len(self.trace)

    def play(
        self,
        begin: int = 0,
        end: int | None = None,
        *,
        gpu_factor: float = 1.0,
        host_factor: float = 1.0,
    ) -> StepTime:
        """The times of the calls from one position to another, repeated as in a training."""
        part = slice(begin, len(self.trace) if end is None else end)
        # Of the whole trace, since a forward pass alone would count as one without a backward pass.
        issue_s = (self._issue_s * host_factor)[part]
        gpu_s = (self.call_s * gpu_factor + self._gap_s)[part]
        syncs = [at - begin for at in self._syncs if part.start <= at < part.stop]
        trip_s = self.host.trip_s
        if self._is_one_stream or not self.arrays.stream[part].any():
            return play_one_stream(issue_s, gpu_s, syncs, trip_s)
        queue = self.trace.calls[part], issue_s, gpu_s, syncs, trip_s, self.slowdown
        return _played(_Queue(queue, self.arrays.stream[part]))

    @cached_property
    def timetable(self) -> Timetable:
        """When each call is issued by the host and runs on the GPU."""
        issue_s, busy_s = self._issue_s, self.taken_s
        queue = self.trace.calls, issue_s, busy_s, self._syncs, self.host.trip_s, self.slowdown
        table = play_streams(*queue, one_stream=self._is_one_stream)
        if not self._is_one_stream:
            return table
        # The sums of both players differ in their last digit; a step has one time.
        return replace(table, gpu_s=self.call_s, seconds=self.play().seconds)

    @cached_property
    def _issue_s(self) -> Seconds:
        """The host's time for each call, in seconds; kept, since passes are played one by one."""
        return issue_times(self.arrays, self.host)

    @property
    def _is_one_stream(self) -> bool:
        """Whether all calls run one after the other: overlap of a measured step is in its pace."""
        return self.pace is not None or not self.arrays.stream.any()

    @property
    def _syncs(self) -> tuple[int, ...]:
        """The positions of the calls after which the host waits and the GPU idles."""
        return self.arrays.syncs if self.pace is None or self.pace.waits else ()

    @property
    def taken_s(self) -> Seconds:
        """The time for which each call takes its stream: its kernels, and the gaps after them."""
        taken: Seconds = self.call_s + self._gap_s
        return taken

    @property
    def _gap_s(self) -> Seconds | float:
        """The GPU's idle time between the kernels of each call, in seconds."""
        if self.pace is None and not self.has_gaps:
            return 0.0
        gaps_s = self.host.kernel_gaps(self.trace.calls)
        if gaps_s is not None:
            return gaps_s
        if self.pace is not None:
            return self.pace.gap_s
        return kernel_gaps(self.arrays) * (self.call_s > 0)  # an op without an answer takes no time


class _Queue:
    """The arguments of `play_streams`, equal if they are played alike.

    Then times, streams, waits and the communicators of collectives are equal.
    """

    def __init__(self, arguments: _Arguments, streams: Codes) -> None:
        self.arguments = arguments
        calls, issue_s, gpu_s, syncs, *constants = arguments
        times = b"".join(column.tobytes() for column in (issue_s, gpu_s, streams))
        orders = [(at, call.op) for at, call in enumerate(calls) if call.op.name in ORDERING]
        exchanges = tuple(communicators(calls))
        self._key = blake2b(times).digest(), exchanges, *orders, *syncs, *constants

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Queue) and self._key == other._key


_Arguments = tuple[tuple[Call, ...], Seconds, Seconds, list[int], float, float]


@lru_cache(maxsize=256)  # stages of a pipeline, and strategies that differ elsewhere, repeat them
def _played(queue: _Queue) -> StepTime:
    _, issue_s, _, syncs, trip_s, _ = queue.arguments
    table = play_streams(*queue.arguments)
    return StepTime(
        seconds=table.seconds,
        gpu_s=table.compute_s,
        host_s=float(issue_s.sum()) + trip_s * len(syncs),
        communication_s=table.communication_s,
        exposed_s=table.exposed_s,
    )


@lru_cache(maxsize=16)
def issue_times(arrays: StepArrays, host: HostModel) -> Seconds:
    """The host's time for each call of a step, waiting not included."""
    return host.issue_times(arrays.calls)
