"""Plans of many jobs: the verdict, the jobs with their GPUs and times, and a Gantt chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rich.console import RenderableType

from wavecast.planning.capacity import BuyOrRent, CapacityPlan, Mix
from wavecast.planning.schedule.jobs import Aims
from wavecast.planning.schedule.planned import JobPlan, JobsPlan
from wavecast.planning.schedule.simulator import JobOutcome, Simulation
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.html.documents import Report, Section
from wavecast.report.html.markup import (
    NOTHING,
    Html,
    Plot,
    PlotAxis,
    bullets,
    element,
    empty_element,
    escaped,
    html_table,
    joined,
    key,
    linear_axis,
    title_of,
)
from wavecast.report.results.selections import TIMES_S, marked_axis
from wavecast.report.tables import (
    ANY_WIDTH,
    fitting,
    left_out,
    line,
    remarks,
    sentence,
    table,
    titled,
)
from wavecast.report.units import UNKNOWN, long_duration, money, percent, span
from wavecast.report.views import LEFT_OUT, View, ViewPart

_MOST_ROWS = 60
_SURE = 0.9


def aims_text(aims: Aims) -> str:
    """What a plan minimises: `cost + 5 x makespan`."""
    names = {
        "cost": aims.cost,
        "makespan": aims.makespan,
        "mean completion": aims.completion,
        "weighted tardiness": aims.tardiness,
    }
    parts = [name if w == 1 else f"{w:g} x {name}" for name, w in names.items() if w]
    return " + ".join(parts)


def plan_verdict(plan: JobsPlan) -> str:
    """A plan in a sentence or three."""
    schedule = plan.schedule
    count, due = len(plan.jobs), [job for job in plan.jobs if job.run.job.deadline_s is not None]
    text = (
        f"{count} jobs on {plan.fleet.gpus} GPUs end after {long_duration(schedule.makespan_s)} "
        f"and cost {money(schedule.usd)}."
    )
    if due:
        late = {run.job.name for run in schedule.late}
        in_time = [job for job in due if job.run.job.name not in late]
        text += f" {len(in_time)} of {len(due)} deadlines are met{_doubt(in_time)}."
    return f"{text} {_how_good(plan)}"


def _doubt(in_time: Sequence[JobPlan]) -> str:
    """The job that is least sure to be in time; nothing if all are in most draws."""
    outlooks = [
        (job.outlook.in_time, job.run.job.name) for job in in_time if job.outlook is not None
    ]
    shares = [(share, name) for share, name in outlooks if share is not None]
    least, name = min(shares, default=(1.0, ""))
    return f", but {name} is in time in only {percent(least)} of draws" if least < _SURE else ""


def _how_good(plan: JobsPlan) -> str:
    schedule, aims = plan.schedule, aims_text(plan.schedule.aims)
    if schedule.gap < 5e-4:
        return f"No plan has less {aims}, in time units of {long_duration(schedule.unit_s)}."
    return f"It is proven to be within {percent(schedule.gap, 1)} of the least {aims}."


def moment(seconds: float) -> str:
    """A time from the start of a plan: `now`, `3.2 h`."""
    return "now" if seconds < 1 else long_duration(seconds)


def _moments(low_s: float, high_s: float) -> str:
    return moment(low_s) if moment(low_s) == moment(high_s) else span(low_s, high_s, moment)


def _span_of_start(job: JobPlan) -> str:
    outlook = job.outlook
    return UNKNOWN if outlook is None else _moments(outlook.start_low_s, outlook.start_high_s)


def _span_of_end(job: JobPlan) -> str:
    outlook = job.outlook
    return UNKNOWN if outlook is None else _moments(outlook.end_low_s, outlook.end_high_s)


JOBS = describe(
    JobPlan,
    Field("job", "run.job.name", title="job", meaning="The name of the job."),
    Field("gpus_text", "run.option.name", title="GPUs", meaning="The GPUs in a few words."),
    Field("pool", "run.option.pool", meaning="The pool of the GPUs."),
    Field("gpus", "run.option.gpus", meaning="The number of GPUs."),
    Field("layout", "run.option.layout", title="layout", rank=6),
    Field("nodes", "run.nodes"),
    Field("submit_s", "run.job.submit_s"),
    Field("start_s", title="start", text=moment, left=False),
    Field("", _span_of_start, title="range of start", rank=3, left=False),
    Field("end_s", title="end", text=long_duration),
    Field("", _span_of_end, title="range of end", rank=4, left=False),
    Field(
        "deadline_s", "run.job.deadline_s", title="deadline", rank=2, text=long_duration, absent=""
    ),
    Field("in_time", "outlook.in_time", title="in time", rank=2, text=percent, absent=""),
    Field("late_s", "run.late_s"),
    Field(
        "usd",
        "run.option.usd",
        title="cost",
        text=money,
        meaning="What it costs; 0 where the price is not known.",
    ),
    Field("outlook", "outlook"),
    Field("reason", title="why", rank=5),
)


def plan_bars(plan: JobsPlan) -> list[GanttBar]:
    """The jobs as bars of a chart."""
    return [
        GanttBar(
            job.run.job.name,
            job.run.option.name,
            job.run.job.submit_s,
            job.start_s,
            job.end_s,
            job.run.job.deadline_s,
        )
        for job in plan.jobs
    ]


def plan_text(title: str, plan: JobsPlan, width: int) -> RenderableType:
    """The verdict, the jobs, the chart, and what is to be known of them."""
    rows = plan.jobs[:_MOST_ROWS]
    every = JOBS.columns(rows)
    kept = fitting(every, width)
    uses = [
        f"{use.pool}: {use.jobs} jobs, {percent(use.utilisation)} of {use.gpus} GPUs "
        "in use until the end"
        for use in plan.pools
    ]
    lines = [*plan.unmet, *left_out(every, kept), *uses, *_notes(plan)]
    if len(plan.jobs) > _MOST_ROWS:
        lines.append(f"{len(plan.jobs) - _MOST_ROWS} more jobs (--json has all)")
    chart = [line(text) for text in gantt_lines(plan_bars(plan), width)]
    return titled(title, line(plan_verdict(plan)), "", table(kept), "", *chart, "", *remarks(lines))


def _notes(plan: JobsPlan) -> list[str]:
    schedule = plan.schedule
    lines = [
        f"found by {schedule.method} in time units of {long_duration(schedule.unit_s)}; "
        f"the bound is {schedule.bound:.4g}, the plan {schedule.value:.4g}"
    ]
    unpriced = [pool.name for pool in plan.fleet.pools if pool.usd_per_hour is None]
    if unpriced:
        lines.append(f"no price is known, and none is counted, for {', '.join(unpriced)}")
    if schedule.is_robust:
        lines.append("planned with the high ends of the ranges of times (--robust)")
    lines.append("ranges: where nine of ten draws lie, with times drawn from their ranges")
    return lines


_SCHEDULE = ("value", "bound", "gap", "method", "unit_s")
describe(
    JobsPlan,
    Field("verdict", plan_verdict, title="verdict"),
    Field("aims", lambda plan: aims_text(plan.schedule.aims), kind=str, meaning="Its aims."),
    *(Field(name, f"schedule.{name}") for name in _SCHEDULE),
    Field("robust", "schedule.is_robust"),
    *(Field(name, f"schedule.{name}") for name in ("usd", "makespan_s", "mean_completion_s")),
    *map(Field, ("meets_deadlines", "unmet", "jobs", "pools")),
    parts="jobs",
)


# The page about a plan of many jobs.


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
    listed = html_table(columns, caption="The jobs, in the order in which they start", sorts=True)
    sections = [
        Section("gantt", "When each job runs", gantt_chart(plan_bars(plan)), short="chart"),
        Section("jobs", "The jobs, and why they run there", listed, short="jobs"),
    ]
    if len(curve) > 1:
        lead = "What the cheapest plan costs if all jobs must end by a time."
        drawn = cost_curve(curve)
        sections.append(Section("cost", "Cost against deadline", drawn, lead, "cost"))
    if plan.unmet:
        reasons = bullets(map(sentence, plan.unmet))
        sections.append(Section("unmet", "Why deadlines are missed", reasons, short="deadlines"))
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


# Gantt charts: the jobs of a plan over time, one row for each.


_ROW_PX = 18
_BAR_PX = 13
_MOST_BARS = 150
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
    shown = list(bars)[:_MOST_BARS]
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
        (size for size in sizes if last_s / size[2] <= _MOST_MARKS),
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


# Gantt charts as text: a line for each job, a column for each part of the time.


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


# How many GPUs to have: the cheapest mix, the alternatives, and rent against buying.


describe(
    Mix,
    Field("", "name", title="GPUs"),
    Field("counts"),
    Field("usd_per_week", title="rent a week", text=money),
    Field("in_time", title="in time", text=lambda share: percent(share, 1)),
    Field("in_time_low", title="in 9 of 10 draws", text=lambda share: percent(share, 1)),
    Field("utilisation", title="in use", text=percent),
)
describe(
    BuyOrRent,
    Field("pool", title="GPUs"),
    Field("gpus", title="number"),
    Field("rent_usd_per_week", title="rent a week", text=money),
    Field("buy_usd_per_week", title="bought, a week", text=money),
    Field(
        "even_weeks", title="even after weeks", text=lambda weeks: f"{weeks:.0f}", absent="never"
    ),
    Field("even_utilisation", title="even in use", text=percent, absent="never"),
)
_WITHOUT = output(
    "The cheapest mix without some GPUs.",
    Field("without", kind=str, meaning="The pool that is not to be had."),
    Field("mix", kind=Mix | None, meaning="The cheapest mix; null if none keeps the promise."),
)
CAPACITY = output(
    "The cheapest mix of GPUs with which jobs meet their deadlines.",
    Field("verdict", kind=str, meaning="The answer in a sentence."),
    Field("promise", kind=float, meaning="The share of jobs that are to end in time."),
    Field("best", kind=Mix | None, meaning="The cheapest mix; null if none keeps the promise."),
    Field("alternatives", kind=[_WITHOUT], meaning="If a pool is not to be had."),
    Field("curve", kind=[Mix], meaning="Smaller and larger versions of the mix."),
    Field("purchases", kind=[BuyOrRent], meaning="Buying against renting."),
)


def capacity_verdict(answer: CapacityPlan) -> str:
    """The answer in a sentence."""
    promise = percent(answer.promise)
    if answer.best is None:
        return (
            f"No mix within the limits of the cluster lets {promise} of the jobs end in time; "
            "allow more GPUs, or later deadlines."
        )
    best = answer.best
    return (
        f"The cheapest mix with which {promise} of the jobs end in time is {best.name}: "
        f"{money(best.usd_per_week)} a week. {percent(best.in_time, 1)} end in time, and "
        f"{percent(best.in_time_low, 1)} or more in nine of ten draws."
    )


def capacity_record(answer: CapacityPlan) -> Mapping[str, Any]:
    """The answer by the keys of JSON."""
    return {
        "verdict": capacity_verdict(answer),
        "promise": answer.promise,
        "best": answer.best,
        "alternatives": [{"without": name, "mix": mix} for name, mix in answer.without.items()],
        "curve": list(answer.curve),
        "purchases": list(answer.purchases),
    }


def capacity_view(title: str, answer: CapacityPlan) -> View:
    """The answer, the curve, the alternatives, and rent against buying."""
    is_curve = len(answer.curve) > 1
    curve = ViewPart(
        "What money promises" if is_curve else "",
        "What fewer or more of them would promise:",
        is_plain=True,
        columns=columns(answer.curve),
        identity="curve",
        caption="Mixes of GPUs",
        chart=lambda: _curve(answer),
    )
    purchases = ViewPart(
        "Rent against buying" if answer.purchases else "",
        "Bought instead of rented:",
        is_plain=True,
        columns=columns(answer.purchases),
        identity="buy",
        caption="Buying and renting",
    )
    instead = [_instead(name, mix, answer) for name, mix in answer.without.items()]
    even = (
        "even in use: the share of time in use above which buying is cheaper than renting by the "
        "hour"
    )
    lines = [LEFT_OUT, *instead, *([even] if answer.purchases else [])]
    return View(title, [capacity_verdict(answer)], (curve, purchases), remarks=lines)


def _instead(name: str, mix: Mix | None, answer: CapacityPlan) -> str:
    if mix is None:
        return f"without {name}: no mix within the limits keeps the promise"
    assert answer.best is not None
    more = mix.usd_per_week - answer.best.usd_per_week
    return f"without {name}: {mix.name}, {money(mix.usd_per_week)} a week ({money(more)} more)"


describe(
    CapacityPlan,
    Field("", capacity_verdict, title="verdict"),
    Field("", capacity_record, kind=CAPACITY, inline=True),
    parts="curve",
)


def _curve(answer: CapacityPlan) -> Html:
    usd = [mix.usd_per_week for mix in answer.curve]
    shares = [mix.in_time for mix in answer.curve]
    ticks = tuple((mark, percent(mark)) for mark in (0.0, 0.25, 0.5, 0.75, 1.0))
    plot = Plot(linear_axis(max(usd), money), PlotAxis(0.0, 1.05, ticks))
    line = empty_element("polyline", points=plot.path(usd, shares), class_="curve")
    dots = [
        element("circle", cx=plot.x(x), cy=plot.y(y), r="3.5", class_="dot")
        for x, y in zip(usd, shares, strict=True)
    ]
    promise = plot.level(plot.y(answer.promise), "ideal")
    plot = plot.with_parts([plot.stretched(line), promise, *dots])
    label = f"From {percent(shares[0])} in time for {money(usd[0])} a week upwards."
    return plot.drawn(label, "across: USD a week; up: the share of jobs in time")


# Policies compared by simulation.


def _wait(seconds: float) -> str:
    return "none" if seconds < 1 else long_duration(seconds)


describe(
    JobOutcome,
    Field("job", "job.name", title="job", meaning="The name of the job."),
    Field("gpus_text", "option.name", title="GPUs", meaning="The GPUs on which it ended."),
    Field("submit_s", "job.submit_s"),
    Field("start_s", title="start", text=long_duration),
    Field("end_s", title="end", text=long_duration),
    *map(Field, ("completion_s", "waited_s", "in_time", "gpu_s", "usd", "stops")),
)
_POLICIES = describe(
    Simulation,
    Field("policy", title="policy"),
    Field("jobs", lambda row: len(row.outcomes), kind=int, meaning="The jobs that ran."),
    Field("mean_completion_s", title="mean completion", text=long_duration),
    Field("p99_completion_s", title="p99", rank=2, text=long_duration),
    Field("mean_wait_s", title="mean wait", rank=3, text=_wait),
    Field("makespan_s", title="makespan", text=long_duration),
    Field("usd", title="cost", rank=1, text=money),
    Field("deadlines_met", title="deadlines", rank=1, text=percent, absent=""),
    Field("utilisation", title="in use", rank=2, text=percent),
    Field("cpu_s", meaning="The processor time of the simulation."),
    parts="outcomes",
)
SIMULATED = output(
    "What becomes of jobs under several policies.",
    Field("verdict", kind=str, meaning="The comparison in a sentence."),
    Field("policies", kind=[Simulation], meaning="What each policy makes of the jobs."),
    Field("outcomes", kind=[JobOutcome], meaning="The jobs under the last policy, as they end."),
)


def simulation_verdict(rows: Sequence[Simulation]) -> str:
    """The comparison in a sentence."""
    if len(rows) < 2:
        return f"{len(rows[0].outcomes)} jobs, under one policy."
    mean = min(rows, key=lambda row: row.mean_completion_s)
    last = min(rows, key=lambda row: row.makespan_s)
    text = f"The mean completion is least under {mean.policy}, the makespan under {last.policy}."
    due = [row for row in rows if row.deadlines_met is not None]
    if due:
        best = max(due, key=lambda row: row.deadlines_met or 0.0)
        text += f" Most deadlines are met under {best.policy}: {percent(best.deadlines_met or 0)}."
    return text


def outcome_bars(simulation: Simulation) -> list[GanttBar]:
    """The jobs of a simulation as bars of a chart, by their starts."""
    ordered = sorted(simulation.outcomes, key=lambda each: (each.start_s, each.job.name))
    return [
        GanttBar(
            each.job.name,
            each.option.name,
            each.job.submit_s,
            each.start_s,
            each.end_s,
            each.job.deadline_s,
        )
        for each in ordered
    ]


def simulation_view(title: str, rows: Sequence[Simulation], width: int, chart: bool) -> View:
    """The policies side by side, and a Gantt chart of each; in a terminal, of the last one."""
    policies = ViewPart(
        "The policies", "", columns=_POLICIES.columns(rows), identity="policies", sorts=True
    )
    last = rows[-1]
    lines = gantt_lines(outcome_bars(last), width) if chart else []
    drawn = ViewPart(heading=f"the jobs under {last.policy}:", is_plain=True, lines=lines)
    charts = [
        ViewPart(
            f"The jobs under {row.policy}",
            identity=f"chart-{number}",
            chart=partial(gantt_chart, outcome_bars(row)),
        )
        for number, row in enumerate(rows)
    ]
    lines = [LEFT_OUT, "GPUs are counted by pool; machines are not followed"]
    return View(title, [simulation_verdict(rows)], (policies, drawn, *charts), remarks=lines)
