"""Allocated memory over a step as one page of HTML that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from importlib import resources
from itertools import groupby

from wavecast.footprint.kinds import KINDS, KindTimeline
from wavecast.footprint.memory import Memory
from wavecast.report.units import memory

_COLORS = ("#4269d0", "#efb118", "#9c6b4e", "#3ca951", "#97bbf5", "#a463f2", "#ff725c")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 1000, 380, 70, 24, 26
_MOST_POINTS = 700
_ROWS = 25


def page(title: str, found: Memory) -> str:
    """The timeline with its peak explained."""
    template = (
        resources.files("wavecast.report").joinpath("templates/memory.html").read_text("utf-8")
    )
    shown = {
        "title": html.escape(title),
        "notes": "".join(f"<p>{html.escape(line)}</p>" for line in _notes(found)),
        "key": "".join(
            f'<span style="background:{color}"></span>{kind}'
            for kind, color in zip(KINDS, _COLORS, strict=True)
        ),
        "chart": _chart(found),
        "held": _table(
            ("", "kind", "tensors", "made by", "module"),
            (
                (memory(h.nbytes), h.kind, str(h.count), h.op or "before the step", h.module)
                for h in found.held()[:_ROWS]
            ),
        ),
        "modules": _table(
            ("", "module"),
            ((memory(n), name) for name, n in list(found.by_module(3).items())[:_ROWS]),
        ),
    }
    for name, content in shown.items():
        template = template.replace(f"{{{{{name}}}}}", content)
    return template


def _notes(found: Memory) -> Iterable[str]:
    process = f", process {memory(found.process_bytes)}" if found.process_bytes else ""
    yield (
        f"Allocated {memory(found.peak_bytes)} at the peak, reserved "
        f"{memory(found.reserved_bytes)}{process}."
    )
    yield from found.trace.notes


def _chart(found: Memory) -> str:
    timeline = KindTimeline(found.trace)
    places = _chosen(timeline.totals, found.peak_call)
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
    parts += _phases(found, x)
    peak = x(found.peak_call)
    call = found.trace.calls[found.peak_call]
    label = html.escape(f"peak: {call.op.base} {call.module}".strip())
    anchor = "end" if peak > _WIDTH / 2 else "start"
    parts.append(
        f'<line x1="{peak:.1f}" x2="{peak:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" '
        f'stroke="currentColor" stroke-dasharray="4 3"/>'
        f'<text x="{peak:.1f}" y="16" text-anchor="{anchor}">{label}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _phases(found: Memory, x: Callable[[int], float]) -> Iterable[str]:
    """The names of the phases under the chart, where they last long enough to be read."""
    position = 0
    total = len(found.trace)
    for phase, group in groupby(call.phase for call in found.trace):
        length = sum(1 for _ in group)
        if length > total / 12:
            middle = x(position + length // 2)
            yield f'<text x="{middle:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{phase}</text>'
        position += length


def _chosen(totals: Sequence[int], peak: int) -> list[int]:
    """Calls to draw: of each stretch the one with the most, and the peak."""
    size = max(1, -(-len(totals) // _MOST_POINTS))
    starts = range(0, len(totals), size)
    most = {max(range(s, min(s + size, len(totals))), key=totals.__getitem__) for s in starts}
    return sorted(most | {0, peak, len(totals) - 1})


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
