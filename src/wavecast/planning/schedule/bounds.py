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
from typing import Any

import numpy as np

from wavecast.planning.schedule.jobs import HOUR_S, Aims, Chosen, Fleet, Job, RunOption
from wavecast.runs.regression.least_squares import needing_scipy

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
    upper = rows.values, (rows.row, rows.column)
    bounds = [(0, most) for most in rows.most]
    solved = _solved(rows.costs, upper, rows.limits, rows.job_of, len(jobs), bounds=bounds)
    if solved.x is None:
        return Relaxation(0.0, tuple(job.fastest for job in jobs), is_possible=solved.status != 2)
    ends = list(accumulate((len(job.options) for job in jobs), initial=0))
    chosen = tuple(
        job.options[int(np.argmax(solved.x[first:last]))]
        for job, first, last in zip(jobs, ends, ends[1:], strict=False)
    )
    return Relaxation(float(solved.fun), chosen)


def _solved(
    costs: np.ndarray,
    upper: tuple[Any, tuple[Any, Any]],
    limits: Any,
    job_of: np.ndarray,
    jobs: int,
    **options: Any,
) -> Any:
    """The least costs at which the shares of each job add up to one, within limits.

    The entries above the limits are values with their rows and columns; the first columns are
    shares, of the jobs `job_of`.
    """
    sparse = needing_scipy("planning", "scipy.sparse")
    shares = np.ones(len(job_of)), (job_of, np.arange(len(job_of)))
    return needing_scipy("planning", "scipy.optimize").linprog(
        costs,
        A_ub=sparse.coo_matrix(upper, (len(limits), len(costs))),
        b_ub=limits,
        A_eq=sparse.coo_matrix(shares, (jobs, len(costs))),
        b_eq=np.ones(jobs),
        **{"method": "highs"} | options,
    )


