"""The details of a few candidates: where time and memory go on each."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, starmap
from typing import Any, TypeVar

import numpy as np

from wavecast import ops
from wavecast.analysis.profile import RooflinePoint, roofline_points
from wavecast.footprint.memory import Memory
from wavecast.hardware.devices import Device
from wavecast.report.html.documents import Section, Subject
from wavecast.report.html.markup import (
    Html,
    Plot,
    bar,
    color_of_kind,
    element,
    empty_element,
    folded,
    html_table,
    joined,
    key,
    kind_key,
    log_axis,
    title_of,
)
from wavecast.report.results.memory import memory_parts
from wavecast.report.results.predictions import PricedStep
from wavecast.report.tables import Column, from_rows
from wavecast.report.units import (
    count,
    duration,
    one_line,
    or_unknown,
    percent,
    quantity,
    three_digits,
)
from wavecast.steps.player import Timetable, Work, host_name, stream_name
from wavecast.traces.arrays import Codes
from wavecast.traces.step import Op, Phase

MOST = 6
"""How many candidates have details: more would make the page too large."""
_MOST_SPANS = 110_000
"""How many spans the timelines of a page hold together; the first timeline is always there."""


@dataclass(frozen=True)
class Detailed:
    """A step on one GPU, or one rank of a step on several, with its timetable."""

    identity: str
    name: str
    device: Device
    moments: Timetable
    memory: Memory | None = None
    """The memory of the fullest GPU. None when unknown."""
    gpus: int = 1


@dataclass(frozen=True)
class Details:
    """The sections with details, and the data that their script needs."""

    sections: tuple[Section, ...]
    subjects: tuple[Subject, ...]
    names: tuple[str, ...]


def details(candidates: Sequence[PricedStep]) -> Details:
    """Where time and memory go, for the first of the candidates."""
    return details_of(
        [
            Detailed(
                f"{index}-{rank}",
                ", ".join(filter(None, (row.named, label))),
                row.step.device,
                moments,
                row.step.memory,
                row.step.gpus,
            )
            for index, row in enumerate(candidates[:MOST])
            for rank, (label, moments) in enumerate(row.step.timetables.items())
        ]
    )


def details_of(chosen: Sequence[Detailed]) -> Details:
    """Where time and memory go on each."""
    if not chosen:
        return Details((), (), ())
    names = Names()
    subjects: list[Subject] = []
    left = _MOST_SPANS
    for subject in chosen:
        tree = module_tree(subject.moments, names)
        data: dict[str, Any] = {"tree": tree, "timeline": None}
        spans = spans_of(subject.moments)
        if spans <= left or not subjects:
            data["timeline"] = timeline(subject.moments, names)
            left -= spans
        subjects.append(Subject(subject.identity, subject.name, data))
    return Details(tuple(_sections(chosen, subjects)), tuple(subjects), tuple(names.listed()))


def _sections(chosen: Sequence[Detailed], subjects: Sequence[Subject]) -> list[Section]:
    sections = [
        Section(
            "time",
            "Where the time goes",
            each(chosen, _time),
            "The GPU's time by kind of op, then by module. Choose a module to see what is in it.",
            "time",
        ),
        Section(
            "timeline",
            "Host, compute and communication over one step",
            joined(starmap(_timeline, zip(chosen, subjects, strict=True))),
            "One step in the steady state of many. Drag to move; click, then scroll to zoom.",
            "timeline",
        ),
    ]
    if any(subject.memory is not None for subject in chosen):
        is_shared = any(subject.gpus > 1 for subject in chosen)
        whose = "the fullest GPU's" if is_shared else "the GPU's"
        lead = f"What {whose} memory holds at the fullest moment, and over the step."
        sections.append(Section("memory", "Memory", each(chosen, _memory), lead, "memory"))
    sections.append(
        Section(
            "roofline",
            "How near the ops are to the GPU's limits",
            each(chosen, _roofline),
            "Under the sloping roof memory traffic is the limit, under the flat ones arithmetic.",
            "roofline",
        )
    )
    return sections


def subject_part(identity: str, name: str, *content: Html) -> Html:
    """A part of a section that is about one subject; the script shows one of them at a time."""
    heading = element("h3", name)
    return element("div", heading, *content, class_="subject", data_subject=identity)


def each(chosen: Sequence[Detailed], draw: Callable[[Detailed], Html]) -> Html:
    """What a section shows of each."""
    return joined(subject_part(subject.identity, subject.name, draw(subject)) for subject in chosen)


def _time(subject: Detailed) -> Html:
    return joined(
        [
            busy_bars(subject.moments),
            op_kinds(subject.moments),
            element("h4", "By module"),
            icicle(subject.identity),
            folded("Modules as a table", modules(subject.moments)),
            folded("Longest ops as a table", longest_ops(subject.moments)),
        ]
    )


def busy_bars(moments: Timetable) -> Html:
    """How much of the step the GPU and the host are busy."""
    computing = [call.stream == 0 for call in moments.calls]
    rows = [
        ("GPU computes", float(moments.gpu_s[computing].sum()), "c0"),
        (
            "GPU communicates",
            float(moments.gpu_s[[not computes for computes in computing]].sum()),
            "c11",
        ),
        ("host issues ops", float(moments.issue_s.sum()), "c4"),
    ]
    parts = []
    for name, seconds, class_ in rows:
        if seconds:
            share = seconds / moments.seconds
            text = f"{percent(share)} ({duration(seconds)})"
            drawn = bar([(min(share, 1.0), class_, text), (1.0, "free", "")], f"{name}: {text}")
            words = element("span", name), drawn, element("span", text, class_="number")
            parts.append(element("div", *words, class_="meter"))
    return element("div", *parts, class_="meters")


def _timeline(shown: Detailed, subject: Subject) -> Html:
    if subject.data["timeline"] is not None:
        drawn = timeline_place(shown.identity)
    else:
        text = "This timeline was left out to keep the page small: ask for fewer GPUs."
        drawn = element("p", text)
    drawn = joined([drawn, kind_key(used_kinds(shown.moments))])
    calls = folded("Longest calls as a table", longest_calls(shown.moments))
    return subject_part(shown.identity, shown.name, drawn, calls)


def _memory(subject: Detailed) -> Html:
    needed = subject.memory
    if needed is None:
        return element("p", "The memory of this step is not known: its trace has no allocations.")
    return joined(memory_parts(needed, subject.moments))


def _roofline(subject: Detailed) -> Html:
    gpu = subject.device
    return joined(
        [
            roofline(subject.moments, gpu),
            folded("The points as a table", roofline_table(subject.moments, gpu)),
        ]
    )


# The roofline: each op as a point under the limits of the GPU.


_NAMED = 5
"""How many points have their names beside them."""
_LEAST_NAMED = 0.02
"""The least share of the time of a point with a name."""
_LONGEST_NAME = 18
_DRAWN = 60
_ROWS = 20


def roofline(table_of: Timetable, gpu: Device) -> Html:
    """The ops of a step under the GPU's roofs, and the same as a table."""
    points = roofline_points(table_of.works, gpu)
    computing = [point for point in points if point.flops][:_DRAWN]
    if not computing:
        return element("p", "No op of this step has a formula for its FLOPs.")
    return _chart(computing, gpu, float(table_of.gpu_s.sum()) or 1.0)


