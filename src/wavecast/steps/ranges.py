"""How far a step may lie from its prediction, by what is known of the GPU and of the host.

Split conformal prediction by classes (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random
World", 2005): of the steps of each class that were predicted by models which knew nothing of them,
one in twenty took less than its range and one in twenty more. `lab/score/ranges.py` makes the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from wavecast.files import shipped_toml

FILE = "models/ranges.toml"
VENDOR = "NVIDIA"
"""Whose GPUs op models are fitted on."""


@dataclass(frozen=True, slots=True)
class Powers:
    """By which the ranges of a step's ops, taken together, become the range of its GPU time.

    Errors of ops neither add up fully nor cancel.
    """

    below: float
    above: float


@dataclass(frozen=True, slots=True)
class Factors:
    """Between which a host's time lies, over what is predicted of it."""

    low: float
    high: float


def gpu_powers(vendor: str, *, measured: bool) -> Powers:
    """For a GPU of a vendor; `measured`: ops of all sorts were measured on its very chip."""
    return _shipped()[0]["measured" if measured else _class_of(vendor, "unseen")]


def host_factors(vendor: str, *, known: bool) -> Factors:
    """For the host of a vendor's GPU; `known`: it was calibrated."""
    return _shipped()[1]["known" if known else _class_of(vendor, "unknown")]


def _class_of(vendor: str, name: str) -> str:
    return name if vendor == VENDOR else "foreign"


@cache
def _shipped() -> tuple[dict[str, Powers], dict[str, Factors]]:
    found = shipped_toml(FILE)
    return (
        {name: Powers(each["below"], each["above"]) for name, each in found["gpu"].items()},
        {name: Factors(each["low"], each["high"]) for name, each in found["host"].items()},
    )
