"""Gantt charts on pages."""

from __future__ import annotations

import pytest

from wavecast.report.results.plans import GanttBar, gantt_chart, time_axis


@pytest.mark.parametrize(
    ("last_s", "marks"),
    [
        (0.0, ["0", "1 s"]),
        (40.0, ["0", "15 s", "30 s"]),
        (41 * 3600.0, ["0", "12 h", "24 h", "36 h"]),
        (20 * 86400.0, ["0", "7 d", "14 d"]),
    ],
)
def test_time_begins_at_0_and_has_whole_marks(last_s: float, marks: list[str]) -> None:
    assert [text for _, text in time_axis(last_s).ticks] == marks


def test_names_are_before_the_bars_and_colors_say_the_pool() -> None:
    bars = [
        GanttBar("first", "2 x l4", 0.0, 0.0, 3600.0, 1800.0),
        GanttBar("a job with a very long name", "t4", 0.0, 0.0, 7200.0),
    ]
    drawn = gantt_chart(bars)
    beside, _, plot = drawn.partition('class="plot"')
    assert ">first</text>" in beside
    assert ">a job with a very long\N{HORIZONTAL ELLIPSIS}</text>" in beside
    assert "</text>" not in plot.partition(">0</text>")[0].partition("<rect")[2]
    assert plot.count('class="limit"') == 1
    assert "us" not in drawn
    assert "l4</li>" in drawn
    assert gantt_chart([]) == ""