def roofline_table(table_of: Timetable, gpu: Device) -> Html:
    """The points of the roofline with their numbers."""
    rows = roofline_points(table_of.works, gpu)[:_ROWS]
    whole = float(table_of.gpu_s.sum()) or 1.0
    cells = [
        (
            *(row.name, row.unit.replace("_", " ")),
            *(duration(row.seconds), percent(row.seconds / whole, 1)),
            *(three_digits(row.intensity), quantity(row.flops_per_s), quantity(row.bytes_per_s)),
            or_unknown(row.attained(gpu), percent),
        )
        for row in rows
    ]
    headings = ("<op", "<unit", "time", "share", "FLOP/B", "FLOP/s", "B/s", "of its roof")
    return html_table(from_rows(cells, *headings), caption="Ops against the limits of the GPU")


def _chart(points: Sequence[RooflinePoint], gpu: Device, whole_s: float) -> Html:
    units = list(dict.fromkeys(point.unit for point in points))
    roofs = {unit: rate for unit in units if (rate := gpu.rate(unit)) is not None}
    if not roofs:
        return element("p", f"The peak rates of {gpu.id} are not known.")
    highest = max(roofs.values())
    intensities = [point.intensity for point in points if point.intensity > 0]
    low = max(0.01, min(0.5, *intensities))
    ridge = highest / gpu.memory_bytes_per_s
    across = log_axis(low, max(4 * ridge, *intensities), _power)
    least = max(highest * 1e-5, min(point.flops_per_s for point in points))
    up = log_axis(least, highest, _power)
    up = replace(up, high=max(up.high, highest * 2.5))
    plot = Plot(across, up, height=300)
    low, slow = plot.across.low, plot.up.low  # ops that compute next to nothing are far below
    points = [point for point in points if point.intensity >= low and point.flops_per_s >= slow]
    if not points:
        return element("p", "All ops of this step compute next to nothing in their time.")
    lines = [_memory_roof(plot, gpu, highest), *_compute_roofs(plot, gpu, roofs)]
    plot = plot.with_parts([plot.stretched(*lines)])
    plot = plot.with_parts(_roof_names(plot, gpu, roofs))
    plot = plot.with_parts(_points(plot, points, gpu, whole_s))
    longest = points[0]
    label = (
        f"Roofline of {gpu.id}: {len(points)} ops. The longest, {longest.name}, has "
        f"{three_digits(longest.intensity)} FLOPs a byte and attains "
        f"{quantity(longest.flops_per_s, 'FLOP/s')}."
    )
    under = (
        "across: FLOPs for each byte of memory traffic; up: FLOP/s; the area of a point is its "
        "share of the time"
    )
    return joined([plot.drawn(label, under), kind_key(point.kind for point in points)])


