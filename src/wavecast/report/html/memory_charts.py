"""The memory of a step: what fills the card at the peak, and how it grows and shrinks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise

import numpy as np

from wavecast.footprint.kinds import KINDS, KindTimeline
from wavecast.footprint.memory import Memory
from wavecast.report.html.axes import (
    Plot,
    PlotAxis,
    bar,
    label_at,
    linear_axis,
    title_of,
)
from wavecast.report.html.colors import color_of_memory, key
from wavecast.report.html.markup import Html, element, folded, joined, table
from wavecast.report.memory import BEFORE_THE_STEP, MODULE_DEPTH
from wavecast.report.tables import from_rows
from wavecast.report.units import count, duration, memory
from wavecast.steps.timetable import Timetable

_MOST_POINTS = 200
_LONG_CALLS = 40
_ROWS = 15
_NEAR = 2.5
"""The card's limit is drawn if it is at most so many times the peak; else it is only named."""


def memory_parts(needed: Memory, moments: Timetable | None = None) -> list[Html]:
    """All that a page shows of the memory of a step; `moments` is when its calls run."""
    return [
        memory_bar(needed),
        memory_chart(needed, moments),
        folded("Largest tensors at the peak", largest_tensors(needed)),
        folded("Largest modules at the peak", largest_modules(needed)),
    ]


def memory_bar(needed: Memory) -> Html:
    """What fills the card at the peak of the step."""
    kinds = {kind: needed.by_kind[kind] or 0 for kind in KINDS}
    cached = max(0, needed.reserved_bytes - sum(kinds.values()))
    parts = [(color_of_memory(kind), kind, nbytes) for kind, nbytes in kinds.items() if nbytes]
    parts.append(("cached", "kept by the allocator", cached))
    if needed.context_bytes:
        parts.append(("context", "CUDA context and libraries", needed.context_bytes))
    total = sum(nbytes for _, _, nbytes in parts)
    capacity = needed.device.memory_bytes if needed.device else total
    whole = max(total, capacity) or 1
    if capacity > total:
        parts.append(("free", "free", capacity - total))
    drawn = bar(
        [(nbytes / whole, class_, f"{name}: {memory(nbytes)}") for class_, name, nbytes in parts],
        f"{memory(total)} of {memory(capacity)}",
        height=26,
    )
    # By what is used, not by the card: the chart below has the same colors for a small step.
    entries = {
        f"{name} {memory(nbytes)}": class_
        for class_, name, nbytes in parts
        if nbytes > 0.002 * total
    }
    return joined([drawn, element("p", _told(needed), class_="told"), key(entries)])


def _told(needed: Memory) -> str:
    text = f"At the peak{_where(needed)} {memory(needed.peak_bytes)} are allocated"
    if not needed.device:
        return f"{text}, and the allocator reserves {memory(needed.reserved_bytes)}."
    verdicts = {True: "it fits", False: "it does not fit", None: "whether it fits is unknown"}
    fits = verdicts[needed.fits]
    capacity = memory(needed.device.memory_bytes)
    return (
        f"{text}. The whole process needs {memory(needed.needed_bytes)} of the {capacity} of "
        f"{needed.device.id}: {fits}."
    )


def _where(needed: Memory) -> str:
    """The call during which most memory is allocated."""
    if not len(needed.trace):
        return ""
    call = needed.trace.calls[needed.peak_call]
    return f" (in the {call.phase} pass, at {call.op.base})"


def memory_chart(needed: Memory, moments: Timetable | None = None) -> Html:
    """Allocated memory over the step, by kind, with the card's limit.

    Args:
        needed: the memory of the step.
        moments: when its calls run; without it, or if it has other calls, calls are counted.
    """
    timeline = KindTimeline(needed.trace)
    at, across, under = _across(needed, moments)
    places = _chosen(timeline.totals, needed.peak_call, at)
    xs = [*(at[place] for place in places), across.high]
    places.append(places[-1])
    top = max(timeline.totals) or 1
    limit = needed.allocatable_bytes
    shows_limit = 0 < limit <= _NEAR * top
    high = max(top * 1.2, limit * 1.12 if shows_limit else 0)
    up = linear_axis(high, memory, binary=True)
    plot = Plot(across, _ending(up, high))
    parts, below = [], [0.0] * len(places)
    for kind in KINDS:
        above = [b + timeline.by_kind[kind][p] for b, p in zip(below, places, strict=True)]
        if any(a > b for a, b in zip(above, below, strict=True)):
            outline, class_ = plot.steps(xs, above, below), color_of_memory(kind)
            parts.append(element("path", title_of(kind), d=outline, class_=class_))
        below = above
    plot = plot.with_parts([plot.stretched(*parts), *_peak_mark(needed, plot, xs, places, top)])
    if shows_limit:
        plot = plot.with_parts(_limit_mark(plot, limit))
    plot = plot.with_parts(_phase_names(needed, plot, xs, places))
    label = f"Memory over the step. {_told(needed)}"
    if limit and not shows_limit:
        under += f"; the limit for PyTorch, {memory(limit)}, is far above"
    return plot.drawn(label, under)


