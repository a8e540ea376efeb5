"""Plans of many jobs: the verdict, the jobs with their GPUs and times, and a Gantt chart."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.planning.schedule.jobs import Aims
from wavecast.planning.schedule.planned import JobPlan, JobsPlan
from wavecast.report.fields import Field, describe
from wavecast.report.gantt import GanttBar, gantt_lines
from wavecast.report.tables import fitting, left_out, line, remarks, table, titled
from wavecast.report.units import UNKNOWN, long_duration, money, percent, span

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
    count, due = len(plan.jobs), [one for one in plan.jobs if one.run.job.deadline_s is not None]
    text = (
        f"{count} jobs on {plan.fleet.gpus} GPUs end after {long_duration(schedule.makespan_s)} "
        f"and cost {money(schedule.usd)}."
    )
    if due:
        late = {run.job.name for run in schedule.late}
        in_time = [one for one in due if one.run.job.name not in late]
        text += f" {len(in_time)} of {len(due)} deadlines are met{_doubt(in_time)}."
    return f"{text} {_how_good(plan)}"


def _doubt(in_time: Sequence[JobPlan]) -> str:
    """The job that is least sure to be in time; nothing if all are in most draws."""
    seen = [(one.outlook.in_time, one.run.job.name) for one in in_time if one.outlook is not None]
    shares = [(share, name) for share, name in seen if share is not None]
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


def _span_of_start(one: JobPlan) -> str:
    seen = one.outlook
    return UNKNOWN if seen is None else _moments(seen.start_low_s, seen.start_high_s)


def _span_of_end(one: JobPlan) -> str:
    seen = one.outlook
    return UNKNOWN if seen is None else _moments(seen.end_low_s, seen.end_high_s)


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
            one.run.job.name,
            one.run.option.name,
            one.run.job.submit_s,
            one.start_s,
            one.end_s,
            one.run.job.deadline_s,
        )
        for one in plan.jobs
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