def _power(value: float) -> str:
    """A power of ten with a prefix, as the marks of an axis have it: `100 T`, `0.01`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.999:
            return f"{value / size:.0f} {prefix}"
    return f"{value:g}"


def _short(point: RooflinePoint) -> str:
    name = point.name.removeprefix("aten.")
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}\N{HORIZONTAL ELLIPSIS}"


def _memory_roof(plot: Plot, gpu: Device, highest: float) -> Html:
    """The line on which memory traffic is the limit, from the edge of the plot up to the top."""
    bandwidth = gpu.memory_bytes_per_s
    first = max(plot.across.low, plot.up.low / bandwidth)
    ends = [first, highest / bandwidth]
    return empty_element(
        "polyline", points=plot.path(ends, [end * bandwidth for end in ends]), class_="roof"
    )


def _compute_roofs(plot: Plot, gpu: Device, roofs: dict[str, float]) -> Iterable[Html]:
    for rate in roofs.values():
        ends = [rate / gpu.memory_bytes_per_s, plot.across.high]
        yield empty_element("polyline", points=plot.path(ends, [rate, rate]), class_="roof")


def _roof_names(plot: Plot, gpu: Device, roofs: dict[str, float]) -> Iterable[Html]:
    used: list[float] = []
    for unit, rate in sorted(roofs.items(), key=lambda item: -item[1]):
        y = plot.y(rate) - 5
        if all(abs(y - other) > 11 for other in used):
            used.append(y)
            text = f"{unit.replace('_', ' ')} {quantity(rate, 'FLOP/s')}"
            # Above the sloping roof, where no point can be.
            x = plot.x(rate / gpu.memory_bytes_per_s * 0.9)
            yield element("text", text, x=x, y=y + 5, class_="last soft halo")
    bandwidth = gpu.memory_bytes_per_s
    text = f"memory {quantity(bandwidth, 'B/s')}"
    at = max(plot.across.low, plot.up.low / bandwidth) * 1.6
    below = min(plot.height - 4.0, plot.y(at * bandwidth) + 20)
    yield element("text", text, x=plot.x(at), y=below, class_="first soft halo")


def _points(
    plot: Plot, points: Sequence[RooflinePoint], gpu: Device, whole_s: float
) -> Iterable[Html]:
    for point in points:
        share = point.seconds / whole_s
        attained = or_unknown(point.attained(gpu), percent)
        text = (
            f"{point.name} on {point.unit.replace('_', ' ')}: {duration(point.seconds)}, "
            f"{percent(share, 1)} of GPU time, {attained} of its roof"
        )
        yield element(
            "circle",
            title_of(text),
            cx=plot.x(point.intensity),
            cy=plot.y(point.flops_per_s),
            r=_radius(point, whole_s),
            class_=f"point c{color_of_kind(point.kind)}",
        )
    named = [point for point in points[:_NAMED] if point.seconds / whole_s >= _LEAST_NAMED]
    places = [
        (point.intensity, plot.y(point.flops_per_s) - _radius(point, whole_s) - 5, _short(point))
        for point in named
    ]
    yield from plot.names(places, "halo")


def _radius(point: RooflinePoint, whole_s: float) -> float:
    return 3 + 24 * math.sqrt(point.seconds / whole_s)


# The timeline of host and GPU as data for the script of a page.


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
    phases: list[list[Any]] = []
    for phase, group in groupby(busy.tolist(), key=lambda index: table_of.calls[index].phase):
        indices = list(group)
        ends = _whole(float(begin_s[indices].min())), _whole(float(end_s[indices].max()))
        phases.append([str(phase), *ends])
    return phases


def longest_calls(table_of: Timetable) -> Html:
    """The calls that run longest on the GPU."""
    order: Iterable[int] = np.argsort(-table_of.gpu_s, kind="stable")[:_LONGEST].tolist()
    longest = [index for index in order if table_of.gpu_s[index] > 0]
    calls = [table_of.calls[index] for index in longest]
    lines = [call.line for call in calls]
    columns = [
        Column("op", [call.op.base for call in calls], left=True),
        Column("module", [call.module or f"({call.phase})" for call in calls], left=True),
        Column("phase", [str(call.phase) for call in calls], left=True),
        # The lines of source that compiled kernels come from, if there are any.
        *([Column("source", lines, left=True)] if any(lines) else []),
        Column("begins", [duration(float(table_of.begin_s[index])) for index in longest]),
        Column("takes", [duration(float(table_of.gpu_s[index])) for index in longest]),
    ]
    return html_table(columns, caption="The longest calls on the GPU")


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


# Where the GPU's time goes: by kind of op, by op, and by module as a tree.


DEEPEST = 24
"""Modules below this depth are counted with the module that holds them."""
_LEAST = 1.5e-4
"""Parts of the tree with a smaller share of the GPU's time are added up."""
_LEAST_KIND = 0.005
"""Kinds of ops with a smaller share are added up."""
_Group = TypeVar("_Group", bound=Hashable)
_PHASES = dict(zip(Phase, ("p0", "p1", "p0", "p2"), strict=True))
"""The classes that draw the phases. Ops of the optimizer hardly run in another phase."""


