"""The page about a plan of many jobs."""

from __future__ import annotations

from collections.abc import Sequence

from wavecast.planning.schedule.planned import JobsPlan
from wavecast.report.html.axes import Plot, linear_axis
from wavecast.report.html.choice_charts import TIMES_S, marked_axis
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.gantt_charts import gantt_chart
from wavecast.report.html.markup import (
    NOTHING,
    Html,
    bullets,
    element,
    empty_element,
    escaped,
    table,
)
from wavecast.report.html.reports import sentence
from wavecast.report.plans import JOBS, plan_bars, plan_verdict
from wavecast.report.tables import ANY_WIDTH, fitting
from wavecast.report.units import long_duration, money

_METHOD = (
    "Jobs are predicted on each GPU and count that they may run on; what does not fit is left out.",
    "A linear program gives a bound and a first choice; CP-SAT searches options and order.",
    "Jobs start when those before them leave room on machines; a job that fits runs within one.",
    "Ranges are where nine of ten draws lie, when the plan is carried out with drawn times.",
)


def plan_report(title: str, plan: JobsPlan, curve: Sequence[tuple[float, float]] = ()) -> Report:
    """The verdict, the Gantt chart, the jobs with reasons, and the cost against the deadline.

    Args:
        title: the name of the plan.
        plan: the plan.
        curve: the cost of the cheapest plan for some limits of the makespan, in seconds.
    """
    columns = fitting(JOBS.columns(plan.jobs), ANY_WIDTH)
    listed = table(columns, caption="The jobs, in the order in which they start", sorts=True)
    sections = [
        Section("gantt", "When each job runs", gantt_chart(plan_bars(plan)), short="chart"),
        Section("jobs", "The jobs, and why they run there", listed, short="jobs"),
    ]
    if len(curve) > 1:
        lead = "What the cheapest plan costs if all jobs must end by a time."
        drawn = cost_curve(curve)
        sections.append(Section("cost", "Cost against deadline", drawn, lead, "cost"))
    if plan.unmet:
        told = bullets(map(sentence, plan.unmet))
        sections.append(Section("unmet", "Why deadlines are missed", told, short="deadlines"))
    sections.append(Section("method", "How this was planned", bullets(_METHOD), short="how"))
    return Report(title, escaped(plan_verdict(plan)), tuple(sections))


def cost_curve(curve: Sequence[tuple[float, float]]) -> Html:
    """Money over time: what less time costs."""
    if len(curve) < 2:
        return NOTHING
    points = sorted(curve)
    times = [seconds for seconds, _ in points]
    usd = [cost for _, cost in points]
    plot = Plot(
        marked_axis(min(times) / 1.1, max(times) * 1.1, TIMES_S, long_duration),
        linear_axis(max(usd), money),
    )
    line = empty_element("polyline", points=plot.path(times, usd), class_="curve")
    dots = [
        element("circle", cx=plot.x(x), cy=plot.y(y), r="3.5", class_="dot")
        for x, y in zip(times, usd, strict=True)
    ]
    plot = plot.with_parts([plot.stretched(line), *dots])
    label = f"From {money(usd[-1])} for {long_duration(points[-1][0])} to {money(usd[0])}."
    return plot.drawn(label, "across: when all jobs must have ended; up: USD")
