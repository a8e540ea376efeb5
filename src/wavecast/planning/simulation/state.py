"""The state of a simulated fleet, and what became of each job."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from wavecast.planning.schedule.jobs import Fleet, Job, RunOption
from wavecast.showing import Shown

LATE_S = 1e-6
"""A job that ends so little after its deadline is in time: sums of times are rounded."""


@dataclass(slots=True, eq=False)
class Active:
    """A job that was submitted and has not ended."""

    job: Job
    order: int
    """Its place among all jobs, by submission."""
    left: float = 1.0
    """The share of its work that is left."""
    option: RunOption | None = None
    """Where it runs. None while it waits."""
    since_s: float = 0.0
    """From when on it makes progress: after its start and what a restart costs."""
    seconds: float = 0.0
    """How long the whole job takes on its option."""
    version: int = 0
    """Grows with every start, so that an end that was foreseen before does not count."""
    gpu_s: float = 0.0
    """The GPU time that it used so far."""
    usd: float = 0.0
    began_s: float = math.inf
    """When it first started."""
    placed_s: float = 0.0
    """When it started on its option."""
    stops: int = 0
    """How often it was stopped."""
    received: dict[str, float] = field(default_factory=dict)
    """The time that it ran on each pool."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What became of a job."""

    job: Job
    start_s: float
    """When it first started."""
    end_s: float
    """When it ended, in seconds from the beginning."""
    gpu_s: float
    """The GPU time that it used, what restarts cost included."""
    usd: float
    """What it cost, in USD."""
    stops: int
    """How often it was stopped and started again."""
    option: RunOption
    """Where it ended."""

    @property
    def completion_s(self) -> float:
        """The time from its submission to its end."""
        return self.end_s - self.job.submit_s

    @property
    def waited_s(self) -> float:
        """The time from its submission to its first start."""
        return self.start_s - self.job.submit_s

    @property
    def in_time(self) -> bool | None:
        """Whether it met its deadline. None without one."""
        return None if self.job.deadline_s is None else self.end_s <= self.job.deadline_s + LATE_S


@dataclass(frozen=True)
class Simulation(Shown):
    """What a policy made of jobs on a fleet."""

    policy: str
    """The name of the policy."""
    fleet: Fleet
    outcomes: tuple[JobOutcome, ...]
    """The jobs in the order in which they ended."""
    dropped: tuple[Job, ...] = ()
    """Jobs that the policy did not take on, because their deadlines could not be met."""
    cpu_s: float = field(default=0.0, compare=False)
    """The processor time of the simulation, in seconds."""

    @cached_property
    def _completions(self) -> list[float]:
        return sorted(one.completion_s for one in self.outcomes)

    @property
    def mean_completion_s(self) -> float:
        """The mean time from submission to end."""
        return sum(self._completions) / max(1, len(self._completions))

    @property
    def p99_completion_s(self) -> float:
        """The time that all but one in a hundred jobs needed at most."""
        times = self._completions
        return times[math.ceil(0.99 * len(times)) - 1] if times else 0.0

    @property
    def mean_wait_s(self) -> float:
        """The mean time from submission to the first start."""
        return sum(one.waited_s for one in self.outcomes) / max(1, len(self.outcomes))

    @property
    def makespan_s(self) -> float:
        """The time from the first submission to the last end."""
        if not self.outcomes:
            return 0.0
        first = min(one.job.submit_s for one in self.outcomes)
        return max(one.end_s for one in self.outcomes) - first

    @property
    def usd(self) -> float:
        """What the GPU time of all jobs cost."""
        return sum(one.usd for one in self.outcomes)

    @property
    def deadlines_met(self) -> float | None:
        """The share of jobs with a deadline that met it. None if no job has one."""
        due = [one.in_time for one in self.outcomes if one.in_time is not None]
        count = len(due) + len(self.dropped)
        return sum(due) / count if count else None

    @property
    def utilisation(self) -> float:
        """The share of the GPU time of the fleet that jobs used, until the last end."""
        whole = self.makespan_s * self.fleet.gpus
        return sum(one.gpu_s for one in self.outcomes) / whole if whole else 0.0


class Free:
    """The GPUs of each pool that are free, and the power that is left."""

    def __init__(self, fleet: Fleet) -> None:
        self.gpus = {pool.name: pool.usable for pool in fleet.pools}
        self._watts = {pool.name: pool.power_w or 0.0 for pool in fleet.pools}
        self._power = math.inf if fleet.power_limit_w is None else fleet.power_limit_w
        self.total = sum(self.gpus.values())
        self.now_s = 0.0

    def has(self, option: RunOption) -> bool:
        """Whether an option has room."""
        if self.gpus[option.pool] < option.gpus:
            return False
        return self._power >= option.gpus * self._watts[option.pool] - 1e-6

    def take(self, option: RunOption, sign: int = 1) -> None:
        """Use the GPUs of an option; with a sign of -1, give them back."""
        self.gpus[option.pool] -= sign * option.gpus
        self.total -= sign * option.gpus
        self._power -= sign * option.gpus * self._watts[option.pool]


Starts = Sequence[tuple[Active, RunOption]]
