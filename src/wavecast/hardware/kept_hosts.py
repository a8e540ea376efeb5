"""The calibrated hosts by name, and which of them a prediction uses."""

from __future__ import annotations

import math
import os
import platform
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from wavecast.errors import InvalidInput, UnknownName, prefixed
from wavecast.files import config_folder, read_toml, shipped_toml, toml_text, write_checked
from wavecast.hardware.clusters import Cluster
from wavecast.hardware.devices import Device, known_device
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, Host, host_of, usual_hosts
from wavecast.reading import a_table, expected, is_number, read_record

MINE, REFERENCE = "mine", "reference"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class KeptHost:
    """A calibrated host in the user's folder."""

    name: str
    """The name under which `--host` finds it."""
    path: Path
    file: HostFile


def find_host(
    choice: Host | str | None, gpu: Device | None = None, cluster: Cluster | None = None
) -> Host:
    """The host of a name.

    Args:
        choice: "reference", "mine" (this machine, calibrated), the name of a calibrated host or
            of a usual one (`usual_hosts`), or a path to a .toml file; a Host is returned as it is.
            None takes the host that $WAVECAST_HOST names, else a host that was calibrated with this
            GPU, else "reference".
        gpu: the GPU that the host issues work to.
        cluster: the machines. If no host is named or calibrated, the reference host is scaled to
            their processor, where that is known.

    Raises:
        UnknownName: there is no such host.
        InvalidInput: its file is not a valid host file.
    """
    if isinstance(choice, Host):
        return choice
    choice = choice if choice is not None else os.environ.get("WAVECAST_HOST") or None
    if choice is None:
        own = None if gpu is None else _host_with(gpu)
        if own is not None:
            return own.file.host
        return REFERENCE_HOST if cluster is None else host_of(cluster)
    if choice == REFERENCE:
        return REFERENCE_HOST
    if choice == MINE:
        return _own_host().file.host
    if choice.endswith(".toml"):
        return read_host(Path(choice)).host
    hosts = {name: usual.host for name, usual in usual_hosts().items()}
    hosts |= {kept.name: kept.file.host for kept in kept_hosts()}
    if choice not in hosts:
        names = "".join(f', "{name}"' for name in hosts if name != MINE)
        raise UnknownName(
            f'unknown host "{choice}"; known are "reference", "mine"{names} and files FILE.toml; a '
            "factor goes into host_factor (--host-factor)"
        )
    return hosts[choice]


def kept_hosts() -> tuple[KeptHost, ...]:
    """The calibrated hosts in the user's folder, by name."""
    folder = _folder()
    paths = sorted(folder.glob("*.toml")) if folder.is_dir() else []
    hosts = [KeptHost(path.stem, path, _read(path)) for path in paths]
    if user_file().is_file():
        hosts.append(KeptHost(MINE, user_file(), _read(user_file())))
    return tuple(hosts)


def path_of(name: str) -> Path:
    """The path of the file that keeps a host. The file need not exist yet.

    Raises:
        InvalidInput: the name cannot be the name of a host.
    """
    if not _NAME.fullmatch(name) or name in (MINE, REFERENCE) or name.endswith(".toml"):
        raise InvalidInput(
            f'a host cannot be named "{name}"; use letters, digits, ".", "_" and "-", and neither '
            '"mine" nor "reference"'
        )
    return _folder() / f"{name}.toml"


def machine_name() -> str:
    """The name of this machine in its network."""
    return platform.node() or "localhost"


def default_name() -> str:
    """The name under which this machine's host is kept if none is given."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", machine_name()).strip("._-") or "host"
    return f"{name}-host" if name in (MINE, REFERENCE) or name.endswith(".toml") else name


def user_file() -> Path:
    """The path of the one host file that earlier versions kept, which may not exist."""
    return config_folder() / "host.toml"


def _folder() -> Path:
    return config_folder() / "hosts"


def _read(path: Path) -> HostFile:
    return _read_once(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _read_once(path: Path, changed: int) -> HostFile:
    """The host in a file, cached until its modification time `changed` is another."""
    return read_host(path)


def _own_host() -> KeptHost:
    """This machine's host: the one that was calibrated last."""
    own = [kept for kept in kept_hosts() if _is_here(kept)]
    if not own:
        raise UnknownName(
            'your host was not calibrated yet: run "wavecast calibrate" on it (a minute, with or '
            'without a GPU); "wavecast calibrate --list" shows the hosts of other machines'
        )
    return max(own, key=_age)