@dataclass
class _GpuTime:
    """The GPU time of some calls."""

    by_phase: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))
    calls: int = 0

    @property
    def seconds(self) -> float:
        return sum(self.by_phase.values())

    def add(self, other: Work | _GpuTime) -> None:
        parts = {other.phase: other.seconds} if isinstance(other, Work) else other.by_phase
        for phase, seconds in parts.items():
            self.by_phase[phase] += seconds
        self.calls += other.calls


def _longest(
    table_of: Timetable, group: Callable[[Work], _Group]
) -> tuple[list[tuple[_Group, _GpuTime]], float]:
    """The GPU time of each group of calls, longest first, and of all together."""
    sums: dict[_Group, _GpuTime] = {}
    for work in table_of.works:
        sums.setdefault(group(work), _GpuTime()).add(work)
    whole = float(table_of.gpu_s.sum()) or 1.0
    return sorted(sums.items(), key=lambda item: -item[1].seconds), whole


def _cells(time: _GpuTime, whole_s: float) -> tuple[str, str, str]:
    return duration(time.seconds), percent(time.seconds / whole_s, 1), count(time.calls)


def _kind(work: Work) -> str:
    return str(ops.kind(work.op) or "unknown")


def op_kinds(table_of: Timetable) -> Html:
    """The kinds of ops, longest first, each with a bar that is divided by phase."""
    every, whole = _longest(table_of, _kind)
    shown = [(kind.replace("_", " "), color_of_kind(kind), time) for kind, time in every]
    rest = [time for _, _, time in shown if time.seconds < _LEAST_KIND * whole]
    if len(rest) > 1:
        others = _GpuTime()
        for time in rest:
            others.add(time)
        shown = [*shown[: -len(rest)], (f"{len(rest)} others", 9, others)]
    cells = [(name, "", *_cells(time, whole)) for name, _, time in shown]
    columns = from_rows(cells, "<kind of op", "<GPU time", "time", "share", "calls")
    longest = max((time.seconds for _, _, time in shown), default=1.0)

    def drawn(column: Column, row: int) -> Html | None:
        _, color, time = shown[row]
        return _phase_bar(time, color, longest) if column.name == "GPU time" else None

    used = [phase for phase in Phase if any(time.by_phase[phase] for _, _, time in shown)]
    legend = key(
        {
            " and ".join(phase for phase in used if _PHASES[phase] == class_): f"{class_} ink"
            for class_ in dict.fromkeys(_PHASES[phase] for phase in used)
        }
    )
    return joined([legend, html_table(columns, caption="GPU time by kind of op", drawn=drawn)])


