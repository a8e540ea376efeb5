"""When will a job start and end? The same plan, carried out with times drawn from their ranges.

The order and the GPUs of a plan stay; each job starts when those before it leave room. The errors
of jobs of one kind on one GPU are the same; those of one kind on two GPUs are shared in part
(`SHARED_ERROR`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from wavecast.planning.cost import Ranged
from wavecast.planning.schedule.jobs import Fleet, JobSchedule, PlannedRun, RunOption
from wavecast.planning.schedule.seating import NoRoom, Seating
from wavecast.planning.selection import SHARED_ERROR

_NINE_IN_TEN = 2 * 1.6449
"""The standard deviations between the ends of a range."""
_MOST_PLACED = 20_000
"""About so many jobs are placed in all draws together."""


@dataclass(frozen=True)
class Outlook:
    """When a job starts and ends, in nine of ten draws, and whether it is in time."""

    start_low_s: float
    """The low end of the range of its start, in seconds from the beginning of the plan."""
    start_high_s: float
    """The high end of that range."""
    end_low_s: float
    """The low end of the range of its end, in seconds from the beginning of the plan."""
    end_high_s: float
    """The high end of that range."""
    in_time: float | None
    """The share of draws in which it runs, and meets its deadline. None without a deadline, if it
    always runs: it may take too long for the time in which GPUs can be had."""


class DrawnErrors:
    """DrawnErrors of predictions, drawn once for each kind of job and pool."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._kinds: dict[str, float] = {}
        self._places: dict[tuple[str, str], float] = {}

    def seconds(self, kind: str, option: RunOption) -> float:
        """The time of a job, with its error."""
        low, high = option.seconds.low, option.seconds.high
        if not low or not high or high <= low:
            return option.seconds.value
        shared = self._kinds.setdefault(kind, self._random.gauss(0, 1))
        own = self._places.setdefault((kind, option.pool), self._random.gauss(0, 1))
        drawn = math.sqrt(SHARED_ERROR) * shared + math.sqrt(1 - SHARED_ERROR) * own
        middle, spread = math.sqrt(low * high), math.log(high / low) / _NINE_IN_TEN
        return middle * math.exp(drawn * spread)


def outlooks(fleet: Fleet, schedule: JobSchedule, seed: int = 0) -> dict[str, Outlook]:
    """The outlook of each job of a schedule, by its name."""
    count = max(20, min(200, _MOST_PLACED // max(1, len(schedule.runs))))
    drawn = [_carried_out(fleet, schedule.runs, DrawnErrors(seed + n)) for n in range(count)]
    by_name: dict[str, list[PlannedRun]] = {}
    for runs in drawn:
        for run in runs:
            by_name.setdefault(run.job.name, []).append(run)
    return {name: _outlook(runs, count) for name, runs in by_name.items()}


def _carried_out(fleet: Fleet, runs: Sequence[PlannedRun], errors: DrawnErrors) -> list[PlannedRun]:
    """The runs with drawn times, without those that take too long for the hours of their GPUs."""
    seating, placed = Seating(fleet), []
    for run in runs:
        seconds = Ranged(errors.seconds(run.job.kind or run.job.name, run.option))
        with suppress(NoRoom):
            placed.append(seating.place(run.job, replace(run.option, seconds=seconds)))
    return placed


def _outlook(runs: Sequence[PlannedRun], draws: int) -> Outlook:
    starts, ends = sorted(run.start_s for run in runs), sorted(run.end_s for run in runs)
    low, high = int(0.05 * (len(runs) - 1)), math.ceil(0.95 * (len(runs) - 1))
    met = sum(run.late_s <= 1e-6 for run in runs) / draws
    known = None if runs[0].job.deadline_s is None and len(runs) == draws else met
    return Outlook(starts[low], starts[high], ends[low], ends[high], known)