def _host_with(gpu: Device) -> KeptHost | None:
    """The host calibrated with this GPU. This machine's comes first, then the newest."""
    hosts = [kept for kept in kept_hosts() if _has(kept.file, gpu)]
    return max(hosts, key=lambda kept: (_is_here(kept), _age(kept)), default=None)


def _is_here(kept: KeptHost) -> bool:
    return kept.file.machine in ("", machine_name())


def _age(kept: KeptHost) -> tuple[bool, int, int]:
    """Sort key: the newest calibration last, files of earlier versions first."""
    file = kept.file
    return file.machine != "", file.date.toordinal(), kept.path.stat().st_mtime_ns


def _has(file: HostFile, gpu: Device) -> bool:
    try:
        return bool(file.gpu) and known_device(file.gpu).id == gpu.id
    except UnknownName:
        return False


# Host files: reading and writing the TOML files that describe calibrated hosts.


MEASURED_ON_GPU = ("launch_s", "sync_s", "graph_s", "node_s")
"""Costs that are measured directly, on a GPU. Without a GPU they are the reference host's."""
BENCHMARKS = ("cpu", "cuda")
"""The devices on which the host benchmark runs."""
_LONGEST_S = 1.0
_TEXTS = ("processor", "machine", "gpu")
_SHARES = ("busy_before", "busy_during")
_WITH_GPU = "wavecast calibrate, with "
"""How files without the key `gpu` name it in their source."""

BUSY_SHARE = 0.1
"""The CPU share of other programs from which a machine is called busy."""


def _times(value: Any, where: str) -> dict[str, float]:
    """A check of a table of seconds by cost."""
    times = a_table(value, where)
    for key, seconds in times.items():
        if key not in COSTS:
            raise InvalidInput(f"{where}.{key} is not a cost; known are {', '.join(COSTS)}")
        if not is_number(seconds):
            raise InvalidInput(f"{where}.{key} must be a number, not {seconds!r}")
        if not 0 <= seconds <= _LONGEST_S:
            raise InvalidInput(
                f"{where}.{key} = {seconds} is outside 0 to {_LONGEST_S:g}: the unit is seconds"
            )
    return {key: float(seconds) for key, seconds in times.items()}


def _all_costs(value: Any, where: str) -> dict[str, float]:
    costs = _times(value, where)
    if missing := [cost for cost in COSTS if cost not in costs]:
        raise InvalidInput(f"{where} has no {', '.join(missing)}")
    return costs


_share = expected(lambda share: is_number(share) and 0 <= share <= 1, "a number from 0 to 1")


@dataclass(frozen=True)
class HostFile:
    """A calibrated host as its file describes it."""

    name: str
    date: date
    """The day of the calibration."""
    software: str
    """The versions with which the benchmark ran."""
    source: str
    """How the host was measured."""
    costs: Annotated[Mapping[str, float], _all_costs]
    """The seconds of each of `hosts.COSTS`."""
    times: Mapping[str, Mapping[str, float]]
    """The benchmark's seconds on "cpu" and "cuda", by the cost that each pattern stands for."""
    processor: str = ""
    machine: str = ""
    """The machine's name in its network. Empty in files of earlier versions."""
    gpu: str = ""
    """The GPU that the benchmark ran on, as its driver names it. Empty if there was none."""
    busy_before: Annotated[float | None, _share] = None
    """The share of the machine's CPU time that other programs used just before the benchmark. None
    if the system does not say."""
    busy_during: Annotated[float | None, _share] = None
    """The same share during the benchmark."""

    @property
    def is_busy(self) -> bool:
        """Whether other programs used so much of the CPU that the times may be too long."""
        return max(self.busy_before or 0.0, self.busy_during or 0.0) >= BUSY_SHARE

    @property
    def host(self) -> Host:
        """The host, for predictions."""
        name = f"{self.name}, calibrated {self.date.isoformat()}"
        return Host(name=name, known=True, source=self.source, **self.costs)

    @property
    def factor(self) -> float:
        """The slowdown relative to the reference host: the geometric mean over costs."""
        pairs = [
            (self.costs[cost], getattr(REFERENCE_HOST, cost))
            for cost in COSTS
            if cost not in MEASURED_ON_GPU
        ]
        return _geometric_mean(own / reference for own, reference in pairs if own > 0)


