"""Our own policy: the jobs that wait and run are planned again when jobs arrive.

The relaxed problem of `schedule.bounds` chooses the GPUs of each waiting job, together with what
runs already; the order follows from the aims: longest first for the makespan, shortest first for
the mean completion, earliest deadline first for tardiness.
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
    """

    round_s: float | None = None

    def __init__(self, fleet: Fleet, aims: Aims, every_s: float = 0.0) -> None:
        self.name = "ours"
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
        """The jobs that start, in the order of the plan, on their planned GPUs."""
        if not self._waiting or free.total <= 0:
            return []
        fresh = any(order not in self._plan for order in self._waiting)
        if fresh and now_s >= self._planned_s + self._every_s:
            self._replan(now_s)
        starts = []
        for active in sorted(self._waiting.values(), key=self._key):
            option = self._plan.get(active.order)
            if option is None or not free.has(option):
                option = self._idle(active, now_s, free)
            if option is not None:
                free.take(option)
                starts.append((active, option))
            if free.total <= 0:
                break
        for active, option in starts:
            free.take(option, -1)
            del self._waiting[active.order]
            self._running[active.order] = active
        return starts

    @property
    def _key(self) -> Callable[[Active], tuple[float, ...]]:
        aims = self._aims

        def key(active: Active) -> tuple[float, ...]:
            job = active.job
            option = self._plan.get(active.order, job.fastest)
            due = math.inf if job.deadline_s is None else job.deadline_s
            if aims.tardiness:
                return due, job.submit_s
            if aims.completion:
                return (option.seconds.value * option.gpus / job.priority,)
            return (-option.seconds.value,) if aims.makespan else (job.submit_s,)

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
            max(0.0, one.placed_s + one.seconds - now_s) * one.option.gpus
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
