"""The range of a step's time, by how much is known about the GPU and the host.

Split conformal prediction by classes (Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random
World", 2005): in each class, steps were predicted by models fitted without them. One step in twenty
was faster than its range and one in twenty was slower. `lab/score/ranges.py` writes the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from wavecast.files import shipped_toml

FILE = "models/ranges.toml"
"""The shipped file, below `data/`."""
VENDOR = "NVIDIA"
"""The vendor on whose GPUs the op models were fitted. Other vendors get wider ranges."""


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


def gpu_powers(vendor: str, *, measured: bool) -> Powers:
    """The exponents for a GPU.

    Args:
        vendor: the GPU's vendor.
        measured: whether the op models were fitted on ops of all kinds measured on its very chip.
    """
    powers, _ = _shipped()
    return powers["measured" if measured else _class_of(vendor, "unseen")]


def host_factors(vendor: str, *, known: bool) -> Factors:
    """The factors for the host of a vendor's GPU; `known` when the host was calibrated."""
    _, factors = _shipped()
    return factors["known" if known else _class_of(vendor, "unknown")]


def _class_of(vendor: str, name: str) -> str:
    return name if vendor == VENDOR else "foreign"


@cache
def _shipped() -> tuple[dict[str, Powers], dict[str, Factors]]:
    tables = shipped_toml(FILE)
    return (
        {name: Powers(row["below"], row["above"]) for name, row in tables["gpu"].items()},
        {name: Factors(row["low"], row["high"]) for name, row in tables["host"].items()},
    )