def _geometric_mean(factors: Iterable[float]) -> float:
    logs = [math.log(factor) for factor in factors]
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


def read_host(path: Path) -> HostFile:
    """The host that a TOML file describes.

    Raises:
        InvalidInput: the file cannot be read or is not a host file; says which key and why.
    """
    with prefixed(f"{path}: "):
        table = read_toml(path)
        times = {title: _times(table.pop(title), title) for title in BENCHMARKS if title in table}
        source = str(table.get("source", ""))
        if source.startswith(_WITH_GPU):
            table.setdefault("gpu", source.removeprefix(_WITH_GPU))
        return read_record(HostFile, table, "a host", besides=BENCHMARKS, times=times)


def save(host: HostFile, path: Path) -> None:
    """Write a host file, all or nothing."""
    write_checked(path, to_toml(host), read_host)


def to_toml(host: HostFile) -> str:
    """The text of a host's file."""
    texts = {"name": host.name, "software": host.software, "source": host.source}
    texts |= {key: text for key in _TEXTS if (text := getattr(host, key))}
    shares = {key: share for key in _SHARES if (share := getattr(host, key)) is not None}
    costs = {
        title: {key: float(f"{seconds:.4g}") for key, seconds in times.items()}
        for title, times in {"costs": host.costs, **host.times}.items()
    }
    return toml_text(
        texts
        | {"date": host.date}
        | {key: round(share, 3) for key, share in shares.items()}
        | costs
    )


# Calibration of a host: its costs are those of the reference host times one measured factor.
#
# `wavecast calibrate` times a few small patterns of ops
# (`frameworks.pytorch.measurement.issuing`). The factor is the median, over the patterns that
# launch kernels, of this host's time divided by the reference host's time. The costs of the
# reference host were fitted on whole steps.


_PYTHON_ONLY = ("view_s", "module_s")
"""Patterns that run Python code alone. Slow machines are slower still at these than at whole steps,
which wait for memory and driver as well (lab/notes), so they are left out of the median."""


def calibrated(
    name: str,
    times: Mapping[str, Mapping[str, float]],
    direct: Mapping[str, float],
    *,
    software: str,
    source: str,
    machine: MeasuredMachine | None = None,
    reference: Mapping[str, Mapping[str, float]] | None = None,
) -> HostFile:
    """The calibrated host, from the times of the benchmark.

    All costs get the same factor. On six machines this predicted steps better than a factor for
    each cost (lab/notes).

    Args:
        name: the name of the host.
        times: the benchmark's seconds by cost, on "cpu" and, where there is a GPU, on "cuda".
            Those on "cuda" are used when both are given.
        direct: costs in seconds that were measured on a GPU themselves.
        software: the versions with which the benchmark ran.
        source: how the host was measured.
        machine: the machine, and how busy it was.
        reference: the benchmark's times on the reference host; the shipped ones by default.
    """
    benchmark = "cuda" if "cuda" in times else "cpu"
    factor = factor_of(times[benchmark], (reference or reference_times())[benchmark])
    scaled = REFERENCE_HOST.scaled(factor)
    costs = {
        cost: getattr(REFERENCE_HOST if cost in MEASURED_ON_GPU else scaled, cost) for cost in COSTS
    }
    file = HostFile(name, date.today(), software, source, costs | dict(direct), times)
    return file if machine is None else replace(file, **asdict(machine))


@dataclass(frozen=True)
class MeasuredMachine:
    """The machine that a host was measured on; the fields are those of `HostFile`."""

    processor: str
    machine: str
    gpu: str
    busy_before: float | None
    busy_during: float | None


def reference_times() -> dict[str, dict[str, float]]:
    """The benchmark's seconds by cost on the reference host, for "cpu" and for "cuda"."""
    table = shipped_toml("hosts/reference.toml")
    return {benchmark: _times(table[benchmark], benchmark) for benchmark in BENCHMARKS}


def factor_of(times: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """The slowdown of a host relative to the reference host, from its benchmark times."""
    ratios = [
        times[name] / reference[name]
        for name in times
        if reference.get(name) and name not in _PYTHON_ONLY
    ]
    if not ratios or not all(0 < ratio < math.inf for ratio in ratios):
        raise InvalidInput(
            f"these are not times of the host benchmark: {dict(times)}; it needs a positive time "
            f"for at least one of {', '.join(n for n in reference if n not in _PYTHON_ONLY)}"
        )
    return statistics.median(ratios)
