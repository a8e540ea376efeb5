"""Is a schedule possible? This shares no code with the planners: it looks at every event anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from wavecast.planning.schedule.jobs import Fleet, Job, PlannedRun

_TOLERANCE_S = 1e-6


def faults(
    fleet: Fleet, jobs: Sequence[Job], runs: Sequence[PlannedRun], *, robust: bool = False
) -> list[str]:
    """What is wrong with a schedule, one sentence for each fault; empty if it can be carried out.

    Args:
        jobs: the jobs that were to be planned.
    """
    return [
        *_counted(jobs, runs),
        *(fault for run in runs for fault in _alone(fleet, run, robust)),
        *_together(fleet, runs),
    ]


def _counted(jobs: Sequence[Job], runs: Sequence[PlannedRun]) -> Iterator[str]:
    planned = Counter(run.job.name for run in runs)
    for job in jobs:
        if planned[job.name] != 1:
            yield f"{job.name} is planned {planned[job.name]} times"
    names = {job.name for job in jobs}
    yield from (f"{name} is not to be planned" for name in planned if name not in names)


def _alone(fleet: Fleet, run: PlannedRun, robust: bool) -> Iterator[str]:
    job, option = run.job, run.option
    pools = [pool for pool in fleet.pools if pool.name == option.pool]
    if option not in job.options or not pools:
        yield f"{job.name} may not run on {option.name}"
        return
    [pool] = pools
    high = option.seconds.high
    needed = high if robust and high is not None else option.seconds.value
    if abs(run.end_s - run.start_s - needed) > _TOLERANCE_S * max(1.0, needed):
        yield f"{job.name} has {run.end_s - run.start_s:g} s and needs {needed:g} s"
    if run.start_s < job.submit_s - _TOLERANCE_S:
        yield f"{job.name} starts before it is submitted"
    inside = [
        begin - _TOLERANCE_S <= run.start_s and run.end_s <= end + _TOLERANCE_S
        for begin, end in pool.windows
    ]
    if pool.windows and not any(inside):
        yield f"{job.name} runs when {pool.name} cannot be had"
    if len(set(run.nodes)) != len(run.nodes) or not run.nodes:
        yield f"{job.name} has no machines, or one twice"
    sizes = [
        min(pool.gpus_per_node, pool.gpus - node * pool.gpus_per_node)
        for node in run.nodes
        if 0 <= node * pool.gpus_per_node < pool.gpus
    ]
    if sum(sizes) < option.gpus:
        yield f"{job.name} needs {option.gpus} GPUs, and its machines have {sum(sizes)}"
    if len(run.nodes) > 1 and option.gpus <= pool.gpus_per_node:
        yield f"{job.name} is spread over machines though it fits into one"


def _together(fleet: Fleet, runs: Sequence[PlannedRun]) -> Iterator[str]:
    """Looks at each moment at which a job starts: use grows only then."""
    power = {pool.name: pool.power_w or 0.0 for pool in fleet.pools}
    for pool in fleet.pools:
        inside = [run for run in runs if run.option.pool == pool.name]
        for moment in inside:
            on = [run for run in inside if _runs_at(run, moment.start_s)]
            used = sum(run.option.gpus for run in on)
            if used > pool.gpus:
                yield f"{used} GPUs of {pool.name} run at {moment.start_s:g} s; it has {pool.gpus}"
            watts = used * power[pool.name]
            if pool.power_limit_w is not None and watts > pool.power_limit_w * (1 + 1e-9):
                yield f"{pool.name} draws {watts:g} W at {moment.start_s:g} s"
            yield from _on_nodes(pool.gpus_per_node, pool.gpus, on, pool.name, moment.start_s)
    if fleet.power_limit_w is not None:
        for moment in runs:
            drawn = sum(
                run.option.gpus * power[run.option.pool]
                for run in runs
                if _runs_at(run, moment.start_s)
            )
            if drawn > fleet.power_limit_w * (1 + 1e-9):
                yield f"{drawn:g} W are drawn at {moment.start_s:g} s"


def _on_nodes(
    size: int, gpus: int, on: Sequence[PlannedRun], name: str, moment_s: float
) -> Iterator[str]:
    used: Counter[int] = Counter()
    for run in on:
        for node in run.nodes:
            used[node] += run.option.gpus if len(run.nodes) == 1 else size
    for node, count in used.items():
        if count > min(size, gpus - node * size):
            yield f"machine {node} of {name} runs {count} GPUs at {moment_s:g} s"


def _runs_at(run: PlannedRun, moment_s: float) -> bool:
    return run.start_s <= moment_s < run.end_s - _TOLERANCE_S * max(1.0, run.end_s - run.start_s)
