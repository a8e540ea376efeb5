"""The player: the time of a step from the times of its calls on the host and on the GPU.

The host issues calls in order, and each costs it time. Each stream of the GPU runs its calls in
order, each only after it was issued. A stream that waits for another starts its next call when the
other has ended what was issued to it before. At a synchronisation the host waits for all streams.
Collectives of one communicator run one after the other, on whatever streams they are: NCCL has one
set of buffers for them.
While a collective runs, kernels are slower, since it takes part of the GPU and of its memory
bandwidth. Iterations follow each other: without a synchronisation the host already issues the next
iteration while the GPU works on this one.

`play_streams` simulates all this. `play_one_stream` gives the same times for a step on one stream,
without simulating each call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.hardware.hosts import Seconds
from wavecast.traces.step import Call, Op, Phase, Trace

ORDERING = frozenset({"cuda.stream_wait", "cuda.event_record"})
"""The ops that let a stream wait for another one."""
_OF_ALL_RANKS = frozenset({"nccl.all_gather", "nccl.all_reduce", "nccl.reduce_scatter"})
"""Collectives that share the communicator of their ranks. Tokens of experts and pipelines have
communicators of their own."""
_ITERATIONS = 3
"""The steady state is reached in the second iteration and measured in the third."""


@dataclass(frozen=True)
class StepTime:
    """The times of one iteration in the steady state of many."""

    seconds: float
    """The iteration's wall-clock time."""
    gpu_s: float
    """The time that the compute stream needs, gaps between kernels included."""
    host_s: float
    """The time that the host needs to issue the ops, synchronisation costs included."""
    communication_s: float = 0.0
    """The time in which at least one other stream is busy."""
    exposed_s: float = 0.0
    """The part of `communication_s` in which the compute stream waits."""

    @property
    def bound_by(self) -> str:
        """What limits the step: "gpu", "host", or "both" where they wait for each other."""
        if max(self.gpu_s, self.host_s) < 0.9 * self.seconds:
            return "both"
        return "gpu" if self.gpu_s >= self.host_s else "host"


def play_one_stream(
    issue_s: Seconds, gpu_s: Seconds, syncs: Sequence[int], sync_s: float = 0.0
) -> StepTime:
    """The time of one iteration of a step on one stream."""
    host_total, gpu_total = float(issue_s.sum()), float(gpu_s.sum())
    if not syncs:
        # Two servers in a row, each working in order: the slower one limits the rate.
        return StepTime(max(host_total, gpu_total), gpu_total, host_total)
    # After each wait, host and GPU start together. What follows the last wait of an iteration runs
    # on into the next iteration, so the calls are rotated to begin after that wait.
    shift = -(syncs[-1] + 1)
    issue_s, gpu_s = np.roll(issue_s, shift), np.roll(gpu_s, shift)
    ends = [(end + shift) % len(issue_s) + 1 for end in syncs]
    seconds, begin = 0.0, 0
    for end in sorted(ends):
        seconds += _finish_s(issue_s[begin:end], gpu_s[begin:end]) + sync_s
        begin = end
    return StepTime(seconds, gpu_total, host_total + sync_s * len(ends))


def _finish_s(issue_s: Seconds, gpu_s: Seconds) -> float:
    """When the GPU finishes calls that it can start only once they are issued, in seconds."""
    if not len(issue_s):  # two waits at one call
        return 0.0
    issued = np.cumsum(issue_s)
    # finish = max over k of (issued[k] + the GPU time of call k and all later calls)
    remaining = np.cumsum(gpu_s[::-1])[::-1]
    return float((issued + remaining).max())


