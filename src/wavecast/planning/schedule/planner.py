"""The planner: a relaxed problem, greedy schedules, then the exact search.

The relaxed problem gives a bound and a choice of options, simple rules give a schedule to begin
with, and CP-SAT improves it and its bound. Many jobs are decomposed: the relaxed problem divides
them among the pools, and each pool is searched by itself.
"""

from __future__ import annotations

import bisect
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
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
    Chosen,
    Fleet,
    Job,
    JobSchedule,
    PlannedRun,
    Pool,
    RunOption,
)

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
        jobs: the jobs; all their options have room when nothing else runs (`refusals.with_room`).

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
        searched = planner.search(jobs, runs, unit_s, limit_s)
        impossible = searched.is_impossible
        bound = bound if impossible else max(bound, searched.bound)
        runs, method = planner.better(runs, searched.chosen, "CP-SAT", method)
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
        searched = soft.search(soft.jobs, runs, unit_s, left_s)
        runs, method = soft.better(runs, searched.chosen, "CP-SAT")
        bound = searched.bound
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
            searched = soft.search(self.jobs, (), time_unit_s(last_s), self.effort.limit_s)
            if searched.chosen:
                return seat(self.fleet, searched.chosen, self.robust)
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
                i for i, option in enumerate(run.job.options) if option.name == run.option.name
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
            seated = seat(self.fleet, chosen, self.robust)
        except NoRoom:  # the search knows of no machines
            return runs, before
        if rank(self.aims, seated) <= rank(self.aims, runs):
            return seated, method
        return runs, before

    def over_time(self, runs: tuple[PlannedRun, ...]) -> tuple[tuple[PlannedRun, ...], float, str]:
        """A schedule of short waits, the bound that knows of waiting, and the method.

        The orders of coarse programs over time are the starts, and small changes improve the best.
        """
        end_s, best, method = max(run.end_s for run in runs), runs, "greedy"
        for most in COARSE:
            ordered = relax_over_time(self.fleet, self.jobs, self.aims, end_s, self.robust, most)
            if ordered is None:
                break
            best, method = self.better(best, ordered[1], "order of a program over time", method)
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
            searched = self.search(jobs, alone, unit_s, share).chosen
            for place, (job, option) in enumerate(searched):
                order.append((place / len(searched), (fixed[job.name].job, option)))
            if not searched:
                order += [(math.inf, (run.job, run.option)) for run in inside]
        chosen = [chosen_option for _, chosen_option in sorted(order, key=lambda each: each[0])]
        return self.better(runs, chosen, "CP-SAT by pools", before)


# The exact search: options and order of jobs by OR-Tools CP-SAT, in whole time units.
#
# Each option of a job is an optional interval; one of them is present. The intervals of a pool
# share its GPUs (a cumulative constraint), and all share the limit of power. Machines are left
# out, so that the bound holds for schedules with machines, too; `Seating` puts jobs on machines
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
    least_s = 2 * last_s / MOST_UNITS
    for unit in (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0):
        if least_s <= unit:
            return unit
    return HOUR_S * math.ceil(least_s / HOUR_S)


