"""The plan that a user reads: the schedule, when each job ends, reasons, and what would help."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput, prefixed
from wavecast.hardware.clusters import Cluster, cluster, usual_cluster, with_device
from wavecast.hardware.devices import device
from wavecast.parallel.strategy import option_of
from wavecast.planning.cost import Ranged, exactly
from wavecast.planning.schedule.jobs import (
    HOUR_S,
    Aims,
    Fleet,
    Job,
    JobSchedule,
    JobSpec,
    PlannedRun,
    Pool,
    RunOption,
    counted_gpus,
)
from wavecast.planning.schedule.planner import Effort, NoRoom, Seating, make_schedule
from wavecast.planning.selection import SHARED_ERROR, Candidate
from wavecast.results import Shown

_CURVE_POINTS = (1.0, 1.25, 1.6, 2.0, 3.0)
"""The limits of the makespan, as multiples of the shortest."""


@dataclass(frozen=True)
class JobPlan:
    """A job in a plan, with its outlook and the reason for its place."""

    run: PlannedRun
    outlook: Outlook | None
    """When it starts and ends in nine of ten draws. None if no draw could be carried out."""
    reason: str
    """Why it runs there."""

    @property
    def start_s(self) -> float:
        """When it starts, from the start of the plan."""
        return self.run.start_s

    @property
    def end_s(self) -> float:
        """When it ends, from the start of the plan."""
        return self.run.end_s


@dataclass(frozen=True)
class PoolUse:
    """The use of a pool until the last job ends."""

    pool: str
    """The name of the pool."""
    gpus: int
    """The number of its GPUs."""
    jobs: int
    """How many jobs run on it."""
    utilisation: float
    """The share of its GPU time in which jobs run, from 0 to 1."""


@dataclass(frozen=True)
class JobsPlan(Shown):
    """A schedule that can be read: what runs where and when, and why."""

    fleet: Fleet
    schedule: JobSchedule
    jobs: tuple[JobPlan, ...]
    """The jobs in the order in which they start."""
    unmet: tuple[str, ...]
    """Why deadlines are missed, and what would meet them. Empty if all are met."""

    @property
    def meets_deadlines(self) -> bool:
        """Whether all deadlines are met, as far as predicted."""
        return not self.schedule.late

    @property
    def pools(self) -> tuple[PoolUse, ...]:
        """The use of each pool."""
        last, uses = self.schedule.makespan_s, []
        for pool in self.fleet.pools:
            runs = [job.run for job in self.jobs if job.run.option.pool == pool.name]
            used = sum((run.end_s - run.start_s) * run.option.gpus for run in runs)
            share = used / (last * pool.gpus) if last else 0.0
            uses.append(PoolUse(pool.name, pool.gpus, len(runs), share))
        return tuple(uses)


def make_plan(
    fleet: Fleet,
    jobs: Sequence[Job],
    aims: Aims,
    *,
    robust: bool = False,
    effort: Effort | None = None,
) -> JobsPlan:
    """The plan of some jobs."""
    effort = effort or Effort()
    jobs = with_room(fleet, jobs, robust)
    try:
        schedule = make_schedule(fleet, jobs, aims, robust=robust, effort=effort)
    except NoRoom:
        raise InvalidInput(no_room(fleet, jobs, robust, effort)) from None
    seen = outlooks(fleet, schedule)
    planned = tuple(
        JobPlan(run, seen.get(run.job.name), reason(run, robust)) for run in schedule.runs
    )
    unmet = tuple(explain(fleet, jobs, schedule, effort)) if schedule.late else ()
    return JobsPlan(fleet, schedule, planned, unmet)


def cost_against_time(
    fleet: Fleet, jobs: Sequence[Job], effort: Effort
) -> list[tuple[float, float]]:
    """What the cheapest plan costs for some limits of the makespan, in seconds.

    The list is empty where deadlines are missed without such a limit, or no plan was found.
    """
    jobs, points = with_room(fleet, jobs), []
    with suppress(NoRoom):
        first = make_schedule(fleet, jobs, Aims(makespan=1), effort=effort)
        for factor in () if first.late else _CURVE_POINTS:
            due = first.makespan_s * factor * 1.001
            limited = [replace(job, deadline_s=min(due, job.deadline_s or due)) for job in jobs]
            cheapest = make_schedule(fleet, limited, Aims(cost=1), effort=effort)
            if not cheapest.late:
                points.append((due, cheapest.usd))
    return points


def reason(run: PlannedRun, robust: bool = False) -> str:
    """Why a job runs where it does: against the cheapest and the fastest of its options."""
    job, taken = run.job, run.option
    if len(job.options) == 1:
        return "the only way to run it" + _waiting(run)
    cheapest, fastest = job.cheapest, job.fastest
    ways = len(job.options)
    if taken == cheapest == fastest:
        return f"cheapest and fastest of {ways} ways" + _waiting(run)
    if taken == cheapest:
        return f"cheapest of {ways} ways" + _waiting(run)
    against = _against(run, cheapest, robust)
    word = f"fastest of {ways} ways" if taken == fastest else "in between"
    return f"{word}; {against}" + _waiting(run)


def _against(run: PlannedRun, cheapest: RunOption, robust: bool) -> str:
    saved = run.option.usd - cheapest.usd
    price = f" (${saved:.2f} cheaper)" if saved > 0 else ""
    end = run.job.submit_s + cheapest.planned_s(robust)
    if run.job.deadline_s is not None and end > run.job.deadline_s + 1e-6:
        return f"{cheapest.name}{price} would miss the deadline"
    if end > run.end_s:
        later = (end - run.end_s) / HOUR_S
        return f"{cheapest.name}{price} would end {later:.1f} h later"
    return f"{cheapest.name}{price} is left to jobs that gain more from it"


def _waiting(run: PlannedRun) -> str:
    waited = run.start_s - run.job.submit_s
    return f"; waits {waited / HOUR_S:.1f} h for GPUs" if waited > 60 else ""


# When each job starts and ends: the plan, carried out with times drawn from their ranges. Its order
# and its GPUs stay, and each job starts when those before it leave room.


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
    """Errors of predictions, drawn once for each kind of job and pool.

    Jobs of one kind on one GPU have the same error; on two GPUs they share a part of it
    (`SHARED_ERROR`).
    """

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


def with_room(fleet: Fleet, jobs: Sequence[Job], robust: bool = False) -> tuple[Job, ...]:
    """The jobs with the options that have room when nothing else runs.

    An error says for each kind of GPU why a job can run nowhere, and what would help.
    """
    return tuple(_with_room(fleet, job, robust) for job in jobs)


def _with_room(fleet: Fleet, job: Job, robust: bool) -> Job:
    if not job.options:
        reasons = "; ".join(job.impossible) or "no pool has a GPU that it may run on"
        raise InvalidInput(
            f"job {job.name} can run nowhere: {reasons}. Allow other GPUs or counts, or add a "
            "pool that it fits on"
        )
    kept = tuple(
        option
        for option in job.options
        if fleet.by_name[option.pool].opens(job.submit_s, option.planned_s(robust))
    )
    if not kept:
        longest = max(
            (end - max(begin, job.submit_s) for pool in fleet.pools for begin, end in pool.windows),
            default=0.0,
        )
        needed = min(job.options, key=lambda option: option.planned_s(robust))
        high = " with the high ends of ranges" if robust else ""
        raise InvalidInput(
            f"job {job.name} takes {needed.planned_s(robust) / HOUR_S:.1f} h at least{high} (on "
            f"{needed.name}), and no pool is available for longer than "
            f"{max(0.0, longest) / HOUR_S:.1f} h at a time after that; make a window longer"
        )
    return job if len(kept) == len(job.options) else replace(job, options=kept)


def no_room(fleet: Fleet, jobs: Sequence[Job], robust: bool, effort: Effort) -> str:
    """Why there is no schedule at all, and what would make one."""
    closing = ", ".join(pool.name for pool in fleet.pools if pool.windows)
    changes = remedies(fleet, jobs, robust, effort)
    helped = (
        "; or ".join(changes) if changes else "no single change of the cluster was found to help"
    )
    return (
        f"no plan was found in which all {len(jobs)} jobs run while {closing} can be had. What "
        f"would help: {helped}"
    )


def explain(
    fleet: Fleet, jobs: Sequence[Job], schedule: JobSchedule, effort: Effort
) -> Iterator[str]:
    """Why deadlines are missed, a sentence for each reason, and what would meet them.

    Each change of the cluster that it names was planned with. It meets all deadlines that jobs
    could meet if they were alone.
    """
    robust = schedule.is_robust
    yield from _alone_late(jobs, robust)
    hopeless = {job.name for job in jobs if _shortfall(job, robust) > 0}
    crowded = [run for run in schedule.late if run.job.name not in hopeless]
    if not crowded:
        return
    by = max(run.late_s for run in crowded)
    names = ", ".join(run.job.name for run in crowded[:5])
    more = f" and {len(crowded) - 5} more" if len(crowded) > 5 else ""
    proven = "cannot all" if schedule.proves_impossible else "were not found to"
    who = "the other jobs" if hopeless else "the jobs"
    yield (
        f"{who} {proven} meet their deadlines on these GPUs: the plan with the least delay has "
        f"{names}{more} late, by {by / HOUR_S:.1f} h at most; deadlines that much later would be "
        "met"
    )
    hopeful = [replace(job, deadline_s=None) if job.name in hopeless else job for job in jobs]
    changes = remedies(fleet, hopeful, robust, effort)
    if changes:
        yield f"these deadlines would also be met with {'; or '.join(changes)}"
    else:
        yield "no single change of the cluster was found to meet these deadlines"


def _shortfall(job: Job, robust: bool) -> float:
    if job.deadline_s is None:
        return 0.0
    fastest = min(option.planned_s(robust) for option in job.options)
    return max(0.0, job.submit_s + fastest - job.deadline_s)


def _alone_late(jobs: Sequence[Job], robust: bool) -> Iterator[str]:
    for job in jobs:
        short = _shortfall(job, robust)
        if short > 1e-6:
            fastest = min(job.options, key=lambda option: option.planned_s(robust))
            yield (
                f"{job.name} cannot meet its deadline even alone: the fastest way, {fastest.name}, "
                f"takes {fastest.planned_s(robust) / HOUR_S:.1f} h; a deadline "
                f"{short / HOUR_S:.1f} h later would be met, or faster GPUs"
            )


_MOST_TIMES = 8
"""A pool is not enlarged beyond this many times its size and a machine."""
_SHARE = 0.05
"""The share of the time limit of the plan that each look takes at the most."""
_LEAST_S, _MOST_S = 0.2, 2.0
_WHOLE_S = 5.0
"""All looks together take this long at the most, or as long as the plan did."""


def remedies(fleet: Fleet, jobs: Sequence[Job], robust: bool, effort: Effort) -> list[str]:
    """What would let all jobs run and meet their deadlines, each in a few words.

    The changes are tried one at a time, and planned before they are named: GPUs at any hour, no
    limit of power, and the fewest further GPUs of a pool that help. No job may have a deadline that
    it cannot meet alone. This takes about as long again as the plan (`effort`) at the most.
    """
    trial = _Trial(jobs, robust, effort)
    return [*_hours(fleet, trial), *_power(fleet, trial), *_more(fleet, trial)]


class _Trial:
    """Looks whether all jobs run in time on another cluster."""

    def __init__(self, jobs: Sequence[Job], robust: bool, effort: Effort) -> None:
        self._jobs, self._robust, self._effort = jobs, robust, effort
        self._look_s = min(_MOST_S, max(_LEAST_S, effort.limit_s * _SHARE))
        self._until = time.perf_counter() + max(_WHOLE_S, effort.limit_s)

    def plan(self, fleet: Fleet) -> tuple[PlannedRun, ...]:
        """The runs of a plan that is in time; empty if none was found, or time is up.

        Simple rules are tried first, since they often suffice where there is room.
        """
        if time.perf_counter() > self._until:
            return ()
        runs = self._planned(fleet, 0.0)
        return runs or self._planned(fleet, self._look_s) if self._effort.limit_s else runs

    def _planned(self, fleet: Fleet, limit_s: float) -> tuple[PlannedRun, ...]:
        aims, effort = Aims(tardiness=1.0), replace(self._effort, limit_s=limit_s)
        try:
            schedule = make_schedule(fleet, self._jobs, aims, robust=self._robust, effort=effort)
        except NoRoom:
            return ()
        return () if schedule.late else schedule.runs

    def uses(self, pool: Pool) -> bool:
        return any(option.pool == pool.name for job in self._jobs for option in job.options)


def _changed(fleet: Fleet, pool: Pool) -> Fleet:
    return replace(
        fleet, pools=tuple(pool if old.name == pool.name else old for old in fleet.pools)
    )


def _hours(fleet: Fleet, trial: _Trial) -> Iterator[str]:
    for pool in fleet.pools:
        if pool.windows and trial.uses(pool):
            runs = trial.plan(_changed(fleet, replace(pool, windows=())))
            ends = [run.end_s for run in runs if run.option.pool == pool.name]
            if runs:
                until = max(ends, default=0.0) / HOUR_S
                yield f"{pool.name} at all hours from 0 to {until:.1f} h"


def _power(fleet: Fleet, trial: _Trial) -> Iterator[str]:
    if fleet.power_limit_w is not None:
        watts = max(pool.power_w or 0.0 for pool in fleet.pools)

        def wider(limit_w: float) -> Fleet:
            return replace(fleet, power_limit_w=limit_w)

        yield from _raised(fleet.power_limit_w, watts, fleet.gpus, wider, trial, "the cluster")
    for pool in fleet.pools:
        if pool.power_limit_w is not None and trial.uses(pool):

            def higher(limit_w: float, pool: Pool = pool) -> Fleet:
                return _changed(fleet, replace(pool, power_limit_w=limit_w))

            watts = pool.power_w or 0.0
            yield from _raised(pool.power_limit_w, watts, pool.gpus, higher, trial, pool.name)


def _raised(
    now_w: float,
    watts: float,
    gpus: int,
    limited: Callable[[float], Fleet],
    trial: _Trial,
    name: str,
) -> Iterator[str]:
    """A higher limit of power, for a few more GPUs that draw so many watts each."""
    begin = int(now_w // watts) if watts else gpus
    steps = _fewest(gpus - begin, lambda more: bool(trial.plan(limited((begin + more) * watts))))
    if steps:
        kw = math.ceil((begin + steps) * watts / 10) / 100
        yield f"a power limit of {kw:.2f} kW for {name} ({now_w / 1e3:.2f} now)"


def _more(fleet: Fleet, trial: _Trial) -> Iterator[str]:
    for pool in fleet.pools:
        step = pool.gpus_per_node if pool.gpus >= pool.gpus_per_node else 1
        most = (_MOST_TIMES * pool.gpus + pool.gpus_per_node) // step

        def helps(steps: int, pool: Pool = pool, step: int = step) -> bool:
            return bool(trial.plan(_changed(fleet, replace(pool, gpus=pool.gpus + steps * step))))

        if trial.uses(pool) and (added := step * _fewest(most, helps)):
            yield f"{added} more GPUs of {pool.name}" if added > 1 else f"one more {pool.name}"


def _fewest(most: int, helps: Callable[[int], bool]) -> int:
    """The least number from 1 to most that helps, as all larger ones do; 0 if none does."""
    low, high = 0, max(0, min(1, most))
    while high and not helps(high):
        if high == most:
            return 0
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if helps(middle) else (middle, high)
    return high


# From a job as it is written to the ways to run it: measured hours, or our own predictions.


Predict = Callable[[JobSpec, Mapping[str, Cluster | None]], Sequence[Candidate]]
"""Predicts a job on GPUs in machines of a kind, None for the usual one, for each of its counts:
from `find_candidates`."""
_LONGEST_YEARS = 100
"""A plan reaches no further: longer times do not fit into the whole numbers of the search."""
_LONGEST_S = _LONGEST_YEARS * 365 * 24 * HOUR_S


def make_jobs(specs: Sequence[JobSpec], fleet: Fleet, predict: Predict) -> tuple[Job, ...]:
    """The jobs with the ways to run them; one for each run of a job that runs several times."""
    jobs: list[Job] = []
    for spec in specs:
        [first] = with_room(fleet, [make_job(spec, fleet, predict)])  # before more are traced
        names = (
            [spec.name] if spec.runs == 1 else [f"{spec.name}-{n + 1}" for n in range(spec.runs)]
        )
        jobs += [replace(first, name=name) for name in names]
    return tuple(jobs)


def make_job(spec: JobSpec, fleet: Fleet, predict: Predict) -> Job:
    """A job with the ways to run it on a fleet."""
    pools = [pool for pool in fleet.pools if _allowed(spec, pool)]
    known = {name for pool in fleet.pools for name in (pool.gpu, pool.name)}
    for name in spec.gpus:
        if name not in known:
            raise InvalidInput(
                f"job {spec.name} names {name}, which the cluster does not have; it has "
                f"{', '.join(sorted(known))}"
            )
    refused: list[str] = []
    if spec.target:
        options = tuple(
            option
            for alike in _rounds(spec, pools)
            for option in _predicted(
                predict(spec, {gpu: _machines(spec, same[0]) for gpu, same in alike.items()}),
                [pool for same in alike.values() for pool in same],
                refused,
            )
        )
    else:
        options = tuple(_measured(spec, pools))
    roomy = tuple(option for option in options if fleet.holds(option.pool, option.gpus))
    small = [option.name for option in options if option not in roomy]
    refused += [f"{name}: the pool has no room or power for so many GPUs" for name in small]
    endless = [option for option in roomy if option.planned_s(robust=True) > _LONGEST_S]
    refused += [f"{option.name}: takes more than {_LONGEST_YEARS} years" for option in endless]
    roomy = tuple(option for option in roomy if option not in endless)
    deadline = spec.deadline_s
    if spec.due_in_s is not None:
        deadline = spec.submit_s + spec.due_in_s
    if max(spec.submit_s, deadline or 0.0) > _LONGEST_S:
        raise InvalidInput(
            f"job {spec.name} begins or is due after more than {_LONGEST_YEARS} years; times count "
            "from now, and a number without a unit is in seconds"
        )
    return Job(
        name=spec.name,
        options=roomy,
        kind=spec.name,
        submit_s=spec.submit_s,
        deadline_s=deadline,
        priority=spec.priority,
        impossible=tuple(refused),
    )


def _allowed(spec: JobSpec, pool: Pool) -> bool:
    named = not spec.gpus or pool.gpu in spec.gpus or pool.name in spec.gpus
    return named and (spec.spot or not pool.is_spot)


def _rounds(spec: JobSpec, pools: Sequence[Pool]) -> Iterator[dict[str, list[Pool]]]:
    """Pools by GPU, in rounds with one kind of machine for each; nearly always one is enough."""
    kinds: dict[str, dict[tuple[str, int], list[Pool]]] = {}
    for pool in pools:
        kind = pool.links, pool.gpus_per_node if max(spec.counts) > 1 else 0
        kinds.setdefault(pool.gpu, {}).setdefault(kind, []).append(pool)
    for index in range(max(map(len, kinds.values()), default=0)):
        yield {gpu: list(kind.values())[index] for gpu, kind in kinds.items() if index < len(kind)}


def _machines(spec: JobSpec, pool: Pool) -> Cluster | None:
    """The machines of a pool; None for the usual ones, and where their links are not known."""
    if not pool.links and max(spec.counts) == 1:
        return None
    with prefixed(f"pool {pool.name}: "):
        gpu = device(pool.gpu)
        if pool.links:
            machine = with_device(cluster(pool.links), gpu)
        else:
            try:
                machine = usual_cluster(gpu)
            except InvalidInput:
                return None
        if pool.gpus_per_node > machine.node.gpus:
            raise InvalidInput(
                f"gpus_per_node is {pool.gpus_per_node}, and a machine of {machine.id} has "
                f"{machine.node.gpus}; name the machine with links (list them with "
                '"wavecast clusters"), or write a file for it'
            )
        return machine.with_gpus_per_node(pool.gpus_per_node)


def _predicted(
    candidates: Sequence[Candidate], pools: Sequence[Pool], refused: list[str]
) -> Iterator[RunOption]:
    for option in candidates:
        if option.cost is None:
            refused.append(f"{option.name}: {option.reason}")
            continue
        for pool in pools:
            if pool.gpu == option.device.id:
                layout = "" if option.strategy is None else option_of(option.strategy)
                yield _option(pool, option.gpus, option.cost.seconds, layout)


def _measured(spec: JobSpec, pools: Sequence[Pool]) -> Iterator[RunOption]:
    table: Mapping[str, float] = spec.hours or {}
    if spec.samples_per_s is not None:
        samples = (spec.plan and spec.plan.samples) or 0.0
        table = {key: samples / speed / HOUR_S for key, speed in spec.samples_per_s.items()}
    for key, hours in table.items():
        count, name = counted_gpus(key)
        for pool in pools:
            if name in ("*", pool.gpu, pool.name):
                yield _option(pool, count, exactly(hours * HOUR_S))


def _option(pool: Pool, gpus: int, seconds: Ranged, layout: str = "") -> RunOption:
    """A way to run a job on a pool. Whole machines are paid where more than one is used."""
    paid = gpus
    if gpus > pool.gpus_per_node:
        paid = math.ceil(gpus / pool.gpus_per_node) * pool.gpus_per_node
    usd = (pool.usd_per_hour or 0.0) * paid * seconds.value / HOUR_S
    return RunOption(pool.name, gpus, seconds, usd, layout)
