"""Jobs, the GPUs that they may run on, and a schedule of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from wavecast.planning.cost import Ranged
from wavecast.results import Shown

HOUR_S = 3600.0


@dataclass(frozen=True)
class Pool:
    """GPUs of one type that are alike to a job: those of a rack, or of a provider."""

    name: str
    """The name of the pool; the id of its GPU if it was given no other."""
    gpu: str
    """The id of the GPU."""
    gpus: int
    """How many GPUs there are."""
    gpus_per_node: int = 8
    """How many GPUs are linked within a machine."""
    usd_per_hour: float | None = None
    """What a GPU costs in an hour. None when unknown."""
    power_w: float | None = None
    """What a GPU draws at most. None when unknown."""
    power_limit_w: float | None = None
    """What all GPUs of the pool may draw together. None for no limit."""
    is_spot: bool = False
    """Whether the machines may be taken away at any time."""
    windows: tuple[tuple[float, float], ...] = ()
    """When the GPUs can be had, in seconds from the start. Empty for always."""
    links: str = ""
    """The cluster whose links join the GPUs: a name or a file. Empty for their usual machine."""

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The numbers of GPUs of the machines; the last may have fewer."""
        full, rest = divmod(self.gpus, self.gpus_per_node)
        return (self.gpus_per_node,) * full + ((rest,) if rest else ())

    @cached_property
    def usable(self) -> int:
        """How many GPUs may run at once: all of them, or what the limit of power leaves."""
        if self.power_limit_w is None or not self.power_w:
            return self.gpus
        return min(self.gpus, int(self.power_limit_w // self.power_w))

    def holds(self, gpus: int) -> bool:
        """Whether a job on so many GPUs has room when nothing else runs.

        A job that is not larger than a machine runs within one; a larger one has whole machines.
        """
        if gpus > self.usable:
            return False
        if gpus <= self.gpus_per_node:
            return any(size >= gpus for size in self.nodes)
        return gpus <= sum(size for size in self.nodes if size == self.gpus_per_node)

    def opens(self, after_s: float, seconds: float) -> bool:
        """Whether the GPUs can be had for so long at a time, after a moment."""
        return not self.windows or any(
            end - max(begin, after_s) >= seconds for begin, end in self.windows
        )

    def closed(self, until_s: float) -> list[tuple[float, float]]:
        """When the GPUs cannot be had, up to a time."""
        found, since = [], 0.0
        for begin, end in self.windows:
            if begin > since:
                found.append((since, begin))
            since = max(since, end)
        return [*found, (since, until_s)] if self.windows and since < until_s else found


@dataclass(frozen=True)
class Fleet:
    """All GPUs that jobs are planned on."""

    pools: tuple[Pool, ...]
    power_limit_w: float | None = None
    """What all GPUs may draw together. None for no limit."""

    @cached_property
    def by_name(self) -> dict[str, Pool]:
        """The pools by their names."""
        return {pool.name: pool for pool in self.pools}

    @property
    def gpus(self) -> int:
        """The number of all GPUs."""
        return sum(pool.gpus for pool in self.pools)

    def holds(self, pool: str, gpus: int) -> bool:
        """Whether a job on so many GPUs of a pool has room and power when nothing else runs."""
        found, limit_w = self.by_name[pool], self.power_limit_w
        return found.holds(gpus) and (limit_w is None or gpus * (found.power_w or 0.0) <= limit_w)


@dataclass(frozen=True)
class RunOption:
    """One way to run a job: on how many GPUs of which pool."""

    pool: str
    gpus: int
    seconds: Ranged
    """How long the job takes there."""
    usd: float = 0.0
    """What it costs; 0 where the price is not known."""
    layout: str = ""
    """How the step is spread over the GPUs. Empty on one GPU, and when it was measured."""

    @property
    def name(self) -> str:
        """The GPUs in a few words: `8 x h100-sxm-80gb`."""
        return self.pool if self.gpus == 1 else f"{self.gpus} x {self.pool}"

    @property
    def low_s(self) -> float:
        """The low end of the time; the time itself where there is no range."""
        return self.seconds.value if self.seconds.low is None else self.seconds.low

    @property
    def high_s(self) -> float:
        """The high end of the time; the time itself where there is no range."""
        return self.seconds.value if self.seconds.high is None else self.seconds.high

    def planned_s(self, robust: bool) -> float:
        """The time to plan with: the predicted one, or the high end of its range."""
        return self.high_s if robust else self.seconds.value


@dataclass(frozen=True)
class Job:
    """One training that is to be run once."""

    name: str
    options: tuple[RunOption, ...]
    """The ways to run it."""
    kind: str = ""
    """Jobs of one kind run the same step, so that they have the same error."""
    submit_s: float = 0.0
    """When it can start at the earliest."""
    deadline_s: float | None = None
    """When it is to be finished. None for no deadline."""
    priority: float = 1.0
    """How much an hour of delay counts, relative to other jobs."""
    impossible: tuple[str, ...] = ()
    """Why it cannot run on other GPUs, one line for each."""

    @cached_property
    def cheapest(self) -> RunOption:
        """The option that costs least; the faster one of equals."""
        return min(self.options, key=lambda one: (one.usd, one.seconds.value))

    @cached_property
    def fastest(self) -> RunOption:
        """The option that takes least time; the cheaper one of equals."""
        return min(self.options, key=lambda one: (one.seconds.value, one.usd))


@dataclass(frozen=True)
class PlannedRun:
    """A job with its place and time in a schedule."""

    job: Job
    option: RunOption
    start_s: float
    end_s: float
    """The planned end: with the robust option, that of a run at the high end of its range."""
    nodes: tuple[int, ...] = ()
    """The machines of the pool on which it runs, counted from 0."""

    @property
    def late_s(self) -> float:
        """How long after its deadline it ends; 0 if in time, or without a deadline."""
        return 0.0 if self.job.deadline_s is None else max(0.0, self.end_s - self.job.deadline_s)

    @property
    def completion_s(self) -> float:
        """The time from its submission to its end."""
        return self.end_s - self.job.submit_s


@dataclass(frozen=True)
class Aims:
    """What a schedule minimises: a sum of terms with weights.

    Cost counts in USD; times count in hours. So the weight of a time says what an hour is worth.
    """

    cost: float = 0.0
    makespan: float = 0.0
    """The time until the last job ends."""
    completion: float = 0.0
    """The mean time from submission to end."""
    tardiness: float = 0.0
    """The time that jobs end after their deadlines, each weighted by its priority, summed."""

    @property
    def deadlines_are_hard(self) -> bool:
        """Whether deadlines must be met; if tardiness is minimised, they may be missed."""
        return not self.tardiness

    def value(self, runs: Sequence[PlannedRun]) -> float:
        """What a schedule is worth by these aims; less is better."""
        if not runs:
            return 0.0
        late = sum(run.job.priority * run.late_s for run in runs)
        mean = sum(run.completion_s for run in runs) / len(runs)
        last = max(run.end_s for run in runs)
        times = self.makespan * last + self.completion * mean + self.tardiness * late
        return self.cost * sum(run.option.usd for run in runs) + times / HOUR_S


@dataclass(frozen=True, repr=False)
class JobSchedule(Shown):
    """Jobs with their GPUs and times, and how good that is."""

    aims: Aims
    runs: tuple[PlannedRun, ...]
    """The jobs in the order in which they start."""
    bound: float
    """No schedule of these jobs can have a lower value."""
    unit_s: float
    """The time unit of the exact search, in seconds."""
    method: str
    """How it was found."""
    is_robust: bool = False
    """Whether it was planned with the high ends of ranges."""
    solve_s: float = field(default=0.0, compare=False)
    """How long the search took."""
    proves_impossible: bool = False
    """Whether it was proven that not all deadlines can be met."""

    @cached_property
    def value(self) -> float:
        """What it is worth by its aims; less is better."""
        return self.aims.value(self.runs)

    @property
    def gap(self) -> float:
        """How far it may be from the best schedule, as a share of its value."""
        if self.value <= 0:
            return 0.0
        return max(0.0, 1 - self.bound / self.value) if math.isfinite(self.bound) else 0.0

    @property
    def usd(self) -> float:
        """What all jobs cost together."""
        return sum(run.option.usd for run in self.runs)

    @property
    def makespan_s(self) -> float:
        """When the last job ends."""
        return max((run.end_s for run in self.runs), default=0.0)

    @property
    def mean_completion_s(self) -> float:
        """The mean time from submission to end."""
        return sum(run.completion_s for run in self.runs) / max(1, len(self.runs))

    @property
    def late(self) -> tuple[PlannedRun, ...]:
        """The jobs that end after their deadlines."""
        return tuple(run for run in self.runs if run.late_s > 1e-6)
