"""A trace with the times of its calls on one GPU and its host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.hardware.hosts import GRAPH_GAP_S, HostModel, Seconds, kernels
from wavecast.ops import Kind
from wavecast.steps.op_times import Answers, StepWork, work_of
from wavecast.steps.player import (
    ORDERING,
    StepTime,
    Timetable,
    communicators,
    play_one_stream,
    play_streams,
)
from wavecast.traces import file
from wavecast.traces.arrays import Codes, StepArrays, encode
from wavecast.traces.graphs import XLA_CALL, graphs_of
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


# The GPU's idle time between kernels that follow each other, where op times leave it out.
#
# Op times of a chip that we measured are those of its kernels alone. The public op times of other
# chips come from loops over one op, which include what lies between two kernels.


GAP_S = 1.4e-6
"""Seconds between two kernels that PyTorch launches one by one. The median of (wall-clock - busy
time) / kernels is 1.46, 1.37 and 1.33 us in the 84 steps of the campaigns `suite`, `population` and
`measured` on our H200 whose host needs less than 0.65 of the GPU's time."""

XLA_GAP_S = 0.0
"""The same for XLA, which puts its kernels into command buffers. Its kernels were fitted as they
run one by one, a little slower than in a buffer: the median of (wall-clock - their sum) / kernels
is -0.03 us in 20 steps with cuDNN's convolutions and -0.18 us in 25 others
(measurements/h200/jax)."""


@lru_cache(maxsize=16)
def kernel_gaps(arrays: StepArrays) -> Seconds:
    """The idle time after the kernels of each call; less where they are replayed as a graph."""
    calls = arrays.calls
    gaps_s = np.full(len(calls), GAP_S)
    for graph in graphs_of(calls):
        by_xla = any(calls[mark].op.name == XLA_CALL for mark in graph.marks)
        if by_xla:
            gaps_s[list(graph.members)] = XLA_GAP_S
        elif graph.is_replayed:
            gaps_s[list(graph.members)] = GRAPH_GAP_S
    idle_s: Seconds = gaps_s * kernels(calls)
    return idle_s


# The pace of a measured step: corrections that make its parts add up to its measured time.
#
# Kernels on several streams overlap, the GPU idles between kernels, and no profiler sees the
# host's time between ops. The pace holds these three effects, so that a measured step, predicted
# for its own GPU, takes the time that was measured.


_SMALLEST_HOST_FACTOR = 0.5
"""The recording slows the host down, at most by the inverse of this factor. If a step is faster
than even that explains, its GPU is taken to have other work while the host waits."""


@dataclass(frozen=True)
class Pace:
    """The corrections that make the parts of a measured step add up to its measured time."""

    exposure: Seconds
    """The share of each call's kernel time that no other kernel covers. The other kernel may be
    one of this step or, where steps overlap, one of the steps before and after."""
    gap_s: Seconds
    """The idle time between the kernels of each call, in seconds. A faster GPU does not shorten
    it."""
    host_factor: float
    """The host's recorded times are multiplied by this."""
    waits: bool = True
    """Whether the GPU idles while the host waits. False when it has work of other steps then."""


def pace_of(
    calls: Sequence[Call], issue_s: Seconds, measured_s: float | None, sync_s: float = 0.0
) -> Pace:
    """The pace of measured calls.

    Args:
        calls: the calls of the step, with their kernels.
        issue_s: the host's recorded time for each call.
        measured_s: the measured time of the whole step. None when unknown; the parts are then
            used without corrections.
        sync_s: seconds that one synchronisation costs beyond waiting for the GPU.
    """
    hidden = [ops.kind(call.op) is Kind.COLLECTIVE for call in calls]
    exposed = np.array(file.exposed_s(calls, hidden), dtype=float)
    total = np.array([sum(k.seconds for k in call.kernels) for call in calls], dtype=float)
    if measured_s is not None and exposed.sum() > measured_s:
        exposed *= measured_s / exposed.sum()  # the rest ran beside the steps before and after
    exposure = np.divide(exposed, total, out=np.ones_like(total), where=total > 0)
    launches = np.array([float(len(call.kernels)) for call in calls])
    if measured_s is None:
        return Pace(exposure, np.zeros_like(total), 1.0)
    syncs = [i for i, call in enumerate(calls) if call.syncs]

    def step_s(host: float, gap: float, waits: bool = True) -> float:
        after, cost_s = (syncs, sync_s * host) if waits else ((), 0.0)
        return play_one_stream(issue_s * host, exposed + gap * launches, after, cost_s).seconds

    waits = step_s(_SMALLEST_HOST_FACTOR, 0.0) <= measured_s
    host, gap = _reconcile(partial(step_s, waits=waits), issue_s, exposed, launches, measured_s)
    return Pace(exposure, gap * launches, host, waits)


def _reconcile(
    step_s: Callable[[float, float], float],
    issue_s: Seconds,
    gpu_s: Seconds,
    launches: Seconds,
    measured_s: float,
) -> tuple[float, float]:
    """The host factor and the gap per kernel with which the step takes the measured time.

    If the step took longer than its parts explain, the slower side is made slower: the host by a
    factor above 1, or the GPU by gaps between kernels. If it took less, the recording had slowed
    the host down, and the host gets a factor below 1. Kernel times are never changed.
    """
    if step_s(1.0, 0.0) > measured_s:
        return _solve(lambda host: step_s(host, 0.0), measured_s, 0.0, 1.0), 0.0
    if gpu_s.sum() >= issue_s.sum():
        most = measured_s / max(launches.sum(), 1.0)
        return 1.0, _solve(lambda gap: step_s(1.0, gap), measured_s, 0.0, most)
    most = measured_s / float(issue_s.sum())
    return _solve(lambda host: step_s(host, 0.0), measured_s, 1.0, max(most, 1.0)), 0.0


def _solve(rising: Callable[[float], float], goal: float, low: float, high: float) -> float:
    """The argument at which a non-decreasing function reaches `wanted`, found by bisection.

    The nearest end of the interval when it never does.
    """
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < goal else (low, middle)
    return high
