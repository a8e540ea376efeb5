"""The timeline of host and GPU as data for the script of a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from wavecast import ops
from wavecast.report.html.breakdown import Names
from wavecast.report.html.colors import color_of_kind
from wavecast.report.html.markup import Html, element, table
from wavecast.report.tables import Column
from wavecast.report.units import duration
from wavecast.steps.chrome_trace import host_name, stream_name
from wavecast.steps.timetable import Timetable
from wavecast.traces.arrays import Codes
from wavecast.traces.step import Call

UNIT_S = 1e-8
"""Times are whole numbers of this many seconds."""
MOST_SPANS = 50_000
"""How many spans one row holds; more are joined with their neighbours."""
_LONGEST = 10


def spans_of(table_of: Timetable) -> int:
    """How many spans the rows of a timeline hold, joined ones counted once."""
    rows = [table_of.issue_s, *(table_of.gpu_s[_on(table_of, s)] for s in table_of.streams)]
    return sum(min(MOST_SPANS, int(np.count_nonzero(row))) for row in rows)


def timeline(table_of: Timetable, names: Names) -> dict[str, Any]:
    """The rows of a timeline: one for the host, one for each stream.

    Each call has an op, a module and a color. A row has, for each of its spans, the time since the
    end of the one before, its length, the call (relative to the one before), and how many calls
    were joined.
    """
    calls = table_of.calls
    every = np.arange(len(calls))
    rows = [_row(host_name(table_of), every, table_of.issued_s, table_of.issue_s)]
    for stream in table_of.streams:
        chosen = _on(table_of, stream)
        rows.append(_row(stream_name(stream), chosen, table_of.begin_s, table_of.gpu_s))
    by_op: dict[str, list[int]] = {}
    for call in calls:
        if call.op.base not in by_op:
            color = color_of_kind(str(ops.kind(call.op) or "unknown"))
            by_op[call.op.base] = [names.position(call.op.base), color]
    order = {name: index for index, name in enumerate(by_op)}
    return {
        "unit": UNIT_S,
        "step": _whole(table_of.seconds),
        "end": _whole(table_of.end_s),
        "ops": list(by_op.values()),
        "op": [order[call.op.base] for call in calls],
        "module": _changes([names.position(call.module) for call in calls]),
        "phase": _phases(table_of),
        "waits": [[_whole(begin), _whole(end - begin)] for begin, end in table_of.waits],
        "rows": rows,
    }


def _on(table_of: Timetable, stream: int) -> Codes:
    """The positions of the calls of a stream."""
    return np.array(
        [i for i, call in enumerate(table_of.calls) if call.stream == stream], dtype=int
    )


def _whole(seconds: float) -> int:
    return round(seconds / UNIT_S)


def _row(name: str, chosen: Codes, begin_s: Any, length_s: Any) -> dict[str, Any]:
    chosen = chosen[length_s[chosen] > 0]
    chosen = chosen[np.argsort(begin_s[chosen], kind="stable")]
    first = np.round(begin_s[chosen] / UNIT_S).astype(np.int64)
    last = np.maximum(first + 1, np.round((begin_s + length_s)[chosen] / UNIT_S).astype(np.int64))
    size = max(1, -(-len(chosen) // MOST_SPANS))
    if size > 1:
        first, last, chosen = _joined_neighbours(first, last, chosen, length_s, size)
    before = np.concatenate(([0], last[:-1])) if len(last) else last
    return {
        "name": name,
        "gap": (first - before).tolist(),
        "length": (last - first).tolist(),
        "call": np.diff(chosen, prepend=0).tolist(),
        "joined": size,
    }


def _joined_neighbours(
    first: Codes, last: Codes, chosen: Codes, length_s: Any, size: int
) -> tuple[Codes, Codes, Codes]:
    """Spans joined in groups of neighbours; each is named after its longest call."""
    starts = np.arange(0, len(first), size)
    longest = [
        int(part[np.argmax(length_s[part])])
        for part in (chosen[start : start + size] for start in starts)
    ]
    return first[starts], np.maximum.reduceat(last, starts), np.array(longest)


def _changes(values: Sequence[int]) -> list[int]:
    """A list in which most neighbours are equal, as pairs: a value, and how often it follows."""
    pairs: list[int] = []
    for value, group in groupby(values):
        pairs += [value, sum(1 for _ in group)]
    return pairs


def _phases(table_of: Timetable) -> list[list[Any]]:
    """Where the phases begin and end on the GPU."""
    begin_s, end_s = table_of.begin_s, table_of.begin_s + table_of.gpu_s
    busy = np.flatnonzero(table_of.gpu_s > 0)
    found: list[list[Any]] = []
    for phase, group in groupby(busy.tolist(), key=lambda index: table_of.calls[index].phase):
        indices = list(group)
        ends = _whole(float(begin_s[indices].min())), _whole(float(end_s[indices].max()))
        found.append([str(phase), *ends])
    return found


def longest_calls(table_of: Timetable) -> Html:
    """The calls that run longest on the GPU."""
    order: Iterable[int] = np.argsort(-table_of.gpu_s, kind="stable")[:_LONGEST].tolist()
    longest = [index for index in order if table_of.gpu_s[index] > 0]
    calls = [table_of.calls[index] for index in longest]
    columns = [
        Column("op", [call.op.base for call in calls], left=True),
        Column("module", [call.module or f"({call.phase})" for call in calls], left=True),
        Column("phase", [str(call.phase) for call in calls], left=True),
        *_sources(calls),
        Column("begins", [duration(float(table_of.begin_s[index])) for index in longest]),
        Column("takes", [duration(float(table_of.gpu_s[index])) for index in longest]),
    ]
    return table(columns, caption="The longest calls on the GPU")


def _sources(calls: Sequence[Call]) -> list[Column]:
    """The lines of source that compiled kernels come from, if there are any."""
    lines = [call.line for call in calls]
    return [Column("source", lines, left=True)] if any(lines) else []


def timeline_place(subject: str) -> Html:
    """The place where the script draws a timeline, with its controls."""
    buttons = [
        element("button", label, type="button", data_do=what, aria_label=spoken)
        for what, label, spoken in (
            ("in", "+", "Zoom in"),
            ("out", "\N{MINUS SIGN}", "Zoom out"),
            ("left", "\N{LEFTWARDS ARROW}", "Earlier"),
            ("right", "\N{RIGHTWARDS ARROW}", "Later"),
            ("all", "whole step", "Show the whole step"),
        )
    ]
    canvas = element(
        "canvas",
        "A timeline of host and GPU; the table below lists the longest calls.",
        tabindex="0",
        role="application",
        aria_label="Timeline of host and GPU. Arrow keys move, plus and minus zoom, "
        "comma and full stop go from call to call, Page Up and Page Down change the row.",
    )
    return element(
        "div",
        element("div", *buttons, class_="buttons", role="group", aria_label="Zoom"),
        canvas,
        element("p", class_="reading", role="status", aria_live="polite"),
        class_="timeline needs-script",
        data_subject=subject,
    )
