"""Jobs and the GPUs that they may run on, their files, and a schedule of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from wavecast.errors import InvalidInput, WavecastError, prefixed
from wavecast.files import read_toml
from wavecast.hardware.clusters import cluster as cluster_of_name
from wavecast.hardware.clusters import usual_cluster
from wavecast.hardware.devices import Device, device
from wavecast.planning.cost import Ranged, TrainingPlan
from wavecast.planning.prices import PriceBook
from wavecast.reading import (
    Key,
    Quantity,
    number,
    one_of,
    read_record,
    refuse_unknown,
    table_rows,
    tables_of,
    texts,
    time_s,
    wholes,
)
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
        """Whether a job has room when nothing else runs: within a machine, or on whole machines."""
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
        gaps, since = [], 0.0
        for begin, end in self.windows:
            if begin > since:
                gaps.append((since, begin))
            since = max(since, end)
        return [*gaps, (since, until_s)] if self.windows and since < until_s else gaps


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
        """Whether a job has room and power when nothing else runs."""
        room, limit_w = self.by_name[pool], self.power_limit_w
        return room.holds(gpus) and (limit_w is None or gpus * (room.power_w or 0.0) <= limit_w)


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
        return min(self.options, key=lambda option: (option.usd, option.seconds.value))

    @cached_property
    def fastest(self) -> RunOption:
        """The option that takes least time; the cheaper one of equals."""
        return min(self.options, key=lambda option: (option.seconds.value, option.usd))


Chosen = tuple[Job, RunOption]
"""A job, and the way to run it."""


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


# Files of jobs, as TOML or CSV: what is to be run, and by when.


LENGTHS = ("iterations", "samples", "tokens", "epochs")
"""The keys that say how long a training is."""

LAYOUTS = ("data", "all")
"""Replicas, with sharded weights where they need it; or every strategy of `wavecast parallelize`,
of which the fastest is taken."""


def _by_gpus(value: Any, where: str) -> Mapping[str, float]:
    if not isinstance(value, dict) or not value:
        raise InvalidInput(f'{where} must be a table such as {{ "l4" = 10, "4 x l4" = 3 }}')
    for key in value:
        count, _ = counted_gpus(key)
        if not 1 <= count <= _MOST_GPUS:
            raise InvalidInput(f"{where}: {key[:60]!r} must have 1 to {_MOST_GPUS:,} GPUs")
    return {key: _above_0(amount, f"{where}.{key}") for key, amount in value.items()}


_GPUS = re.compile(r"(\d+)\s*x\s*(.+)")
_MOST_GPUS = 1_000_000


def counted_gpus(key: str) -> tuple[int, str]:
    """The number and the name in a key such as `4 x l4`; 1 where it says none."""
    parts = _GPUS.fullmatch(key.strip())
    if parts is None or parts[1] is None:
        return 1, key.strip()
    return (int(parts[1]) if len(parts[1]) < 10 else _MOST_GPUS + 1), parts[2].strip()


def _options(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(f"{where} must be a table such as {{ qlora = true, seq = 512 }}")
    return value


_above_0 = number(above=True)


@dataclass(frozen=True)
class JobSpec:
    """A job as its user writes it."""

    name: str
    target: str = ""
    """The step: a model, a function, a script's function, or a trace. Empty if it was measured."""
    batch: int | None = None
    precision: str | None = None
    options: Annotated[Mapping[str, Any], _options] = field(default_factory=dict)
    """Further options of the target, by their names on the command line: `seq`, `qlora`."""
    plan: TrainingPlan | None = None
    """How long the training is."""
    hours: Annotated[Mapping[str, float] | None, _by_gpus] = None
    """Measured hours of the whole job, by GPUs: `l4`, `4 x l4`, or `*` for any."""
    samples_per_s: Annotated[Mapping[str, float] | None, _by_gpus] = None
    """Measured speeds, by GPUs, for a training of a number of samples."""
    gpus: Annotated[tuple[str, ...], texts] = ()
    """The GPUs that it may run on. Empty for all of the cluster."""
    counts: Annotated[tuple[int, ...], wholes] = (1,)
    """The numbers of GPUs that it may run on."""
    layouts: Annotated[str, one_of(LAYOUTS)] = LAYOUTS[0]
    """How its step may be spread over several GPUs: one of `LAYOUTS`."""
    submit_s: Annotated[float, time_s, Key("submit")] = 0.0
    deadline_s: Annotated[float | None, time_s, Key("deadline")] = None
    """The deadline, from the start of the plan."""
    due_in_s: Annotated[float | None, time_s, Key("due_in")] = None
    """The deadline, from the submission of each run."""
    priority: Annotated[float, _above_0] = 1.0
    spot: bool = False
    """Whether it may run on machines that can be taken away."""
    runs: int = 1
    """How many jobs like this there are."""
    runs_per_week: Annotated[float | None, _above_0] = None
    """How often it is submitted. Capacity is planned for this rate, and a plan is one of a week."""

    def in_a_week(self) -> JobSpec:
        """The job with the runs of a week, if it says how often it is submitted."""
        if self.runs_per_week is None or self.runs != 1:
            return self
        return replace(self, runs=math.ceil(self.runs_per_week))


