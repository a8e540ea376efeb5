"""The roofline: each op as a point under the limits of the GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from wavecast.hardware.device import Device
from wavecast.report.html.axes import Plot, log_axis, title_of
from wavecast.report.html.colors import color_of_kind, kind_key
from wavecast.report.html.markup import Html, element, empty_element, joined, table
from wavecast.report.tables import from_rows
from wavecast.report.units import duration, or_unknown, percent, quantity, three_digits
from wavecast.steps.rooflines import RooflinePoint, roofline_points
from wavecast.steps.timetable import Timetable

_NAMED = 5
"""How many points have their names beside them."""
_LEAST_NAMED = 0.02
"""The least share of the time of a point with a name."""
_LONGEST_NAME = 18
_DRAWN = 60
_ROWS = 20


def roofline(table_of: Timetable, gpu: Device) -> Html:
    """The ops of a step under the GPU's roofs, and the same as a table."""
    points = roofline_points(table_of.works, gpu)
    computing = [point for point in points if point.flops][:_DRAWN]
    if not computing:
        return element("p", "No op of this step has a formula for its FLOPs.")
    return _chart(computing, gpu, float(table_of.gpu_s.sum()) or 1.0)


def roofline_table(table_of: Timetable, gpu: Device) -> Html:
    """The points of the roofline with their numbers."""
    rows = roofline_points(table_of.works, gpu)[:_ROWS]
    whole = float(table_of.gpu_s.sum()) or 1.0
    cells = [
        (
            *(row.name, row.unit.replace("_", " ")),
            *(duration(row.seconds), percent(row.seconds / whole, 1)),
            *(three_digits(row.intensity), quantity(row.flops_per_s), quantity(row.bytes_per_s)),
            or_unknown(row.attained(gpu), percent),
        )
        for row in rows
    ]
    headings = ("<op", "<unit", "time", "share", "FLOP/B", "FLOP/s", "B/s", "of its roof")
    return table(from_rows(cells, *headings), caption="Ops against the limits of the GPU")


def _chart(points: Sequence[RooflinePoint], gpu: Device, whole_s: float) -> Html:
    units = list(dict.fromkeys(point.unit for point in points))
    roofs = {unit: rate for unit in units if (rate := gpu.rate(unit)) is not None}
    if not roofs:
        return element("p", f"The peak rates of {gpu.id} are not known.")
    highest = max(roofs.values())
    intensities = [point.intensity for point in points if point.intensity > 0]
    low = max(0.01, min(0.5, *intensities))
    ridge = highest / gpu.memory_bytes_per_s
    across = log_axis(low, max(4 * ridge, *intensities), _power)
    least = max(highest * 1e-5, min(point.flops_per_s for point in points))
    up = log_axis(least, highest, _power)
    up = replace(up, high=max(up.high, highest * 2.5))
    plot = Plot(across, up, height=300)
    points = [point for point in points if _is_inside(point, plot)]
    if not points:
        return element("p", "All ops of this step compute next to nothing in their time.")
    lines = [_memory_roof(plot, gpu, highest), *_compute_roofs(plot, gpu, roofs)]
    plot = plot.with_parts([plot.stretched(*lines)])
    plot = plot.with_parts(_roof_names(plot, gpu, roofs))
    plot = plot.with_parts(_points(plot, points, gpu, whole_s))
    longest = points[0]
    label = (
        f"Roofline of {gpu.id}: {len(points)} ops. The longest, {longest.name}, has "
        f"{three_digits(longest.intensity)} FLOPs a byte and attains "
        f"{quantity(longest.flops_per_s, 'FLOP/s')}."
    )
    under = (
        "across: FLOPs for each byte of memory traffic; up: FLOP/s; the area of a point is its "
        "share of the time"
    )
    return joined([plot.drawn(label, under), kind_key(point.kind for point in points)])


def _is_inside(point: RooflinePoint, plot: Plot) -> bool:
    """Whether a point is in the plot; ops that compute next to nothing are far below."""
    return point.intensity >= plot.across.low and point.flops_per_s >= plot.up.low


def _power(value: float) -> str:
    """A power of ten with a prefix, as the marks of an axis have it: `100 T`, `0.01`."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size * 0.999:
            return f"{value / size:.0f} {prefix}"
    return f"{value:g}"


def _short(point: RooflinePoint) -> str:
    name = point.name.removeprefix("aten.")
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}\N{HORIZONTAL ELLIPSIS}"


def _memory_roof(plot: Plot, gpu: Device, highest: float) -> Html:
    """The line on which memory traffic is the limit, from the edge of the plot up to the top."""
    bandwidth = gpu.memory_bytes_per_s
    first = max(plot.across.low, plot.up.low / bandwidth)
    ends = [first, highest / bandwidth]
    return empty_element(
        "polyline", points=plot.path(ends, [end * bandwidth for end in ends]), class_="roof"
    )


def _compute_roofs(plot: Plot, gpu: Device, roofs: dict[str, float]) -> Iterable[Html]:
    for rate in roofs.values():
        ends = [rate / gpu.memory_bytes_per_s, plot.across.high]
        yield empty_element("polyline", points=plot.path(ends, [rate, rate]), class_="roof")


def _roof_names(plot: Plot, gpu: Device, roofs: dict[str, float]) -> Iterable[Html]:
    used: list[float] = []
    for unit, rate in sorted(roofs.items(), key=lambda item: -item[1]):
        y = plot.y(rate) - 5
        if all(abs(y - other) > 11 for other in used):
            used.append(y)
            text = f"{unit.replace('_', ' ')} {quantity(rate, 'FLOP/s')}"
            # Above the sloping roof, where no point can be.
            x = plot.x(rate / gpu.memory_bytes_per_s * 0.9)
            yield element("text", text, x=x, y=y + 5, class_="last soft halo")
    bandwidth = gpu.memory_bytes_per_s
    text = f"memory {quantity(bandwidth, 'B/s')}"
    at = max(plot.across.low, plot.up.low / bandwidth) * 1.6
    below = min(plot.height - 4.0, plot.y(at * bandwidth) + 20)
    yield element("text", text, x=plot.x(at), y=below, class_="first soft halo")


def _points(
    plot: Plot, points: Sequence[RooflinePoint], gpu: Device, whole_s: float
) -> Iterable[Html]:
    for point in points:
        share = point.seconds / whole_s
        attained = or_unknown(point.attained(gpu), percent)
        text = (
            f"{point.name} on {point.unit.replace('_', ' ')}: {duration(point.seconds)}, "
            f"{percent(share, 1)} of GPU time, {attained} of its roof"
        )
        yield element(
            "circle",
            title_of(text),
            cx=plot.x(point.intensity),
            cy=plot.y(point.flops_per_s),
            r=_radius(point, whole_s),
            class_=f"point c{color_of_kind(point.kind)}",
        )
    named = [point for point in points[:_NAMED] if point.seconds / whole_s >= _LEAST_NAMED]
    places = [
        (point.intensity, plot.y(point.flops_per_s) - _radius(point, whole_s) - 5, _short(point))
        for point in named
    ]
    yield from plot.names(places, "halo")


def _radius(point: RooflinePoint, whole_s: float) -> float:
    return 3 + 24 * math.sqrt(point.seconds / whole_s)
