"""The range of a step's time, by how much is known about the GPU and the host.

Split conformal prediction by classes (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random
World", 2005): in each class, steps were predicted by models fitted without them, and the range of
the class holds nine in ten of them. It is then widened until it also holds nine in ten steps of
GPUs and sources that had no part in making it. `lab/score/ranges.py` writes the file, with what it
found. A class that is not in the file has no range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from wavecast.files import shipped_toml
from wavecast.predictors.base import Familiarity

FILE = "models/ranges.toml"
"""The shipped file, below `data/`."""


@dataclass(frozen=True, slots=True)
class Powers:
    """Exponents that turn the ops' combined range into the step's GPU-time range.

    The errors of different ops neither add up fully nor cancel.
    """

    below: float
    """The exponent of the low end."""
    above: float
    """The exponent of the high end."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The range of a host's true time, divided by its predicted time."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Coverage:
    """How many measured steps lay in ranges that were made without their GPU and source."""

    share: float
    """The share of all steps of the class."""
    least: float
    """The share of the set that did worst."""
    most: float
    """The share of the set that did best."""


def least_modelled() -> float:
    """The least share of a step's GPU time from op models, of the steps that gave ranges."""
    return float(_shipped()["modelled"])


def gpu_powers(familiarity: Familiarity) -> Powers | None:
    """The exponents for a GPU that the op models know this well. None if nothing gave them."""
    row = _row("gpu", familiarity)
    if row is None:
        return None
    return Powers(row["below"] * row["wider"], row["above"] * row["wider"])


def host_factors(familiarity: Familiarity, *, known: bool) -> Factors | None:
    """The factors for the host of a GPU that the op models know this well.

    Args:
        familiarity: how well they know the GPU. Hosts of other vendors' GPUs run other software.
        known: whether the host was calibrated.

    Returns:
        None if nothing gave them.
    """
    row = _row("host", _host(familiarity, known=known))
    if row is None:
        return None
    return Factors(row["low"] ** row["wider"], row["high"] ** row["wider"])


def held(familiarity: Familiarity, *, known: bool, bound_by: str) -> Coverage | None:
    """How many measured steps lay in their ranges, of steps like this one.

    Args:
        familiarity: how well the op models know the GPU.
        known: whether the host was calibrated.
        bound_by: "gpu", "host" or "both". For both, the figures of the one that held fewer.

    Returns:
        None if there are no such ranges.
    """
    gpu, host = _row("gpu", familiarity), _row("host", _host(familiarity, known=known))
    if gpu is None or host is None:
        return None
    rows = {"gpu": [gpu], "host": [host]}.get(bound_by, [gpu, host])
    row = min(rows, key=lambda row: row["held"])
    return Coverage(row["held"], row["least"], row["most"])


def _host(familiarity: Familiarity, *, known: bool) -> str:
    if known:
        return "known"
    return "foreign" if familiarity is Familiarity.FOREIGN else "unknown"


def _row(part: str, name: str) -> Mapping[str, Any] | None:
    row: Mapping[str, Any] | None = _shipped()[part].get(name)
    return row


@cache
def _shipped() -> Mapping[str, Any]:
    return shipped_toml(FILE)
