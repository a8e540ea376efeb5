"""Gantt charts as text: a line for each job, a column for each part of the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wavecast.report.units import long_duration


class GanttBar(NamedTuple):
    """A job between two times, on some GPUs."""

    name: str
    gpus: str
    submit_s: float
    start_s: float
    end_s: float
    deadline_s: float | None = None


def gantt_lines(bars: Sequence[GanttBar], width: int, most: int = 60) -> list[str]:
    """The chart: `.` waits, `#` runs, `|` is the deadline."""
    shown = list(bars)[:most]
    if not shown:
        return []
    last = max(bar.end_s for bar in shown)
    names = max(len(bar.name) for bar in shown)
    names = min(names, 24)
    room = max(20, min(100, width - names - 3))
    lines = [_line(bar, names, room, last) for bar in shown]
    end = long_duration(last)
    lines.append(f"{'':{names}}  0{end:>{room - 1}}")
    if len(bars) > most:
        lines.append(f"{len(bars) - most} more jobs")
    return lines


def _line(bar: GanttBar, names: int, room: int, last_s: float) -> str:
    def place(seconds: float) -> int:
        return min(room, max(0, round(seconds / last_s * room))) if last_s else 0

    cells = [" "] * (room + 1)
    begin, end = place(bar.start_s), max(place(bar.end_s), place(bar.start_s) + 1)
    for index in range(place(bar.submit_s), begin):
        cells[index] = "."
    for index in range(begin, min(end, room)):
        cells[index] = "#"
    if bar.deadline_s is not None and bar.deadline_s <= last_s:
        cells[place(bar.deadline_s)] = "|"
    return f"{bar.name[:names]:{names}}  {''.join(cells)}".rstrip()