class _LinearProgram:
    """The program: a variable for each way to run a job, the makespan, and the delay of each."""

    def __init__(self, fleet: Fleet, jobs: Sequence[Job], aims: Aims, robust: bool) -> None:
        self._fleet, self._jobs, self._aims = fleet, jobs, aims
        self.options = [(index, option) for index, job in enumerate(jobs) for option in job.options]
        self.seconds = np.array([option.planned_s(robust) for _, option in self.options])
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
        for column, (index, option) in enumerate(self.options):
            job, seconds = jobs[index], self.seconds[column]
            costs[column] = aims.cost * option.usd + aims.completion * seconds / len(jobs) / HOUR_S
            end = job.submit_s + seconds
            too_late = job.deadline_s is not None and end > job.deadline_s + 1e-6
            if (too_late and aims.deadlines_are_hard) or not pools[option.pool].opens(
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
                (column, option.gpus * float(self.seconds[column]) / max(1, pool.usable))
                for column, (_, option) in enumerate(self.options)
                if option.pool == pool.name
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


# A bound of the mean completion that knows of waiting, by a linear program over time.
#
# Time is cut into intervals. A variable is the share of a job that an option runs in an interval;
# the shares of a pool fit into its GPUs, and a job runs no faster than its option does. A job that
# runs from S for p seconds is busy at S + p/2 on average, so it ends at the mean time of its
# shares plus p/2 (Goemans 1997; Schulz and Skutella 2002). The program may cut jobs and takes
# every share at the begin of its interval, so that no schedule has a lower value. The order of the
# mean times, with the option of which each job has most, is a good one to plan in.


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
        aims: what is minimised, the mean completion among it. Makespan and tardiness are left out
            of the bound, which is valid without them.
        until_s: when a good schedule ends. The last interval begins there.
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
        options = [(at, option) for at, job in enumerate(jobs) for option in job.options]
        self._options = options
        seconds = np.array([option.planned_s(robust) for _, option in options])
        submitted = np.array([jobs[at].submit_s for at, _ in options])
        ends = np.append(cuts[1:], math.inf)
        # An option may run in an interval that ends after the job's submission.
        way, interval = np.nonzero(ends[None, :] > submitted[:, None])
        self._way, self._interval = way, interval
        self._job = np.array([at for at, _ in options])[way]
        self._seconds = seconds[way]
        self._begins = np.maximum(cuts[interval], submitted[way])
        hours = (self._begins + self._seconds / 2 - submitted[way]) / HOUR_S
        usd = np.array([option.usd for _, option in options])[way]
        self.costs = aims.completion / len(jobs) * hours + aims.cost * usd

    def solve(self) -> tuple[float, np.ndarray] | None:
        """The value and the shares."""
        solved = _solved(self.costs, *self._limits(), self._job, len(self._jobs))
        return None if solved.x is None else (float(solved.fun), solved.x)

    def _limits(self) -> tuple[tuple[Any, tuple[Any, Any]], np.ndarray]:
        """Pools have so many GPUs in an interval, and a job so much time; the last has no end."""
        intervals = len(self._cuts)
        lengths = np.diff(self._cuts)
        finite = self._interval < intervals - 1
        columns = np.nonzero(finite)[0]
        pools = {pool.name: at for at, pool in enumerate(self._fleet.pools)}
        pool = np.array([pools[option.pool] for _, option in self._options])[self._way][finite]
        gpus = np.array([option.gpus for _, option in self._options])[self._way][finite]
        interval, seconds = self._interval[finite], self._seconds[finite]
        usable = np.array([max(1, each.usable) for each in self._fleet.pools])
        pool_rows = pool * (intervals - 1) + interval
        job_rows = self._job[finite] * (intervals - 1) + interval
        first = len(pools) * (intervals - 1)
        rows = np.concatenate((pool_rows, first + job_rows))
        values = np.concatenate((gpus * seconds / usable[pool], seconds))
        limits = np.concatenate((np.tile(lengths, len(pools)), self._times(lengths)))
        return (values, (rows, np.concatenate((columns, columns)))), limits

    def _times(self, lengths: np.ndarray) -> np.ndarray:
        """How long each job may run in each interval: what is left of it after the submission."""
        submitted = np.array([job.submit_s for job in self._jobs])
        left = np.minimum(self._cuts[None, 1:] - submitted[:, None], lengths[None, :])
        return np.asarray(np.maximum(left, 0.0).ravel())

    def most_used(self, shares: np.ndarray) -> tuple[RunOption, ...]:
        """The option of which each job has most."""
        used = np.bincount(self._way, shares, len(self._options))
        best: dict[int, tuple[float, RunOption]] = {}
        for (at, option), share in zip(self._options, used, strict=True):
            if at not in best or share > best[at][0]:
                best[at] = float(share), option
        return tuple(best[at][1] for at in range(len(self._jobs)))

    def busy_at(self, shares: np.ndarray) -> tuple[float, ...]:
        """When each job is busy on average."""
        return tuple(np.bincount(self._job, shares * self._begins, len(self._jobs)).tolist())


# A bound of the mean completion from start times, by a linear program.
#
# Time is cut into slots of one length. A variable is the share of a job that starts in a slot with
# an option. A job that starts in a slot is still there at the end of the slot, and at the end of
# each later one that is not further away than the job is long; at none of these moments do jobs
# use more GPUs of a pool than there are. Taken at the begin of its slot, a start costs no more
# than it does, so no schedule has a lower value (Dyer and Wolsey 1990; Sousa and Wolsey 1992).
# Unlike the program of `waiting_bound`, this one cuts no job in time, which makes it the better
# one where slots are short.


_MOST_SLOTS = 400
_FEWEST_SLOTS = 8


def bound_by_starts(
    fleet: Fleet,
    jobs: Sequence[Job],
    aims: Aims,
    until_s: float,
    robust: bool = False,
    most_entries: int = 1_500_000,
) -> float:
    """What no schedule is below; 0 if the program is too large or was not solved.

    Args:
        aims: what is minimised, the mean completion among it. Makespan and tardiness are left out
            of the bound, which is valid without them.
        until_s: when a good schedule ends. What starts after it needs no room.
        most_entries: about as many entries as the program may have. 3 million are solved in about
            20 seconds.
    """
    if not aims.completion or not jobs:
        return 0.0
    options = [(at, option) for at, job in enumerate(jobs) for option in job.options]
    seconds = np.array([option.planned_s(robust) for _, option in options])
    submitted = np.array([jobs[at].submit_s for at, _ in options])
    first_s = float(submitted.min())
    whole_s = max(until_s - first_s, 1.0)
    slots = _slots((submitted - first_s) / whole_s, seconds / whole_s, most_entries)
    if slots < _FEWEST_SLOTS:
        return 0.0
    slot_s = whole_s / slots
    # The last start is the end of the last slot, where room is not counted any more.
    earliest = np.floor((submitted - first_s) / slot_s * (1 - 1e-12)).astype(int)
    way, start = np.nonzero(np.arange(slots + 1)[None, :] >= earliest[:, None])
    starts_s = np.maximum(first_s + start * slot_s, submitted[way])
    hours = (starts_s + seconds[way] - submitted[way]) / HOUR_S
    usd = np.array([option.usd for _, option in options])[way]
    costs = aims.completion / len(jobs) * hours + aims.cost * usd
    job = np.array([at for at, _ in options])[way]
    upper = _used(fleet, options, way, start, np.floor(seconds / slot_s), slots)
    limits = np.repeat([float(pool.usable) for pool in fleet.pools], slots)
    solved = _solved(costs, upper, limits, job, len(jobs), method="highs-ipm")
    return 0.0 if solved.x is None else float(solved.fun)


def _slots(submitted: np.ndarray, lengths: np.ndarray, most_entries: int) -> int:
    """How many slots there can be; times are shares of the whole."""
    left = np.clip(1 - submitted, 0, 1)
    short = np.minimum(lengths, left)
    # A start has an entry for each slot that it covers; those near the end cover fewer.
    share = float((short * (left - short / 2)).sum())
    return min(_MOST_SLOTS, int(math.sqrt(most_entries / max(share, 1e-12))))


def _used(
    fleet: Fleet,
    options: Sequence[tuple[int, Any]],
    way: np.ndarray,
    start: np.ndarray,
    lengths: np.ndarray,
    slots: int,
) -> tuple[Any, tuple[Any, Any]]:
    """The GPUs of each pool that a start uses at the end of each slot."""
    pools = {pool.name: at for at, pool in enumerate(fleet.pools)}
    pool = np.array([pools[option.pool] for _, option in options])[way]
    gpus = np.array([float(option.gpus) for _, option in options])[way]
    counts = np.minimum(lengths[way].astype(int), slots - start)
    columns = np.repeat(np.arange(len(way)), counts)
    later = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = (pool * slots + start)[columns] + later
    return gpus[columns], (rows, columns)
