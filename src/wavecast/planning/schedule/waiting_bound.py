"""A bound of the mean completion that knows of waiting, by a linear program over time.

Time is cut into intervals. A variable is the share of a job that an option runs in an interval; the
shares of a pool fit into its GPUs, and a job runs no faster than its option does. A job that runs
from S for p seconds is busy at S + p/2 on average, so it ends at the mean time of its shares plus
p/2 (Goemans 1997; Schulz and Skutella 2002). The program may cut jobs and takes every share at the
begin of its interval, so that no schedule has a lower value. The order of the mean times, with the
option of which each job has most, is a good one to plan in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wavecast.planning.schedule.jobs import HOUR_S, Aims, Fleet, Job, RunOption
from wavecast.planning.schedule.seating import Chosen
from wavecast.regression.least_squares import needing_scipy

_MOST_SHARES = 300_000
"""About as many variables as are solved in some seconds."""
_MOST_INTERVALS = 400
_FEWEST_INTERVALS = 8
COARSE = (12, 16, 24, 32, 48, 64, 100)
"""Numbers of intervals whose solutions are tried as orders: coarse ones are the better ones."""


def relax_over_time(
    fleet: Fleet,
    jobs: Sequence[Job],
    aims: Aims,
    until_s: float,
    robust: bool = False,
    most: int = _MOST_INTERVALS,
) -> tuple[float, tuple[Chosen, ...]] | None:
    """The value of the relaxed problem over time, and the jobs in the order of its solution.

    Args:
        fleet: the GPUs.
        jobs: the jobs.
        aims: what is minimised, the mean completion among it. Makespan and tardiness are left out
            of the bound, which is valid without them.
        until_s: when a good schedule ends. The last interval begins there.
        robust: whether to plan with the high ends of ranges.
        most: how many intervals to make at the most; the bound is better with more.

    Returns:
        None if there are no jobs, or too many for a program over time, or it was not solved.
    """
    ways = sum(len(job.options) for job in jobs)
    intervals = min(most, _MOST_SHARES // max(1, ways))
    if intervals < _FEWEST_INTERVALS or not aims.completion or not jobs:
        return None
    first_s = min(job.submit_s for job in jobs)
    cuts = np.linspace(first_s, max(until_s, first_s + 1.0), intervals)
    program = _Shares(fleet, jobs, aims, cuts, robust)
    solved = program.solve()
    if solved is None:
        return None
    value, shares = solved
    busy, chosen = program.busy_at(shares), program.most_used(shares)
    order = sorted(range(len(jobs)), key=busy.__getitem__)
    return value, tuple((jobs[at], chosen[at]) for at in order)


class _Shares:
    """The program: a variable for each job, option and interval in which it may run."""

    def __init__(
        self, fleet: Fleet, jobs: Sequence[Job], aims: Aims, cuts: np.ndarray, robust: bool
    ) -> None:
        self._fleet, self._jobs, self._cuts = fleet, jobs, cuts
        options = [(at, one) for at, job in enumerate(jobs) for one in job.options]
        self._options = options
        seconds = np.array([one.planned_s(robust) for _, one in options])
        submitted = np.array([jobs[at].submit_s for at, _ in options])
        ends = np.append(cuts[1:], math.inf)
        # An option may run in an interval that ends after the job's submission.
        way, interval = np.nonzero(ends[None, :] > submitted[:, None])
        self._way, self._interval = way, interval
        self._job = np.array([at for at, _ in options])[way]
        self._seconds = seconds[way]
        self._begins = np.maximum(cuts[interval], submitted[way])
        hours = (self._begins + self._seconds / 2 - submitted[way]) / HOUR_S
        usd = np.array([one.usd for _, one in options])[way]
        self.costs = aims.completion / len(jobs) * hours + aims.cost * usd

    def solve(self) -> tuple[float, np.ndarray] | None:
        """The value and the shares."""
        sparse = needing_scipy("planning", "scipy.sparse")
        upper, limits = self._limits(sparse)
        count = len(self.costs)
        whole = sparse.coo_matrix(
            (np.ones(count), (self._job, np.arange(count))), (len(self._jobs), count)
        )
        solved = needing_scipy("planning", "scipy.optimize").linprog(
            self.costs,
            A_ub=upper,
            b_ub=limits,
            A_eq=whole,
            b_eq=np.ones(len(self._jobs)),
            method="highs",
        )
        return None if solved.x is None else (float(solved.fun), solved.x)

    def _limits(self, sparse: Any) -> tuple[Any, np.ndarray]:
        """Pools have so many GPUs in an interval, and a job so much time; the last has no end."""
        intervals = len(self._cuts)
        lengths = np.diff(self._cuts)
        finite = self._interval < intervals - 1
        columns = np.nonzero(finite)[0]
        pools = {pool.name: at for at, pool in enumerate(self._fleet.pools)}
        pool = np.array([pools[one.pool] for _, one in self._options])[self._way][finite]
        gpus = np.array([one.gpus for _, one in self._options])[self._way][finite]
        interval, seconds = self._interval[finite], self._seconds[finite]
        usable = np.array([max(1, each.usable) for each in self._fleet.pools])
        pool_rows = pool * (intervals - 1) + interval
        job_rows = self._job[finite] * (intervals - 1) + interval
        first = len(pools) * (intervals - 1)
        rows = np.concatenate((pool_rows, first + job_rows))
        values = np.concatenate((gpus * seconds / usable[pool], seconds))
        total = first + len(self._jobs) * (intervals - 1)
        limits = np.concatenate((np.tile(lengths, len(pools)), self._times(lengths)))
        made = sparse.coo_matrix(
            (values, (rows, np.concatenate((columns, columns)))), (total, len(self.costs))
        )
        return made, limits

    def _times(self, lengths: np.ndarray) -> np.ndarray:
        """How long each job may run in each interval: what is left of it after the submission."""
        submitted = np.array([job.submit_s for job in self._jobs])
        left = np.minimum(self._cuts[None, 1:] - submitted[:, None], lengths[None, :])
        return np.asarray(np.maximum(left, 0.0).ravel())

    def most_used(self, shares: np.ndarray) -> tuple[RunOption, ...]:
        """The option of which each job has most."""
        used = np.bincount(self._way, shares, len(self._options))
        best: dict[int, tuple[float, RunOption]] = {}
        for (at, one), share in zip(self._options, used, strict=True):
            if at not in best or share > best[at][0]:
                best[at] = float(share), one
        return tuple(best[at][1] for at in range(len(self._jobs)))

    def busy_at(self, shares: np.ndarray) -> tuple[float, ...]:
        """When each job is busy on average."""
        return tuple(np.bincount(self._job, shares * self._begins, len(self._jobs)).tolist())
