"""Why a plan is impossible, and what would make it possible."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from wavecast.errors import InvalidInput
from wavecast.planning.schedule.jobs import HOUR_S, Aims, Fleet, Job, JobSchedule, PlannedRun, Pool
from wavecast.planning.schedule.planner import Effort, make_schedule
from wavecast.planning.schedule.seating import NoRoom


def with_room(fleet: Fleet, jobs: Sequence[Job], robust: bool = False) -> tuple[Job, ...]:
    """The jobs with the options that have room when nothing else runs.

    Args:
        fleet: the GPUs.
        jobs: the jobs.
        robust: whether runs last as long as the high ends of their ranges.

    Raises:
        InvalidInput: a job can run nowhere; says why for each kind of GPU, and what would help.
    """
    return tuple(_with_room(fleet, job, robust) for job in jobs)


def _with_room(fleet: Fleet, job: Job, robust: bool) -> Job:
    if not job.options:
        reasons = "; ".join(job.impossible) or "no pool has a GPU that it may run on"
        raise InvalidInput(
            f"job {job.name} can run nowhere: {reasons}. Allow other GPUs or counts, or add a "
            "pool that it fits on"
        )
    kept = tuple(
        one
        for one in job.options
        if fleet.by_name[one.pool].opens(job.submit_s, one.planned_s(robust))
    )
    if not kept:
        longest = max(
            (end - max(begin, job.submit_s) for pool in fleet.pools for begin, end in pool.windows),
            default=0.0,
        )
        needed = min(job.options, key=lambda one: one.planned_s(robust))
        high = " with the high ends of ranges" if robust else ""
        raise InvalidInput(
            f"job {job.name} takes {needed.planned_s(robust) / HOUR_S:.1f} h at least{high} (on "
            f"{needed.name}), and no pool is available for longer than "
            f"{max(0.0, longest) / HOUR_S:.1f} h at a time after that; make a window longer"
        )
    return job if len(kept) == len(job.options) else replace(job, options=kept)


def no_room(fleet: Fleet, jobs: Sequence[Job], robust: bool, effort: Effort) -> str:
    """Why there is no schedule at all, and what would make one."""
    closing = ", ".join(pool.name for pool in fleet.pools if pool.windows)
    found = remedies(fleet, jobs, robust, effort)
    helped = "; or ".join(found) if found else "no single change of the cluster was found to help"
    return (
        f"no plan was found in which all {len(jobs)} jobs run while {closing} can be had. What "
        f"would help: {helped}"
    )


def explain(
    fleet: Fleet, jobs: Sequence[Job], schedule: JobSchedule, effort: Effort
) -> Iterator[str]:
    """Why deadlines are missed, one sentence for each reason, and what would meet them.

    Each change of the cluster that is named was planned with, and meets all deadlines that jobs
    could meet if they were alone.
    """
    robust = schedule.is_robust
    yield from _alone(jobs, robust)
    hopeless = {job.name for job in jobs if _shortfall(job, robust) > 0}
    crowded = [run for run in schedule.late if run.job.name not in hopeless]
    if not crowded:
        return
    by = max(run.late_s for run in crowded)
    names = ", ".join(run.job.name for run in crowded[:5])
    more = f" and {len(crowded) - 5} more" if len(crowded) > 5 else ""
    proven = "cannot all" if schedule.proves_impossible else "were not found to"
    who = "the other jobs" if hopeless else "the jobs"
    yield (
        f"{who} {proven} meet their deadlines on these GPUs: the plan with the least delay has "
        f"{names}{more} late, by {by / HOUR_S:.1f} h at most; deadlines that much later would be "
        "met"
    )
    possible = [replace(job, deadline_s=None) if job.name in hopeless else job for job in jobs]
    found = remedies(fleet, possible, robust, effort)
    if found:
        yield f"these deadlines would also be met with {'; or '.join(found)}"
    else:
        yield "no single change of the cluster was found to meet these deadlines"


def _shortfall(job: Job, robust: bool) -> float:
    if job.deadline_s is None:
        return 0.0
    fastest = min(one.planned_s(robust) for one in job.options)
    return max(0.0, job.submit_s + fastest - job.deadline_s)


def _alone(jobs: Sequence[Job], robust: bool) -> Iterator[str]:
    for job in jobs:
        short = _shortfall(job, robust)
        if short > 1e-6:
            fastest = min(job.options, key=lambda one: one.planned_s(robust))
            yield (
                f"{job.name} cannot meet its deadline even alone: the fastest way, {fastest.name}, "
                f"takes {fastest.planned_s(robust) / HOUR_S:.1f} h; a deadline "
                f"{short / HOUR_S:.1f} h later would be met, or faster GPUs"
            )


# Changes of a cluster with which all jobs run in time: each is planned before it is named.
#
# Tried one at a time: GPUs that can be had at any hour, no limit of power, and more GPUs of a
# pool, as few as were found to do.


_MOST_TIMES = 8
"""A pool is not enlarged beyond this many times its size and a machine."""
_SHARE = 0.05
"""The share of the time limit of the plan that each look takes at the most."""
_LEAST_S, _MOST_S = 0.2, 2.0
_WHOLE_S = 5.0
"""All looks together take this long at the most, or as long as the plan did."""


def remedies(fleet: Fleet, jobs: Sequence[Job], robust: bool, effort: Effort) -> list[str]:
    """What would let all jobs run and meet their deadlines, each in a few words.

    Args:
        fleet: the GPUs.
        jobs: the jobs, none of which has a deadline that it cannot meet alone.
        robust: whether to plan with the high ends of ranges.
        effort: how hard the plan was searched; this takes about as long again at the most.
    """
    trial = _Trial(jobs, robust, effort)
    return [*_hours(fleet, trial), *_power(fleet, trial), *_more(fleet, trial)]


class _Trial:
    """Looks whether all jobs run in time on another cluster."""

    def __init__(self, jobs: Sequence[Job], robust: bool, effort: Effort) -> None:
        self._jobs, self._robust, self._effort = jobs, robust, effort
        self._look_s = min(_MOST_S, max(_LEAST_S, effort.limit_s * _SHARE))
        self._until = time.perf_counter() + max(_WHOLE_S, effort.limit_s)

    def plan(self, fleet: Fleet) -> tuple[PlannedRun, ...]:
        """The runs of a plan that is in time. Nothing if none was found, or time is up.

        Simple rules are tried first, since they often do where there is room.
        """
        if time.perf_counter() > self._until:
            return ()
        found = self._planned(fleet, 0.0)
        return found or self._planned(fleet, self._look_s) if self._effort.limit_s else found

    def _planned(self, fleet: Fleet, limit_s: float) -> tuple[PlannedRun, ...]:
        aims, effort = Aims(tardiness=1.0), replace(self._effort, limit_s=limit_s)
        try:
            found = make_schedule(fleet, self._jobs, aims, robust=self._robust, effort=effort)
        except NoRoom:
            return ()
        return () if found.late else found.runs

    def uses(self, pool: Pool) -> bool:
        """Whether a job may run there."""
        return any(one.pool == pool.name for job in self._jobs for one in job.options)


def _changed(fleet: Fleet, pool: Pool) -> Fleet:
    """The fleet with another version of a pool."""
    return replace(
        fleet, pools=tuple(pool if one.name == pool.name else one for one in fleet.pools)
    )


def _hours(fleet: Fleet, trial: _Trial) -> Iterator[str]:
    for pool in fleet.pools:
        if pool.windows and trial.uses(pool):
            runs = trial.plan(_changed(fleet, replace(pool, windows=())))
            ends = [run.end_s for run in runs if run.option.pool == pool.name]
            if runs:
                until = max(ends, default=0.0) / HOUR_S
                yield f"{pool.name} at all hours from 0 to {until:.1f} h"


def _power(fleet: Fleet, trial: _Trial) -> Iterator[str]:
    if fleet.power_limit_w is not None:
        watts = max(pool.power_w or 0.0 for pool in fleet.pools)

        def wider(limit_w: float) -> Fleet:
            return replace(fleet, power_limit_w=limit_w)

        yield from _raised(fleet.power_limit_w, watts, fleet.gpus, wider, trial, "the cluster")
    for pool in fleet.pools:
        if pool.power_limit_w is not None and trial.uses(pool):

            def higher(limit_w: float, pool: Pool = pool) -> Fleet:
                return _changed(fleet, replace(pool, power_limit_w=limit_w))

            watts = pool.power_w or 0.0
            yield from _raised(pool.power_limit_w, watts, pool.gpus, higher, trial, pool.name)


def _raised(
    now_w: float,
    watts: float,
    gpus: int,
    limited: Callable[[float], Fleet],
    trial: _Trial,
    name: str,
) -> Iterator[str]:
    """A limit of power for a few GPUs more, which draw so many watts each."""
    begin = int(now_w // watts) if watts else gpus
    steps = _fewest(gpus - begin, lambda more: bool(trial.plan(limited((begin + more) * watts))))
    if steps:
        kw = math.ceil((begin + steps) * watts / 10) / 100
        yield f"a power limit of {kw:.2f} kW for {name} ({now_w / 1e3:.2f} now)"


def _more(fleet: Fleet, trial: _Trial) -> Iterator[str]:
    for pool in fleet.pools:
        step = pool.gpus_per_node if pool.gpus >= pool.gpus_per_node else 1
        most = (_MOST_TIMES * pool.gpus + pool.gpus_per_node) // step

        def helps(steps: int, pool: Pool = pool, step: int = step) -> bool:
            return bool(trial.plan(_changed(fleet, replace(pool, gpus=pool.gpus + steps * step))))

        if trial.uses(pool) and (added := step * _fewest(most, helps)):
            yield f"{added} more GPUs of {pool.name}" if added > 1 else f"one more {pool.name}"


def _fewest(most: int, helps: Callable[[int], bool]) -> int:
    """The least number from 1 to most that helps, as larger ones do. 0 if none does."""
    low, high = 0, max(0, min(1, most))
    while high and not helps(high):
        if high == most:
            return 0
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if helps(middle) else (middle, high)
    return high
