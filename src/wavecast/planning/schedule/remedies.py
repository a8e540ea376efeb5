"""Changes of a cluster with which all jobs run in time: each is planned before it is named.

Tried one at a time: GPUs that can be had at any hour, no limit of power, and more GPUs of a pool,
as few as were found to do.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from wavecast.planning.schedule.jobs import HOUR_S, Aims, Fleet, Job, PlannedRun, Pool
from wavecast.planning.schedule.planner import Effort, make_schedule
from wavecast.planning.schedule.seating import NoRoom

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
