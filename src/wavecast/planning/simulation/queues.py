"""Policies that keep a queue: FIFO, shortest first, earliest deadline first, least cost."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence

from wavecast.planning.schedule.jobs import Fleet, Job, RunOption
from wavecast.planning.simulation.simulator import Active, Free, Starts

Order = Callable[[Job], float]
Choice = Callable[[Active, Free], RunOption | None]
"""The option that a job would start with now. None if it waits."""
ROUND_S = 360.0
"""Six minutes, as in Gavel."""
_MOST_PASSED = 500
"""A job that waits is passed by others; the search among these ends after so many."""


class QueuePolicy:
    """Starts waiting jobs in an order.

    Args:
        name: its name.
        order: jobs with less come first.
        choice: the option of a job.
        is_strict: whether no job is passed by a later one, as in FIFO.
        moves: whether a running job may get other GPUs in a round, although its own are there.
        leftover: the option of a job that the choice left waiting, when all others had theirs.
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
        moves: bool = False,
        leftover: Choice | None = None,
        round_s: float | None = None,
    ) -> None:
        self.name, self.round_s = name, round_s
        self._order, self._choice, self._is_strict = order, choice, is_strict
        self._moves, self._leftover = moves, leftover
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
        index = 0
        while index < len(self._queue) and free.total > 0 and len(kept) < _MOST_PASSED:
            entry = self._queue[index]
            index += 1
            if not _take(entry[2], self._choice(entry[2], free), free, starts):
                kept.append(entry)
                if self._is_strict:
                    break
        if self._leftover is not None:
            kept = [
                entry
                for entry in kept
                if not _take(entry[2], self._leftover(entry[2], free), free, starts)
            ]
        self._queue[:index] = kept
        _give_back(starts, free)
        return starts

    def _round(self, free: Free) -> Starts:
        running = [one.option for _, _, one in self._queue if one.option is not None]
        for option in running:
            free.take(option, -1)
        starts: list[tuple[Active, RunOption]] = []
        kept = []
        for _, _, active in self._queue:
            if free.total <= 0:
                break
            now = None if self._moves else active.option
            stays = now if now is not None and free.has(now) else None
            if not _take(active, stays or self._choice(active, free), free, starts):
                kept.append(active)
                if self._is_strict:
                    break
        for active in kept if self._leftover is not None else ():
            assert self._leftover is not None
            _take(active, self._leftover(active, free), free, starts)
        _give_back(starts, free)
        for option in running:
            free.take(option)
        return starts


def _take(
    active: Active,
    option: RunOption | None,
    free: Free,
    starts: list[tuple[Active, RunOption]],
) -> bool:
    """Let a job have an option, if there is one."""
    if option is None:
        return False
    free.take(option)
    starts.append((active, option))
    return True


def _give_back(starts: Starts, free: Free) -> None:
    """The simulator takes them itself."""
    for _, option in starts:
        free.take(option, -1)


def any_free(active: Active, free: Free) -> RunOption | None:
    """The first option that has room, whatever its speed: a policy that knows no speeds.

    The pool with the most free GPUs comes first, as if GPUs were alike.
    """
    job = active.job
    if len(job.options) == 1:
        return job.options[0] if free.has(job.options[0]) else None
    roomy = [one for one in job.options if free.has(one)]
    return max(roomy, key=lambda one: (free.gpus[one.pool], -one.gpus), default=None)


def first_free(active: Active, free: Free) -> RunOption | None:
    """The first option that has room, in the order of the pools of the fleet."""
    places = list(free.gpus)
    roomy = (one for one in active.job.options if free.has(one))
    return min(roomy, key=lambda one: (places.index(one.pool), one.gpus), default=None)


def fastest_free(active: Active, free: Free) -> RunOption | None:
    """The fastest option that has room."""
    job = active.job
    if len(job.options) == 1:
        return job.options[0] if free.has(job.options[0]) else None
    roomy = [one for one in job.options if free.has(one)]
    return min(roomy, key=lambda one: (one.seconds.value, one.usd), default=None)


def cheapest_only(active: Active, free: Free) -> RunOption | None:
    """The cheapest option; the job waits for it."""
    cheapest = active.job.cheapest
    return cheapest if free.has(cheapest) else None


def cheapest_in_time(active: Active, free: Free) -> RunOption | None:
    """The cheapest option that has room and still meets the deadline."""
    return _cheapest(free, _in_time(active, free))


def cheapest_if_late(active: Active, free: Free) -> RunOption | None:
    """The cheapest option that has room, for a job that meets its deadline on none."""
    return None if _in_time(active, free) else _cheapest(free, active.job.options)


def _in_time(active: Active, free: Free) -> list[RunOption]:
    """The options that meet the deadline of a job, if it runs from now on."""
    due = active.job.deadline_s
    given_s = math.inf if due is None else due - free.now_s
    return [one for one in active.job.options if one.seconds.value * active.left <= given_s]


def _cheapest(free: Free, options: Sequence[RunOption]) -> RunOption | None:
    roomy = (one for one in options if free.has(one))
    return min(roomy, key=lambda one: (one.usd, one.seconds.value), default=None)


def fifo(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Jobs in the order of submission, on whatever GPUs are free."""
    return QueuePolicy("FIFO", lambda job: job.submit_s, any_free, is_strict=True, round_s=round_s)


def gavel_fifo(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Gavel's FIFO that knows no speeds: the first jobs get the first pools, anew in every round.

    At low load its notebooks have the mean completion of jobs that all run on V100, the first of
    its types.
    """
    return QueuePolicy(
        "Gavel's FIFO",
        lambda job: job.submit_s,
        first_free,
        is_strict=True,
        moves=True,
        round_s=round_s,
    )


def in_time(_: Fleet, round_s: float | None = None) -> QueuePolicy:
    """Jobs that must start first come first, each on the cheapest free GPUs that are fast enough.

    Jobs that cannot meet their deadlines any more get what is left.
    """

    def latest_start_s(job: Job) -> float:
        due = math.inf if job.deadline_s is None else job.deadline_s
        return due - job.fastest.seconds.value

    return QueuePolicy(
        "in time",
        latest_start_s,
        cheapest_in_time,
        leftover=cheapest_if_late,
        round_s=round_s,
    )


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
