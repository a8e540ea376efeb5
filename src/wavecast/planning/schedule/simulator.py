"""The simulator: jobs arrive, a policy says what runs, jobs end.

GPUs are counted by pool; machines are not followed. A policy that stops jobs decides anew in every
round (`Policy.round_s`), as Gavel does, and a job that was stopped, or moves to other GPUs, loses
`restart_s` before it goes on. Other policies decide when a job arrives or ends.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

from wavecast.errors import InvalidInput
from wavecast.planning.schedule.jobs import HOUR_S, Fleet, Job, RunOption
from wavecast.results import Shown

Seconds = Callable[[Job, RunOption], float]
"""How long a job really takes on an option."""
_ARRIVES, _ENDS, _ROUND, _DUE = 0, 1, 2, 3
_DONE = 1e-9


class TooManyLate(Exception):
    """More jobs are late than a simulation was to go on for."""


class SchedulingPolicy(Protocol):
    """Decides what runs."""

    name: str
    round_s: float | None
    """The time between decisions that may stop jobs. None for a policy that stops none."""

    def added(self, active: Active, now_s: float) -> bool:
        """Take note of a job that was submitted; False if it is not taken on."""

    def ended(self, active: Active) -> None:
        """Take note of a job that ended."""

    def decide(self, now_s: float, free: Free) -> Starts:
        """The jobs to start now on free GPUs; in a round, all jobs that are to run."""


def simulate(
    fleet: Fleet,
    jobs: Sequence[Job],
    policy: SchedulingPolicy,
    *,
    restart_s: float = 0.0,
    seconds: Seconds | None = None,
    most_late: int | None = None,
) -> Simulation:
    """What becomes of jobs under a policy.

    Args:
        jobs: the jobs; each has at least one option.
        restart_s: what stopping a job and starting it again costs it.
        seconds: how long jobs really take. None for as long as predicted.
        most_late: how many jobs may miss their deadlines. None for any number.

    Raises:
        InvalidInput: a pool has windows, or a job never starts.
        TooManyLate: more jobs are late; the simulation ends as soon as that is seen.
    """
    if any(pool.windows for pool in fleet.pools):
        raise InvalidInput(
            "a simulation takes pools that are always available; leave out available"
        )
    simulator = _Simulator(fleet, jobs, policy, restart_s, seconds or _predicted)
    if most_late is not None:
        simulator.end_after(most_late)
    return simulator.run()


def _predicted(_: Job, option: RunOption) -> float:
    return option.seconds.value


class _Simulator:
    def __init__(
        self,
        fleet: Fleet,
        jobs: Sequence[Job],
        policy: SchedulingPolicy,
        restart_s: float,
        seconds: Seconds,
    ) -> None:
        self._fleet, self._policy, self._restart_s = fleet, policy, restart_s
        self._seconds = seconds
        self._prices = {pool.name: pool.usd_per_hour or 0.0 for pool in fleet.pools}
        self._free = Free(fleet)
        self._numbers = itertools.count()
        self._events: list[tuple[float, int, int, Active | None, int]] = []
        self._active: dict[int, Active] = {}
        self._outcomes: list[JobOutcome] = []
        self._dropped: list[Job] = []
        self._is_round_due = False
        self._may_be_late = 0
        for order, job in enumerate(sorted(jobs, key=lambda job: job.submit_s)):
            self._push(job.submit_s, _ARRIVES, Active(job, order))

    def _push(self, time_s: float, kind: int, active: Active | None = None) -> None:
        version = 0 if active is None else active.version
        heapq.heappush(self._events, (time_s, kind, next(self._numbers), active, version))

    def end_after(self, most_late: int) -> None:
        """End when more jobs are late."""
        self._may_be_late = most_late
        for _, _, _, active, _ in tuple(self._events):
            if active is not None and active.job.deadline_s is not None:
                self._push(active.job.deadline_s + LATE_S, _DUE, active)

    def run(self) -> Simulation:
        began = time.process_time()
        events = self._events
        while events:
            now = events[0][0]
            in_round = changed = False
            while events and events[0][0] == now:
                _, kind, _, active, version = heapq.heappop(events)
                if kind == _ROUND:
                    in_round, self._is_round_due = True, False
                elif kind == _DUE and active is not None:
                    self._count_late(active)
                elif active is not None and active.version == version:
                    changed |= (
                        self._arrive(active, now) if kind == _ARRIVES else self._end(active, now)
                    )
            if in_round:
                self._reassign(now)
            elif changed and self._policy.round_s is None:
                self._start(self._policy.decide(now, self._free), now)
            self._plan_round(now)
        if self._active:
            names = ", ".join(active.job.name for active in list(self._active.values())[:3])
            raise InvalidInput(f"{self._policy.name} never starts {names}; allow other GPUs")
        took_s = time.process_time() - began
        done, dropped = tuple(self._outcomes), tuple(self._dropped)
        return Simulation(self._policy.name, self._fleet, done, dropped, took_s)

    def _count_late(self, active: Active) -> None:
        if active.order in self._active or active.job.submit_s > (active.job.deadline_s or 0.0):
            self._may_be_late -= 1
            if self._may_be_late < 0:
                raise TooManyLate

    def _plan_round(self, now: float) -> None:
        round_s = self._policy.round_s
        if round_s is not None and self._active and not self._is_round_due:
            waits = all(active.option is None for active in self._active.values())
            self._push(now if waits and not self._stuck(now) else now + round_s, _ROUND)
            self._is_round_due = True

    def _stuck(self, now: float) -> bool:
        """Whether a round has just been decided and left all jobs waiting."""
        return getattr(self, "_decided_s", -1.0) == now

    def _arrive(self, active: Active, now: float) -> bool:
        if not self._policy.added(active, now):
            self._dropped.append(active.job)
            return False
        self._active[active.order] = active
        return True

    def _end(self, active: Active, now: float) -> bool:
        option = active.option
        assert option is not None
        self._account(active, now)
        self._free.take(option, -1)
        self._policy.ended(active)
        del self._active[active.order]
        self._outcomes.append(
            JobOutcome(
                active.job, active.began_s, now, active.gpu_s, active.usd, active.stops, option
            )
        )
        return True

    def _account(self, active: Active, now: float) -> None:
        """Count what a running job used since it was placed, and its progress."""
        option = active.option
        assert option is not None
        spent = now - active.placed_s
        active.gpu_s += spent * option.gpus
        active.usd += spent / HOUR_S * option.gpus * self._prices[option.pool]
        active.received[option.pool] = active.received.get(option.pool, 0.0) + spent
        active.left -= max(0.0, now - active.since_s) / active.seconds
        active.placed_s = now
        active.since_s = max(active.since_s, now)

    def _start(self, starts: Starts, now: float) -> None:
        for active, option in starts:
            restarts = active.began_s < now
            active.option, active.placed_s = option, now
            active.seconds = max(1e-3, self._seconds(active.job, option))
            active.since_s = now + (self._restart_s if restarts else 0.0)
            active.began_s = min(active.began_s, now)
            active.version += 1
            self._free.take(option)
            left = max(_DONE, active.left) * active.seconds
            self._push(active.since_s + left, _ENDS, active)

    def _reassign(self, now: float) -> None:
        """A round: all running jobs may be stopped, moved, or left alone."""
        self._decided_s = now
        running = [active for active in self._active.values() if active.option is not None]
        for active in running:
            self._account(active, now)
        chosen = {
            id(active): (active, option) for active, option in self._policy.decide(now, self._free)
        }
        for active in running:
            kept = chosen.get(id(active))
            if kept is not None and kept[1] == active.option:
                del chosen[id(active)]
                continue
            assert active.option is not None
            self._free.take(active.option, -1)
            active.option = None
            active.version += 1
            active.stops += 1
        self._start(list(chosen.values()), now)


# The state of a simulated fleet, and what became of each job.


LATE_S = 1e-6
"""A job that ends so little after its deadline is in time: sums of times are rounded."""


@dataclass(slots=True, eq=False)
class Active:
    """A job that was submitted and has not ended."""

    job: Job
    order: int
    """Its place among all jobs, by submission."""
    left: float = 1.0
    """The share of its work that is left."""
    option: RunOption | None = None
    """Where it runs. None while it waits."""
    since_s: float = 0.0
    """From when on it makes progress: after its start and what a restart costs."""
    seconds: float = 0.0
    """How long the whole job takes on its option."""
    version: int = 0
    """Grows with every start, so that an end that was foreseen before does not count."""
    gpu_s: float = 0.0
    """The GPU time that it used so far."""
    usd: float = 0.0
    began_s: float = math.inf
    """When it first started."""
    placed_s: float = 0.0
    """When it started on its option."""
    stops: int = 0
    """How often it was stopped."""
    received: dict[str, float] = field(default_factory=dict)
    """The time that it ran on each pool."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job."""

    job: Job
    start_s: float
    """When it first started."""
    end_s: float
    """When it ended, in seconds from the beginning."""
    gpu_s: float
    """The GPU time that it used, what restarts cost included."""
    usd: float
    """What it cost, in USD."""
    stops: int
    """How often it was stopped and started again."""
    option: RunOption
    """Where it ended."""

    @property
    def completion_s(self) -> float:
        """The time from its submission to its end."""
        return self.end_s - self.job.submit_s

    @property
    def waited_s(self) -> float:
        """The time from its submission to its first start."""
        return self.start_s - self.job.submit_s

    @property
    def in_time(self) -> bool | None:
        """Whether it met its deadline. None without one."""
        return None if self.job.deadline_s is None else self.end_s <= self.job.deadline_s + LATE_S


