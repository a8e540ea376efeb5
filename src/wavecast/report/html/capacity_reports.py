"""The page about how many GPUs to have."""

from __future__ import annotations

from wavecast.planning.capacity import CapacityPlan
from wavecast.report.capacities import capacity_verdict
from wavecast.report.fields import columns
from wavecast.report.html.axes import Plot, PlotAxis, linear_axis
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import Html, element, empty_element, escaped, joined, table
from wavecast.report.tables import ANY_WIDTH, fitting
from wavecast.report.units import money, percent


def capacity_report(title: str, found: CapacityPlan) -> Report:
    """The verdict, the share of jobs in time over the money, and rent against buying."""
    sections = []
    if len(found.curve) > 1:
        listed = table(fitting(columns(found.curve), ANY_WIDTH), caption="Mixes of GPUs")
        drawn = joined([_curve(found), listed])
        sections.append(Section("curve", "What money promises", drawn))
    if found.purchases:
        bought = table(fitting(columns(found.purchases), ANY_WIDTH), caption="Buying and renting")
        sections.append(Section("buy", "Rent against buying", bought))
    return Report(title, escaped(capacity_verdict(found)), tuple(sections))


def _curve(found: CapacityPlan) -> Html:
    usd = [mix.usd_per_week for mix in found.curve]
    shares = [mix.in_time for mix in found.curve]
    ticks = tuple((mark, percent(mark)) for mark in (0.0, 0.25, 0.5, 0.75, 1.0))
    plot = Plot(linear_axis(max(usd), money), PlotAxis(0.0, 1.05, ticks))
    line = empty_element("polyline", points=plot.path(usd, shares), class_="curve")
    dots = [
        element("circle", cx=plot.x(x), cy=plot.y(y), r="3.5", class_="dot")
        for x, y in zip(usd, shares, strict=True)
    ]
    promise = plot.level(plot.y(found.promise), "ideal")
    plot = plot.with_parts([plot.stretched(line), promise, *dots])
    label = f"From {percent(shares[0])} in time for {money(usd[0])} a week upwards."
    return plot.drawn(label, "across: USD a week; up: the share of jobs in time")