def read_jobs(path: Path) -> tuple[JobSpec, ...]:
    """The jobs of a TOML or CSV file."""
    with prefixed(f"{path}: "):
        specs = _distinct(_csv_jobs(path)) if path.suffix == ".csv" else jobs_of(read_toml(path))
        if not specs:
            raise InvalidInput("has no jobs; write each as [[jobs]]")
        return specs


def jobs_of(table: Mapping[str, Any]) -> tuple[JobSpec, ...]:
    """The jobs of the content of a TOML file."""
    jobs = tables_of(table, "jobs")
    if not jobs:
        raise InvalidInput("has no jobs; write each as [[jobs]]")
    return _distinct(_job(job, f"jobs[{n}]") for n, job in enumerate(jobs, start=1))


def _distinct(specs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """The jobs; no two may have the same name."""
    by_name: dict[str, JobSpec] = {}
    for place, spec in enumerate(specs, start=1):
        if spec.name in by_name:
            raise InvalidInput(f"jobs[{place}].name: two jobs have the name {spec.name!r}")
        by_name[spec.name] = spec
    return tuple(by_name.values())


def _job(table: Any, where: str) -> JobSpec:
    length_keys = [field.name for field in fields(TrainingPlan)]
    spec = read_record(JobSpec, table, "a job", f"{where}.", besides=length_keys, plan=None)
    stated: dict[str, Any] = {
        key: number()(table[key], f"{where}.{key}") for key in length_keys if key in table
    }
    with prefixed(f"{where} ({spec.name}): "):
        return _checked(replace(spec, plan=TrainingPlan(**stated) if stated else None))


def _checked(spec: JobSpec) -> JobSpec:
    ways = [bool(spec.target), spec.hours is not None, spec.samples_per_s is not None]
    if sum(ways) != 1:
        raise InvalidInput("a job has one of target, hours and samples_per_s")
    if spec.options and not spec.target:
        raise InvalidInput("options are those of a target, and the job has none")
    if spec.hours is None and spec.plan is None:
        raise InvalidInput(f"say how long it is, with one of {', '.join(LENGTHS)}")
    if spec.samples_per_s is not None and (spec.plan is None or spec.plan.samples is None):
        raise InvalidInput("samples_per_s needs samples, the samples of the whole training")
    if spec.deadline_s is not None and spec.due_in_s is not None:
        raise InvalidInput("deadline and due_in both say when it must be finished; give one")
    return spec


_COLUMNS = ("job_id", "submit_s", "duration_s", "n_gpu")
"""The columns that a table of jobs must have."""


def _csv_jobs(path: Path) -> Iterator[JobSpec]:
    for line, row in table_rows(path, "a table of jobs", _COLUMNS):
        where = f"line {line}, "
        if not row["duration_s"] or not row["n_gpu"] or _cell(row, "n_gpu", where) == 0:
            continue  # a job that never ran, or without GPUs
        gpus = int(_cell(row, "n_gpu", where))
        types = tuple(filter(None, (row.get("gpu_type") or "").split("|")))
        seconds = max(1.0, _cell(row, "duration_s", where))
        name = "*" if gpus == 1 else f"{gpus} x *"
        yield JobSpec(
            name=row["job_id"],
            hours={name: seconds / 3600},
            gpus=types,
            counts=(gpus,),
            submit_s=_cell(row, "submit_s", where),
            deadline_s=_cell(row, "deadline_s", where) if row.get("deadline_s") else None,
        )


def _cell(row: Mapping[str, str], column: str, where: str) -> float:
    try:
        return float(number()(float(row[column]), f"{where}{column}"))
    except (TypeError, ValueError):
        raise InvalidInput(f"{where}{column} must be a number, not {row[column]!r}") from None


# Files of clusters: the pools of GPUs, as TOML or as CSV with a pool in each row.


_MOST_MACHINES = 10_000
"""Jobs are seated on each machine of a pool, so that the time of a plan grows with them."""
_KW = Quantity("kW", 1e-3, 1e7)


def _windows(value: Any, where: str) -> tuple[tuple[float, float], ...]:
    """The times in order; those that touch or overlap are merged."""
    if not isinstance(value, list):
        raise InvalidInput(f'{where} must be a list such as [["0h", "72h"]], not {value!r}')
    windows = []
    for times in value:
        if not isinstance(times, list) or len(times) != 2:
            raise InvalidInput(f'{where} has {times!r}; write a window as ["0h", "72h"]')
        begin, end = (time_s(time, where) for time in times)
        if not begin < end:
            raise InvalidInput(f"{where} has a window that ends before it begins: {times!r}")
        windows.append((begin, end))
    joined: list[tuple[float, float]] = []
    for begin, end in sorted(windows):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return tuple(joined)


@dataclass(frozen=True)
class _PoolSpec:
    """A pool as its user writes it."""

    gpu: str
    gpus: Annotated[int, Quantity("GPUs", 1, 1e6, whole=True)]
    name: str = ""
    links: str = ""
    gpus_per_node: Annotated[int | None, Quantity("GPUs", 1, 1024, whole=True)] = None
    usd_per_hour: Annotated[float | None, Quantity("USD of a GPU and hour", 1e-6, 1e4)] = None
    power_w: Annotated[float | None, Quantity("W", 1, 1e5)] = None
    power_limit_kw: Annotated[float | None, _KW] = None
    spot: bool = False
    available: Annotated[tuple[tuple[float, float], ...], _windows] = ()


def read_fleet(path: Path, book: PriceBook) -> Fleet:
    """The pools of a TOML or CSV file; the book has the prices of pools that state none."""
    with prefixed(f"{path}: "):
        table = _csv_table(path) if path.suffix == ".csv" else read_toml(path)
        if not isinstance(table.get("cluster"), dict):
            raise InvalidInput(
                "has no cluster; write its pools as [[cluster.pools]], or give them with "
                "--cluster: a file, or a list such as l4=16,h100-sxm-80gb=8"
            )
        return fleet_of(table, book)


def listed_fleet(text: str, book: PriceBook) -> Fleet:
    """The pools of a list such as `l4=16,h100-sxm-80gb=8`."""
    pools = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        gpu, _, gpus = part.partition("=")
        if not gpus.strip().isdigit():
            raise InvalidInput(
                f"--cluster takes a file, or a list such as l4=16,h100-sxm-80gb=8; not {part!r}"
            )
        pools.append({"gpu": device(gpu.strip()).id, "gpus": int(gpus)})
    with prefixed("--cluster: "):
        return fleet_of({"cluster": {"pools": pools}}, book)


def fleet_of(table: Mapping[str, Any], book: PriceBook) -> Fleet:
    """The pools of the content of a TOML file, which must have some."""
    cluster = table.get("cluster")
    if not isinstance(cluster, dict):
        raise InvalidInput("has no cluster; write its pools as [[cluster.pools]]")
    refuse_unknown(cluster, ("pools", "power_limit_kw"), "a cluster", "cluster.")
    listed = cluster.get("pools", [])
    if not isinstance(listed, list) or not listed:
        raise InvalidInput("cluster has no pools; write each as [[cluster.pools]]")
    pools = tuple(_pool(pool, f"cluster.pools[{n}]", book) for n, pool in enumerate(listed, 1))
    names = [pool.name for pool in pools]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"two pools have the name {name!r}; give each a name of its own")
    limit_kw = cluster.get("power_limit_kw")
    limited = limit_kw is not None
    return Fleet(pools, 1000 * _KW(limit_kw, "cluster.power_limit_kw") if limited else None)


