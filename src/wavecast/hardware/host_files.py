"""Host files: reading and writing the TOML files that describe calibrated hosts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, prefixed
from wavecast.files import read_toml, toml_text, write_checked
from wavecast.hardware.fact_files import refuse_unknown, table_of, text_of
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, Host

MEASURED_ON_GPU = ("launch_s", "sync_s", "graph_s", "node_s")
"""Costs that are measured directly, on a GPU. Without a GPU they are the reference host's."""
BENCHMARKS = ("cpu", "cuda")
"""The devices on which the host benchmark runs."""
_LONGEST_S = 1.0
_TEXTS = ("processor", "machine", "gpu")
_SHARES = ("busy_before", "busy_during")
_KEYS = ("name", "date", "software", "source", *_TEXTS, *_SHARES, "costs", *BENCHMARKS)
_WITH_GPU = "wavecast calibrate, with "
"""How files without the key `gpu` name it in their source."""

BUSY_SHARE = 0.1
"""The CPU share of other programs from which a machine is called busy."""


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
    costs: Mapping[str, float]
    """The seconds of each of `hosts.COSTS`."""
    times: Mapping[str, Mapping[str, float]]
    """The benchmark's seconds on "cpu" and "cuda", by the cost that each pattern stands for."""
    processor: str = ""
    machine: str = ""
    """The machine's name in its network. Empty in files of earlier versions."""
    gpu: str = ""
    """The GPU that the benchmark ran on, as its driver names it. Empty if there was none."""
    busy_before: float | None = None
    """The share of the machine's CPU time that other programs used just before the benchmark. None
    if the system does not say."""
    busy_during: float | None = None
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
        refuse_unknown(table, _KEYS, "a host")
        day = table.get("date")
        if not isinstance(day, date):
            raise InvalidInput("date must be a day, written 2026-01-31")
        costs = read_times(table, "costs")
        if missing := [cost for cost in COSTS if cost not in costs]:
            raise InvalidInput(f"costs has no {', '.join(missing)}")
        return HostFile(
            name=text_of(table, "name"),
            date=day,
            software=text_of(table, "software"),
            source=text_of(table, "source"),
            costs=costs,
            times={title: read_times(table, title) for title in BENCHMARKS if title in table},
            **_optional(table),
        )


def _optional(table: Mapping[str, Any]) -> dict[str, Any]:
    """The values of keys that files of earlier versions do not have."""
    values: dict[str, Any] = {key: text_of(table, key) for key in _TEXTS if key in table}
    source = str(table.get("source", ""))
    if "gpu" not in table and source.startswith(_WITH_GPU):
        values["gpu"] = source.removeprefix(_WITH_GPU)
    for key in _SHARES:
        share = table.get(key)
        if share is None:
            continue
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise InvalidInput(f"{key} must be a number from 0 to 1, not {share!r}")
        values[key] = float(share)
    return values


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


def read_times(table: Mapping[str, Any], title: str) -> dict[str, float]:
    """The seconds by cost in one table of a host file.

    Raises:
        InvalidInput: it is not a table, or a key or value in it is wrong.
    """
    times = table_of(table, title)
    for key, value in times.items():
        if key not in COSTS:
            raise InvalidInput(f"{title}.{key} is not a cost; known are {', '.join(COSTS)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(f"{title}.{key} must be a number, not {value!r}")
        if not 0 <= value <= _LONGEST_S:
            raise InvalidInput(
                f"{title}.{key} = {value} is outside 0 to {_LONGEST_S:g}: the unit is seconds"
            )
    return {key: float(value) for key, value in times.items()}
