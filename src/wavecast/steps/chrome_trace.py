"""Predicted steps in the Trace Event Format, which Perfetto and chrome://tracing show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from wavecast import ops
from wavecast.steps.player import COMPUTE, Timetable
from wavecast.traces.step import Call, TensorSpec

MADE_BY = "wavecast"
"""The value of the key "generator", by which readers tell a prediction from a measurement."""

_HOST = 0
_MOST_SHAPES = 8
"""How many tensors of an op are listed: an optimizer's op may have thousands."""


def chrome_trace(steps: Mapping[str, Timetable]) -> str:
    """The steps as JSON, one process for each, with a thread for the host and for each stream.

    Args:
        steps: the timetable of each step, by what it is called: "h100-sxm-80gb".
    """
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
        "inputs": [_shape(tensor) for tensor in call.op.inputs[:_MOST_SHAPES]],
        **({"source": call.line} if call.line else {}),
    }


def _shape(tensor: TensorSpec) -> str:
    return f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
