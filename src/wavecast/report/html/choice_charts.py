"""Choices of GPUs by time and money."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from wavecast.planning.selection import Candidate, Selection
from wavecast.report.html.axes import Plot, PlotAxis, title_of
from wavecast.report.html.markup import NOTHING, Html, element, empty_element
from wavecast.report.units import long_duration

_MOST_NAMED = 8
_MOST_MARKS = 5
_HOUR_S = 3600.0
TIMES_S = (
    *(60.0, 300.0, 900.0, 1800.0),
    *(hours * _HOUR_S for hours in (1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 720, 1440, 2880, 8760)),
)
"""Times at which an axis may have marks, in seconds."""


def choice_chart(
    selection: Selection, budget_usd: float | None = None, deadline_s: float | None = None
) -> Html:
    """Time and money of all choices; nothing if fewer than two have a price.

    The line joins the choices than which no other is both faster and cheaper.
    """
    drawn = [one for one in (*selection.ranked, *selection.beyond) if one.cost and one.cost.usd]
    if len(drawn) < 2:
        return NOTHING
    plot = _plot(drawn)
    front = sorted((one for one in drawn if one.on_front), key=lambda one: one.seconds.value)
    xs = [one.seconds.value for one in front]
    line = empty_element(
        "polyline", points=plot.path(xs, [one.usd.value for one in front]), class_="curve"
    )
    plot = plot.with_parts(_limits(plot, budget_usd, deadline_s))
    plot = plot.with_parts([plot.stretched(line)])
    plot = plot.with_parts(part for one in front for part in _range(plot, one))
    plot = plot.with_parts(_dot(plot, one, one is selection.best) for one in drawn)
    first = sorted(front, key=lambda one: one is not selection.best)
    named = [(one.seconds.value, plot.y(one.usd.value) - 12, one.name) for one in first]
    plot = plot.with_parts(plot.names(named[:_MOST_NAMED], "strong halo"))
    label = (
        f"Time and money of {len(drawn)} choices. No other is both faster and cheaper than: "
        f"{', '.join(one.name for one in front)}."
    )
    under = "across: time; up: USD; the line joins what no other choice beats in both"
    return plot.drawn(label, under)


def _plot(drawn: Sequence[Candidate]) -> Plot:
    seconds, money = zip(*((one.seconds.value, one.usd.value) for one in drawn), strict=True)
    times = marked_axis(min(seconds) / 1.25, max(seconds) * 1.25, TIMES_S, long_duration)
    prices = sorted(digit * 10.0**power for power in range(-3, 9) for digit in (1, 2, 5))
    costs = marked_axis(min(money) / 1.6, max(money) * 1.6, prices, lambda usd: f"${usd:,.4g}")
    return Plot(times, costs, height=320)


def marked_axis(
    low: float, high: float, marks: Sequence[float], label: Callable[[float], str]
) -> PlotAxis:
    """A logarithmic axis with some of the marks that lie on it, or with its ends."""
    inside = [float(mark) for mark in marks if low <= mark <= high]
    chosen = inside[:: -(-len(inside) // _MOST_MARKS)] if len(inside) > 1 else [low, high]
    return PlotAxis(low, high, tuple((mark, label(mark)) for mark in chosen), is_log=True)


def _limits(plot: Plot, budget_usd: float | None, deadline_s: float | None) -> Iterable[Html]:
    """The budget and the deadline, as far as they are in the plot."""
    if budget_usd is not None and plot.up.low < budget_usd < plot.up.high:
        y = plot.y(budget_usd)
        yield plot.level(y, "limit")
        text = f"budget ${budget_usd:,.4g}"
        yield element("text", text, x="99.5%", y=y - 5, class_="last limit halo")
    if deadline_s is not None and plot.across.low < deadline_s < plot.across.high:
        yield plot.upright(deadline_s, "limit")
        text = f"deadline {long_duration(deadline_s)}"
        # At the bottom, since the budget's name may be at the top.
        low = plot.height - 8
        yield element("text", text, x=plot.x(deadline_s), y=low, class_="last limit halo")


def _range(plot: Plot, one: Candidate) -> Iterable[Html]:
    """The ranges of time and money, as two lines through a point."""
    x, y = plot.x(one.seconds.value), plot.y(one.usd.value)
    if one.seconds.low is not None and one.seconds.high is not None:
        ends = plot.x(one.seconds.low), plot.x(one.seconds.high)
        yield empty_element("line", x1=ends[0], x2=ends[1], y1=y, y2=y, class_="whisker thin")
    if one.usd.low is not None and one.usd.high is not None:
        heights = plot.y(one.usd.low), plot.y(one.usd.high)
        yield empty_element("line", x1=x, x2=x, y1=heights[0], y2=heights[1], class_="whisker thin")


def _dot(plot: Plot, one: Candidate, is_best: bool) -> Html:
    text = f"{one.name}: {long_duration(one.seconds.value)}, ${one.usd.value:,.2f}"
    class_ = "dot" if one.on_front else "dot soft"
    x, y = plot.x(one.seconds.value), plot.y(one.usd.value)
    return element("circle", title_of(text), cx=x, cy=y, r="7" if is_best else "4.5", class_=class_)