@dataclass(frozen=True)
class Simulation(Shown):
    """What a policy made of jobs on a fleet."""

    policy: str
    """The name of the policy."""
    fleet: Fleet
    outcomes: tuple[JobOutcome, ...]
    """The jobs in the order in which they ended."""
    dropped: tuple[Job, ...] = ()
    """Jobs that the policy did not take on, because their deadlines could not be met."""
    cpu_s: float = field(default=0.0, compare=False)
    """The processor time of the simulation, in seconds."""

    @cached_property
    def _completions(self) -> list[float]:
        return sorted(outcome.completion_s for outcome in self.outcomes)

    @property
    def mean_completion_s(self) -> float:
        """The mean time from submission to end."""
        return sum(self._completions) / max(1, len(self._completions))

    @property
    def p99_completion_s(self) -> float:
        """The time that all but one in a hundred jobs needed at most."""
        times = self._completions
        return times[math.ceil(0.99 * len(times)) - 1] if times else 0.0

    @property
    def mean_wait_s(self) -> float:
        """The mean time from submission to the first start."""
        return sum(outcome.waited_s for outcome in self.outcomes) / max(1, len(self.outcomes))

    @property
    def makespan_s(self) -> float:
        """The time from the first submission to the last end."""
        if not self.outcomes:
            return 0.0
        first = min(outcome.job.submit_s for outcome in self.outcomes)
        return max(outcome.end_s for outcome in self.outcomes) - first

    @property
    def usd(self) -> float:
        """What the GPU time of all jobs cost."""
        return sum(outcome.usd for outcome in self.outcomes)

    @property
    def deadlines_met(self) -> float | None:
        """The share of jobs with a deadline that met it. None if no job has one."""
        due = [outcome.in_time for outcome in self.outcomes if outcome.in_time is not None]
        count = len(due) + len(self.dropped)
        return sum(due) / count if count else None

    @property
    def utilisation(self) -> float:
        """The share of the GPU time of the fleet that jobs used, until the last end."""
        whole = self.makespan_s * self.fleet.gpus
        return sum(outcome.gpu_s for outcome in self.outcomes) / whole if whole else 0.0


