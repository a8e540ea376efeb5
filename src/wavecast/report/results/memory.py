"""The memory of a step: by kind, at its peak, whether it fits, and the largest batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from rich.console import RenderableType

from wavecast.footprint.advice import Advice
from wavecast.footprint.largest_batch import LargestBatch
from wavecast.footprint.memory import KINDS, Held, KindTimeline, Memory
from wavecast.footprint.replay import RESERVE
from wavecast.hardware.contexts import measured as measured_context
from wavecast.hardware.devices import Device
from wavecast.report.fields import Described, Field, columns, describe, some
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import (
    Html,
    Plot,
    PlotAxis,
    bar,
    bullets,
    color_of_memory,
    element,
    folded,
    html_table,
    joined,
    key,
    label_at,
    linear_axis,
    title_of,
)
from wavecast.report.tables import (
    from_rows,
    headed,
    labelled,
    notes,
    notes_by_gpu,
    remarks,
    shown,
    table,
    titled,
)
from wavecast.report.units import count, duration, memory, or_unknown, percent, text
from wavecast.steps.player import Timetable
from wavecast.traces.step import Phase

MODULE_DEPTH = 3
"""How many levels of module names memory is grouped by."""

BEFORE_THE_STEP = "before the step"
"""The entry under "made by" for a tensor that was made before the step."""
KEPT_FREE = f"fits: {percent(RESERVE, 1)} of what is left to the framework's allocator is kept free"
"""How close to its limit a GPU may be filled."""
_ROWS = 8


@dataclass(frozen=True)
class PeakCall:
    """The call during which most memory is allocated."""

    phase: Phase
    """The phase of the step."""
    op: str
    """The name of the op."""
    module: str
    """The module that calls it."""


def peak(needed: Memory) -> PeakCall:
    """The call during which most memory is allocated."""
    call = needed.trace.calls[needed.peak_call]
    return PeakCall(call.phase, call.op.base, call.module)


def by_module(needed: Memory) -> Mapping[str, int]:
    """The bytes at the peak by module, largest first."""
    return needed.by_module(MODULE_DEPTH)


def _all_notes(needed: Memory) -> Sequence[str]:
    """What a reader should know, in whole sentences."""
    return (*needed.trace.notes, *needed.notes)


def _share(needed: Memory) -> float | None:
    return needed.needed_bytes / needed.device.memory_bytes if needed.device else None


describe(
    Held,
    Field("nbytes", title="memory", drawn=True),
    Field("kind", title="kind"),
    Field("count", title="tensors", rank=2, text=str),
    Field("", lambda group: group.op or BEFORE_THE_STEP, title="made by", rank=1),
    Field("", lambda group: group.module or "-", title="module", folds=True),
    *map(Field, ("module", "op")),
)
MEMORY = describe(
    Memory,
    Field("gpu", "device.id", title="GPU", absent="any"),
    Field("fits", title="fits", absent="name a GPU"),
    Field("peak_bytes", title="allocated at the peak"),
    Field("reserved_bytes", title="reserved"),
    Field("needed_bytes", title="needed"),
    Field("by_kind", title="by kind", rank=1, text=lambda kinds: _largest(kinds)),
    *map(Field, ("context_bytes", "process_bytes")),
    Field("by_module", by_module),
    Field("peak", peak),
    "held",
    Field("notes", _all_notes),
    parts="held",
)
FITS = Described(
    Memory,
    some(
        Field("gpu", "device.id", title="GPU", absent=""),
        Field("fits", title="fits", absent=""),
        Field("memory_bytes", "device.memory_bytes", title="GPU memory", absent=""),
        Field("needed_bytes", title="needed"),
        Field("", _share, title="share", rank=1, text=percent, absent=""),
        Field("", lambda m: m.by_kind["workspace"], title="workspace", rank=2, text=memory),
        *("process_bytes", "reserved_bytes", "peak_bytes", "notes"),
    ),
)
"""Whether a step fits on a GPU, with the sizes that decide it."""


def _largest(kinds: Mapping[str, int | None]) -> str:
    """The kinds of memory that there are, with their sizes."""
    return text("_bytes", {kind: nbytes for kind, nbytes in kinds.items() if nbytes})


describe(
    Advice,
    Field("name", title="change"),
    Field("saved_bytes", title="saves"),
    Field("", "after.reserved_bytes", title="then reserved", rank=1),
    Field("how", title="how", folds=True),
    Field("peak_bytes", "after.peak_bytes", meaning="The peak of allocated memory then."),
    Field("reserved_bytes", "after.reserved_bytes", meaning="What the allocator reserves then."),
)


@dataclass(frozen=True)
class AdvisedMemory:
    """The memory of a step on one GPU, and changes that would make it smaller."""

    target: str
    """What the step is, with its sizes."""
    memory: Memory
    advice: Sequence[Advice] = ()
    """Changes that would save memory, the largest saving first."""


describe(AdvisedMemory, "target", Field("", "memory", inline=True), "advice")


@dataclass(frozen=True)
class GpuLargestBatch:
    """The largest batch that fits on one GPU."""

    target: str
    """What the step is, with its sizes."""
    gpu: str
    largest: LargestBatch


def _listed(batches: Sequence[int]) -> str:
    return ", ".join(map(str, batches))


describe(
    LargestBatch,
    Field("batch", title="largest batch"),
    Field("too_large", title="too large"),
    Field("peak_bytes", title="allocated at the peak"),
    Field("limit_bytes", title="available"),
    Field("traced", title="batches tried", text=_listed),
)
LARGEST = describe(
    GpuLargestBatch,
    "target",
    Field("gpu", title="GPU"),
    Field("", "largest.batch", title="largest batch", text=lambda batch: str(batch or "none")),
    Field("", "largest.peak_bytes", title="allocated at the peak"),
    Field("", "largest.limit_bytes", title="available", rank=1),
    Field("", "largest.traced", title="batches tried", rank=2, text=_listed, left=True),
    Field("", "largest", inline=True),
)


def memories(
    title: str,
    columns: Sequence[Memory],
    width: int,
    advice: Sequence[Advice] = (),
    headings: Sequence[str] = (),
) -> RenderableType:
    """Memory by kind, one column for each GPU, and the peak of the first column in detail.

    Args:
        title: what the step is.
        columns: one memory for each GPU, or a predicted and a measured one.
        width: columns of the terminal.
        advice: changes that would make it smaller.
        headings: one for each column; the names of the GPUs if not given.
    """
    first = columns[0]
    names = list(headings) or [m.device.id if m.device else "any GPU" for m in columns]
    return titled(
        headed(title, zip(names, (m.trace for m in columns), strict=True)),
        table(labelled(_rows(columns), names)),
        "",
        *remarks(_explanations(first)),
        *notes(
            [
                *_gpu_notes(columns),
                *dict.fromkeys(note for m in columns for note in m.trace.notes),
            ]
        ),
        "",
        *_peak(first, width),
        *_advised(advice, width),
    )


def _gpu_notes(memories: Sequence[Memory]) -> list[str]:
    return notes_by_gpu((m.device.id if m.device else "any GPU", m.notes) for m in memories)


def _rows(columns: Sequence[Memory]) -> list[tuple[str, list[str]]]:
    rows = [
        (kind, [or_unknown(m.by_kind[kind], memory) for m in columns])
        for kind in KINDS
        # Only autocast copies weights, so that most steps have none.
        if kind != "weight copies" or any(m.by_kind[kind] for m in columns)
    ]
    rows.append(("allocated at the peak", [memory(m.peak_bytes) for m in columns]))
    rows.append(("reserved by the allocator", [memory(m.reserved_bytes) for m in columns]))
    if any(m.device for m in columns):
        contexts = [or_unknown(m.context_bytes, memory) for m in columns]
        rows.append(("CUDA context and libraries", contexts))
        rows.append(("whole process", [or_unknown(m.process_bytes, memory) for m in columns]))
        capacities = [m.device.memory_bytes if m.device else None for m in columns]
        rows.append(("memory of the GPU", ["" if c is None else memory(c) for c in capacities]))
        rows.append(
            (
                "fits",
                [
                    or_unknown(m.fits, lambda fits: text("", fits)) if m.device else ""
                    for m in columns
                ],
            )
        )
    return rows


def _explanations(step_memory: Memory) -> Iterable[str]:
    if len(step_memory.trace):
        call = step_memory.trace.calls[step_memory.peak_call]
        where = f" of {call.module}" if call.module else ""
        yield f"the peak is in the {call.phase} pass, at {call.op.base}{where}"
    if step_memory.device is None:
        yield "name a GPU (--gpu) to see workspaces, the whole process, and whether it fits"
        return
    context = measured_context()
    if step_memory.context_bytes and step_memory.device.compute_capability != context.capability:
        yield (
            f"CUDA context and libraries: as measured on an {context.gpu}; "
            "smaller GPUs need less of it"
        )


def _peak(step_memory: Memory, width: int) -> Iterable[RenderableType]:
    """The largest groups of tensors, and the largest modules, at the peak."""
    modules = list(by_module(step_memory).items())[:_ROWS]
    cells = [(memory(nbytes), name) for name, nbytes in modules]
    held = columns(step_memory.held()[:_ROWS]) if step_memory.held() else []
    yield titled("largest tensors at the peak", *shown(held, width))
    yield ""
    largest = table(from_rows(cells, "memory", "<module..."))
    yield titled("largest modules at the peak", largest)


def _advised(advice: Sequence[Advice], width: int) -> Iterable[RenderableType]:
    if advice:
        yield ""
        yield titled("changes that would save memory", *shown(columns(advice), width))


def fitting_gpus(title: str, memories: Sequence[Memory], width: int) -> RenderableType:
    """One row for each GPU: whether the step fits, and how much of the GPU it needs."""
    rows = sorted(
        memories, key=lambda m: (m.fits is False, m.device.memory_bytes if m.device else 0)
    )
    styles = ["dim" if m.fits is False else "" for m in rows]
    lines = [
        "needed: memory of the whole training process, with CUDA's context and libraries",
        KEPT_FREE,
    ]
    under = shown(FITS.columns(rows), width, lines, styles)
    return titled(title, *under, *notes(_gpu_notes(rows)))


def batches_by_gpu(
    target: str, answers: Iterable[tuple[Device, LargestBatch]]
) -> list[GpuLargestBatch]:
    """The largest batch of each GPU, under its id."""
    return [GpuLargestBatch(target, gpu.id, largest) for gpu, largest in answers]


def largest_batches(
    title: str, answers: Sequence[tuple[Device, LargestBatch]], width: int
) -> RenderableType:
    """One row for each GPU: the largest batch that fits."""
    lines = [
        "available: memory that CUDA's context and libraries leave to the framework's allocator"
    ]
    return titled(title, *shown(columns(batches_by_gpu(title, answers)), width, lines))


def advised(
    target: str, memories: Sequence[Memory], advice: Sequence[Advice] = ()
) -> list[AdvisedMemory]:
    """The memory of a step on each GPU; the advice is about the first."""
    return [AdvisedMemory(target, needed, () if n else advice) for n, needed in enumerate(memories)]


# The memory of a step: what fills the card at the peak, and how it grows and shrinks.


_MOST_POINTS = 200
_LONG_CALLS = 40
_CHART_ROWS = 15
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
        (
            group.op or BEFORE_THE_STEP,
            memory(group.nbytes),
            group.kind,
            str(group.count),
            group.module,
        )
        for group in needed.held()[:_CHART_ROWS]
    ]
    columns = from_rows(cells, "<made by", "memory", "<kind", "tensors", "<module")
    return html_table(columns, caption="The largest tensors at the peak")


def largest_modules(needed: Memory) -> Html:
    """The modules with most memory at the peak."""
    modules = list(needed.by_module(MODULE_DEPTH).items())[:_CHART_ROWS]
    columns = from_rows([(name, memory(size)) for name, size in modules], "<module", "memory")
    return html_table(columns, caption="The largest modules at the peak")


# Pages about the memory of a step.


def memory_report(title: str, memories: Sequence[Memory], advice: Sequence[Advice] = ()) -> Report:
    """The memory of one step on some GPUs, or on none in particular; advice is of the first."""
    sections = [
        Section(f"memory-{index}", _title(needed), _part(needed, () if index else advice))
        for index, needed in enumerate(memories)
    ]
    notes = [*memories[0].trace.notes, *(note for needed in memories for note in needed.notes)]
    if notes:
        sections.append(Section("notes", "Notes", bullets(dict.fromkeys(notes))))
    named = ((needed.device.id if needed.device else "", needed.trace) for needed in memories)
    return Report(headed(title, named), _verdict(memories), tuple(sections))


def _title(needed: Memory) -> str:
    return f"Memory on {needed.device.id}" if needed.device else "Memory"


def _part(needed: Memory, advice: Sequence[Advice]) -> Html:
    parts = memory_parts(needed)
    if advice:
        caption = "Changes that would save memory"
        parts += [element("h3", caption), html_table(columns(advice), caption=caption)]
    return joined(parts)


def _verdict(memories: Sequence[Memory]) -> Html:
    first = memories[0]
    if first.device is None:
        size = memory(first.reserved_bytes)
        return joined(["The step needs ", element("strong", size), " beside CUDA's context."])
    fitting = [needed.device.id for needed in memories if needed.device and needed.fits]
    size = memory(max(needed.needed_bytes for needed in memories))
    if any(needed.fits is None for needed in memories):
        missing = " and ".join(first.unrecorded)
        return joined(
            ["It needs ", element("strong", f"more than {size}"), f": {missing} unknown."]
        )
    if len(fitting) == len(memories):
        where = fitting[0] if len(fitting) == 1 else f"all {len(fitting)} GPUs"
        return joined(["It ", element("strong", "fits"), f" on {where}: it needs up to {size}."])
    if not fitting:
        return joined(["It ", element("strong", "does not fit"), f": it needs up to {size}."])
    return joined(
        ["It ", element("strong", f"fits on {', '.join(fitting)}"), ", not on the others."]
    )
