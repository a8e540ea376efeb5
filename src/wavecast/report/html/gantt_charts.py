"""Gantt charts: the jobs of a plan over time, one row for each."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.report.gantt import GanttBar
from wavecast.report.html.axes import Plot, PlotAxis, title_of
from wavecast.report.html.colors import key
from wavecast.report.html.markup import NOTHING, Html, element, empty_element, joined
from wavecast.report.units import long_duration

_ROW_PX = 18
_BAR_PX = 13
_MOST_ROWS = 150
_LONGEST_NAME = 22
_MOST_MARKS = 6
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_STEPS = (
    *((number, unit) for unit in ("s", "min") for number in (1, 5, 15, 30)),
    *((number, "h") for number in (1, 2, 3, 6, 12)),
    *((number, "d") for number in (1, 2, 7, 14, 28, 91, 364)),
)
"""The distances that the marks of an axis may have."""


def gantt_chart(bars: Sequence[GanttBar]) -> Html:
    """The jobs as bars from start to end, with their names before them; a line is a deadline."""
    shown = list(bars)[:_MOST_ROWS]
    if not shown:
        return NOTHING
    last = max(bar.end_s for bar in shown)
    rows = tuple((len(shown) - row - 0.5, _short(bar.name)) for row, bar in enumerate(shown))
    names = PlotAxis(0.0, float(len(shown)), rows)
    plot = Plot(time_axis(last), names, height=_ROW_PX * len(shown), has_long_names=True)
    pools = list(dict.fromkeys(_pool(bar) for bar in shown))
    colors = {pool: f"c{number % 12}" for number, pool in enumerate(pools)}
    for row, bar in enumerate(shown):
        plot = plot.with_parts(_row(plot, bar, row * _ROW_PX, colors[_pool(bar)]))
    label = f"{len(shown)} jobs over {long_duration(last)}, on {', '.join(pools)}."
    more = f"; {len(bars) - len(shown)} more jobs are not drawn" if len(bars) > len(shown) else ""
    drawn = plot.drawn(label, f"across: time; a bar is a job, a red line its deadline{more}")
    return joined([drawn, key(colors) if len(pools) > 1 else NOTHING])


def time_axis(last_s: float) -> PlotAxis:
    """An axis from 0 to a time, with marks at whole minutes, hours or days."""
    last_s = max(last_s, 1.0)
    sizes = [(number, unit, number * _UNITS[unit]) for number, unit in _STEPS]
    number, unit, step = next(
        (one for one in sizes if last_s / one[2] <= _MOST_MARKS),
        (round(last_s / _UNITS["d"] / 4), "d", last_s / 4),
    )
    marks = [(0.0, "0")]
    while marks[-1][0] + step <= last_s:
        marks.append((len(marks) * float(step), f"{len(marks) * number} {unit}"))
    return PlotAxis(0.0, last_s, tuple(marks))


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}\N{HORIZONTAL ELLIPSIS}"


def _pool(bar: GanttBar) -> str:
    return bar.gpus.rpartition(" x ")[2]


def _row(plot: Plot, bar: GanttBar, top: float, color: str) -> list[Html]:
    """The bar of a job, and its deadline if it is in the plot."""
    begin, end = plot.across.share(bar.start_s), plot.across.share(bar.end_s)
    start = long_duration(bar.start_s) if bar.start_s else "0"
    text = f"{bar.name}: {bar.gpus}, {start} to {long_duration(bar.end_s)}"
    drawn = [
        element(
            "rect",
            title_of(text),
            x=f"{100 * begin:.3f}%",
            width=f"{100 * max(end - begin, 0.002):.3f}%",
            y=top + (_ROW_PX - _BAR_PX) / 2,
            height=float(_BAR_PX),
            rx="2",
            class_=color,
        )
    ]
    if bar.deadline_s is not None and bar.deadline_s <= plot.across.high:
        x = plot.x(bar.deadline_s)
        ends = {"y1": top + 1.0, "y2": top + _ROW_PX - 1.0}
        drawn.append(empty_element("line", x1=x, x2=x, class_="limit", **ends))
    return drawn