@dataclass
class _Streams:
    """The state of the streams at one moment of the issuing."""

    slowdown: float
    free_s: dict[int, float] = field(default_factory=dict)
    """When each stream has ended what was issued to it."""
    events_s: dict[object, float] = field(default_factory=dict)
    """When each recorded event happens."""
    exchanged_s: dict[object, float] = field(default_factory=dict)
    """When each communicator has ended what was issued to it."""
    busy: list[tuple[float, float]] = field(default_factory=list)
    """The stretches in which collectives run, in the order in which they were issued."""

    def run(
        self, stream: int, issued_s: float, seconds: float, communicator: object = None
    ) -> tuple[float, float]:
        """When a call begins and ends that was issued at a moment."""
        begin_s = max(issued_s, self.free_s.get(stream, 0.0))
        if communicator is not None:
            begin_s = max(begin_s, self.exchanged_s.get(communicator, 0.0))
        if stream != COMPUTE:
            end_s = begin_s + seconds
            if seconds > 0 and self.slowdown:
                self.busy.append((begin_s, end_s))
        else:
            end_s = self._slowed_end(begin_s, seconds) if self.busy else begin_s + seconds
        self.free_s[stream] = end_s
        if communicator is not None:
            self.exchanged_s[communicator] = end_s
        return begin_s, end_s

    def _slowed_end(self, begin_s: float, seconds: float) -> float:
        """When a kernel ends that is slower wherever it runs beside a collective."""
        at_s = begin_s
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

    def order(self, call: Call) -> None:
        """Let the stream of a call wait for another stream or an event, or record an event."""
        other, event = call.op.attr("stream"), call.op.attr("event")
        if call.op.name == "cuda.event_record":
            self.events_s[event] = self.free_s.get(call.stream, 0.0)
            return
        if isinstance(other, int):
            reached_s = self.free_s.get(other, 0.0)
        elif event is not None:
            reached_s = self.events_s.get(event, 0.0)
        else:  # it was not recorded for what it waits: for everything
            reached_s = max(self.free_s.values(), default=0.0)
        self.free_s[call.stream] = max(self.free_s.get(call.stream, 0.0), reached_s)


def communicators(calls: Sequence[Call]) -> Iterator[tuple[int, object]]:
    """The positions of collectives among all ranks of a group, with the communicator of each.

    The number of its ranks and how far they are apart tell it from others.
    """
    for position, call in enumerate(calls):
        if call.op.name in _OF_ALL_RANKS:
            yield position, (call.op.attr("ranks"), call.op.attr("stride"))


def play_streams(
    calls: Sequence[Call],
    issue_s: Seconds,
    gpu_s: Seconds,
    syncs: Sequence[int],
    sync_s: float = 0.0,
    slowdown: float = 0.0,
    one_stream: bool = False,
) -> Timetable:
    """The timetable of one iteration.

    Args:
        calls: the calls of the step, with streams and waits.
        issue_s: the host's time for each call.
        gpu_s: the GPU time of each call when nothing else runs.
        syncs: positions of the calls after which the host waits for the GPU.
        sync_s: seconds that one synchronisation costs beyond waiting for the GPU.
        slowdown: a kernel takes 1 + this times as long while a collective runs.
        one_stream: whether the calls of all streams run one after the other.
    """
    used = [COMPUTE] * len(calls) if one_stream else [call.stream for call in calls]
    ordering = () if one_stream else {i for i, c in enumerate(calls) if c.op.name in ORDERING}
    shared = {} if one_stream else dict(communicators(calls))
    rows, waiting = list(zip(used, issue_s.tolist(), gpu_s.tolist(), strict=True)), set(syncs)
    streams, host_s = _Streams(slowdown), 0.0
    before_s = start_s = 0.0
    spans: list[tuple[float, float, float]] = []
    for _ in range(_ITERATIONS):
        before_s, start_s = max([host_s, *streams.free_s.values()]), host_s
        spans = []
        for index, (stream, issuing_s, seconds) in enumerate(rows):
            first_s, host_s = host_s, host_s + issuing_s
            if index in ordering:
                streams.order(calls[index])
            spans.append((first_s, *streams.run(stream, host_s, seconds, shared.get(index))))
            if index in waiting:
                host_s = max([host_s, *streams.free_s.values()]) + sync_s
    issued_s, begin_s, end_s = np.array(spans, dtype=float).reshape(-1, 3).T
    # Streams that never wait for each other drift apart, and the slowest sets the pace.
    busiest_s = np.bincount(np.unique(used, return_inverse=True)[1], gpu_s).max(initial=0.0)
    seconds = max(max([host_s, *streams.free_s.values()]) - before_s, float(busiest_s))
    # A host that nothing holds back issues calls of a later iteration beside the GPU's work.
    ahead = not waiting and float(issue_s.sum()) < seconds * (1 - 1e-9)
    return Timetable(
        calls=tuple(calls),
        seconds=seconds,
        issued_s=issued_s - start_s,
        issue_s=issue_s,
        begin_s=begin_s - (before_s if ahead else start_s),
        gpu_s=end_s - begin_s,
        host_ahead=ahead,
    )


