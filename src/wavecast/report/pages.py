"""Self-contained HTML pages, with their charts as SVG."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from itertools import groupby

from wavecast.footprint.kinds import KINDS, KindTimeline
from wavecast.footprint.memory import Memory
from wavecast.report.characters import one_line
from wavecast.report.memory import BEFORE_THE_STEP
from wavecast.report.records import MODULE_DEPTH
from wavecast.report.suites import result_columns
from wavecast.report.tables import ANY_WIDTH, Column, fitting
from wavecast.report.units import memory
from wavecast.runs.suite_results import SuiteResult

_COLORS = (
    *("#4269d0", "#efb118", "#9c6b4e", "#3ca951", "#97bbf5", "#a463f2", "#ff725c"),
    "#6cc5b0",
)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 1000, 380, 70, 24, 26
_MOST_POINTS = 700
_ROWS = 25
_BARS = {
    "GPU use": "gpu_utilisation",
    "FP32 use": "fp32_utilisation",
    "tensor-core use": "tensor_utilisation",
}
"""The columns of suite results that are drawn as bars, and the values that they show."""


def memory_page(title: str, step_memory: Memory) -> str:
    """The memory of a step over its calls, with the peak explained."""
    groups = step_memory.held()[:_ROWS]
    modules = list(step_memory.by_module(MODULE_DEPTH).items())[:_ROWS]
    return _render(
        "memory.html",
        {
            "title": html.escape(one_line(title)),
            "notes": _paragraphs(_memory_notes(step_memory)),
            "key": "".join(
                f'<span style="background:{color}"></span>{kind}'
                for kind, color in zip(KINDS, _COLORS, strict=True)
            ),
            "chart": _chart(step_memory),
            "held": _table(
                [
                    Column("memory", [memory(group.nbytes) for group in groups]),
                    Column("kind", [group.kind for group in groups], left=True),
                    Column("tensors", [str(group.count) for group in groups]),
                    Column("made by", [group.op or BEFORE_THE_STEP for group in groups], left=True),
                    Column("module", [group.module for group in groups], left=True),
                ]
            ),
            "modules": _table(
                [
                    Column("memory", [memory(nbytes) for _, nbytes in modules]),
                    Column("module", [name for name, _ in modules], left=True),
                ]
            ),
        },
    )


def suite_page(title: str, results: Sequence[SuiteResult]) -> str:
    """The results of the benchmark suite as a table that sorts by any column."""
    columns = fitting(result_columns(results), ANY_WIDTH)

    def share(column: Column, row: int) -> float | None:
        name = _BARS.get(column.name)
        return getattr(results[row], name) if name else None

    return _render(
        "suite.html", {"title": html.escape(one_line(title)), "table": _table(columns, share)}
    )


def _render(template: str, values: Mapping[str, str]) -> str:
    """A template with its placeholders, such as {{title}}, replaced by HTML."""
    folder = resources.files("wavecast.report").joinpath("templates")
    page = folder.joinpath(template).read_text("utf-8")
    page = page.replace("{{style}}", folder.joinpath("style.css").read_text("utf-8"))
    for name, content in values.items():
        page = page.replace(f"{{{{{name}}}}}", content)
    return page


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{html.escape(one_line(line))}</p>" for line in lines)


def _table(
    columns: Sequence[Column],
    share: Callable[[Column, int], float | None] = lambda column, row: None,
) -> str:
    """The columns as a table of HTML; cells with a share get a bar of that length."""

    def cell(column: Column, row: int) -> str:
        text, part = html.escape(column.cells[row]), share(column, row)
        if part is None:
            return f'<td class="{_side(column)}">{text}</td>'
        return f'<td class="number bar" style="--share:{min(100.0, 100 * part):.1f}%">{text}</td>'

    head = "".join(f'<th class="{_side(c)}">{html.escape(c.name)}</th>' for c in columns)
    body = "\n".join(
        f"<tr>{''.join(cell(column, row) for column in columns)}</tr>"
        for row in range(len(columns[0].cells))
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _side(column: Column) -> str:
    return "text" if column.left else "number"


def _memory_notes(step_memory: Memory) -> Iterable[str]:
    process = step_memory.process_bytes
    whole = f"; the whole process needs {memory(process)}" if process else ""
    yield (
        f"At the peak {memory(step_memory.peak_bytes)} are allocated; the allocator reserves "
        f"{memory(step_memory.reserved_bytes)}{whole}."
    )
    yield from step_memory.trace.notes
    yield from step_memory.notes


def _chart(step_memory: Memory) -> str:
    """Allocated memory over the calls of a step, stacked by kind, as SVG."""
    timeline = KindTimeline(step_memory.trace)
    places = _chosen(timeline.totals, step_memory.peak_call)
    top = max(timeline.totals) or 1
    width, height = _WIDTH - _LEFT - 10, _HEIGHT - _TOP - _BOTTOM
    last = max(1, len(timeline.totals) - 1)

    def x(place: int) -> float:
        return _LEFT + width * place / last

    def y(nbytes: float) -> float:
        return _TOP + height * (1 - nbytes / top)

    parts = []
    below = [0] * len(places)
    for kind, color in zip(KINDS, _COLORS, strict=True):
        above = [b + timeline.by_kind[kind][p] for b, p in zip(below, places, strict=True)]
        line = [f"{x(p):.1f},{y(a):.1f}" for p, a in zip(places, above, strict=True)]
        back = [f"{x(p):.1f},{y(b):.1f}" for p, b in zip(places, below, strict=True)]
        points = " ".join([*line, *reversed(back)])
        title = f"<title>{html.escape(kind)}</title>"
        parts.append(f'<polygon points="{points}" fill="{color}">{title}</polygon>')
        below = above
    for share in (0.25, 0.5, 0.75, 1.0):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - 10}" y1="{y(share * top):.1f}" '
            f'y2="{y(share * top):.1f}" stroke="currentColor" opacity=".2"/>'
            f'<text x="4" y="{y(share * top) + 4:.1f}">{memory(share * top)}</text>'
        )
    parts += _phases(step_memory, x)
    parts.append(_peak_mark(step_memory, x(step_memory.peak_call)))
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _peak_mark(step_memory: Memory, x: float) -> str:
    """A vertical line at the peak, with the op that runs there."""
    call = step_memory.trace.calls[step_memory.peak_call]
    label = html.escape(one_line(f"peak: {call.op.base} {call.module}".strip()))
    anchor = "end" if x > _WIDTH / 2 else "start"
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" '
        f'stroke="currentColor" stroke-dasharray="4 3"/>'
        f'<text x="{x:.1f}" y="16" text-anchor="{anchor}">{label}</text>'
    )


def _phases(step_memory: Memory, x: Callable[[int], float]) -> Iterable[str]:
    """The names of the phases under the chart; short phases have no room for a name."""
    position = 0
    total = len(step_memory.trace)
    for phase, group in groupby(call.phase for call in step_memory.trace):
        length = sum(1 for _ in group)
        if length > total / 12:
            middle = x(position + length // 2)
            yield f'<text x="{middle:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{phase}</text>'
        position += length


def _chosen(totals: Sequence[int], peak: int) -> list[int]:
    """The calls to draw: the largest of each group of neighbours, the ends, and the peak."""
    size = max(1, -(-len(totals) // _MOST_POINTS))
    starts = range(0, len(totals), size)
    largest = {max(range(s, min(s + size, len(totals))), key=totals.__getitem__) for s in starts}
    return sorted(largest | {0, peak, len(totals) - 1})
