"""Laws of how long an iteration takes on other GPUs, more GPUs, deeper networks, larger batches.

The slides of Gianniti et al. name what they extrapolate, but no features. Ours are physics: an
iteration takes something fixed, work divided by the GPUs and their speed, and an exchange of
gradients. Power and number of GPUs enter as 1/P and 1/g: plain P or g cannot extrapolate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.regression.least_squares import Array, rank
from wavecast.runs.run import Run

_UNITS: Mapping[str, tuple[str, ...]] = {
    "fp32": ("fp32",),
    "tf32": ("tf32_tensor", "fp32"),
    "fp16": ("fp16_tensor", "fp16", "fp32"),
    "bf16": ("bf16_tensor", "fp32"),
    "": ("fp32",),
}
"""By precision, the unit that computes: the first that a GPU has."""


@dataclass(frozen=True)
class Settings:
    """What runs were made with, a column each; per-iteration times go with them."""

    batch: Array
    gpus: Array
    modules: Array
    """Inner modules, 1 where nobody says."""
    power: Array
    """FLOP/s of one GPU in the runs' precision, 1 where all have the same GPU."""
    bandwidth: Array
    """Bytes/s of its memory, likewise."""

    def __len__(self) -> int:
        return len(self.batch)


def settings_of(runs: Sequence[Run], one_gpu: bool) -> Settings:
    """The columns of runs; GPUs are looked up unless all runs have the same one."""
    found = [None if one_gpu else device(run.gpu) for run in runs]
    return Settings(
        batch=np.array([run.batch for run in runs], dtype=float),
        gpus=np.array([run.gpus for run in runs], dtype=float),
        modules=np.array([run.inner_modules or 1 for run in runs], dtype=float),
        power=np.array(
            [
                1.0 if gpu is None else power_of(gpu, run.precision)
                for gpu, run in zip(found, runs, strict=True)
            ]
        ),
        bandwidth=np.array([1.0 if gpu is None else gpu.memory_bytes_per_s for gpu in found]),
    )


def power_of(gpu: Device, precision: str) -> float:
    """FLOP/s of the unit that computes in a precision."""
    if precision not in _UNITS:
        raise InvalidInput(f'precision is {", ".join(filter(None, _UNITS))}, not "{precision}"')
    return next(rate for unit in _UNITS[precision] if (rate := gpu.rate(unit)) is not None)


Feature = Callable[[Settings], Array]

_FEATURES: Mapping[str, Feature] = {
    "1": lambda s: np.ones_like(s.batch),
    "bM/gP": lambda s: s.batch * s.modules / (s.gpus * s.power),
    "bM/gD": lambda s: s.batch * s.modules / (s.gpus * s.bandwidth),
    "b/gP": lambda s: s.batch / (s.gpus * s.power),
    "b/gD": lambda s: s.batch / (s.gpus * s.bandwidth),
    "M": lambda s: s.modules,
    "b": lambda s: s.batch,
    "bM": lambda s: s.batch * s.modules,
    "1/g": lambda s: 1 / s.gpus,
    "b/g": lambda s: s.batch / s.gpus,
    "b/P": lambda s: s.batch / s.power,
    "(g-1)/g": lambda s: (s.gpus - 1) / s.gpus,
    "g>1": lambda s: (s.gpus > 1).astype(float),
    "g-1": lambda s: s.gpus - 1,
}


@dataclass(frozen=True)
class Law:
    """A sum of features of an iteration, each with a coefficient not below 0."""

    name: str
    features: tuple[str, ...]

    def columns(self, settings: Settings) -> Array:
        """One column for each feature."""
        return np.stack([_FEATURES[name](settings) for name in self.features], axis=1)


_WORK = {
    "work over power": ("bM/gP",),
    "work over bandwidth": ("bM/gD",),
    "work over power and bandwidth": ("bM/gP", "bM/gD"),
    "work in and outside the modules": ("bM/gP", "b/gP", "M"),
    "work in and outside the modules, by bandwidth": ("bM/gD", "b/gD", "M"),
}
_EXCHANGE = {
    "a ring of exchanges": ("(g-1)/g",),
    "one exchange": ("g>1",),
    "exchanges one after the other": ("g-1",),
}
_FIXED = {"nothing fixed": (), "something fixed": ("1",)}
_INTERACTIONS = ("1", "b", "1/g", "b/g", "b/P", "b/gP", "(g-1)/g")
RING = Law("work over power, something fixed, a ring of exchanges", ("1", "bM/gP", "(g-1)/g"))
"""The plainest law of an iteration on several GPUs."""
POWERLESS = frozenset({"b", "bM", "b/g", "1/g"})
"""What takes as long on a stronger GPU: from a few weaker GPUs it cannot be told from the rest."""

LAWS: tuple[Law, ...] = (
    *(
        Law(
            f"{work}, {fixed}, {exchange}",
            (*_FIXED[fixed], *_WORK[work], *_EXCHANGE[exchange]),
        )
        for exchange, fixed, work in product(_EXCHANGE, _FIXED, _WORK)
    ),
    Law("all interactions", _INTERACTIONS),
    Law("all interactions with depth", (*_INTERACTIONS, "M", "bM", "bM/gP")),
)
"""In the order of preference where nothing tells them apart: the plainest physics first."""


def independent(columns: Array) -> list[int]:
    """The first columns that are no sum of those before them."""
    kept: list[int] = []
    for index in range(columns.shape[1]):
        if rank(columns[:, [*kept, index]]) == len(kept) + 1:
            kept.append(index)
    return kept


def determined(columns: Array, asked: Array) -> bool:
    """Whether rows that are asked for depend on nothing but what these columns vary in."""
    return rank(np.vstack([columns, asked])) == rank(columns)
