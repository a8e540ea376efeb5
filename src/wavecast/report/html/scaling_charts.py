"""How the speed grows with the number of GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from wavecast.planning.scaling import KNEE, Scaling
from wavecast.report.html.axes import Plot, PlotAxis, title_of
from wavecast.report.html.markup import Html, element, empty_element, table
from wavecast.report.parallel import scaling_columns
from wavecast.report.units import duration, percent


def scaling_chart(curve: Scaling) -> Html:
    """The speed per GPU over the number of GPUs; perfect scaling keeps it."""
    points = curve.points
    first, last = points[0], points[-1]
    ticks = tuple((float(point.gpus), str(point.gpus)) for point in points)
    across = PlotAxis(float(first.gpus), float(max(last.gpus, 2 * first.gpus)), ticks, is_log=True)
    high = max(1.0, *(point.relative for point in points))
    up = PlotAxis(
        0.0, 1.1 * high, tuple((mark, percent(mark)) for mark in (0, 0.25, 0.5, 0.75, 1.0))
    )
    plot = Plot(across, up)
    xs, ys = [float(point.gpus) for point in points], [point.relative for point in points]
    bottom = plot.area(xs, ys, [0.0] * len(xs))
    area = empty_element("polygon", points=bottom, class_="under-curve")
    line = empty_element("polyline", points=plot.path(xs, ys), class_="curve")
    mark = plot.level(plot.y(KNEE), "ideal")
    plot = plot.with_parts([plot.stretched(area, line), mark, *_dots(curve, plot)])
    label = (
        f"Speed per GPU from {first.gpus} to {last.gpus} GPUs: in the end it is "
        f"{percent(last.relative)} of that of {first.gpus}."
    )
    under = f"GPUs; the height is the speed of each, and the dashed line marks {percent(KNEE)}"
    return plot.drawn(label, under)


def _dots(curve: Scaling, plot: Plot) -> Iterable[Html]:
    for point in curve.points:
        text = (
            f"{point.gpus} GPUs: {duration(point.prediction.seconds)} a step, "
            f"{percent(point.relative)} of the speed per GPU"
        )
        x, y = plot.x(point.gpus), plot.y(point.relative)
        yield element("circle", title_of(text), cx=x, cy=y, r="4.5", class_="dot")
        knee = "knee: " if point.gpus == curve.knee else ""
        shown = f"{knee}{percent(point.relative)}"
        yield element("text", shown, x=x, y=y - 10, class_=f"{plot.side(point.gpus)} strong halo")


def scaling_table(curve: Scaling) -> Html:
    """The same numbers as a table."""
    return table(scaling_columns(curve), caption="Speed by number of GPUs")
