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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, WavecastError, prefixed
from wavecast.files import read_toml
from wavecast.hardware.clusters import cluster as cluster_of_name
from wavecast.hardware.clusters import usual_cluster
from wavecast.hardware.devices import Device, device
from wavecast.hardware.fact_files import NumberRange, number_of, refuse_unknown, text_of
from wavecast.planning.cost import (
    TrainingPlan,
    number,
    one_of,
    table_rows,
    text,
    texts,
    time_s,
    whole,
    wholes,
    yes_or_no,
)
from wavecast.planning.prices import PriceBook
from wavecast.planning.schedule.jobs import Fleet, Pool

LENGTHS = ("iterations", "samples", "tokens", "epochs")
"""The keys that say how long a training is."""

LAYOUTS = ("data", "all")
"""Replicas, with sharded weights where they need it; or every strategy of `wavecast parallelize`,
of which the fastest is taken."""


@dataclass(frozen=True)
class JobSpec:
    """A job as its user writes it."""

    name: str
    target: str = ""
    """The step: a model, a function, a script's function, or a trace. Empty if it was measured."""
    batch: int | None = None
    precision: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of the target, by their names on the command line: `seq`, `qlora`."""
    plan: TrainingPlan | None = None
    """How long the training is."""
    hours: Mapping[str, float] | None = None
    """Measured hours of the whole job, by GPUs: `l4`, `4 x l4`, or `*` for any."""
    samples_per_s: Mapping[str, float] | None = None
    """Measured speeds, by GPUs, for a training of a number of samples."""
    gpus: tuple[str, ...] = ()
    """The GPUs that it may run on. Empty for all of the cluster."""
    counts: tuple[int, ...] = (1,)
    """The numbers of GPUs that it may run on."""
    layouts: str = LAYOUTS[0]
    """How its step may be spread over several GPUs: one of `LAYOUTS`."""
    submit_s: float = 0.0
    deadline_s: float | None = None
    """The deadline, from the start of the plan."""
    due_in_s: float | None = None
    """The deadline, from the submission of each run."""
    priority: float = 1.0
    spot: bool = False
    """Whether it may run on machines that can be taken away."""
    runs: int = 1
    """How many jobs like this there are."""
    runs_per_week: float | None = None
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
    listed = table.get("jobs", [])
    if not isinstance(listed, list):
        raise InvalidInput("jobs must be a list, written [[jobs]]")
    if not listed:
        raise InvalidInput("has no jobs; write each as [[jobs]]")
    return _distinct(_job(one, f"jobs[{n}]") for n, one in enumerate(listed, start=1))


def _distinct(specs: Iterable[JobSpec]) -> tuple[JobSpec, ...]:
    """The jobs, none of which has the name of another."""
    found: dict[str, JobSpec] = {}
    for place, spec in enumerate(specs, start=1):
        if spec.name in found:
            raise InvalidInput(f"jobs[{place}].name: two jobs have the name {spec.name!r}")
        found[spec.name] = spec
    return tuple(found.values())


def _by_gpus(value: Any, where: str) -> Mapping[str, float]:
    if not isinstance(value, dict) or not value:
        raise InvalidInput(f'{where} must be a table such as {{ "l4" = 10, "4 x l4" = 3 }}')
    for key in value:
        count, _ = counted_gpus(key)
        if not 1 <= count <= _MOST_GPUS:
            raise InvalidInput(f"{where}: {key[:60]!r} must have 1 to {_MOST_GPUS:,} GPUs")
    return {key: number(above=True)(one, f"{where}.{key}") for key, one in value.items()}


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


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "name": text,
    "target": text,
    "batch": whole,
    "precision": text,
    "options": _options,
    "hours": _by_gpus,
    "samples_per_s": _by_gpus,
    "gpus": texts,
    "counts": wholes,
    "layouts": one_of(LAYOUTS),
    "submit": time_s,
    "deadline": time_s,
    "due_in": time_s,
    "priority": number(above=True),
    "spot": yes_or_no,
    "runs": whole,
    "runs_per_week": number(above=True),
}
_TIMES = {"submit": "submit_s", "deadline": "deadline_s", "due_in": "due_in_s"}
_PLAN = tuple(one.name for one in fields(TrainingPlan))


def _job(table: Any, where: str) -> JobSpec:
    if not isinstance(table, dict):
        raise InvalidInput(f"{where} must be a table")
    refuse_unknown(table, (*_CHECKS, *_PLAN), "a job", f"{where}.")
    known = {
        _TIMES.get(key, key): check(table[key], f"{where}.{key}")
        for key, check in _CHECKS.items()
        if key in table
    }
    stated: dict[str, Any] = {
        key: number()(table[key], f"{where}.{key}") for key in _PLAN if key in table
    }
    if "name" not in known:
        raise InvalidInput(f"{where}.name is missing")
    with prefixed(f"{where} ({known['name']}): "):
        plan = TrainingPlan(**stated) if stated else None
        return _checked(JobSpec(plan=plan, **known))


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


_GPUS = re.compile(r"(\d+)\s*x\s*(.+)")
_MOST_GPUS = 1_000_000
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
        return number()(float(row[column]), f"{where}{column}")
    except (TypeError, ValueError):
        raise InvalidInput(f"{where}{column} must be a number, not {row[column]!r}") from None


# Files of clusters: the pools of GPUs that jobs are planned on, as TOML or CSV.
#
#
#
# As CSV, each row is a pool, and the columns have the names of the keys.


_NUMBERS = {
    "gpus": NumberRange("GPUs", 1, 1e6, whole=True),
    "gpus_per_node": NumberRange("GPUs", 1, 1024, whole=True),
    "usd_per_hour": NumberRange("USD of a GPU and hour", 1e-6, 1e4),
    "power_w": NumberRange("W", 1, 1e5),
    "power_limit_kw": NumberRange("kW", 1e-3, 1e7),
}
_MOST_MACHINES = 10_000
"""Jobs are seated on each machine of a pool, so that the time of a plan grows with them."""
_KEYS = ("name", "gpu", "links", *_NUMBERS, "spot", "available")


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
    pools = tuple(_pool(one, f"cluster.pools[{n}]", book) for n, one in enumerate(listed, 1))
    names = [pool.name for pool in pools]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"two pools have the name {name!r}; give each a name of its own")
    return Fleet(pools, _watts(cluster, "cluster"))


def _watts(table: Mapping[str, Any], where: str) -> float | None:
    if "power_limit_kw" not in table:
        return None
    key = f"{where}.power_limit_kw"
    return 1000 * number_of(table["power_limit_kw"], _NUMBERS["power_limit_kw"], key)


def _pool(table: Any, where: str, book: PriceBook) -> Pool:
    if not isinstance(table, dict):
        raise InvalidInput(f"{where} must be a table, written [[cluster.pools]]")
    refuse_unknown(table, _KEYS, "a pool", f"{where}.")
    with prefixed(f"{where}."):
        gpu = text_of(table, "gpu")
        if "gpus" not in table:
            raise InvalidInput("gpus is missing: how many GPUs there are")
        numbers = {
            key: number_of(table[key], unit, key) for key, unit in _NUMBERS.items() if key in table
        }
        windows = _windows(table.get("available", []))
        links = text_of(table, "links") if "links" in table else ""
    known, power_w, found = gpu, numbers.get("power_w"), None
    try:
        found = device(gpu)
        known, power_w = found.id, power_w or found.tdp_w
    except WavecastError:
        pass  # a GPU that only measured jobs run on need not be known
    with prefixed(f"{where}.links: "):
        usual_size = _machine_size(found, links)
    size = int(numbers.get("gpus_per_node", usual_size))
    if numbers["gpus"] > size * _MOST_MACHINES:
        raise InvalidInput(
            f"{where} has {numbers['gpus']:,.0f} GPUs in machines of {size}; at most "
            f"{_MOST_MACHINES:,} machines of a pool are planned"
        )
    offer = book.cheapest(known)
    limit = _watts(table, where)
    if limit is not None and power_w is None:
        raise InvalidInput(f"{where}.power_limit_kw needs power_w: the power of {gpu} is not known")
    return Pool(
        name=str(table.get("name", known)),
        gpu=known,
        gpus=int(numbers["gpus"]),
        gpus_per_node=size,
        links=links,
        usd_per_hour=numbers.get("usd_per_hour", None if offer is None else offer.usd_per_hour),
        power_w=power_w,
        power_limit_w=limit,
        is_spot=table.get("spot", False) is True,
        windows=windows,
    )


def _machine_size(gpu: Device | None, links: str) -> int:
    """How many GPUs a machine has where the file does not say it."""
    if links:
        return cluster_of_name(links).gpus_per_node
    try:
        return 8 if gpu is None else usual_cluster(gpu).gpus_per_node
    except InvalidInput:  # its links are not known, which only jobs on several GPUs need
        return 8


def _windows(value: Any) -> tuple[tuple[float, float], ...]:
    if not isinstance(value, list):
        raise InvalidInput(f'available must be a list such as [["0h", "72h"]], not {value!r}')
    windows = []
    for one in value:
        if not isinstance(one, list) or len(one) != 2:
            raise InvalidInput(f'available has {one!r}; write a window as ["0h", "72h"]')
        begin, end = (time_s(time, "available") for time in one)
        if not begin < end:
            raise InvalidInput(f"available has a window that ends before it begins: {one!r}")
        windows.append((begin, end))
    return _joined(sorted(windows))


def _joined(windows: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The windows in order, of which those that touch or overlap are one."""
    found: list[tuple[float, float]] = []
    for begin, end in windows:
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return tuple(found)


def _csv_table(path: Path) -> dict[str, Any]:
    rows = [
        {key: _fleet_cell(key, text) for key, text in row.items() if text}
        for _, row in table_rows(path, "a table of GPUs", ("gpu", "gpus"))
    ]
    return {"cluster": {"pools": rows}}


def _fleet_cell(key: str, text: str) -> object:
    if key == "spot":
        return text.strip().lower() in ("true", "yes", "1")
    if key not in _NUMBERS:
        return text
    try:
        return float(text)
    except ValueError:
        return text