class Free:
    """The GPUs of each pool that are free, and the power that is left."""

    def __init__(self, fleet: Fleet) -> None:
        self.gpus = {pool.name: pool.usable for pool in fleet.pools}
        self._watts = {pool.name: pool.power_w or 0.0 for pool in fleet.pools}
        self._power = math.inf if fleet.power_limit_w is None else fleet.power_limit_w
        self.total = sum(self.gpus.values())
        self.now_s = 0.0

    def has(self, option: RunOption) -> bool:
        """Whether an option has room."""
        if self.gpus[option.pool] < option.gpus:
            return False
        return self._power >= option.gpus * self._watts[option.pool] - 1e-6

    def take(self, option: RunOption, sign: int = 1) -> None:
        """Use the GPUs of an option; with a sign of -1, give them back."""
        self.gpus[option.pool] -= sign * option.gpus
        self.total -= sign * option.gpus
        self._power -= sign * option.gpus * self._watts[option.pool]

    def give_back(self, options: Iterable[RunOption]) -> None:
        """No longer use the GPUs of options."""
        for option in options:
            self.take(option, -1)

    @contextmanager
    def without(self, running: Sequence[RunOption]) -> Iterator[None]:
        """A block in which the GPUs of running jobs are free, too."""
        self.give_back(running)
        yield
        for option in running:
            self.take(option)