def _pool(table: Any, where: str, book: PriceBook) -> Pool:
    spec = read_record(_PoolSpec, table, "a pool", f"{where}.")
    id, power_w, gpu = spec.gpu, spec.power_w, None
    with suppress(WavecastError):  # a GPU that only measured jobs run on need not be known
        gpu = device(spec.gpu)
        id, power_w = gpu.id, power_w or gpu.tdp_w
    with prefixed(f"{where}.links: "):
        usual_size = _machine_size(gpu, spec.links)
    size = spec.gpus_per_node or usual_size
    if spec.gpus > size * _MOST_MACHINES:
        raise InvalidInput(
            f"{where} has {spec.gpus:,} GPUs in machines of {size}; at most "
            f"{_MOST_MACHINES:,} machines of a pool are planned"
        )
    offer = book.cheapest(id)
    if spec.power_limit_kw is not None and power_w is None:
        raise InvalidInput(
            f"{where}.power_limit_kw needs power_w: the power of {spec.gpu} is not known"
        )
    return Pool(
        name=spec.name or id,
        gpu=id,
        gpus=spec.gpus,
        gpus_per_node=size,
        links=spec.links,
        usd_per_hour=spec.usd_per_hour or (None if offer is None else offer.usd_per_hour),
        power_w=power_w,
        power_limit_w=None if spec.power_limit_kw is None else 1000 * spec.power_limit_kw,
        is_spot=spec.spot,
        windows=spec.available,
    )


def _machine_size(gpu: Device | None, links: str) -> int:
    """How many GPUs a machine has where the file does not say it."""
    if links:
        return cluster_of_name(links).gpus_per_node
    try:
        return 8 if gpu is None else usual_cluster(gpu).gpus_per_node
    except InvalidInput:  # its links are not known, which only jobs on several GPUs need
        return 8


def _csv_table(path: Path) -> dict[str, Any]:
    rows = [
        {key: _fleet_cell(key, text) for key, text in row.items() if text}
        for _, row in table_rows(path, "a table of GPUs", ("gpu", "gpus"))
    ]
    return {"cluster": {"pools": rows}}


def _fleet_cell(key: str, text: str) -> object:
    if key == "spot":
        return text.strip().lower() in ("true", "yes", "1")
    if key in ("name", "gpu", "links", "available"):
        return text
    try:
        return float(text)
    except ValueError:
        return text