def _phase_bar(time: _GpuTime, color: int, longest: float) -> Html:
    parts = [
        (seconds / longest, f"{_PHASES[phase]} c{color}", f"{phase}: {duration(seconds)}")
        for phase, seconds in time.by_phase.items()
    ]
    return bar(parts, "")


def used_kinds(table_of: Timetable) -> list[str]:
    """The kinds of ops that run on the GPU, longest first."""
    return [kind for kind, _ in _longest(table_of, _kind)[0]]


def longest_ops(table_of: Timetable) -> Html:
    """The ops on which the GPU spends most time."""
    every, whole = _longest(table_of, lambda work: work.op)
    cells = [(op.base, _largest(op), *_cells(time, whole)) for op, time in every[:_ROWS]]
    columns = from_rows(cells, "<op", "<largest input", "time", "share", "calls")
    return html_table(columns, caption="The ops with most GPU time, one row for each shape")


def _largest(op: Op) -> str:
    tensors = sorted((*op.inputs, *op.outputs), key=lambda tensor: -tensor.numel)
    if not tensors:
        return ""
    return f"{tensors[0].dtype} {' x '.join(map(str, tensors[0].shape))}"


@dataclass
class _ModuleNode:
    """A module, or an op within it."""

    seconds: float = 0.0
    calls: int = 0
    kinds: dict[str, float] = field(default_factory=dict)
    children: dict[str, _ModuleNode] = field(default_factory=dict)

    def add(self, work: Work, kind: str) -> None:
        self.seconds += work.seconds
        self.calls += work.calls
        self.kinds[kind] = self.kinds.get(kind, 0.0) + work.seconds


class Names:
    """The texts of a page's data, each once: the data holds their positions."""

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}

    def position(self, text: str) -> int:
        """The position of a text."""
        return self._positions.setdefault(one_line(text), len(self._positions))

    def listed(self) -> list[str]:
        """All texts, in the order of their positions."""
        return list(self._positions)


def module_tree(table_of: Timetable, names: Names) -> list[Any]:
    """The GPU's time by module as a tree, whose leaves are ops.

    A node is a list: the position of its name, nanoseconds, calls, a color, and its children, in
    the order in which they first run.
    """
    root = _ModuleNode()
    for work in table_of.works:
        kind = _kind(work)
        root.add(work, kind)
        node = root
        for name in (*_path(work.module, work.phase), work.op.base):
            node = node.children.setdefault(name, _ModuleNode())
            node.add(work, kind)
    return _listed(root, "step", names, root.seconds * _LEAST)


def _path(module: str, phase: Phase) -> Sequence[str]:
    """The names of the modules from the outermost on."""
    if not module:
        return (f"({phase})",)
    parts = module.split(".")
    return (
        parts if len(parts) <= DEEPEST else [*parts[: DEEPEST - 1], ".".join(parts[DEEPEST - 1 :])]
    )


def _listed(node: _ModuleNode, name: str, names: Names, least_s: float) -> list[Any]:
    shown = {child: part for child, part in node.children.items() if part.seconds >= least_s}
    children = [_listed(part, child, names, least_s) for child, part in shown.items()]
    rest = [part for child, part in node.children.items() if child not in shown]
    if rest and sum(part.seconds for part in rest) >= least_s:
        children.append(_added_up(rest, names))
    main = max(node.kinds, key=node.kinds.__getitem__, default="")
    position = names.position(name)
    return [position, round(node.seconds * 1e9), node.calls, color_of_kind(main), children]


def _added_up(nodes: Iterable[_ModuleNode], names: Names) -> list[Any]:
    nodes = list(nodes)
    seconds, calls = sum(node.seconds for node in nodes), sum(node.calls for node in nodes)
    return [names.position(f"{len(nodes)} smaller ones"), round(seconds * 1e9), calls, 9, []]


def modules(table_of: Timetable) -> Html:
    """The modules with most GPU time, as a table for those who cannot use the tree."""
    every, whole = _longest(table_of, lambda work: ".".join(_path(work.module, work.phase)[:3]))
    cells = [(name, *_cells(time, whole)) for name, time in every[:_ROWS]]
    columns = from_rows(cells, "<module", "time", "share", "calls")
    return html_table(columns, caption="The modules with most GPU time")


def icicle(subject: str) -> Html:
    """The place where the script draws the tree of modules."""
    return element(
        "div",
        element("p", class_="path", aria_live="polite"),
        element("div", class_="nodes", role="tree", aria_label="GPU time by module"),
        class_="icicle needs-script",
        data_subject=subject,
    )
