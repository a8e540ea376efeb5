"""Whose host issues a step: the reference, yours as `wavecast calibrate` measured it, or a file's.

A host is measured by a benchmark of small patterns (`frameworks.pytorch.issuing`). The costs of the
reference host, which were fitted on whole steps, are multiplied with how many times as long the
patterns take here as on the reference machine: the median of those that launch something.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import config_folder, read_toml, shipped_toml, write_checked
from wavecast.hardware.hosts import COSTS, REFERENCE_HOST, Host

_DIRECT = ("launch_s", "sync_s", "graph_s", "node_s")
"""Costs that a GPU shows as they are; without one they are those of the reference."""
_PYTHON = ("view_s", "module_s")
"""Patterns of Python alone: on slow machines they take longer still than steps do, which wait for
memory and driver as well (docs/adr/0018)."""
_LONGEST_S = 1.0
_SORTS = ("cpu", "cuda")
_KEYS = ("name", "date", "software", "source", "costs", *_SORTS)


@dataclass(frozen=True)
class HostFile:
    """What is known of a host, as it is kept in a file."""

    name: str
    date: date
    software: str
    source: str
    """How it was measured."""
    costs: Mapping[str, float]
    """All of `timeline.COSTS`, in seconds."""
    times: Mapping[str, Mapping[str, float]]
    """By "cpu" and "cuda": the benchmark's seconds, by the name of the cost they stand for."""

    @property
    def host(self) -> Host:
        """The host as the timeline takes it."""
        name = f"host {self.name}, calibrated {self.date.isoformat()}"
        return Host(name=name, known=True, **self.costs)

    @property
    def factor(self) -> float:
        """How many times as long it takes as the reference host: the geometric mean of costs."""
        pairs = [
            (self.costs[cost], getattr(REFERENCE_HOST, cost))
            for cost in COSTS
            if cost not in _DIRECT
        ]
        return _mean(mine / other for mine, other in pairs if mine > 0)


def find_host(wanted: Host | str | None) -> Host:
    """A host by its name: "reference", "mine", a file; None: yours if there is one.

    What $WAVECAST_HOST names takes the place of None.

    Raises:
        UnknownName: there is no such host.
        InvalidInput: its file is not what it should be.
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
    """Where your own host is kept."""
    return config_folder() / "host.toml"


def calibrated(
    name: str,
    times: Mapping[str, Mapping[str, float]],
    direct: Mapping[str, float],
    *,
    software: str,
    source: str,
    reference: Mapping[str, Mapping[str, float]] | None = None,
) -> HostFile:
    """The host that a benchmark's times speak of.

    All costs get one factor: on six machines steps were met better than with one for each cost
    (docs/adr/0017).

    Args:
        name: what to call it.
        times: of the benchmark on "cpu" and, where there is a GPU, on "cuda", which counts then.
        direct: costs that a GPU showed as they are.
        software: what the benchmark ran with.
        source: how it was measured.
        reference: the benchmark's times on the reference host; those that ship if not given.
    """
    sort = "cuda" if "cuda" in times else "cpu"
    host = REFERENCE_HOST.scaled(factor_of(times[sort], (reference or reference_times())[sort]))
    costs = {cost: getattr(REFERENCE_HOST if cost in _DIRECT else host, cost) for cost in COSTS}
    return HostFile(name, date.today(), software, source, costs | dict(direct), times)


def reference_times() -> dict[str, dict[str, float]]:
    """The benchmark's times on the reference host, on "cpu" and "cuda"."""
    table = shipped_toml("hosts/reference.toml")
    return {sort: _times(table, sort) for sort in _SORTS}


def factor_of(times: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """How many times as long as the reference a host takes, by its times of the benchmark."""
    found = {name: times[name] / reference[name] for name in times if reference.get(name)}
    found = {name: ratio for name, ratio in found.items() if name not in _PYTHON}
    if not found or not all(0 < ratio < math.inf for ratio in found.values()):
        raise InvalidInput(f"these are no times of the host benchmark: {dict(times)}")
    return statistics.median(found.values())


def _mean(factors: Iterable[float]) -> float:
    logs = [math.log(factor) for factor in factors]
    return math.exp(sum(logs) / len(logs)) if logs else 0.0


def read_host(path: Path) -> HostFile:
    """The host that a TOML file describes.

    Raises:
        InvalidInput: the file cannot be read or is not a host; says which key and why.
    """
    try:
        table = read_toml(path)
        for key in table:
            if key not in _KEYS:
                raise InvalidInput(f"{key} is not a key of a host; known are {', '.join(_KEYS)}")
        made = table.get("date")
        if not isinstance(made, date):
            raise InvalidInput("date must be a day, written 2026-01-31")
        costs = _times(table, "costs")
        if missing := [cost for cost in COSTS if cost not in costs]:
            raise InvalidInput(f"costs has no {', '.join(missing)}")
        return HostFile(
            name=_text(table, "name"),
            date=made,
            software=_text(table, "software"),
            source=_text(table, "source"),
            costs=costs,
            times={sort: _times(table, sort) for sort in _SORTS if sort in table},
        )
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


@lru_cache(maxsize=4)
def _read_once(path: Path, changed: int) -> HostFile:
    """A file that has not changed is read once: `changed` tells."""
    return read_host(path)


def save(found: HostFile, path: Path) -> None:
    """Write a host, all or nothing."""
    write_checked(path, to_toml(found), read_host)


def to_toml(found: HostFile) -> str:
    """The host as a file."""
    texts = {"name": found.name, "software": found.software, "source": found.source}
    lines = [f"{key} = {json.dumps(text, ensure_ascii=False)}" for key, text in texts.items()]
    lines.append(f"date = {found.date.isoformat()}")
    for title, times in {"costs": found.costs, **found.times}.items():
        lines += ["", f"[{title}]", *(f"{key} = {value:.4g}" for key, value in times.items())]
    return "\n".join(lines) + "\n"


def _text(table: Mapping[str, Any], key: str) -> str:
    text = table.get(key)
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{key} must be a text in quotes, not {text!r}")
    return text


def _times(table: Mapping[str, Any], title: str) -> dict[str, float]:
    inner = table.get(title)
    if not isinstance(inner, dict):
        raise InvalidInput(f"{title} must be a table, written [{title}], not {inner!r}")
    for key, value in inner.items():
        if key not in COSTS:
            raise InvalidInput(f"{title}.{key} is not a cost; known are {', '.join(COSTS)}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidInput(f"{title}.{key} must be a number, not {value!r}")
        if not 0 <= value <= _LONGEST_S:
            raise InvalidInput(
                f"{title}.{key} = {value} is outside 0 to {_LONGEST_S:g}: the unit is seconds"
            )
    return {key: float(value) for key, value in inner.items()}
