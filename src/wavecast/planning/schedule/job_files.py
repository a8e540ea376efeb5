"""Files of jobs, as TOML or CSV: what is to be run, and by when.

```toml
[[jobs]]
name = "vision"
target = "resnet50"                 # a step, as other commands take it, or hours = { ... }
batch = 64
precision = "bf16"
epochs = 90
dataset_samples = 1281167
gpus = ["h100-sxm-80gb", "l4"]      # of the cluster; all by default
counts = [1, 2, 4]                  # how many of them to try
layouts = "all"                     # tensor and pipeline ranks, too; "data" by default
submit = "0h"
deadline = "48h"                    # from the start of the plan
priority = 2
runs = 3                            # so many jobs like this
```
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from wavecast.errors import InvalidInput, WavecastError, prefixed
from wavecast.files import read_toml
from wavecast.hardware.clusters import cluster as cluster_of_name
from wavecast.hardware.clusters import usual_cluster
from wavecast.hardware.devices import Device, device
from wavecast.planning.cost import TrainingPlan
from wavecast.planning.prices import PriceBook
from wavecast.planning.schedule.jobs import Fleet, Pool
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
    """The jobs of a file.

    Raises:
        InvalidInput: the file cannot be read, or a value is wrong; names the file and the key.
    """
    with prefixed(f"{path}: "):
        specs = _distinct(_csv_jobs(path)) if path.suffix == ".csv" else jobs_of(read_toml(path))
        if not specs:
            raise InvalidInput("has no jobs; write each as [[jobs]]")
        return specs


def jobs_of(table: Mapping[str, Any]) -> tuple[JobSpec, ...]:
    """The jobs of the content of a TOML file.

    Raises:
        InvalidInput: a value is wrong; names the key.
    """
    jobs = tables_of(table, "jobs")
    if not jobs:
        raise InvalidInput("has no jobs; write each as [[jobs]]")
    return _distinct(_job(job, f"jobs[{n}]") for n, job in enumerate(jobs, start=1))


def _distinct(specs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """The jobs, none of which has the name of another."""
    found: dict[str, JobSpec] = {}
    for place, spec in enumerate(specs, start=1):
        if spec.name in found:
            raise InvalidInput(f"jobs[{place}].name: two jobs have the name {spec.name!r}")
        found[spec.name] = spec
    return tuple(found.values())


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
    """The jobs of a table, one in a row: a trace of jobs that ran, with their durations."""
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


# Files of clusters: the pools of GPUs that jobs are planned on, as TOML or CSV.
#
#
#
# As CSV, each row is a pool, and the columns have the names of the keys.


_MOST_MACHINES = 10_000
"""Jobs are seated on each machine of a pool, so that the time of a plan grows with them."""
_KW = Quantity("kW", 1e-3, 1e7)


def _windows(value: Any, where: str) -> tuple[tuple[float, float], ...]:
    """The times in order, of which those that touch or overlap are one."""
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
    """The pools of a file.

    Args:
        path: a TOML file with the table `cluster`, or a CSV file with a pool in each row.
        book: the prices of pools that state none.

    Raises:
        InvalidInput: the file cannot be read, or a value is wrong; names the file and the key.
    """
    with prefixed(f"{path}: "):
        table = _csv_table(path) if path.suffix == ".csv" else read_toml(path)
        if not isinstance(table.get("cluster"), dict):
            raise InvalidInput(
                "has no cluster; write its pools as [[cluster.pools]], or give them with "
                "--cluster: a file, or a list such as l4=16,h100-sxm-80gb=8"
            )
        return fleet_of(table, book)


def listed_fleet(text: str, book: PriceBook) -> Fleet:
    """The pools of a list such as `l4=16,h100-sxm-80gb=8`.

    Raises:
        InvalidInput: it is no such list.
    """
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
    """The pools of the content of a TOML file.

    Raises:
        InvalidInput: there are none, or a value is wrong; names the key.
    """
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
