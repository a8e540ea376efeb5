"""A plan as it is handed to its reader: the schedule, the outlook of each job, and reasons."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.planning.cost import Ranged
from wavecast.planning.schedule.jobs import (
    HOUR_S,
    Aims,
    Fleet,
    Job,
    JobSchedule,
    PlannedRun,
    RunOption,
)
from wavecast.planning.schedule.planner import Effort, make_schedule
from wavecast.planning.schedule.refusals import explain, no_room, with_room
from wavecast.planning.schedule.seating import NoRoom, Seating
from wavecast.planning.selection import SHARED_ERROR
from wavecast.results import Shown

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


# The reason for each placement, in a sentence.


def reason(run: PlannedRun, robust: bool = False) -> str:
    """Why a job runs where it does: against the cheapest and the fastest of its options."""
    job, taken = run.job, run.option
    if len(job.options) == 1:
        return "the only way to run it" + _waiting(run)
    cheapest, fastest = job.cheapest, job.fastest
    ways = len(job.options)
    if taken == cheapest == fastest:
        return f"cheapest and fastest of {ways} ways" + _waiting(run)
    if taken == cheapest:
        return f"cheapest of {ways} ways" + _waiting(run)
    against = _against(run, cheapest, robust)
    word = f"fastest of {ways} ways" if taken == fastest else "in between"
    return f"{word}; {against}" + _waiting(run)


def _against(run: PlannedRun, cheapest: RunOption, robust: bool) -> str:
    """Why not the cheapest."""
    saved = run.option.usd - cheapest.usd
    price = f" ({_usd(saved)} cheaper)" if saved > 0 else ""
    end = run.job.submit_s + cheapest.planned_s(robust)
    if run.job.deadline_s is not None and end > run.job.deadline_s + 1e-6:
        return f"{cheapest.name}{price} would miss the deadline"
    if end > run.end_s:
        later = (end - run.end_s) / HOUR_S
        return f"{cheapest.name}{price} would end {later:.1f} h later"
    return f"{cheapest.name}{price} is left to jobs that gain more from it"


def _waiting(run: PlannedRun) -> str:
    waited = run.start_s - run.job.submit_s
    return f"; waits {waited / HOUR_S:.1f} h for GPUs" if waited > 60 else ""


def _usd(value: float) -> str:
    return f"${value:.2f}"


# When will a job start and end? The same plan, carried out with times drawn from their ranges.
#
# The order and the GPUs of a plan stay; each job starts when those before it leave room. The
# errors of jobs of one kind on one GPU are the same; those of one kind on two GPUs are shared in
# part (`SHARED_ERROR`).


_NINE_IN_TEN = 2 * 1.6449
"""The standard deviations between the ends of a range."""
_MOST_PLACED = 20_000
"""About so many jobs are placed in all draws together."""


@dataclass(frozen=True)
class Outlook:
    """When a job starts and ends, in nine of ten draws, and whether it is in time."""

    start_low_s: float
    """The low end of the range of its start, in seconds from the beginning of the plan."""
    start_high_s: float
    """The high end of that range."""
    end_low_s: float
    """The low end of the range of its end, in seconds from the beginning of the plan."""
    end_high_s: float
    """The high end of that range."""
    in_time: float | None
    """The share of draws in which it runs, and meets its deadline. None without a deadline, if it
    always runs: it may take too long for the time in which GPUs can be had."""


class DrawnErrors:
    """DrawnErrors of predictions, drawn once for each kind of job and pool."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._kinds: dict[str, float] = {}
        self._places: dict[tuple[str, str], float] = {}

    def seconds(self, kind: str, option: RunOption) -> float:
        """The time of a job, with its error."""
        low, high = option.seconds.low, option.seconds.high
        if not low or not high or high <= low:
            return option.seconds.value
        shared = self._kinds.setdefault(kind, self._random.gauss(0, 1))
        own = self._places.setdefault((kind, option.pool), self._random.gauss(0, 1))
        drawn = math.sqrt(SHARED_ERROR) * shared + math.sqrt(1 - SHARED_ERROR) * own
        middle, spread = math.sqrt(low * high), math.log(high / low) / _NINE_IN_TEN
        return middle * math.exp(drawn * spread)


def outlooks(fleet: Fleet, schedule: JobSchedule, seed: int = 0) -> dict[str, Outlook]:
    """The outlook of each job of a schedule, by its name."""
    count = max(20, min(200, _MOST_PLACED // max(1, len(schedule.runs))))
    drawn = [_carried_out(fleet, schedule.runs, DrawnErrors(seed + n)) for n in range(count)]
    by_name: dict[str, list[PlannedRun]] = {}
    for runs in drawn:
        for run in runs:
            by_name.setdefault(run.job.name, []).append(run)
    return {name: _outlook(runs, count) for name, runs in by_name.items()}


def _carried_out(fleet: Fleet, runs: Sequence[PlannedRun], errors: DrawnErrors) -> list[PlannedRun]:
    """The runs with drawn times, without those that take too long for the hours of their GPUs."""
    seating, placed = Seating(fleet), []
    for run in runs:
        seconds = Ranged(errors.seconds(run.job.kind or run.job.name, run.option))
        with suppress(NoRoom):
            placed.append(seating.place(run.job, replace(run.option, seconds=seconds)))
    return placed


def _outlook(runs: Sequence[PlannedRun], draws: int) -> Outlook:
    starts, ends = sorted(run.start_s for run in runs), sorted(run.end_s for run in runs)
    low, high = int(0.05 * (len(runs) - 1)), math.ceil(0.95 * (len(runs) - 1))
    met = sum(run.late_s <= 1e-6 for run in runs) / draws
    known = None if runs[0].job.deadline_s is None and len(runs) == draws else met
    return Outlook(starts[low], starts[high], ends[low], ends[high], known)
