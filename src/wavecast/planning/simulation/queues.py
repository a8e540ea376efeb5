"""Policies that keep a queue: FIFO, shortest first, earliest deadline first, least cost."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable

from wavecast.planning.schedule.jobs import Fleet, Job, RunOption
from wavecast.planning.simulation.state import Active, Free, Starts

Order = Callable[[Job], float]
Choice = Callable[[Job, Free], RunOption | None]
"""The option that a job would start with now. None if it waits."""
_MOST_PASSED = 500
"""A job that waits is passed by others; the search among these ends after so many."""


class QueuePolicy:
    """Starts waiting jobs in an order.

    Args:
        name: its name.
        order: jobs with less come first.
        choice: the option of a job.
        is_strict: whether no job is passed by a later one, as in FIFO.
        round_s: the time between rounds in which running jobs may be stopped for those that come
            first. None for no stops.
    """

    def __init__(
        self,
        name: str,
        order: Order,
        choice: Choice,
        *,
        is_strict: bool = False,
        round_s: float | None = None,
    ) -> None:
        self.name, self.round_s = name, round_s
        self._order, self._choice, self._is_strict = order, choice, is_strict
        self._queue: list[tuple[float, int, Active]] = []

    def added(self, active: Active, now_s: float) -> bool:
        """Put a job into the queue."""
        bisect.insort(self._queue, (self._order(active.job), active.order, active))
        return True

    def ended(self, active: Active) -> None:
        """Take a job out of the queue, in which those stay that may be stopped."""
        if self.round_s is not None:
            key = self._order(active.job), active.order
            self._queue.pop(bisect.bisect_left(self._queue, key, key=lambda one: one[:2]))

    def decide(self, now_s: float, free: Free) -> Starts:
        """The jobs that start, in order; with rounds, all jobs that run."""
        free.now_s = now_s
        return self._round(free) if self.round_s is not None else self._next(free)

    def _next(self, free: Free) -> Starts:
        starts: list[tuple[Active, RunOption]] = []
        kept: list[tuple[float, int, Active]] = []
        taken: list[RunOption] = []
        index = 0
        while index < len(self._queue) and free.total > 0 and len(kept) < _MOST_PASSED:
            entry = self._queue[index]
            index += 1
            option = self._choice(entry[2].job, free)
            if option is None:
                kept.append(entry)
                if self._is_strict:
                    break
                continue
            free.take(option)
            taken.append(option)
            starts.append((entry[2], option))
        self._queue[:index] = kept
        for option in taken:  # the simulator takes them itself
            free.take(option, -1)
        return starts

    def _round(self, free: Free) -> Starts:
        running = [one.option for _, _, one in self._queue if one.option is not None]
        for option in running:
            free.take(option, -1)
        starts, taken = [], []
        for _, _, active in self._queue:
            if free.total <= 0:
                break
            now = active.option
            chosen = now if now is not None and free.has(now) else None
            chosen = chosen or self._choice(active.job, free)
            if chosen is None:
                if self._is_strict:
                    break
                continue
            free.take(chosen)
            taken.append(chosen)
            starts.append((active, chosen))
        for option in taken:
            free.take(option, -1)
        for option in running:
            free.take(option)
        return starts


def any_free(job: Job, free: Free) -> RunOption | None:
    """The first option that has room, whatever its speed: a policy that knows no speeds.

    The pool with the most free GPUs comes first, as if GPUs were alike.
    """
    if len(job.options) == 1:
        return job.options[0] if free.has(job.options[0]) else None
    roomy = [one for one in job.options if free.has(one)]
    return max(roomy, key=lambda one: (free.gpus[one.pool], -one.gpus), default=None)


def fastest_free(job: Job, free: Free) -> RunOption | None:
    """The fastest option that has room."""
    if len(job.options) == 1:
        return job.options[0] if free.has(job.options[0]) else None
    roomy = [one for one in job.options if free.has(one)]
    return min(roomy, key=lambda one: (one.seconds.value, one.usd), default=None)


def cheapest_only(job: Job, free: Free) -> RunOption | None:
    """The cheapest option; the job waits for it."""
    return job.cheapest if free.has(job.cheapest) else None


def fifo(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Jobs in the order of submission, on whatever GPUs are free."""
    return QueuePolicy("FIFO", lambda job: job.submit_s, any_free, is_strict=True, round_s=round_s)


def fifo_aware(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Jobs in the order of submission, each on the fastest GPUs that are free."""
    return QueuePolicy(
        "FIFO on the fastest",
        lambda job: job.submit_s,
        fastest_free,
        is_strict=True,
        round_s=round_s,
    )


def shortest_first(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Jobs that take least time come first."""
    return QueuePolicy(
        "shortest first", lambda job: job.fastest.seconds.value, fastest_free, round_s=round_s
    )


def smallest_first(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Jobs that take least GPU time come first."""
    return QueuePolicy(
        "smallest first",
        lambda job: min(one.seconds.value * one.gpus for one in job.options),
        fastest_free,
        round_s=round_s,
    )


def earliest_deadline(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Jobs that are due first come first."""
    return QueuePolicy(
        "earliest deadline first",
        lambda job: math.inf if job.deadline_s is None else job.deadline_s,
        fastest_free,
        round_s=round_s,
    )


def least_cost(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Each job waits for the GPUs on which it costs least."""
    return QueuePolicy("least cost", lambda job: job.submit_s, cheapest_only, round_s=round_s)
