"""The planner: a relaxed problem, greedy schedules, then the exact search.

The relaxed problem gives a bound and a choice of options, simple rules give a schedule to begin
with, and CP-SAT improves it and its bound. Many jobs are decomposed: the relaxed problem divides
them among the pools, and each pool is searched by itself.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from wavecast.errors import needing_extra
from wavecast.planning.cost import Ranged
from wavecast.planning.schedule.bounds import (
    COARSE,
    Relaxation,
    bound_by_starts,
    relax,
    relax_over_time,
)
from wavecast.planning.schedule.jobs import (
    HOUR_S,
    Aims,
    Fleet,
    Job,
    JobSchedule,
    PlannedRun,
    RunOption,
)
from wavecast.planning.schedule.seating import Chosen, NoRoom, greedy, rank, seat

MOST_WHOLE = 400
"""Up to this many jobs are searched as a whole."""
_SHARE_OF_CHANGES = 0.5
"""The share of the time limit for small changes, where jobs are to wait little."""
_ENTRIES_PER_S = 50_000
"""The size of the program of start times by the time limit: a third of it goes there."""
_MOST_EXACT = 12
"""So few jobs need no small changes: the exact search finds their best order."""
_LEAST_S = 1.0
"""The least time of an exact search, whatever was spent before it."""
_CLOSE = 1.0001


@dataclass(frozen=True)
class Effort:
    """How hard to search."""

    limit_s: float = 30.0
    """The time limit of the exact search. 0 for none: only simple rules and the bound."""
    workers: int | None = None
    """How many threads search. None for all cores."""
    most_whole: int = MOST_WHOLE
    """Up to this many jobs are searched as a whole; more are divided among the pools first."""


def make_schedule(
    fleet: Fleet,
    jobs: Sequence[Job],
    aims: Aims,
    *,
    robust: bool = False,
    effort: Effort | None = None,
) -> JobSchedule:
    """The best schedule that was found.

    Args:
        fleet: the GPUs.
        jobs: the jobs; all their options have room when nothing else runs (`refusals.with_room`).
        aims: what is minimised.
        robust: whether to plan with the high ends of ranges.
        effort: how hard to search.

    Raises:
        NoRoom: no schedule was found in which all jobs have room while GPUs can be had.
    """
    effort, began = effort or Effort(), time.perf_counter()
    relaxation = relax(fleet, jobs, aims, robust)
    planner = _SchedulePlanner(fleet, jobs, aims, robust, effort)
    if not relaxation.is_possible:
        return _least_late(planner, relaxation, began)
    runs = planner.by_rules(relaxation)
    bound, impossible, method, limit_s = relaxation.bound, False, "greedy", effort.limit_s
    if aims.completion and limit_s:
        runs, waiting, method = planner.over_time(runs)
        bound = max(bound, waiting)
        limit_s = max(_LEAST_S, limit_s - (time.perf_counter() - began))
    unit_s = time_unit_s(max((run.end_s for run in runs), default=1.0))
    if effort.limit_s and len(jobs) <= effort.most_whole:
        found = planner.search(jobs, runs, unit_s, limit_s)
        impossible = found.is_impossible
        bound = bound if impossible else max(bound, found.bound)
        runs, method = planner.better(runs, found.chosen, "CP-SAT", method)
    elif effort.limit_s:
        runs, method = planner.by_pools(runs, unit_s, limit_s, method)
    if impossible:
        return _least_late(planner, relaxation, began)
    took_s = time.perf_counter() - began
    return JobSchedule(aims, runs, bound, unit_s, method, robust, took_s)


def _least_late(planner: _SchedulePlanner, relaxation: Relaxation, began: float) -> JobSchedule:
    """The schedule with the least tardiness, where not all deadlines can be met.

    It is searched for in what is left of the time, since that it is needed took some to prove.
    """
    aims = replace(planner.aims, tardiness=1.0)
    soft = _SchedulePlanner(planner.fleet, planner.jobs, aims, planner.robust, planner.effort)
    runs = soft.by_rules(relaxation)
    unit_s, method, bound = time_unit_s(max(run.end_s for run in runs)), "greedy", 0.0
    if soft.effort.limit_s and len(soft.jobs) <= soft.effort.most_whole:
        left_s = max(_LEAST_S, soft.effort.limit_s - (time.perf_counter() - began))
        found = soft.search(soft.jobs, runs, unit_s, left_s)
        runs, method = soft.better(runs, found.chosen, "CP-SAT")
        bound = found.bound
    took_s = time.perf_counter() - began
    return JobSchedule(aims, runs, bound, unit_s, method, planner.robust, took_s, True)


@dataclass(frozen=True)
class _SchedulePlanner:
    fleet: Fleet
    jobs: Sequence[Job]
    aims: Aims
    robust: bool
    effort: Effort

    def by_rules(self, relaxation: Relaxation) -> tuple[PlannedRun, ...]:
        """The best schedule of simple rules, or one that was searched where they leave no room.

        Raises:
            NoRoom: none was found.
        """
        runs = greedy(self.fleet, self.jobs, self.aims, relaxation.chosen, self.robust)
        if runs or not self.jobs:
            return runs
        if self.effort.limit_s and len(self.jobs) <= self.effort.most_whole:
            # Only pools that close leave no room, so that their last hour is the horizon.
            last_s = max(end for pool in self.fleet.pools for _, end in pool.windows)
            soft = replace(self, aims=Aims(makespan=1.0, tardiness=1.0))
            found = soft.search(self.jobs, (), time_unit_s(last_s), self.effort.limit_s)
            if found.chosen:
                return seat(self.fleet, found.chosen, self.robust)
        raise NoRoom("not all jobs find room while GPUs can be had")

    def search(
        self, jobs: Sequence[Job], runs: Sequence[PlannedRun], unit_s: float, limit_s: float
    ) -> ExactSearch:
        """The exact search for some jobs, beginning with their runs."""
        return search(
            self.fleet,
            jobs,
            self.aims,
            self._warm(jobs, runs, unit_s),
            unit_s,
            robust=self.robust,
            limit_s=limit_s,
            workers=self.effort.workers,
        )

    def _warm(
        self, jobs: Sequence[Job], runs: Sequence[PlannedRun], unit_s: float
    ) -> tuple[PlannedRun, ...]:
        """The runs again, with times in whole units."""
        whole = {job.name: in_units(job, unit_s, self.robust) for job in jobs}
        places = {
            run.job.name: next(
                i for i, one in enumerate(run.job.options) if one.name == run.option.name
            )
            for run in runs
        }
        order = [whole[run.job.name] for run in runs if run.job.name in whole]
        try:
            return seat(self.fleet, [(job, job.options[places[job.name]]) for job in order])
        except NoRoom:  # whole units are longer
            return ()

    def better(
        self,
        runs: tuple[PlannedRun, ...],
        chosen: Sequence[Chosen],
        method: str,
        before: str = "greedy",
    ) -> tuple[tuple[PlannedRun, ...], str]:
        """The better one of a schedule and one that was searched, and its method."""
        if not chosen:
            return runs, before
        try:
            found = seat(self.fleet, chosen, self.robust)
        except NoRoom:  # the search knows of no machines
            return runs, before
        if rank(self.aims, found) <= rank(self.aims, runs):
            return found, method
        return runs, before

    def over_time(self, runs: tuple[PlannedRun, ...]) -> tuple[tuple[PlannedRun, ...], float, str]:
        """A schedule of short waits, the bound that knows of waiting, and the method.

        The orders of coarse programs over time are the starts, and small changes improve the best.
        """
        end_s, best, method = max(run.end_s for run in runs), runs, "greedy"
        for most in COARSE:
            found = relax_over_time(self.fleet, self.jobs, self.aims, end_s, self.robust, most)
            if found is None:
                break
            best, method = self.better(best, found[1], "order of a program over time", method)
        last = relax_over_time(self.fleet, self.jobs, self.aims, end_s, self.robust)
        bound = 0.0 if last is None else last[0]
        if len(self.jobs) <= self.effort.most_whole:
            entries = int(_ENTRIES_PER_S * self.effort.limit_s)
            starts = bound_by_starts(self.fleet, self.jobs, self.aims, end_s, self.robust, entries)
            bound = max(bound, starts)
        if _MOST_EXACT < len(self.jobs) <= self.effort.most_whole:
            limit_s = self.effort.limit_s * _SHARE_OF_CHANGES
            goal = bound * _CLOSE
            changed = improve(self.fleet, best, self.aims, limit_s, self.robust, goal)
            if rank(self.aims, changed) < rank(self.aims, best):
                best, method = changed, "small changes"
        return best, bound, method

    def by_pools(
        self, runs: tuple[PlannedRun, ...], unit_s: float, limit_s: float, before: str
    ) -> tuple[tuple[PlannedRun, ...], str]:
        """Each pool searched by itself, with the options that the jobs have."""
        order: list[tuple[float, Chosen]] = []
        used = [[run for run in runs if run.option.pool == pool.name] for pool in self.fleet.pools]
        share = limit_s / max(1, sum(map(bool, used)))
        for inside in filter(None, used):
            fixed = {run.job.name: run for run in inside}
            jobs = [replace(run.job, options=(run.option,)) for run in inside]
            alone = [replace(run, job=job) for run, job in zip(inside, jobs, strict=True)]
            found = self.search(jobs, alone, unit_s, share).chosen
            for place, (job, option) in enumerate(found):
                order.append((place / len(found), (fixed[job.name].job, option)))
            if not found:
                order += [(math.inf, (run.job, run.option)) for run in inside]
        chosen = [one for _, one in sorted(order, key=lambda each: each[0])]
        return self.better(runs, chosen, "CP-SAT by pools", before)


# The exact search: options and order of jobs by OR-Tools CP-SAT, in whole time units.
#
# Each option of a job is an optional interval; one of them is present. The intervals of a pool
# share its GPUs (a cumulative constraint), and all share the limit of power. Machines are left
# out, so that the bound holds for schedules with machines, too; `seating` puts jobs on machines
# afterwards.


MOST_UNITS = 20_000
"""The horizon has about this many time units."""


@dataclass(frozen=True)
class ExactSearch:
    """What came out of an exact search."""

    chosen: tuple[Chosen, ...]
    """The jobs with their options, in the order of their starts. Empty if none was found."""
    bound: float
    """No schedule in these time units has a lower value."""
    is_impossible: bool = False
    """Whether it was proven that no schedule has room for all jobs and meets all deadlines."""


def time_unit_s(last_s: float) -> float:
    """The time unit for jobs whose greedy schedule ends then: a second, a minute, ..."""
    wanted = 2 * last_s / MOST_UNITS
    for unit in (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0):
        if wanted <= unit:
            return unit
    return HOUR_S * math.ceil(wanted / HOUR_S)


def in_units(job: Job, unit_s: float, robust: bool) -> Job:
    """The job with times in whole units: runs take no less, and it starts no earlier."""

    def up(seconds: float) -> float:
        return math.ceil(seconds / unit_s - 1e-9) * unit_s

    options = tuple(
        replace(one, seconds=Ranged(max(unit_s, up(one.planned_s(robust))))) for one in job.options
    )
    return replace(job, options=options, submit_s=up(job.submit_s))


def search(
    fleet: Fleet,
    jobs: Sequence[Job],
    aims: Aims,
    warm: Sequence[PlannedRun],
    unit_s: float,
    *,
    robust: bool = False,
    limit_s: float = 60.0,
    workers: int | None = None,
) -> ExactSearch:
    """The best options and order that were found within a time limit.

    Args:
        fleet: the GPUs.
        jobs: the jobs.
        aims: what is minimised.
        warm: a schedule of the same jobs in the same units to begin with. Empty for none.
        unit_s: the time unit.
        robust: whether to plan with the high ends of ranges.
        limit_s: the time limit.
        workers: how many threads search. None for all cores.
    """
    with needing_extra("planning"):
        from ortools.sat.python import cp_model
    built = _Model(cp_model, fleet, [in_units(job, unit_s, robust) for job in jobs], aims, unit_s)
    built.hint(warm)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_s
    solver.parameters.num_workers = workers or os.cpu_count() or 1
    solver.parameters.relative_gap_limit = 1e-4
    status = solver.solve(built.model)
    if status == cp_model.INFEASIBLE:
        return ExactSearch((), math.inf, is_impossible=True)
    bound = solver.best_objective_bound
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return ExactSearch((), bound)
    order = sorted(range(len(jobs)), key=lambda index: solver.value(built.starts[index]))
    chosen = tuple((jobs[i], jobs[i].options[built.taken(solver, i)]) for i in order)
    return ExactSearch(chosen, bound)


class _Model:
    """The model of CP-SAT."""

    def __init__(
        self, cp_model: Any, fleet: Fleet, jobs: Sequence[Job], aims: Aims, unit_s: float
    ) -> None:
        self.model, self._fleet, self._jobs, self._aims = cp_model.CpModel(), fleet, jobs, aims
        self._unit_s = unit_s
        longest = sum(max(one.seconds.value for one in job.options) for job in jobs)
        submitted = max((job.submit_s for job in jobs), default=0.0)
        opened = max((end for pool in fleet.pools for _, end in pool.windows), default=0.0)
        self.horizon = math.ceil((longest + submitted + opened) / unit_s) + 1
        self.starts: list[Any] = []
        self._ends: list[Any] = []
        self._present: list[list[Any]] = []
        self._inside: dict[str, list[tuple[Any, int]]] = {pool.name: [] for pool in fleet.pools}
        for job in jobs:
            self._add_job(job)
        self._limit_pools()
        self._order_equals()
        self._minimise()

    def _units(self, seconds: float) -> int:
        return round(seconds / self._unit_s)

    def _add_job(self, job: Job) -> None:
        model = self.model
        start = model.new_int_var(self._units(job.submit_s), self.horizon, "")
        present = [model.new_bool_var("") for _ in job.options]
        model.add_exactly_one(present)
        lasts = [self._units(one.seconds.value) for one in job.options]
        for literal, one, units in zip(present, job.options, lasts, strict=True):
            interval = model.new_optional_fixed_size_interval_var(start, units, literal, "")
            self._inside[one.pool].append((interval, one.gpus))
            if job.deadline_s is not None and self._aims.deadlines_are_hard:
                due = int(job.deadline_s / self._unit_s + 1e-9)
                model.add(start + units <= due).only_enforce_if(literal)
        self.starts.append(start)
        self._present.append(present)
        self._ends.append(
            start + sum(literal * units for literal, units in zip(present, lasts, strict=True))
        )

    def _limit_pools(self) -> None:
        powered: list[tuple[Any, int]] = []
        for pool in self._fleet.pools:
            inside = list(self._inside[pool.name])
            powered += [(each, gpus * math.ceil(pool.power_w or 0)) for each, gpus in inside]
            for begin, end in pool.closed(self.horizon * self._unit_s):
                first, last = int(begin / self._unit_s), math.ceil(end / self._unit_s)
                if last > first:
                    shut = self.model.new_fixed_size_interval_var(first, last - first, "")
                    inside.append((shut, pool.usable))
            if inside:
                self.model.add_cumulative(*zip(*inside, strict=True), pool.usable)
        if self._fleet.power_limit_w is not None and powered:
            limit = math.floor(self._fleet.power_limit_w)
            self.model.add_cumulative(*zip(*powered, strict=True), limit)

    def _order_equals(self) -> None:
        """Of two jobs that are alike, the first starts first: fewer schedules are looked at."""
        seen: dict[object, int] = {}
        for index, job in enumerate(self._jobs):
            key = (job.options, job.submit_s, job.deadline_s, job.priority)
            if key in seen:
                self.model.add(self.starts[seen[key]] <= self.starts[index])
            seen[key] = index

    def _minimise(self) -> None:
        aims, hours = self._aims, self._unit_s / HOUR_S
        terms: list[Any] = []
        if aims.cost:
            for job, present in zip(self._jobs, self._present, strict=True):
                terms += [
                    aims.cost * one.usd * literal
                    for one, literal in zip(job.options, present, strict=True)
                ]
        if aims.makespan:
            last = self.model.new_int_var(0, 2 * self.horizon, "")
            for end in self._ends:
                self.model.add(last >= end)
            terms.append(aims.makespan * hours * last)
        for job, end in zip(self._jobs, self._ends, strict=True):
            if aims.completion:
                share = aims.completion * hours / len(self._jobs)
                terms.append(share * (end - self._units(job.submit_s)))
            if aims.tardiness and job.deadline_s is not None:
                late = self.model.new_int_var(0, 2 * self.horizon, "")
                self.model.add(late >= end - int(job.deadline_s / self._unit_s + 1e-9))
                terms.append(aims.tardiness * job.priority * hours * late)
        self.model.minimize(sum(terms))

    def hint(self, warm: Sequence[PlannedRun]) -> None:
        """Begin with a schedule."""
        by_name = {run.job.name: run for run in warm}
        for index, job in enumerate(self._jobs):
            if (run := by_name.get(job.name)) is None:
                continue
            self.model.add_hint(self.starts[index], self._units(run.start_s))
            for one, literal in zip(job.options, self._present[index], strict=True):
                self.model.add_hint(literal, _same(one, run.option))

    def taken(self, solver: Any, index: int) -> int:
        """Which option a job has."""
        return next(i for i, literal in enumerate(self._present[index]) if solver.value(literal))


def _same(one: RunOption, other: RunOption) -> bool:
    return (one.pool, one.gpus) == (other.pool, other.gpus)


# A schedule made better by small changes: another option for a job, or another place in the order.
#
# The jobs are seated anew after each change. Gains are kept, and losses now and then, less and
# less (simulated annealing). It knows of machines, which the exact search does not.


_SEED = 39
_HOT, _COLD = 0.002, 0.0001
"""Losses that are accepted now and then, as shares of the value: at the begin and at the end."""


def improve(
    fleet: Fleet,
    runs: Sequence[PlannedRun],
    aims: Aims,
    limit_s: float,
    robust: bool = False,
    goal: float = 0.0,
) -> tuple[PlannedRun, ...]:
    """The best schedule that small changes found within a time limit.

    Args:
        fleet: the GPUs.
        runs: the schedule to begin with.
        aims: what is minimised.
        limit_s: the time limit.
        robust: whether to plan with the high ends of ranges.
        goal: a value that is good enough, such as a bound.
    """
    draw = random.Random(_SEED)
    order: list[Chosen] = [(run.job, run.option) for run in sorted(runs, key=_start)]
    try:
        now = seat(fleet, order, robust)
    except NoRoom:  # machines may be shared out otherwise in this order
        return tuple(runs)
    best = min(now, tuple(runs), key=lambda one: rank(aims, one))
    if len(order) < 2:
        return best
    began = time.perf_counter()
    while (gone := (time.perf_counter() - began) / limit_s) < 1 and aims.value(best) > goal:
        changed = _changed(order, draw)
        try:
            found = seat(fleet, changed, robust)
        except NoRoom:
            continue
        if _is_taken(rank(aims, found), rank(aims, now), _HOT * (_COLD / _HOT) ** gone, draw):
            order, now = changed, found
            best = min(best, now, key=lambda one: rank(aims, one))
    return best


def _is_taken(
    new: tuple[float, ...], old: tuple[float, ...], heat: float, draw: random.Random
) -> bool:
    """Whether a change is kept: a gain always, a small loss at times (simulated annealing)."""
    if new[0] != old[0]:  # late jobs
        return new[0] < old[0]
    loss = (new[1] - old[1]) / max(abs(old[1]), 1e-12)
    return loss <= 0 or draw.random() < math.exp(-loss / heat)


def _start(run: PlannedRun) -> tuple[float, str]:
    return run.start_s, run.job.name


def _changed(order: Sequence[Chosen], draw: random.Random) -> list[Chosen]:
    """The order with one job changed: its option, its place, or both."""
    left = list(order)
    job, option = left.pop(at := draw.randrange(len(order)))
    kind = draw.random()
    if kind < 0.7 and len(job.options) > 1:
        option = draw.choice(job.options)
    if kind > 0.4:
        at = min(len(left), max(0, at + round(draw.gauss(0, 1 + len(left) / 8))))
    left.insert(at, (job, option))
    return left