def in_units(job: Job, unit_s: float, robust: bool) -> Job:
    """The job with times in whole units: runs take no less, and it starts no earlier."""

    def up(seconds: float) -> float:
        return math.ceil(seconds / unit_s - 1e-9) * unit_s

    options = tuple(
        replace(option, seconds=Ranged(max(unit_s, up(option.planned_s(robust)))))
        for option in job.options
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
        warm: a schedule of the same jobs in the same units to begin with. Empty for none.
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
        longest = sum(max(option.seconds.value for option in job.options) for job in jobs)
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
        lasts = [self._units(option.seconds.value) for option in job.options]
        for literal, option, units in zip(present, job.options, lasts, strict=True):
            interval = model.new_optional_fixed_size_interval_var(start, units, literal, "")
            self._inside[option.pool].append((interval, option.gpus))
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
                    aims.cost * chosen_option.usd * literal
                    for chosen_option, literal in zip(job.options, present, strict=True)
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
            for option, literal in zip(job.options, self._present[index], strict=True):
                self.model.add_hint(literal, _same(option, run.option))

    def taken(self, solver: Any, index: int) -> int:
        """Which option a job has."""
        return next(i for i, literal in enumerate(self._present[index]) if solver.value(literal))


def _same(option: RunOption, other: RunOption) -> bool:
    return (option.pool, option.gpus) == (other.pool, other.gpus)


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
        runs: the schedule to begin with.
        goal: a value that is good enough, such as a bound.
    """
    draw = random.Random(_SEED)
    order: list[Chosen] = [(run.job, run.option) for run in sorted(runs, key=_start)]
    try:
        now = seat(fleet, order, robust)
    except NoRoom:  # machines may be shared out otherwise in this order
        return tuple(runs)
    best = min(now, tuple(runs), key=lambda schedule: rank(aims, schedule))
    if len(order) < 2:
        return best
    began = time.perf_counter()
    while (gone := (time.perf_counter() - began) / limit_s) < 1 and aims.value(best) > goal:
        changed = _changed(order, draw)
        try:
            seated = seat(fleet, changed, robust)
        except NoRoom:
            continue
        if _is_taken(rank(aims, seated), rank(aims, now), _HOT * (_COLD / _HOT) ** gone, draw):
            order, now = changed, seated
            best = min(best, now, key=lambda schedule: rank(aims, schedule))
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


# From an order of jobs to times and machines: each starts as early as there is room for it.
#
# This is the serial generation of schedules: jobs are placed one after the other, and a later one
# may fill a gap before an earlier one. It keeps what the exact search leaves out: the machines. A
# job that is not larger than a machine runs within one; a larger one has whole machines to itself.


class NoRoom(ValueError):
    """A job finds no room: its GPUs cannot be had for long enough any more."""


class UseProfile:
    """How much of something is in use over time, as steps."""

    __slots__ = ("limit", "times", "used")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.times: list[float] = [0.0]
        self.used: list[float] = [0.0]

    def add(self, begin: float, end: float, amount: float) -> None:
        """Use an amount between two times."""
        first, last = self._cut(begin), self._cut(end)
        for index in range(first, last):
            self.used[index] += amount

    def _cut(self, at: float) -> int:
        index = bisect.bisect_left(self.times, at)
        if index == len(self.times) or self.times[index] != at:
            self.times.insert(index, at)
            self.used.insert(index, self.used[index - 1])
        return index

    def earliest(self, after: float, seconds: float, amount: float) -> float:
        """The first time after which an amount is free for so long; infinite if there is none."""
        most = self.limit - amount + 1e-9
        index = bisect.bisect_right(self.times, after) - 1
        start = after
        while True:
            if self.used[index] > most:
                index += 1
                if index == len(self.times):
                    return math.inf
                start = self.times[index]
            elif index + 1 == len(self.times) or self.times[index + 1] >= start + seconds:
                return start
            else:
                index += 1

    def is_free(self, begin: float, seconds: float, amount: float) -> bool:
        """Whether an amount is free for so long from a time."""
        return self.earliest(begin, seconds, amount) == begin


@dataclass
class _Seats:
    """The machines of a pool, each with its use over time."""

    pool: Pool
    nodes: list[UseProfile]
    whole: UseProfile

    @classmethod
    def of(cls, pool: Pool, until_s: float) -> _Seats:
        nodes = [UseProfile(size) for size in pool.nodes]
        whole = UseProfile(pool.usable)
        for begin, end in pool.closed(until_s):
            for node in nodes:
                node.add(begin, end, node.limit)
            whole.add(begin, end, whole.limit)
        return cls(pool, nodes, whole)

    def earliest(self, after: float, seconds: float, gpus: int) -> tuple[float, tuple[int, ...]]:
        """The first time at which a job has room, and the machines."""
        size = self.pool.gpus_per_node
        start = self.whole.earliest(after, seconds, gpus)
        if gpus <= size:
            return self._within_one(start, seconds, gpus)
        needed, free_nodes = math.ceil(gpus / size), []
        while math.isfinite(start):
            times = [
                node.earliest(start, seconds, node.limit) if node.limit == size else math.inf
                for node in self.nodes
            ]
            free_nodes = [index for index, time in enumerate(times) if time <= start]
            if len(free_nodes) >= needed and self.whole.is_free(start, seconds, gpus):
                return start, tuple(free_nodes[:needed])
            later = sorted(time for time in times if time > start)
            rank = max(0, needed - len(free_nodes) - 1)
            start = later[rank] if rank < len(later) else math.inf
            if math.isfinite(start):
                start = self.whole.earliest(start, seconds, gpus)
        return math.inf, ()

    def _within_one(self, start: float, seconds: float, gpus: int) -> tuple[float, tuple[int, ...]]:
        while math.isfinite(start):
            best, where, room = math.inf, -1, math.inf
            for index, node in enumerate(self.nodes):
                if node.limit < gpus:
                    continue
                time = node.earliest(start, seconds, gpus)
                left = node.limit - node.used[bisect.bisect_right(node.times, time) - 1] - gpus
                if time < best or (time == best and left < room):
                    best, where, room = time, index, left
            if math.isinf(best) or self.whole.is_free(best, seconds, gpus):
                return best, (where,)
            start = self.whole.earliest(best, seconds, gpus)
        return math.inf, ()

    def take(self, begin: float, seconds: float, gpus: int, nodes: Sequence[int]) -> None:
        self.whole.add(begin, begin + seconds, gpus)
        for index in nodes:
            node = self.nodes[index]
            node.add(begin, begin + seconds, gpus if len(nodes) == 1 else node.limit)


class Seating:
    """The use of a fleet, into which jobs are placed one after the other."""

    def __init__(self, fleet: Fleet, robust: bool = False) -> None:
        self._fleet, self._robust = fleet, robust
        limit = fleet.power_limit_w
        self._power = None if limit is None else UseProfile(limit)
        self._seats = {pool.name: _Seats.of(pool, math.inf) for pool in fleet.pools}

    def look(self, job: Job, option: RunOption) -> tuple[float, tuple[int, ...]]:
        """When a job could start, and on which machines; infinite if never."""
        seconds, seats = option.planned_s(self._robust), self._seats[option.pool]
        start, nodes = seats.earliest(job.submit_s, seconds, option.gpus)
        watts = self._watts(option)
        while self._power is not None and math.isfinite(start):
            later = self._power.earliest(start, seconds, watts)
            if later == start:
                break
            start, nodes = seats.earliest(later, seconds, option.gpus)
        return start, nodes

    def place(self, job: Job, option: RunOption) -> PlannedRun:
        """Place a job as early as possible.

        Raises:
            NoRoom: there is never room for it.
        """
        start, nodes = self.look(job, option)
        if math.isinf(start):
            raise NoRoom(f"{job.name} never has room on {option.name}")
        seconds = option.planned_s(self._robust)
        self._seats[option.pool].take(start, seconds, option.gpus, nodes)
        if self._power is not None:
            self._power.add(start, start + seconds, self._watts(option))
        return PlannedRun(job, option, start, start + seconds, nodes)

    def _watts(self, option: RunOption) -> float:
        return option.gpus * (self._fleet.by_name[option.pool].power_w or 0.0)


def seat(fleet: Fleet, chosen: Iterable[Chosen], robust: bool = False) -> tuple[PlannedRun, ...]:
    """The schedule in which jobs are placed in an order, each as early as there is room.

    Raises:
        NoRoom: a job finds none, since its GPUs are gone or taken until then.
    """
    seating = Seating(fleet, robust)
    runs = [seating.place(job, option) for job, option in chosen]
    return tuple(sorted(runs, key=lambda run: (run.start_s, run.job.name)))


# Greedy schedules: a choice of options and an order, each of them a simple rule.


_MOST_LOOKS = 400_000
"""The rule that looks at every option is left out where it would look at more machines."""

Key = Callable[[Chosen], tuple[float, ...]]


def _due(job: Job) -> float:
    return math.inf if job.deadline_s is None else job.deadline_s


def orders(robust: bool) -> dict[str, Key]:
    """The orders that are tried, by name."""
    return {
        "longest first": lambda chosen: (
            -chosen[1].planned_s(robust),
            -chosen[1].gpus,
        ),
        "most GPUs first": lambda chosen: (
            -chosen[1].gpus,
            -chosen[1].planned_s(robust),
        ),
        "earliest deadline first": lambda chosen: (
            _due(chosen[0]),
            chosen[0].submit_s,
        ),
        "shortest first": lambda chosen: (
            chosen[1].planned_s(robust) * chosen[1].gpus / max(chosen[0].priority, 1e-9),
        ),
        "first submitted first": lambda chosen: (
            chosen[0].submit_s,
            -chosen[0].priority,
        ),
    }


def greedy(
    fleet: Fleet,
    jobs: Sequence[Job],
    aims: Aims,
    relaxed: Sequence[RunOption],
    robust: bool = False,
) -> tuple[PlannedRun, ...]:
    """The best of the greedy schedules: the fewest late jobs if deadlines are hard, then the value.

    Args:
        relaxed: the option of each job in the relaxed problem.

    Returns:
        Nothing if every rule leaves a job without room, before GPUs cannot be had any more.
    """
    tried = _tried(fleet, jobs, aims, relaxed, robust)
    return min(tried, key=lambda runs: rank(aims, runs), default=())


def rank(aims: Aims, runs: Sequence[PlannedRun]) -> tuple[float, float, float]:
    """The order of schedules: better ones are less."""
    late = sum(run.late_s > 1e-6 for run in runs) if aims.deadlines_are_hard else 0
    ends = sum(run.completion_s for run in runs)
    return late, round(aims.value(runs), 9), ends


def _tried(
    fleet: Fleet, jobs: Sequence[Job], aims: Aims, relaxed: Sequence[RunOption], robust: bool
) -> Iterator[tuple[PlannedRun, ...]]:
    keys = orders(robust)
    rules = [list(zip(jobs, relaxed, strict=True))]
    nodes = sum(len(pool.nodes) for pool in fleet.pools)
    ways = sum(len(job.options) for job in jobs)
    if len(jobs) * nodes <= _MOST_LOOKS:
        rules += [
            [(job, _in_time(job, robust)) for job in jobs],
            [(job, job.fastest) for job in jobs],
        ]
    for rule in rules:
        for key in keys.values():
            with suppress(NoRoom):
                yield seat(fleet, sorted(rule, key=key), robust)
    if ways * nodes <= _MOST_LOOKS:
        for key in keys.values():
            with suppress(NoRoom):
                yield _looking(fleet, sorted(rules[0], key=key), aims, robust)


def _in_time(job: Job, robust: bool) -> RunOption:
    """The cheapest option that could meet the deadline if the job were alone."""
    kept = [
        option for option in job.options if job.submit_s + option.planned_s(robust) <= _due(job)
    ]
    return min(
        kept or [job.fastest],
        key=lambda option: (option.usd, option.seconds.value),
    )


def _looking(
    fleet: Fleet, order: Sequence[Chosen], aims: Aims, robust: bool
) -> tuple[PlannedRun, ...]:
    """Each job in turn gets the option that adds least to the value."""
    seating, runs, last = Seating(fleet, robust), [], 0.0
    for job, _ in order:

        def added(option: RunOption, job: Job = job, last: float = last) -> tuple[float, ...]:
            end = seating.look(job, option)[0] + option.planned_s(robust)
            late = max(0.0, end - _due(job))
            if math.isinf(end):
                return math.inf, math.inf, math.inf
            times = aims.makespan * max(0.0, end - last) + aims.completion * end / len(order)
            times += aims.tardiness * job.priority * late
            value = aims.cost * option.usd + times / HOUR_S
            return (late > 1e-6 if aims.deadlines_are_hard else 0.0), value, end

        run = seating.place(job, min(job.options, key=added))
        last = max(last, run.end_s)
        runs.append(run)
    return tuple(sorted(runs, key=lambda run: (run.start_s, run.job.name)))
