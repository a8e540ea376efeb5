"""A plan as it is handed to its reader: the schedule, the outlook of each job, and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.planning.schedule.jobs import Aims, Fleet, Job, JobSchedule, PlannedRun
from wavecast.planning.schedule.planner import Effort, make_schedule
from wavecast.planning.schedule.reasons import reason
from wavecast.planning.schedule.refusals import explain, no_room, with_room
from wavecast.planning.schedule.seating import NoRoom
from wavecast.planning.schedule.starts import Outlook, outlooks
from wavecast.showing import Shown

_CURVE_POINTS = (1.0, 1.25, 1.6, 2.0, 3.0)
"""The limits of the makespan, as multiples of the shortest."""


@dataclass(frozen=True)
class JobPlan:
    """A job in a plan, with its outlook and the reason for its place."""

    run: PlannedRun
    outlook: Outlook | None
    """When it starts and ends in nine of ten draws. None if no draw could be carried out."""
    reason: str
    """Why it runs there."""

    @property
    def start_s(self) -> float:
        """When it starts, from the start of the plan."""
        return self.run.start_s

    @property
    def end_s(self) -> float:
        """When it ends, from the start of the plan."""
        return self.run.end_s


@dataclass(frozen=True)
class PoolUse:
    """The use of a pool until the last job ends."""

    pool: str
    """The name of the pool."""
    gpus: int
    """The number of its GPUs."""
    jobs: int
    """How many jobs run on it."""
    utilisation: float
    """The share of its GPU time in which jobs run, from 0 to 1."""


@dataclass(frozen=True)
class JobsPlan(Shown):
    """A schedule that can be read: what runs where and when, and why."""

    fleet: Fleet
    schedule: JobSchedule
    jobs: tuple[JobPlan, ...]
    """The jobs in the order in which they start."""
    unmet: tuple[str, ...]
    """Why deadlines are missed, and what would meet them. Empty if all are met."""

    @property
    def meets_deadlines(self) -> bool:
        """Whether all deadlines are met, as far as predicted."""
        return not self.schedule.late

    @property
    def pools(self) -> tuple[PoolUse, ...]:
        """The use of each pool."""
        last, uses = self.schedule.makespan_s, []
        for pool in self.fleet.pools:
            runs = [one.run for one in self.jobs if one.run.option.pool == pool.name]
            used = sum((run.end_s - run.start_s) * run.option.gpus for run in runs)
            share = used / (last * pool.gpus) if last else 0.0
            uses.append(PoolUse(pool.name, pool.gpus, len(runs), share))
        return tuple(uses)


def make_plan(
    fleet: Fleet,
    jobs: Sequence[Job],
    aims: Aims,
    *,
    robust: bool = False,
    effort: Effort | None = None,
) -> JobsPlan:
    """The plan of some jobs.

    Raises:
        InvalidInput: a job can run nowhere, or not all find room; says why, and what would help.
    """
    effort = effort or Effort()
    jobs = with_room(fleet, jobs, robust)
    try:
        schedule = make_schedule(fleet, jobs, aims, robust=robust, effort=effort)
    except NoRoom:
        raise InvalidInput(no_room(fleet, jobs, robust, effort)) from None
    seen = outlooks(fleet, schedule)
    planned = tuple(
        JobPlan(run, seen.get(run.job.name), reason(run, robust)) for run in schedule.runs
    )
    unmet = tuple(explain(fleet, jobs, schedule, effort)) if schedule.late else ()
    return JobsPlan(fleet, schedule, planned, unmet)


def cost_against_time(
    fleet: Fleet, jobs: Sequence[Job], effort: Effort
) -> list[tuple[float, float]]:
    """What the cheapest plan costs for some limits of the makespan, in seconds.

    There are none where deadlines are missed without such a limit, or no plan was found.
    """
    jobs, points = with_room(fleet, jobs), []
    with suppress(NoRoom):
        first = make_schedule(fleet, jobs, Aims(makespan=1), effort=effort)
        for factor in () if first.late else _CURVE_POINTS:
            due = first.makespan_s * factor * 1.001
            limited = [replace(job, deadline_s=min(due, job.deadline_s or due)) for job in jobs]
            found = make_schedule(fleet, limited, Aims(cost=1), effort=effort)
            if not found.late:
                points.append((due, found.usd))
    return points
