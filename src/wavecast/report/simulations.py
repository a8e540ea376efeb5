"""Policies compared by simulation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.planning.simulation.state import JobOutcome, Simulation
from wavecast.report.fields import Field, describe, output
from wavecast.report.gantt import GanttBar, gantt_lines
from wavecast.report.tables import fitting, left_out, line, remarks, table, titled
from wavecast.report.units import long_duration, money, percent


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
    Field("jobs", lambda one: len(one.outcomes), kind=int, meaning="The jobs that ran."),
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
    mean = min(rows, key=lambda one: one.mean_completion_s)
    last = min(rows, key=lambda one: one.makespan_s)
    text = f"The mean completion is least under {mean.policy}, the makespan under {last.policy}."
    due = [one for one in rows if one.deadlines_met is not None]
    if due:
        best = max(due, key=lambda one: one.deadlines_met or 0.0)
        text += f" Most deadlines are met under {best.policy}: {percent(best.deadlines_met or 0)}."
    return text


def outcome_bars(one: Simulation) -> list[GanttBar]:
    """The jobs of a simulation as bars of a chart, by their starts."""
    ordered = sorted(one.outcomes, key=lambda each: (each.start_s, each.job.name))
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


def simulation_text(
    title: str, rows: Sequence[Simulation], width: int, chart: bool
) -> RenderableType:
    """The policies side by side, and the chart of the last one."""
    every = _POLICIES.columns(rows)
    kept = fitting(every, width)
    lines = [*left_out(every, kept), "GPUs are counted by pool; machines are not followed"]
    drawn = [line(text) for text in gantt_lines(outcome_bars(rows[-1]), width)] if chart else []
    body: list[RenderableType] = [line(simulation_verdict(rows)), "", table(kept), ""]
    if drawn:
        body += [line(f"the jobs under {rows[-1].policy}:"), *drawn, ""]
    return titled(title, *body, *remarks(lines))
