"""Axes and plots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecast.report.html.markup import Plot, bar, linear_axis, log_axis
from wavecast.report.units import count


@given(st.floats(1e-9, 1e15))
def test_an_axis_reaches_its_end_with_a_few_marks(high: float) -> None:
    axis = linear_axis(high, str)
    assert axis.high >= high * 0.999
    assert 2 <= len(axis.ticks) <= 7
    assert axis.share(0.0) == 0.0


@given(st.floats(1e-6, 1e6), st.floats(1.0, 1e9))
def test_a_logarithmic_axis_holds_both_ends(low: float, factor: float) -> None:
    axis = log_axis(low, low * factor, str)
    assert axis.low <= low * (1 + 1e-9)
    assert axis.high >= low * factor * (1 - 1e-9)
    assert 1 <= len(axis.ticks) <= 9


def test_values_outside_stay_at_the_edges() -> None:
    axis = log_axis(1.0, 100.0, str)
    assert axis.share(0.0) == 0.0
    assert axis.share(1e9) == 1.0
    assert axis.share(10.0) == pytest.approx(0.5)


def test_bytes_have_binary_marks() -> None:
    axis = linear_axis(7 * 2**30, str, binary=True)
    assert [value / 2**30 for value, _ in axis.ticks] == [0.0, 2.0, 4.0, 6.0, 8.0]


def test_a_drawing_has_a_text_for_those_who_cannot_see_it() -> None:
    plot = Plot(linear_axis(10.0, count), linear_axis(5.0, count))
    drawn = plot.drawn('a "chart" <here>', "time")
    assert 'role="img"' in drawn
    assert "a &quot;chart&quot; &lt;here&gt;" in drawn
    assert plot.x(5.0) == "50.00%"
    assert plot.y(0.0) == plot.height


def test_steps_go_round_their_area() -> None:
    plot = Plot(linear_axis(10.0, count), linear_axis(4.0, count))
    outline = plot.steps([0.0, 5.0, 10.0], [2.0, 4.0, 4.0], [0.0, 0.0, 2.0])
    assert outline == "M0 500h500v-500h500v500v500h-500h-500z"


def test_a_bar_never_leaves_its_room() -> None:
    drawn = bar([(0.7, "a", "x"), (0.7, "b", "y"), (0.1, "c", "z")], "")
    assert 'width="70.000%"' in drawn
    assert 'width="30.000%"' in drawn
    assert 'class="c"' not in drawn
