"""How the speed grows with the number of GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from wavecast.planning.scaling import KNEE, Scaling
from wavecast.report.html.axes import Axis, Plot, log_axis, title_of
from wavecast.report.html.markup import Html, element, empty_element, joined, table
from wavecast.report.parallel import scaling_columns
from wavecast.report.units import count, duration, percent


def scaling_chart(curve: Scaling) -> Html:
    """The speed over the number of GPUs, beside that of perfect scaling."""
    points = curve.points
    speeds = [point.relative * point.gpus for point in points]
    first, last = points[0].gpus, points[-1].gpus
    ticks = tuple((float(point.gpus), str(point.gpus)) for point in points)
    across = Axis(float(first), float(max(last, 2 * first)), ticks, is_log=True)
    up = log_axis(min(speeds) or 1.0, float(last), lambda speed: f"{count(speed)} x", base=2.0)
    plot = Plot(across, up)
    ends = [float(first), float(last)]
    ideal = empty_element("polyline", points=plot.path(ends, ends), class_="ideal")
    xs = [float(point.gpus) for point in points]
    line = empty_element("polyline", points=plot.path(xs, speeds), class_="curve")
    plot = plot.with_parts([plot.stretched(ideal, line), *_dots(curve, plot)])
    end = points[-1]
    label = (
        f"Speed from {first} to {last} GPUs: {last} GPUs are {count(speeds[-1])} times as fast as "
        f"one would be, {percent(end.relative)} of perfect scaling."
    )
    return joined([plot.drawn(label, "GPUs; the dashed line is perfect scaling")])


def _dots(curve: Scaling, plot: Plot) -> Iterable[Html]:
    for point in curve.points:
        text = (
            f"{point.gpus} GPUs: {duration(point.prediction.seconds)} a step, "
            f"{percent(point.relative)} of the speed per GPU"
        )
        x, y = plot.x(point.gpus), plot.y(point.relative * point.gpus)
        yield element("circle", title_of(text), cx=x, cy=y, r="4.5", class_="dot")
        if point.gpus == curve.knee:
            knee = f"knee: beyond, less than {percent(KNEE)} of the speed per GPU"
            yield element("text", knee, x=x, y=y + 20, class_="middle halo")


def scaling_table(curve: Scaling) -> Html:
    """The same numbers as a table."""
    return table(scaling_columns(curve), caption="Speed by number of GPUs")
