"""A schedule made better by small changes: another option for a job, or another place in the order.

The jobs are seated anew after each change. Gains are kept, and losses now and then, less and less
(simulated annealing). It knows of machines, which the exact search does not.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from wavecast.planning.schedule.greedy import rank
from wavecast.planning.schedule.jobs import Aims, Fleet, PlannedRun
from wavecast.planning.schedule.seating import Chosen, NoRoom, seat

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
