"""The planner: a relaxed problem, greedy schedules, then the exact search.

The relaxed problem gives a bound and a choice of options, simple rules give a schedule to begin
with, and CP-SAT improves it and its bound. Many jobs are decomposed: the relaxed problem divides
them among the pools, and each pool is searched by itself.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wavecast.planning.schedule.bounds import Relaxation, relax
from wavecast.planning.schedule.exact import ExactSearch, in_units, search, time_unit_s
from wavecast.planning.schedule.greedy import greedy, rank
from wavecast.planning.schedule.jobs import Aims, Fleet, Job, JobSchedule, PlannedRun
from wavecast.planning.schedule.neighbours import improve
from wavecast.planning.schedule.seating import Chosen, NoRoom, seat
from wavecast.planning.schedule.start_bound import bound_by_starts
from wavecast.planning.schedule.waiting_bound import COARSE, relax_over_time

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