Starts = Sequence[tuple[Active, RunOption]]


# Policies that keep a queue: FIFO, shortest first, earliest deadline first, least cost.


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
            self._queue.pop(bisect.bisect_left(self._queue, key, key=lambda active: active[:2]))

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
        free.give_back(option for _, option in starts)  # the simulator takes them itself
        return starts

    def _round(self, free: Free) -> Starts:
        running = [active.option for *_, active in self._queue if active.option is not None]
        starts: list[tuple[Active, RunOption]] = []
        kept = []
        with free.without(running):
            for *_, active in self._queue:
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
            free.give_back(option for _, option in starts)
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


def any_free(active: Active, free: Free) -> RunOption | None:
    """The first option that has room, whatever its speed: a policy that knows no speeds.

    The pool with the most free GPUs comes first, as if GPUs were alike.
    """
    job = active.job
    if len(job.options) == 1:
        return job.options[0] if free.has(job.options[0]) else None
    roomy = [option for option in job.options if free.has(option)]
    return max(roomy, key=lambda active: (free.gpus[active.pool], -active.gpus), default=None)


def first_free(active: Active, free: Free) -> RunOption | None:
    """The first option that has room, in the order of the pools of the fleet."""
    places = list(free.gpus)
    roomy = (option for option in active.job.options if free.has(option))
    return min(roomy, key=lambda active: (places.index(active.pool), active.gpus), default=None)


def fastest_free(active: Active, free: Free) -> RunOption | None:
    """The fastest option that has room."""
    job = active.job
    if len(job.options) == 1:
        return job.options[0] if free.has(job.options[0]) else None
    roomy = [option for option in job.options if free.has(option)]
    return min(roomy, key=lambda active: (active.seconds.value, active.usd), default=None)


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
    return [
        option for option in active.job.options if option.seconds.value * active.left <= given_s
    ]


def _cheapest(free: Free, options: Sequence[RunOption]) -> RunOption | None:
    roomy = (option for option in options if free.has(option))
    return min(roomy, key=lambda active: (active.usd, active.seconds.value), default=None)


def _submitted(job: Job) -> float:
    return job.submit_s


def _due(job: Job) -> float:
    return math.inf if job.deadline_s is None else job.deadline_s


QUEUES: dict[str, Callable[..., QueuePolicy]] = {
    # In the order of submission, on whatever GPUs are free.
    "fifo": partial(QueuePolicy, "FIFO", _submitted, any_free, is_strict=True),
    "fifo-fastest": partial(
        QueuePolicy, "FIFO on the fastest", _submitted, fastest_free, is_strict=True
    ),
    # Gavel's FIFO knows no speeds: the first jobs get the first pools, anew in every round. At low
    # load its notebooks have the mean completion of jobs that all run on V100, its first type.
    "gavel-fifo": partial(
        QueuePolicy, "Gavel's FIFO", _submitted, first_free, is_strict=True, moves=True
    ),
    "shortest": partial(
        QueuePolicy, "shortest first", lambda job: job.fastest.seconds.value, fastest_free
    ),
    # Those that take least GPU time come first.
    "smallest": partial(
        QueuePolicy,
        "smallest first",
        lambda job: min(option.seconds.value * option.gpus for option in job.options),
        fastest_free,
    ),
    "deadline": partial(QueuePolicy, "earliest deadline first", _due, fastest_free),
    # Jobs that must start first come first, each on the cheapest free GPUs that are fast enough.
    # Jobs that cannot meet their deadlines any more get what is left.
    "in-time": partial(
        QueuePolicy,
        "in time",
        lambda job: _due(job) - job.fastest.seconds.value,
        cheapest_in_time,
        leftover=cheapest_if_late,
    ),
    # Each job waits for the GPUs on which it costs least.
    "cheapest": partial(QueuePolicy, "least cost", _submitted, cheapest_only),
}
"""The policies that keep a queue, by name; each takes `round_s`."""
