"""Gantt charts: the jobs of a plan over time, one row for each."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.report.gantt import GanttBar
from wavecast.report.html.axes import Plot, PlotAxis, linear_axis, title_of
from wavecast.report.html.markup import NOTHING, Html, element
from wavecast.report.units import long_duration

_ROW_PX = 16
_MOST_ROWS = 150


def gantt_chart(bars: Sequence[GanttBar]) -> Html:
    """The jobs as bars from start to end; a line marks the deadline of a job."""
    shown = list(bars)[:_MOST_ROWS]
    if not shown:
        return NOTHING
    last = max(bar.end_s for bar in shown)
    height = _ROW_PX * len(shown) + 8
    across = linear_axis(max(last, 1.0) / 3600, lambda hours: long_duration(hours * 3600))
    plot = Plot(across, PlotAxis(0.0, float(len(shown)), ()), height=height)
    pools = list(dict.fromkeys(_pool(bar) for bar in shown))
    parts = []
    for index, bar in enumerate(shown):
        y = 4 + _ROW_PX * index
        color = f"c{pools.index(_pool(bar)) % 12}"
        parts.append(_span(plot, bar, y, color))
        if bar.deadline_s is not None and bar.deadline_s <= last:
            x = plot.x(bar.deadline_s / 3600)
            parts.append(
                element("line", x1=x, x2=x, y1=float(y), y2=float(y + _ROW_PX - 3), class_="limit")
            )
    plot = plot.with_parts(parts)
    label = f"{len(shown)} jobs over {long_duration(last)}, on {', '.join(pools)}."
    more = f"; {len(bars) - len(shown)} more jobs are not drawn" if len(bars) > len(shown) else ""
    return plot.drawn(label, f"across: time; a bar is a job, a red line its deadline{more}")


def _pool(bar: GanttBar) -> str:
    return bar.gpus.rpartition(" x ")[2]


def _span(plot: Plot, bar: GanttBar, y: float, color: str) -> Html:
    begin, end = plot.across.share(bar.start_s / 3600), plot.across.share(bar.end_s / 3600)
    text = f"{bar.name}: {bar.gpus}, {long_duration(bar.start_s)} to {long_duration(bar.end_s)}"
    rect = element(
        "rect",
        title_of(text),
        x=f"{100 * begin:.3f}%",
        width=f"{100 * max(end - begin, 0.002):.3f}%",
        y=float(y),
        height=float(_ROW_PX - 3),
        class_=color,
    )
    name = element("text", bar.name, x=f"{100 * begin:.3f}%", y=y + 10, dx="3", class_="halo")
    return element("g", rect, name)
