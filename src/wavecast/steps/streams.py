"""The time of a step whose work runs on several streams of the GPU, as collectives do.

The host issues calls in order. Each stream runs its calls in order, each only after it was issued.
A stream that waits for another starts its next call when that other stream has ended what was
issued to it before. While a collective runs, kernels are slower, since it takes part of the GPU and
of its memory bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from wavecast.hardware.hosts import Seconds
from wavecast.traces.step import Call

COMPUTE = 0
"""The stream of the kernels. All others carry collectives and copies."""

_ITERATIONS = 3
"""The steady state is reached in the second iteration and measured in the third."""


@dataclass(frozen=True)
class StreamTimes:
    """The times of one iteration in the steady state of many."""

    seconds: float
    """The iteration's wall-clock time."""
    compute_s: float
    """The time of the kernels on the compute stream, slowed where collectives run beside them."""
    communication_s: float
    """The time in which at least one other stream is busy."""
    exposed_s: float
    """The part of `communication_s` in which the compute stream is idle."""
    host_s: float
    """The time that the host needs to issue the calls, synchronisation costs included."""
    begin_s: Seconds
    """When each call begins on the GPU, from the beginning of the iteration."""
    end_s: Seconds
    """When each call ends there."""
    issued_s: Seconds
    """When the host begins to issue each call."""


@dataclass
class _Play:
    """The state of host and streams at one moment of the issuing."""

    slowdown: float
    host_s: float = 0.0
    free_s: dict[int, float] = field(default_factory=dict)
    """When each stream has ended what was issued to it."""
    events_s: dict[object, float] = field(default_factory=dict)
    """When each recorded event happens."""
    busy: list[tuple[float, float]] = field(default_factory=list)
    """The stretches in which collectives run, in the order in which they were issued."""

    def end_s(self) -> float:
        return max([self.host_s, *self.free_s.values()])

    def run(self, stream: int, seconds: float) -> tuple[float, float]:
        """When a call that is issued now begins and ends."""
        begin_s = max(self.host_s, self.free_s.get(stream, 0.0))
        if stream == COMPUTE:
            end_s = self._slowed_end(begin_s, seconds)
        else:
            end_s = begin_s + seconds
            if seconds > 0:
                self.busy.append((begin_s, end_s))
        self.free_s[stream] = end_s
        return begin_s, end_s

    def _slowed_end(self, begin_s: float, seconds: float) -> float:
        """When a kernel ends that is slower wherever it runs beside a collective."""
        at_s = begin_s
        if self.slowdown:
            self.busy = [stretch for stretch in self.busy if stretch[1] > begin_s]
            for first_s, last_s in self.busy:
                alone_s = max(first_s - at_s, 0.0)
                if seconds <= alone_s:
                    break
                seconds, at_s = seconds - alone_s, at_s + alone_s
                if last_s <= at_s:
                    continue
                beside_s = min(last_s - at_s, seconds * (1 + self.slowdown))
                seconds, at_s = seconds - beside_s / (1 + self.slowdown), at_s + beside_s
                if seconds <= 0:
                    break
        return at_s + max(seconds, 0.0)

    def wait(self, call: Call) -> None:
        """Let the stream of a call wait for another stream or for an event."""
        other = call.op.attr("stream")
        event = call.op.attr("event")
        if isinstance(other, int):
            reached_s = self.free_s.get(other, 0.0)
        elif event is not None:
            reached_s = self.events_s.get(event, 0.0)
        else:  # it was not recorded for what it waits: for everything
            reached_s = max(self.free_s.values(), default=0.0)
        self.free_s[call.stream] = max(self.free_s.get(call.stream, 0.0), reached_s)


def play_streams(
    calls: Sequence[Call],
    issue_s: Seconds,
    gpu_s: Seconds,
    *,
    slowdown: float = 0.0,
    sync_s: float = 0.0,
) -> StreamTimes:
    """The time of one iteration of a step that uses several streams.

    Args:
        calls: the calls of the step, with streams and waits.
        issue_s: the host's time for each call.
        gpu_s: the GPU time of each call when nothing else runs.
        slowdown: a kernel takes 1 + this times as long while a collective runs.
        sync_s: seconds that one synchronisation costs beyond waiting for the GPU.
    """
    play = _Play(slowdown)
    issues, times = issue_s.tolist(), gpu_s.tolist()
    begin_s, end_s, issued_s = np.zeros((3, len(calls)))
    before_s = 0.0
    for _ in range(_ITERATIONS):
        before_s = play.end_s()
        for index, call in enumerate(calls):
            issued_s[index] = play.host_s
            play.host_s += issues[index]
            if call.op.name == "cuda.stream_wait":
                play.wait(call)
            elif call.op.name == "cuda.event_record":
                play.events_s[call.op.attr("event")] = play.free_s.get(call.stream, 0.0)
            begin_s[index], end_s[index] = play.run(call.stream, times[index])
            if call.syncs:
                play.host_s = play.end_s() + sync_s
    streams = np.array([call.stream for call in calls], dtype=int)
    computing = _merged(begin_s[streams == COMPUTE], end_s[streams == COMPUTE])
    communicating = _merged(begin_s[streams != COMPUTE], end_s[streams != COMPUTE])
    both_s = (
        _length(computing) + _length(communicating) - _length(_joined(computing, communicating))
    )
    # Streams that never wait for each other drift apart, and the slowest sets the pace.
    busiest_s = max(
        float(gpu_s[streams == stream].sum()) for stream in {COMPUTE, *streams.tolist()}
    )
    return StreamTimes(
        seconds=max(play.end_s() - before_s, busiest_s),
        compute_s=_length(computing),
        communication_s=_length(communicating),
        exposed_s=_length(communicating) - both_s,
        host_s=float(issue_s.sum()) + sync_s * sum(call.syncs for call in calls),
        begin_s=begin_s - before_s,
        end_s=end_s - before_s,
        issued_s=issued_s - before_s,
    )


_Stretches = tuple[Seconds, Seconds]


def _merged(begin_s: Seconds, end_s: Seconds) -> _Stretches:
    """The stretches covered by any of the given ones, which may overlap."""
    if not len(begin_s):
        return begin_s, end_s
    order = np.argsort(begin_s, kind="stable")
    begin_s, reached_s = begin_s[order], np.maximum.accumulate(end_s[order])
    first = np.concatenate(([True], begin_s[1:] > reached_s[:-1]))
    last = np.concatenate((first[1:], [True]))
    return begin_s[first], reached_s[last]


def _joined(some: _Stretches, others: _Stretches) -> _Stretches:
    return _merged(np.concatenate((some[0], others[0])), np.concatenate((some[1], others[1])))


def _length(stretches: _Stretches) -> float:
    return float((stretches[1] - stretches[0]).sum())
