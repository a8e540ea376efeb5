"""Our own policy: the jobs that wait and run are planned again when jobs arrive.

The relaxed problem of `schedule.bounds` chooses the GPUs of each waiting job, together with what
runs already; the order follows from the aims: longest first for the makespan, shortest first for
the mean completion, earliest deadline first for tardiness. If jobs may be stopped, what is left of
a job decides: the longest rest first, or the smallest (Schrage 1968, for one machine).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from wavecast.planning.cost import Ranged
from wavecast.planning.schedule.bounds import relax
from wavecast.planning.schedule.jobs import Aims, Fleet, Job, RunOption
from wavecast.planning.simulation.state import Active, Free, Starts

_MOST_PLANNED = 1500
"""At most so many jobs are planned at once: those that come first."""


class ReplanningPolicy:
    """Plans again when jobs arrive.

    Args:
        fleet: the GPUs.
        aims: what is minimised.
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
            return [(one, one.option) for one in stopped if one.option is not None]
        fresh = any(order not in self._plan for order in self._waiting)
        if fresh and now_s >= self._planned_s + self._every_s:
            self._replan(now_s)
        before = [one.option for one in stopped if one.option is not None]
        for option in before:
            free.take(option, -1)
        starts = self._chosen([*self._waiting.values(), *stopped], now_s, free)
        for _, option in starts:
            free.take(option, -1)
        for option in before:
            free.take(option)
        self._waiting |= {one.order: one for one in stopped}
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
            (one for one in active.job.options if free.has(one)),
            key=lambda one: one.seconds.value,
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
            max(0.0, one.placed_s + one.seconds * one.left - now_s) * one.option.gpus
            for one in self._running.values()
            if one.option is not None and one.option.pool == pool.name
        )
        return busy / max(1, pool.usable)

    def _replan(self, now_s: float) -> None:
        self._planned_s = now_s
        actives = sorted(self._waiting.values(), key=lambda one: one.job.submit_s)
        actives = actives[:_MOST_PLANNED]
        fixed = [_rest(one, now_s) for one in self._running.values() if one.option is not None]
        jobs = [_moved(one.job, now_s) for one in actives]
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