def _across(needed: Memory, moments: Timetable | None) -> tuple[list[float], PlotAxis, str]:
    """Where each call is across the chart: by time where it is known, else by number."""
    length = len(needed.trace)
    if moments is None or len(moments.calls) != length or not moments.seconds:
        end = float(max(1, length))
        return [*map(float, range(length or 1))], _ending(linear_axis(end, count), end), "calls"
    begin_s = np.maximum.accumulate(moments.begin_s)
    end = max(float((moments.begin_s + moments.gpu_s).max()), float(begin_s[-1])) or 1.0
    return begin_s.tolist(), _ending(linear_axis(end, _moment), end), "time on the GPU"


def _moment(seconds: float) -> str:
    return duration(seconds) if seconds else "0"


def _ending(axis: PlotAxis, high: float) -> PlotAxis:
    """The axis, cut where the values end."""
    return PlotAxis(axis.low, high, tuple(tick for tick in axis.ticks if tick[0] <= high))


def _peak_mark(
    needed: Memory, plot: Plot, xs: Sequence[float], places: Sequence[int], top: int
) -> Iterable[Html]:
    """A line at the peak, with its size."""
    x = xs[places.index(needed.peak_call)]
    yield plot.upright(x, "peak", plot.y(top) - 4)
    # The allocator's blocks are larger than the tensors that are drawn.
    text = f"peak {memory(max(top, needed.peak_bytes))}"
    yield label_at(plot, x, max(27.0, plot.y(top) - 8), text, "strong halo")


def _limit_mark(plot: Plot, limit: float) -> Iterable[Html]:
    y = plot.y(limit)
    yield plot.level(y, "limit")
    text = f"limit for PyTorch: {memory(limit)}"
    yield element("text", text, x="0.6%", y=y - 5 if y > 18 else y + 14, class_="first limit halo")


def _phase_names(
    needed: Memory, plot: Plot, xs: Sequence[float], places: Sequence[int]
) -> Iterable[Html]:
    """The names of the phases at the top of the chart; short phases have no room for a name."""
    phases = [needed.trace.calls[place].phase for place in places] if len(needed.trace) else []
    position = 0
    for phase, group in groupby(phases):
        length = sum(1 for _ in group)
        first, last = xs[position], xs[min(len(xs) - 1, position + length)]
        if plot.across.share(last) - plot.across.share(first) > 0.09:
            x = plot.x((first + last) / 2)
            yield element("text", str(phase), x=x, y="11", class_="middle soft")
        if position:
            yield plot.upright(first, "grid")
        position += length


def _chosen(totals: Sequence[int], peak: int, at: Sequence[float]) -> list[int]:
    """The calls to draw: the largest of each group of neighbours, the ends, and the peak.

    Calls that last long are drawn too, each with the one that follows: so no short moment looks
    like a long one.
    """
    size = max(1, -(-len(totals) // _MOST_POINTS))
    starts = range(0, len(totals), size)
    largest = {max(range(s, min(s + size, len(totals))), key=totals.__getitem__) for s in starts}
    lengths = [later - here for here, later in pairwise(at)]
    longest = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)[:_LONG_CALLS]
    after = {min(place + 1, len(totals) - 1) for place in (*longest, peak)}
    return sorted(largest | {0, peak, len(totals) - 1} | set(longest) | after)


def largest_tensors(needed: Memory) -> Html:
    """The largest groups of tensors at the peak."""
    cells = [
        (one.op or BEFORE_THE_STEP, memory(one.nbytes), one.kind, str(one.count), one.module)
        for one in needed.held()[:_ROWS]
    ]
    columns = from_rows(cells, "<made by", "memory", "<kind", "tensors", "<module")
    return table(columns, caption="The largest tensors at the peak")


def largest_modules(needed: Memory) -> Html:
    """The modules with most memory at the peak."""
    modules = list(needed.by_module(MODULE_DEPTH).items())[:_ROWS]
    columns = from_rows([(name, memory(size)) for name, size in modules], "<module", "memory")
    return table(columns, caption="The largest modules at the peak")
