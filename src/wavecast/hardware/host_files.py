"""Host files: finding, reading and writing the TOML files that describe calibrated hosts."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import config_folder, read_toml, write_checked
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, Host

MEASURED_ON_GPU = ("launch_s", "sync_s", "graph_s", "node_s")
"""Costs that can be measured directly, but only on a GPU. Without one, those of the reference
host are used."""
BENCHMARKS = ("cpu", "cuda")
"""The devices on which the host benchmark runs."""
_LONGEST_S = 1.0
_KEYS = ("name", "date", "software", "source", "costs", *BENCHMARKS)


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

    @property
    def host(self) -> Host:
        """The host, for predictions."""
        name = f"{self.name}, calibrated {self.date.isoformat()}"
        return Host(name=name, known=True, **self.costs)

    @property
    def factor(self) -> float:
        """How many times as long as the reference host it takes: the geometric mean over costs."""
        pairs = [
            (self.costs[cost], getattr(REFERENCE_HOST, cost))
            for cost in COSTS
            if cost not in MEASURED_ON_GPU
        ]
        return _geometric_mean(own / reference for own, reference in pairs if own > 0)


def find_host(wanted: Host | str | None) -> Host:
    """The host of a name.

    Args:
        wanted: "reference", "mine" (this machine, calibrated) or a path to a .toml file; a Host
            is returned as it is. None takes the host that $WAVECAST_HOST names, else "mine" if
            this machine was calibrated, else "reference".

    Raises:
        UnknownName: there is no such host.
        InvalidInput: its file is not a valid host file.
    """
    if isinstance(wanted, Host):
        return wanted
    own = user_file()
    wanted = wanted if wanted is not None else os.environ.get("WAVECAST_HOST") or None
    if wanted is None:
        return _read_once(own, own.stat().st_mtime_ns).host if own.is_file() else REFERENCE_HOST
    if wanted == "reference":
        return REFERENCE_HOST
    if wanted == "mine":
        if not own.is_file():
            raise UnknownName(
                'your host was not calibrated yet: run "wavecast calibrate" on it (a minute, with '
                "or without a GPU)"
            )
        return read_host(own).host
    if not wanted.endswith(".toml"):
        raise UnknownName(
            f'unknown host "{wanted}"; known are "reference", "mine" and files FILE.toml; a '
            "factor goes into host_factor (--host-factor)"
        )
    return read_host(Path(wanted)).host


def user_file() -> Path:
    """The path of the file that describes this machine, which may not exist yet."""
    return config_folder() / "host.toml"


def _geometric_mean(factors: Iterable[float]) -> float:
    logs = [math.log(factor) for factor in factors]
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


def read_host(path: Path) -> HostFile:
    """The host that a TOML file describes.

    Raises:
        InvalidInput: the file cannot be read or is not a host file; says which key and why.
    """
    try:
        table = read_toml(path)
        for key in table:
            if key not in _KEYS:
                raise InvalidInput(f"{key} is not a key of a host; known are {', '.join(_KEYS)}")
        day = table.get("date")
        if not isinstance(day, date):
            raise InvalidInput("date must be a day, written 2026-01-31")
        costs = read_times(table, "costs")
        if missing := [cost for cost in COSTS if cost not in costs]:
            raise InvalidInput(f"costs has no {', '.join(missing)}")
        return HostFile(
            name=_text(table, "name"),
            date=day,
            software=_text(table, "software"),
            source=_text(table, "source"),
            costs=costs,
            times={title: read_times(table, title) for title in BENCHMARKS if title in table},
        )
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


@lru_cache(maxsize=4)
def _read_once(path: Path, changed: int) -> HostFile:
    """The host in a file, cached until its modification time `changed` is another."""
    return read_host(path)


def save(host: HostFile, path: Path) -> None:
    """Write a host file, all or nothing."""
    write_checked(path, to_toml(host), read_host)


def to_toml(host: HostFile) -> str:
    """The text of a host's file."""
    texts = {"name": host.name, "software": host.software, "source": host.source}
    lines = [f"{key} = {json.dumps(text, ensure_ascii=False)}" for key, text in texts.items()]
    lines.append(f"date = {host.date.isoformat()}")
    for title, times in {"costs": host.costs, **host.times}.items():
        lines += ["", f"[{title}]", *(f"{key} = {value:.4g}" for key, value in times.items())]
    return "\n".join(lines) + "\n"


def _text(table: Mapping[str, Any], key: str) -> str:
    text = table.get(key)
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{key} must be a text in quotes, not {text!r}")
    return text


def read_times(table: Mapping[str, Any], title: str) -> dict[str, float]:
    """The seconds by cost in one table of a host file.

    Raises:
        InvalidInput: the table is missing, or a key or value in it is wrong.
    """
    times = table.get(title)
    if not isinstance(times, dict):
        raise InvalidInput(f"{title} must be a table, written [{title}], not {times!r}")
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
