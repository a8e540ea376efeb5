"""Greedy schedules: a choice of options and an order, each of them a simple rule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from wavecast.planning.schedule.jobs import HOUR_S, Aims, Fleet, Job, PlannedRun, RunOption
from wavecast.planning.schedule.seating import Chosen, NoRoom, Seating, seat

_MOST_LOOKS = 400_000
"""The rule that looks at every option is left out where it would look at more machines."""

Key = Callable[[Chosen], tuple[float, ...]]


def _due(job: Job) -> float:
    return math.inf if job.deadline_s is None else job.deadline_s


def orders(robust: bool) -> dict[str, Key]:
    """The orders that are tried, by name."""
    return {
        "longest first": lambda one: (-one[1].planned_s(robust), -one[1].gpus),
        "most GPUs first": lambda one: (-one[1].gpus, -one[1].planned_s(robust)),
        "earliest deadline first": lambda one: (_due(one[0]), one[0].submit_s),
        "shortest first": lambda one: (
            one[1].planned_s(robust) * one[1].gpus / max(one[0].priority, 1e-9),
        ),
        "first submitted first": lambda one: (one[0].submit_s, -one[0].priority),
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
        fleet: the GPUs.
        jobs: the jobs.
        aims: what is minimised.
        relaxed: the option of each job in the relaxed problem.
        robust: whether to plan with the high ends of ranges.

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
    kept = [one for one in job.options if job.submit_s + one.planned_s(robust) <= _due(job)]
    return min(kept or [job.fastest], key=lambda one: (one.usd, one.seconds.value))


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
