"""From an order of jobs to times and machines: each starts as early as there is room for it.

This is the serial generation of schedules: jobs are placed one after the other, and a later one may
fill a gap before an earlier one. It keeps what the exact search leaves out: the machines. A job
that is not larger than a machine runs within one; a larger one has whole machines to itself.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from wavecast.planning.schedule.jobs import HOUR_S, Aims, Fleet, Job, PlannedRun, Pool, RunOption

Chosen = tuple[Job, RunOption]


class NoRoom(ValueError):
    """A job finds no room: its GPUs cannot be had for long enough any more."""


class UseProfile:
    """How much of something is in use over time, as steps."""

    __slots__ = ("limit", "times", "used")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.times: list[float] = [0.0]
        self.used: list[float] = [0.0]

    def add(self, begin: float, end: float, amount: float) -> None:
        """Use an amount between two times."""
        first, last = self._cut(begin), self._cut(end)
        for index in range(first, last):
            self.used[index] += amount

    def _cut(self, at: float) -> int:
        index = bisect.bisect_left(self.times, at)
        if index == len(self.times) or self.times[index] != at:
            self.times.insert(index, at)
            self.used.insert(index, self.used[index - 1])
        return index

    def earliest(self, after: float, seconds: float, amount: float) -> float:
        """The first time after which an amount is free for so long; infinite if there is none."""
        most = self.limit - amount + 1e-9
        index = bisect.bisect_right(self.times, after) - 1
        start = after
        while True:
            if self.used[index] > most:
                index += 1
                if index == len(self.times):
                    return math.inf
                start = self.times[index]
            elif index + 1 == len(self.times) or self.times[index + 1] >= start + seconds:
                return start
            else:
                index += 1

    def is_free(self, begin: float, seconds: float, amount: float) -> bool:
        """Whether an amount is free for so long from a time."""
        return self.earliest(begin, seconds, amount) == begin


@dataclass
class _Seats:
    """The machines of a pool, each with its use over time."""

    pool: Pool
    nodes: list[UseProfile]
    whole: UseProfile

    @classmethod
    def of(cls, pool: Pool, until_s: float) -> _Seats:
        nodes = [UseProfile(size) for size in pool.nodes]
        whole = UseProfile(pool.usable)
        for begin, end in pool.closed(until_s):
            for node in nodes:
                node.add(begin, end, node.limit)
            whole.add(begin, end, whole.limit)
        return cls(pool, nodes, whole)

    def earliest(self, after: float, seconds: float, gpus: int) -> tuple[float, tuple[int, ...]]:
        """The first time at which a job has room, and the machines."""
        size = self.pool.gpus_per_node
        start = self.whole.earliest(after, seconds, gpus)
        if gpus <= size:
            return self._within_one(start, seconds, gpus)
        needed, found = math.ceil(gpus / size), []
        while math.isfinite(start):
            times = [
                node.earliest(start, seconds, node.limit) if node.limit == size else math.inf
                for node in self.nodes
            ]
            found = [index for index, time in enumerate(times) if time <= start]
            if len(found) >= needed and self.whole.is_free(start, seconds, gpus):
                return start, tuple(found[:needed])
            later = sorted(time for time in times if time > start)
            rank = max(0, needed - len(found) - 1)
            start = later[rank] if rank < len(later) else math.inf
            if math.isfinite(start):
                start = self.whole.earliest(start, seconds, gpus)
        return math.inf, ()

    def _within_one(self, start: float, seconds: float, gpus: int) -> tuple[float, tuple[int, ...]]:
        while math.isfinite(start):
            best, where, room = math.inf, -1, math.inf
            for index, node in enumerate(self.nodes):
                if node.limit < gpus:
                    continue
                time = node.earliest(start, seconds, gpus)
                left = node.limit - node.used[bisect.bisect_right(node.times, time) - 1] - gpus
                if time < best or (time == best and left < room):
                    best, where, room = time, index, left
            if math.isinf(best) or self.whole.is_free(best, seconds, gpus):
                return best, (where,)
            start = self.whole.earliest(best, seconds, gpus)
        return math.inf, ()

    def take(self, begin: float, seconds: float, gpus: int, nodes: Sequence[int]) -> None:
        self.whole.add(begin, begin + seconds, gpus)
        for index in nodes:
            node = self.nodes[index]
            node.add(begin, begin + seconds, gpus if len(nodes) == 1 else node.limit)


class Seating:
    """The use of a fleet, into which jobs are placed one after the other."""

    def __init__(self, fleet: Fleet, robust: bool = False) -> None:
        self._fleet, self._robust = fleet, robust
        limit = fleet.power_limit_w
        self._power = None if limit is None else UseProfile(limit)
        self._seats = {pool.name: _Seats.of(pool, math.inf) for pool in fleet.pools}

    def look(self, job: Job, option: RunOption) -> tuple[float, tuple[int, ...]]:
        """When a job could start, and on which machines; infinite if never."""
        seconds, seats = option.planned_s(self._robust), self._seats[option.pool]
        start, nodes = seats.earliest(job.submit_s, seconds, option.gpus)
        watts = self._watts(option)
        while self._power is not None and math.isfinite(start):
            later = self._power.earliest(start, seconds, watts)
            if later == start:
                break
            start, nodes = seats.earliest(later, seconds, option.gpus)
        return start, nodes

    def place(self, job: Job, option: RunOption) -> PlannedRun:
        """Place a job as early as possible.

        Raises:
            NoRoom: there is never room for it.
        """
        start, nodes = self.look(job, option)
        if math.isinf(start):
            raise NoRoom(f"{job.name} never has room on {option.name}")
        seconds = option.planned_s(self._robust)
        self._seats[option.pool].take(start, seconds, option.gpus, nodes)
        if self._power is not None:
            self._power.add(start, start + seconds, self._watts(option))
        return PlannedRun(job, option, start, start + seconds, nodes)

    def _watts(self, option: RunOption) -> float:
        return option.gpus * (self._fleet.by_name[option.pool].power_w or 0.0)


def seat(fleet: Fleet, chosen: Iterable[Chosen], robust: bool = False) -> tuple[PlannedRun, ...]:
    """The schedule in which jobs are placed in an order, each as early as there is room.

    Raises:
        NoRoom: a job finds none, since its GPUs are gone or taken until then.
    """
    seating = Seating(fleet, robust)
    runs = [seating.place(job, option) for job, option in chosen]
    return tuple(sorted(runs, key=lambda run: (run.start_s, run.job.name)))


# Greedy schedules: a choice of options and an order, each of them a simple rule.


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
