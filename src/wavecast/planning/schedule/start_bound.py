"""A bound of the mean completion from start times, by a linear program.

Time is cut into slots of one length. A variable is the share of a job that starts in a slot with an
option. A job that starts in a slot is still there at the end of the slot, and at the end of each
later one that is not further away than the job is long; at none of these moments do jobs use more
GPUs of a pool than there are. Taken at the begin of its slot, a start costs no more than it does,
so no schedule has a lower value (Dyer and Wolsey 1990; Sousa and Wolsey 1992). Unlike the program
of `waiting_bound`, this one cuts no job in time, which makes it the better one where slots are
short.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wavecast.planning.schedule.jobs import HOUR_S, Aims, Fleet, Job
from wavecast.regression.least_squares import needing_scipy

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
        fleet: the GPUs.
        jobs: the jobs.
        aims: what is minimised, the mean completion among it. Makespan and tardiness are left out
            of the bound, which is valid without them.
        until_s: when a good schedule ends. What starts after it needs no room.
        robust: whether to plan with the high ends of ranges.
        most_entries: about as many entries as the program may have. 3 million are solved in about
            20 seconds.
    """
    if not aims.completion or not jobs:
        return 0.0
    options = [(at, one) for at, job in enumerate(jobs) for one in job.options]
    seconds = np.array([one.planned_s(robust) for _, one in options])
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
    usd = np.array([one.usd for _, one in options])[way]
    costs = aims.completion / len(jobs) * hours + aims.cost * usd
    sparse = needing_scipy("planning", "scipy.sparse")
    job = np.array([at for at, _ in options])[way]
    columns = np.arange(len(way))
    solved = needing_scipy("planning", "scipy.optimize").linprog(
        costs,
        A_ub=_used(sparse, fleet, options, way, start, np.floor(seconds / slot_s), slots),
        b_ub=np.repeat([float(pool.usable) for pool in fleet.pools], slots),
        A_eq=sparse.coo_matrix((np.ones(len(way)), (job, columns)), (len(jobs), len(way))),
        b_eq=np.ones(len(jobs)),
        method="highs-ipm",
    )
    return 0.0 if solved.x is None else float(solved.fun)


def _slots(submitted: np.ndarray, lengths: np.ndarray, most_entries: int) -> int:
    """How many slots there can be; times are shares of the whole."""
    left = np.clip(1 - submitted, 0, 1)
    short = np.minimum(lengths, left)
    # A start has an entry for each slot that it covers; those near the end cover fewer.
    share = float((short * (left - short / 2)).sum())
    return min(_MOST_SLOTS, int(math.sqrt(most_entries / max(share, 1e-12))))


def _used(
    sparse: Any,
    fleet: Fleet,
    options: Sequence[tuple[int, Any]],
    way: np.ndarray,
    start: np.ndarray,
    lengths: np.ndarray,
    slots: int,
) -> Any:
    """The GPUs of each pool that a start uses at the end of each slot."""
    pools = {pool.name: at for at, pool in enumerate(fleet.pools)}
    pool = np.array([pools[one.pool] for _, one in options])[way]
    gpus = np.array([float(one.gpus) for _, one in options])[way]
    counts = np.minimum(lengths[way].astype(int), slots - start)
    columns = np.repeat(np.arange(len(way)), counts)
    later = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = (pool * slots + start)[columns] + later
    return sparse.coo_matrix((gpus[columns], (rows, columns)), (len(pools) * slots, len(way)))
