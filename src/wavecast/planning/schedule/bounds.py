"""A bound that no schedule can beat, and the choice of GPUs behind it, by linear programming.

The program lets a job be cut into shares that run on several options at once, and counts only the
GPU time of each pool. What it finds is a relaxation, so its value is a bound for every schedule;
and nearly all jobs have one option only, so it is a good choice to begin with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from wavecast.planning.schedule.jobs import HOUR_S, Aims, Fleet, Job, RunOption
from wavecast.regression.least_squares import needing_scipy

_MOST_DEADLINES = 12
_MOST_HALVINGS = 12
_CLOSE = 1.002


@dataclass(frozen=True)
class Relaxation:
    """The value of the relaxed problem, and the option of which each job has most."""

    bound: float
    chosen: tuple[RunOption, ...]
    is_possible: bool = True
    """Whether even the relaxed problem has a solution that meets the deadlines."""


def relax(fleet: Fleet, jobs: Sequence[Job], aims: Aims, robust: bool = False) -> Relaxation:
    """The relaxed problem, solved.

    For the makespan alone, options that take longer than it are left out, and the least makespan
    for which that is possible is searched (Lenstra, Shmoys and Tardos 1990). It is a bound, too.
    """
    whole = _relaxed(fleet, jobs, aims, robust)
    alone = aims.makespan and not (aims.cost or aims.completion or aims.tardiness)
    if not alone or not whole.is_possible:
        return whole
    low = whole.bound / aims.makespan
    best = _relaxed(fleet, jobs, aims, robust, low)
    high = best.bound / aims.makespan if best.is_possible else math.inf
    for _ in range(_MOST_HALVINGS):
        if high <= low * _CLOSE:
            break
        middle = (low + high) / 2 if math.isfinite(high) else low * 1.5
        tried = _relaxed(fleet, jobs, aims, robust, middle)
        needed = tried.bound / aims.makespan if tried.is_possible else math.inf
        if needed <= middle * (1 + 1e-9):
            high, best = middle, tried
        else:
            low = middle
            if needed < high:
                high, best = needed, tried
    chosen = best.chosen if math.isfinite(high) else whole.chosen
    return Relaxation(low * aims.makespan, chosen)


def _relaxed(
    fleet: Fleet,
    jobs: Sequence[Job],
    aims: Aims,
    robust: bool,
    longest_h: float = math.inf,
) -> Relaxation:
    rows = _LinearProgram(fleet, jobs, aims, robust)
    for column, (index, _) in enumerate(rows.options):
        if jobs[index].submit_s + rows.seconds[column] > longest_h * HOUR_S * (1 + 1e-9):
            rows.most[column] = 0.0
    sparse = needing_scipy("planning", "scipy.sparse")
    solved = needing_scipy("planning", "scipy.optimize").linprog(
        rows.costs,
        A_ub=sparse.coo_matrix((rows.values, (rows.row, rows.column)), (rows.count, rows.width)),
        b_ub=rows.limits,
        A_eq=sparse.coo_matrix(
            (np.ones(rows.ways), (rows.job_of, np.arange(rows.ways))), (len(jobs), rows.width)
        ),
        b_eq=np.ones(len(jobs)),
        bounds=[(0, most) for most in rows.most],
        method="highs",
    )
    if solved.x is None:
        return Relaxation(0.0, tuple(job.fastest for job in jobs), is_possible=solved.status != 2)
    ends = list(accumulate((len(job.options) for job in jobs), initial=0))
    chosen = tuple(
        job.options[int(np.argmax(solved.x[first:last]))]
        for job, first, last in zip(jobs, ends, ends[1:], strict=False)
    )
    return Relaxation(float(solved.fun), chosen)


class _LinearProgram:
    """The program: a variable for each way to run a job, the makespan, and the delay of each."""

    def __init__(self, fleet: Fleet, jobs: Sequence[Job], aims: Aims, robust: bool) -> None:
        self._fleet, self._jobs, self._aims = fleet, jobs, aims
        self.options = [(index, one) for index, job in enumerate(jobs) for one in job.options]
        self.seconds = np.array([one.planned_s(robust) for _, one in self.options])
        self.job_of = np.array([index for index, _ in self.options])
        self.ways = len(self.options)
        self.last = self.ways
        self.width = self.ways + 1 + len(jobs)
        self.row: list[int] = []
        self.column: list[int] = []
        self.values: list[float] = []
        self.limits: list[float] = []
        self._first_s = min((job.submit_s for job in jobs), default=0.0)
        self.costs, self.most = self._costs()
        self._ends()
        self._loads()

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.limits)

    def _costs(self) -> tuple[np.ndarray, list[float | None]]:
        aims, jobs, pools = self._aims, self._jobs, self._fleet.by_name
        costs = np.zeros(self.width)
        most: list[float | None] = [None] * self.width
        for column, (index, one) in enumerate(self.options):
            job, seconds = jobs[index], self.seconds[column]
            costs[column] = aims.cost * one.usd + aims.completion * seconds / len(jobs) / HOUR_S
            end = job.submit_s + seconds
            too_late = job.deadline_s is not None and end > job.deadline_s + 1e-6
            if (too_late and aims.deadlines_are_hard) or not pools[one.pool].opens(
                job.submit_s, seconds
            ):
                most[column] = 0.0
        costs[self.last] = aims.makespan / HOUR_S
        for index, job in enumerate(jobs):
            costs[self.last + 1 + index] = aims.tardiness * job.priority / HOUR_S
        return costs, most

    def _add(self, entries: Sequence[tuple[int, float]], limit: float) -> None:
        for column, value in entries:
            self.row.append(len(self.limits))
            self.column.append(column)
            self.values.append(value)
        self.limits.append(limit)

    def _ends(self) -> None:
        """No job ends after the makespan; its delay is what it has beyond its deadline."""
        of_job: list[list[tuple[int, float]]] = [[] for _ in self._jobs]
        for column, (index, _) in enumerate(self.options):
            of_job[index].append((column, float(self.seconds[column])))
        for index, job in enumerate(self._jobs):
            if self._aims.makespan:
                self._add([*of_job[index], (self.last, -1.0)], -job.submit_s)
            if self._aims.tardiness and job.deadline_s is not None:
                delay = (self.last + 1 + index, -1.0)
                self._add([*of_job[index], delay], job.deadline_s - job.submit_s)

    def _loads(self) -> None:
        """The GPU time of a pool lies before the makespan, that of due jobs before they are due."""
        dues = sorted({job.deadline_s for job in self._jobs if job.deadline_s is not None})
        step = max(1, math.ceil(len(dues) / _MOST_DEADLINES))
        hard = dues[step - 1 :: step] if self._aims.deadlines_are_hard else []
        for pool in self._fleet.pools:
            inside = [
                (column, one.gpus * float(self.seconds[column]) / max(1, pool.usable))
                for column, (_, one) in enumerate(self.options)
                if one.pool == pool.name
            ]
            if self._aims.makespan:
                self._add([*inside, (self.last, -1.0)], -self._first_s)
            for due in hard:
                before = [
                    entry
                    for entry in inside
                    if (self._jobs[self.job_of[entry[0]]].deadline_s or math.inf) <= due
                ]
                self._add(before, due - self._first_s)
