"""The exact search: options and order of jobs by OR-Tools CP-SAT, in whole time units.

Each option of a job is an optional interval; one of them is present. The intervals of a pool share
its GPUs (a cumulative constraint), and all share the limit of power. Machines are left out, so that
the bound holds for schedules with machines, too; `seating` puts jobs on machines afterwards.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from wavecast.errors import needing_extra
from wavecast.planning.cost import Ranged
from wavecast.planning.schedule.jobs import HOUR_S, Aims, Fleet, Job, PlannedRun, RunOption
from wavecast.planning.schedule.seating import Chosen

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
