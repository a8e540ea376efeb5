"""Why a plan is impossible, and what would make it possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from wavecast.errors import InvalidInput
from wavecast.planning.schedule.jobs import HOUR_S, Fleet, Job, JobSchedule
from wavecast.planning.schedule.planner import Effort
from wavecast.planning.schedule.remedies import remedies


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
