"""Why a plan is impossible, and what would make it possible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from wavecast.errors import InvalidInput
from wavecast.planning.schedule.jobs import HOUR_S, Fleet, Job, JobSchedule


def refuse_hopeless(fleet: Fleet, jobs: Sequence[Job]) -> None:
    """Raise InvalidInput for a job that can run nowhere, with the reason for each kind of GPU."""
    for job in jobs:
        if not job.options:
            reasons = "; ".join(job.impossible) or "no pool has a GPU that it may run on"
            raise InvalidInput(
                f"job {job.name} can run nowhere: {reasons}. Allow other GPUs or counts, or add a "
                "pool that it fits on"
            )
        if all(_never_open(fleet, one.pool, one.seconds.value) for one in job.options):
            longest = max(
                (end - begin for pool in fleet.pools for begin, end in pool.windows), default=0.0
            )
            needed = job.fastest
            raise InvalidInput(
                f"job {job.name} takes {needed.seconds.value / HOUR_S:.1f} h at least (on "
                f"{needed.name}), and no pool is available for longer than {longest / HOUR_S:.1f} "
                "h at a time; make a window longer"
            )


def _never_open(fleet: Fleet, pool: str, seconds: float) -> bool:
    windows = fleet.by_name[pool].windows
    return bool(windows) and not any(end - begin >= seconds for begin, end in windows)


def explain(fleet: Fleet, jobs: Sequence[Job], schedule: JobSchedule) -> list[str]:
    """Why deadlines are missed, one sentence for each reason, and what would meet them."""
    lines = list(_alone(jobs, schedule.is_robust))
    late = schedule.late
    hopeless = {job.name for job in jobs if _shortfall(job, schedule.is_robust) > 0}
    crowded = [run for run in late if run.job.name not in hopeless]
    if crowded:
        by = max(run.late_s for run in crowded)
        names = ", ".join(run.job.name for run in crowded[:5])
        more = f" and {len(crowded) - 5} more" if len(crowded) > 5 else ""
        proven = "cannot all" if schedule.proves_impossible else "were not found to"
        lines.append(
            f"the others {proven} meet their deadlines on these GPUs: the plan with the least "
            f"delay has {names}{more} late, by {by / HOUR_S:.1f} h at most; deadlines that much "
            f"later would be met, or {_more_gpus(fleet, schedule)}"
        )
    return lines


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


def _more_gpus(fleet: Fleet, schedule: JobSchedule) -> str:
    """How many GPUs of the pool that late jobs wait for would let them start when submitted."""
    waited: dict[str, int] = {}
    for run in schedule.late:
        if run.start_s > run.job.submit_s + 1e-6:
            pool = run.option.pool
            waited[pool] = waited.get(pool, 0) + run.option.gpus
    if not waited:
        return "faster GPUs would help"
    pool = max(waited, key=lambda name: waited[name])
    size = fleet.by_name[pool].gpus_per_node
    return f"{math.ceil(waited[pool] / size) * size} more GPUs of {pool} would"
