"""Laws for the time of an iteration on other GPUs, more GPUs, deeper networks, larger batches.

The slides of Gianniti et al. name what they extrapolate, but not the features. Ours follow physics:
an iteration takes a fixed time, the work divided by the number of GPUs and their speed, and the
time to all-reduce gradients. The speed P and the number g of GPUs enter as 1/P and 1/g, because a
linear term in P or g cannot extrapolate.
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
"""The arithmetic units for each precision; the first one that a GPU has is used."""


@dataclass(frozen=True)
class Settings:
    """The settings from which laws predict an iteration's time: arrays with one value per run."""

    batch: Array
    gpus: Array
    modules: Array
    """Inner modules; 1 if the run does not say."""
    power: Array
    """FLOP/s of one GPU in the run's precision; 1 if all runs have the same GPU."""
    bandwidth: Array
    """Memory bandwidth in bytes/s; 1 if all runs have the same GPU."""

    def __len__(self) -> int:
        return len(self.batch)


def settings_of(runs: Sequence[Run], one_gpu: bool) -> Settings:
    """The settings of runs; GPUs are looked up unless all runs have the same one."""
    gpus = [None if one_gpu else device(run.gpu) for run in runs]
    return Settings(
        batch=np.array([run.batch for run in runs], dtype=float),
        gpus=np.array([run.gpus for run in runs], dtype=float),
        modules=np.array([run.inner_modules or 1 for run in runs], dtype=float),
        power=np.array(
            [
                1.0 if gpu is None else power_of(gpu, run.precision)
                for gpu, run in zip(gpus, runs, strict=True)
            ]
        ),
        bandwidth=np.array([1.0 if gpu is None else gpu.memory_bytes_per_s for gpu in gpus]),
    )


def power_of(gpu: Device, precision: str) -> float:
    """FLOP/s of a GPU in a precision."""
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
    """The time of an iteration as a sum of features, with coefficients that are not negative."""

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
"""The simplest law of an iteration on several GPUs."""
POWERLESS = frozenset({"b", "bM", "b/g", "1/g"})
"""Features that do not depend on the GPU's speed. Runs on a few weaker GPUs cannot separate them
from those that do."""

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
"""All laws, the simplest first, which is preferred if the runs do not decide."""


def independent(columns: Array) -> list[int]:
    """The columns that are not linear combinations of the columns before them."""
    kept: list[int] = []
    for index in range(columns.shape[1]):
        if rank(columns[:, [*kept, index]]) == len(kept) + 1:
            kept.append(index)
    return kept


def determined(columns: Array, rows: Array) -> bool:
    """Whether the rows to predict lie in the space that these columns span."""
    return rank(np.vstack([columns, rows])) == rank(columns)
