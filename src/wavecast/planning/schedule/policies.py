"""The policies that a simulation can follow, by name."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from wavecast.errors import UnknownName
from wavecast.planning.cost import Ranged
from wavecast.planning.schedule.bounds import relax
from wavecast.planning.schedule.jobs import Aims, Fleet, Job, RunOption
from wavecast.planning.schedule.simulator import (
    QUEUES,
    ROUND_S,
    Active,
    Free,
    SchedulingPolicy,
    Starts,
)
from wavecast.runs.regression.least_squares import needing_scipy

NAMES = (*QUEUES, "max-min", "makespan", "ours")
"""The names of all policies."""


def policy_of(
    name: str, fleet: Fleet, aims: Aims, *, stops: bool = False, round_s: float = ROUND_S
) -> SchedulingPolicy:
    """A policy.

    Args:
        name: one of `NAMES`.
        aims: what our own policy minimises.
        stops: whether running jobs may be stopped for others. Gavel's policies always do.
        round_s: the time between decisions that may stop jobs.

    Raises:
        UnknownName: there is no such policy.
    """
    if name in QUEUES:
        in_rounds = stops or name == "gavel-fifo"
        return QUEUES[name](round_s=round_s if in_rounds else None)
    if name in ("max-min", "makespan"):
        return AllocationPolicy(fleet, for_makespan=name == "makespan", round_s=round_s)
    if name == "ours":
        return ReplanningPolicy(fleet, aims, round_s=round_s if stops else None)
    raise UnknownName(f"there is no policy {name!r}; known: {', '.join(NAMES)}")


# Gavel's policies: shares of time on each GPU type by a linear program, kept in rounds.
#
# Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads",
# OSDI 2020. `x[j, o]` is the share of time that job j runs on option o. Max-min fairness maximises
# the least normalised throughput; makespan minimises the largest of what is left of a job, divided
# by its throughput. In a round, jobs with the largest x over the rounds that they received come
# first.


class AllocationPolicy:
    """Runs jobs in rounds by shares of time from a linear program.

    Args:
        for_makespan: whether the makespan is minimised. Otherwise the least normalised throughput
            is maximised.
        every: the program is solved again after so many rounds, and when jobs come or go.
    """

    def __init__(
        self,
        fleet: Fleet,
        *,
        for_makespan: bool,
        round_s: float = ROUND_S,
        every: int = 20,
    ) -> None:
        kind = "makespan" if for_makespan else "max-min fairness"
        self.name = f"Gavel's {kind}"
        self.round_s: float | None = round_s
        self._fleet, self._for_makespan, self._every = fleet, for_makespan, every
        self._jobs: dict[int, Active] = {}
        self._shares: dict[int, np.ndarray] = {}
        self._served: dict[int, np.ndarray] = {}
        self._changed, self._rounds = True, 0
        self.solve_s: list[float] = []

    def added(self, active: Active, now_s: float) -> bool:
        """Take note of a job."""
        self._jobs[active.order] = active
        self._served[active.order] = np.zeros(len(active.job.options))
        self._changed = True
        return True

    def ended(self, active: Active) -> None:
        """Forget a job."""
        for table in (self._jobs, self._served, self._shares):
            table.pop(active.order, None)
        self._changed = True

    def decide(self, now_s: float, free: Free) -> Starts:
        """The jobs that run in a round."""
        if not self._jobs:
            return []
        self._rounds += 1
        missing = any(order not in self._shares for order in self._jobs)
        if self._shares == {} or missing or (self._changed and self._rounds >= self._every):
            self._solve()
        running = [job.option for job in self._jobs.values() if job.option is not None]
        with free.without(running):
            chosen = self._chosen(free)
            free.give_back(option for _, option in chosen)
        return chosen

    def _chosen(self, free: Free) -> list[tuple[Active, RunOption]]:
        ranked: list[tuple[float, int, int]] = []
        for order, active in self._jobs.items():
            shares, served = self._shares[order], self._served[order]
            for index in range(len(active.job.options)):
                if shares[index] > 1e-4:
                    ranked.append((-shares[index] / (served[index] + 1e-3), order, index))
        ranked.sort()
        chosen: list[tuple[Active, RunOption]] = []
        seen: set[int] = set()
        for _, order, index in ranked:
            if free.total <= 0:
                break
            self._try(order, index, free, chosen, seen)
        # GPUs that the shares leave idle go to waiting jobs, as in Gavel's work conservation.
        for order, active in self._jobs.items():
            if free.total <= 0:
                break
            best = np.argsort([option.seconds.value for option in active.job.options])
            for index in best:
                self._try(order, int(index), free, chosen, seen)
        return chosen

    def _try(
        self,
        order: int,
        index: int,
        free: Free,
        chosen: list[tuple[Active, RunOption]],
        seen: set[int],
    ) -> None:
        active = self._jobs[order]
        option = active.job.options[index]
        if order not in seen and free.has(option):
            seen.add(order)
            free.take(option)
            chosen.append((active, option))
            self._served[order][index] += 1

    def _solve(self) -> None:
        began = time.perf_counter()
        actives = list(self._jobs.values())
        solution = shares_of(self._fleet, actives, self._for_makespan)
        self._shares = {active.order: x for active, x in zip(actives, solution, strict=True)}
        self._served = {active.order: np.zeros(len(active.job.options)) for active in actives}
        self._changed, self._rounds = False, 0
        self.solve_s.append(time.perf_counter() - began)


def shares_of(fleet: Fleet, actives: Sequence[Active], for_makespan: bool) -> list[np.ndarray]:
    """The share of time of each job on each of its options."""
    sparse = needing_scipy("simulating", "scipy.sparse")
    optimize = needing_scipy("simulating", "scipy.optimize")
    pools = {pool.name: row for row, pool in enumerate(fleet.pools)}
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    width = sum(len(active.job.options) for active in actives)
    first, ends = len(fleet.pools), []
    column = 0
    for index, active in enumerate(actives):
        fastest = active.job.fastest.seconds.value
        for option in active.job.options:
            # Throughput in jobs a second, relative to what is left, or to the fastest option.
            speed = fastest / option.seconds.value
            if for_makespan:
                speed = 1e5 / (max(active.left, 1e-6) * option.seconds.value)
            for row, value in (
                (pools[option.pool], float(option.gpus)),
                (first + index, 1.0),
                (first + len(actives) + index, -speed),
            ):
                rows.append(row)
                columns.append(column)
                values.append(value)
            column += 1
        rows.append(first + len(actives) + index)
        columns.append(width)
        values.append(1.0)
        ends.append(column)
    limits = [float(pool.usable) for pool in fleet.pools]
    limits += [1.0] * len(actives) + [0.0] * len(actives)
    costs = np.zeros(width + 1)
    costs[width] = -1.0
    solved = optimize.linprog(
        costs,
        A_ub=sparse.csr_matrix((values, (rows, columns)), (len(limits), width + 1)),
        b_ub=limits,
        bounds=(0, None),
        method="highs",
    )
    return list(np.split(solved.x[:width], ends[:-1]))


# Our own policy: the jobs that wait and run are planned again when jobs arrive.
#
# The relaxed problem of `schedule.bounds` chooses the GPUs of each waiting job, together with what
# runs already; the order follows from the aims: longest first for the makespan, shortest first for
# the mean completion, earliest deadline first for tardiness. If jobs may be stopped, what is left
# of a job decides: the longest rest first, or the smallest (Schrage 1968, for one machine).


_MOST_PLANNED = 1500
"""At most so many jobs are planned at once: those that come first."""


class ReplanningPolicy:
    """Plans again when jobs arrive.

    Args:
        every_s: the least time between two plans.
        round_s: the time between rounds in which running jobs may be stopped for others. None for
            no stops.
    """

    def __init__(
        self, fleet: Fleet, aims: Aims, every_s: float = 0.0, round_s: float | None = None
    ) -> None:
        self.name, self.round_s = "ours", round_s
        self._fleet, self._aims, self._every_s = fleet, aims, every_s
        self._waiting: dict[int, Active] = {}
        self._running: dict[int, Active] = {}
        self._plan: dict[int, RunOption] = {}
        self._planned_s = -math.inf

    def added(self, active: Active, now_s: float) -> bool:
        """Take note of a job."""
        self._waiting[active.order] = active
        return True

    def ended(self, active: Active) -> None:
        """Forget a job."""
        self._running.pop(active.order, None)

    def decide(self, now_s: float, free: Free) -> Starts:
        """The jobs that start, in the order of the plan, on their planned GPUs; or all that run."""
        stopped = [] if self.round_s is None else list(self._running.values())
        if not self._waiting or (free.total <= 0 and not stopped):
            return [(active, active.option) for active in stopped if active.option is not None]
        fresh = any(order not in self._plan for order in self._waiting)
        if fresh and now_s >= self._planned_s + self._every_s:
            self._replan(now_s)
        before = [active.option for active in stopped if active.option is not None]
        with free.without(before):
            starts = self._chosen([*self._waiting.values(), *stopped], now_s, free)
            free.give_back(option for _, option in starts)
        self._waiting |= {active.order: active for active in stopped}
        for active, _ in starts:
            self._running[active.order] = self._waiting.pop(active.order)
        for order in self._waiting:
            self._running.pop(order, None)
        return starts

    def _chosen(
        self, actives: list[Active], now_s: float, free: Free
    ) -> list[tuple[Active, RunOption]]:
        """The jobs that get GPUs, in the order of the plan."""
        starts = []
        for active in sorted(actives, key=self._key):
            if free.total <= 0:
                break
            option = active.option or self._plan.get(active.order)
            if option is None or not free.has(option):
                option = self._idle(active, now_s, free)
            if option is not None:
                free.take(option)
                starts.append((active, option))
        return starts

    @property
    def _key(self) -> Callable[[Active], tuple[float, ...]]:
        aims = self._aims

        def key(active: Active) -> tuple[float, ...]:
            job = active.job
            option = active.option or self._plan.get(active.order, job.fastest)
            left_s = option.seconds.value * active.left
            due = math.inf if job.deadline_s is None else job.deadline_s
            if aims.tardiness:
                return due, job.submit_s
            if aims.completion:
                return (left_s * option.gpus / job.priority,)
            return (-left_s,) if aims.makespan else (job.submit_s,)

        return key

    def _idle(self, active: Active, now_s: float, free: Free) -> RunOption | None:
        """Other GPUs that are idle, where a job ends there no later than it would by the plan."""
        planned = self._plan.get(active.order)
        if planned is None or self._aims.cost:
            return None
        best = min(
            (option for option in active.job.options if free.has(option)),
            key=lambda option: option.seconds.value,
            default=None,
        )
        if best is None:
            return None
        waits = self._wait_s(planned, now_s)
        return best if best.seconds.value <= waits + planned.seconds.value else None

    def _wait_s(self, option: RunOption, now_s: float) -> float:
        """How long the work that waits for a pool keeps it busy."""
        pool = self._fleet.by_name[option.pool]
        busy = sum(
            max(0.0, active.placed_s + active.seconds * active.left - now_s) * active.option.gpus
            for active in self._running.values()
            if active.option is not None and active.option.pool == pool.name
        )
        return busy / max(1, pool.usable)

    def _replan(self, now_s: float) -> None:
        self._planned_s = now_s
        actives = sorted(self._waiting.values(), key=lambda active: active.job.submit_s)
        actives = actives[:_MOST_PLANNED]
        fixed = [
            _rest(active, now_s) for active in self._running.values() if active.option is not None
        ]
        jobs = [_moved(active.job, now_s) for active in actives]
        aims = self._aims
        if not aims.makespan:
            aims = replace(aims, makespan=1.0, tardiness=0.0)
            jobs = [replace(job, deadline_s=None) for job in jobs]
        chosen = relax(self._fleet, [*jobs, *fixed], aims).chosen
        self._plan = {active.order: option for active, option in zip(actives, chosen, strict=False)}


def _moved(job: Job, now_s: float) -> Job:
    """The job on a clock that begins now."""
    due = None if job.deadline_s is None else job.deadline_s - now_s
    return replace(job, submit_s=0.0, deadline_s=due)


def _rest(active: Active, now_s: float) -> Job:
    """What is left of a running job, where it runs."""
    assert active.option is not None
    left = max(1.0, active.placed_s + active.seconds * active.left - now_s)
    option = replace(active.option, seconds=Ranged(left))
    return replace(active.job, options=(option,), submit_s=0.0, deadline_s=None)