# When each call of a step is issued by the host, and when it runs on the GPU.


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
                total = sums.setdefault((call.op, call.phase, call.module), [0.0, 0.0])
                total[0] += gpu_s
                total[1] += 1
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


# Predicted steps in the Trace Event Format, which Perfetto and chrome://tracing show.


MADE_BY = "wavecast"
"""The value of the key "generator", by which readers tell a prediction from a measurement."""

_HOST = 0
_MOST_SHAPES = 8
"""How many tensors of an op are listed: an optimizer's op may have thousands."""


def chrome_trace(steps: Mapping[str, Timetable]) -> str:
    """The steps as JSON, one process for each, with a thread for the host and for each stream."""
    events: list[dict[str, Any]] = []
    for process, (name, table) in enumerate(steps.items(), start=1):
        events += _names(process, name, table)
        events += sorted(_spans(process, table), key=lambda event: float(event["ts"]))
    whole = {
        "generator": MADE_BY,
        "about": "predicted by Wavecast, not measured; one iteration in the steady state",
        "displayTimeUnit": "ms",
        "traceEvents": events,
    }
    return json.dumps(whole, allow_nan=False, separators=(",", ":"))


def stream_name(stream: int) -> str:
    """What a stream of the GPU is called."""
    return "compute" if stream == COMPUTE else f"communication {stream}"


def host_name(table: Timetable) -> str:
    """What the host's row is called: it may be working on a later step than the GPU."""
    return "host (a step ahead)" if table.host_ahead else "host"


def _names(process: int, name: str, table: Timetable) -> Iterable[dict[str, Any]]:
    """The metadata that names a process and its threads."""
    yield _metadata("process_name", process, _HOST, f"{name} (predicted)")
    yield _metadata("thread_name", process, _HOST, host_name(table))
    for stream in table.streams:
        yield _metadata("thread_name", process, 1 + stream, stream_name(stream))


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _spans(process: int, table: Timetable) -> Iterable[dict[str, Any]]:
    """The host's calls and waits, and the calls on the GPU, as complete events."""
    columns = (table.issued_s, table.issue_s, table.begin_s, table.gpu_s)
    rows = zip(table.calls, *(column.tolist() for column in columns), strict=True)
    for call, issued_s, issue_s, begin_s, gpu_s in rows:
        arguments = _arguments(call)
        if issue_s > 0:
            yield _span("host", call.op.name, (process, _HOST), issued_s, issue_s, arguments)
        if gpu_s > 0:
            thread = process, 1 + call.stream
            yield _span("gpu", call.op.name, thread, begin_s, gpu_s, arguments)
    for begin_s, end_s in table.waits:
        yield _span("wait", "wait for the GPU", (process, _HOST), begin_s, end_s - begin_s, {})


def _span(
    category: str,
    name: str,
    thread: tuple[int, int],
    begin_s: float,
    seconds: float,
    arguments: dict[str, Any],
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": thread[0],
        "tid": thread[1],
        "ts": round(begin_s * 1e6, 4),
        "dur": round(seconds * 1e6, 4),
        "args": arguments,
    }


def _arguments(call: Call) -> dict[str, Any]:
    """What a viewer shows beside a call."""
    return {
        "phase": str(call.phase),
        "module": call.module,
        "kind": str(ops.kind(call.op) or "unknown"),
        "inputs": [
            f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
            for tensor in call.op.inputs[:_MOST_SHAPES]
        ],
        **({"source": call.line} if call.line else {}),
    }
