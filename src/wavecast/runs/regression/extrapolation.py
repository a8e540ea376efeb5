"""Runs beyond all past runs: on a stronger GPU, more GPUs, a deeper network, a larger batch.

    model = Extrapolation("gpus").fit(runs)  # with 1, 2 and 3 GPUs
    model.predict(batch=256, iterations=10_000, gpus=4)
    model.reason  # why this law
    Extrapolation(("gpus", "power", "batch")).fit(runs)  # along several axes at once

Laws are fitted by least relative errors, with no coefficient below 0. Each law is judged on runs
that were left out: those closest to the extrapolation, such as those on the strongest GPU or on the
most GPUs. Along several axes, the largest runs of each axis are left out in turn, and then all of
them together. Among the laws within one standard error of the least error, the simplest is taken
(Breiman's rule), because so small a difference may be chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import cast

import numpy as np
from numpy.typing import NDArray

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device, device
from wavecast.predictors.base import Estimate
from wavecast.results import Shown, checked
from wavecast.runs.regression import least_squares as least_squares
from wavecast.runs.regression.end_to_end import check_run
from wavecast.runs.regression.least_squares import Array, LinearFit, Method, rank, signed_errors
from wavecast.runs.run import Run

# Laws for the time of an iteration. The slides of Gianniti et al. name what they extrapolate, but
# not the features. Ours follow physics: a fixed time, the work divided by the number g of GPUs and
# their speed P, and the time to all-reduce gradients. So P and g enter as 1/P and 1/g; a linear
# term in them cannot extrapolate.


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


Mask = NDArray[np.bool_]

_METHOD = Method.RELATIVE_NON_NEGATIVE
_NINETY_OF_MEAN = 1.645 / 0.798
"""90% of normally distributed errors are within this multiple of their mean absolute value."""
LEAST_PER_DOUBLING = (0.1, 0.4)
"""For each doubling of the GPUs beyond those of the runs, how far the range reaches at least: below
and above the predicted time, as shares of it. Past runs do not show the link or the network that
more GPUs need: two machines, or two bridged pairs. `python -m lab score run_ranges` judges it with
whole sources left out (docs/appendix/runs-gpus.md)."""
_UNSEEN = 2
"""The most levels (distinct values along the axis) that are left out."""


class Axis(StrEnum):
    """The dimension in which a model extrapolates."""

    POWER = "power"
    GPUS = "gpus"
    MODULES = "inner_modules"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Trial:
    """A law, and its error on the runs that were left out."""

    law: Law
    error: float | None
    """Mean absolute relative error; None if the remaining runs are too few to fit it."""
    doubt: float = 0.0
    """The standard error of that mean."""
    left_out: int = 0
    """How many runs were left out, each counted once however often it was."""


@dataclass(frozen=True)
class Extrapolation:
    """The model that extrapolates from runs of one network along axes; `fit` it on the runs.

    Args:
        axis: One of `Axis`: "power", "gpus", "inner_modules" or "batch"; or several of them.
        phase: "training" or "testing".
        laws: The laws to choose from.

    Example:
        >>> model = Extrapolation("gpus").fit(wavecast.read_runs("runs.csv"))
        >>> model.predict(batch=256, iterations=10_000, gpus=4).seconds
    """

    axis: Axis | str | Sequence[Axis | str]
    phase: str = "training"
    laws: tuple[Law, ...] = LAWS

    def fit(self, runs: Iterable[Run]) -> ScalingModel:
        """The best law, fitted on the runs of the phase.

        Raises:
            InvalidInput: The runs are of different networks, or do not vary along the axis; the
                message says what to add.
            UnknownName: The runs are on several GPUs, and one of them is not known.
        """
        axes = _axes(self.axis)
        checked = [check_run(number, run) for number, run in enumerate(runs, 1)]
        chosen = [run for run in checked if run.phase == self.phase]
        _check_comparable(chosen, self.phase, axes)
        one_gpu = len({run.gpu for run in chosen}) == 1
        settings = settings_of(chosen, one_gpu)
        times = np.array([run.seconds / run.iterations for run in chosen])
        splits = _joint_splits([_levels(axis, chosen, settings) for axis in axes])
        laws = _distinct(_laws_for(axes, self.laws, settings), settings)
        trials = tuple(_try(law, settings, times, splits) for law in laws)
        law = _best(trials)
        columns = law.columns(settings)
        kept = independent(columns)
        return ScalingModel(
            axes=axes,
            law=law,
            kept=tuple(kept),
            fit=least_squares.fit(columns[:, kept], times, _METHOD),
            trials=trials,
            runs=tuple(chosen),
            settings=settings,
        )


@dataclass(frozen=True)
class ScalingModel(Shown):
    """A fitted law."""

    axes: tuple[Axis, ...]
    law: Law
    kept: tuple[int, ...]
    """The positions of the law's features that the runs can separate."""
    fit: LinearFit
    trials: tuple[Trial, ...]
    runs: tuple[Run, ...]
    settings: Settings

    @property
    def features(self) -> tuple[str, ...]:
        """The features on which the prediction depends."""
        return tuple(self.law.features[index] for index in self.kept)

    @property
    def trial(self) -> Trial:
        """The error of the law on the runs that were left out."""
        return next(trial for trial in self.trials if trial.law == self.law)

    @property
    def reason(self) -> str:
        """Why this law was chosen."""
        own = self.trial
        tried = [trial for trial in self.trials if trial.error is not None]
        text = (
            f"{self.law.name} ({', '.join(self.features)}) was off by {own.error:.1%} on "
            f"{own.left_out} runs with the largest {' or '.join(self.axes)}, fitted without them"
        )
        if len(tried) == 1:
            return f"{text}; no other law is different on these runs"
        best = min(tried, key=_error)
        if best.law != self.law:
            text += (
                f"; the least error is {best.error:.1%} ({best.law.name}), but the difference "
                f"is within its uncertainty of {best.doubt:.1%}, and this law is simpler"
            )
        worst = max(tried, key=_error)
        return f"{text}; the worst of {len(tried)} laws: {worst.error:.1%} ({worst.law.name})"

    def predict(
        self,
        *,
        batch: int,
        iterations: int = 1,
        gpus: int | None = None,
        gpu: str | None = None,
        inner_modules: int | None = None,
    ) -> Estimate:
        """The time of a run, with a 90% range.

        Args:
            batch: Samples in a batch, over all GPUs.
            iterations: Iterations of the run.
            gpus: The number of GPUs; by default that of the runs, if all have the same.
            gpu: The GPU; by default that of the runs, if all have the same.
            inner_modules: Inner modules of the network; by default those of the runs, if all have
                the same.
        """
        if min(batch, iterations, 1 if gpus is None else gpus) < 1:
            raise InvalidInput("batch, iterations and gpus must be at least 1")
        run = replace(
            self.runs[0],
            batch=batch,
            gpus=cast(int, self._only("gpus", gpus)),
            gpu=str(self._only("gpu", gpu)),
            inner_modules=cast("int | None", self._only("inner_modules", inner_modules)),
        )
        one_gpu = len({run.gpu for run in self.runs}) == 1
        settings = settings_of([run], one_gpu)
        # The check adds a fixed time to the law. Without it, a law might seem determined although
        # the runs never varied in what the prediction needs.
        fuller = Law("", ("1", *(name for name in self.law.features if name != "1")))
        if not determined(fuller.columns(self.settings), fuller.columns(settings)):
            raise InvalidInput(
                f"these runs do not separate the times of {', '.join(self.law.features)}, which "
                "the prediction needs; add runs that differ in batch, gpus or GPU one at a time"
            )
        kept = self.law.columns(settings)[:, list(self.kept)]
        seconds = float(self.fit.predict(kept)[0]) * iterations
        off = max(_NINETY_OF_MEAN * _error(self.trial), self._spread(kept))
        doublings = max(float(np.log2(run.gpus / max(r.gpus for r in self.runs))), 0.0)
        below, above = (max(off, least * doublings) for least in LEAST_PER_DOUBLING)
        low_s, high_s = seconds * max(0.0, 1 - below), seconds * (1 + above)
        source = f"{len(self.runs)} runs, {self.law.name}"
        estimate = Estimate(seconds=seconds, low_s=low_s, high_s=high_s, source=source)
        return checked(estimate, f"the time from {source}", ("seconds", "low_s", "high_s"))

    def _spread(self, kept: Array) -> float:
        """Half the width of the fit's 90% range, as a share of the predicted time."""
        if not self.fit.freedom:
            return 0.0
        low, high = self.fit.ranges(kept)
        return float((high[0] - low[0]) / 2 / self.fit.predict(kept)[0])

    def _only(self, name: str, value: object) -> object:
        values = list(dict.fromkeys(getattr(run, name) for run in self.runs))
        if value is None:
            if len(values) > 1:
                raise InvalidInput(f"the runs differ in {name}: give the {name} to predict for")
            return values[0]
        if len(values) == 1 and value != values[0]:
            raise InvalidInput(
                f"every run has {name} {values[0] or '(unknown)'}, so nothing is known about "
                f"{value}; add runs with another {name}"
            )
        return value


def _axes(names: Axis | str | Sequence[Axis | str]) -> tuple[Axis, ...]:
    axes = []
    for name in (names,) if isinstance(names, str) else names:
        try:
            axes.append(Axis(name))
        except ValueError:
            raise InvalidInput(f'an axis is {", ".join(Axis)}, not "{name}"') from None
    if not axes:
        raise InvalidInput(f"name the axes to extrapolate along: {', '.join(Axis)}")
    return tuple(dict.fromkeys(axes))


def _check_comparable(runs: Sequence[Run], phase: str, axes: Sequence[Axis]) -> None:
    if not runs:
        raise InvalidInput(f"no run of {phase} to learn from")
    # Networks of different depths have different names.
    deeper = Axis.MODULES in axes
    alike = {"model", "precision", "framework"} - ({"model"} if deeper else set())
    for name in sorted(alike):
        if len(values := {getattr(run, name) for run in runs}) > 1:
            shown = ", ".join(sorted(str(value) or "(unknown)" for value in values)[:5])
            raise InvalidInput(f"these runs differ in {name}: {shown}; choose runs with one value")
    if deeper and any(run.inner_modules is None for run in runs):
        raise InvalidInput("some runs do not say how many inner modules their network has")


def _levels(axis: Axis, runs: Sequence[Run], settings: Settings) -> Array:
    levels = {
        Axis.POWER: settings.power,
        Axis.GPUS: settings.gpus,
        Axis.MODULES: settings.modules,
        Axis.BATCH: settings.batch,
    }[axis]
    if len(np.unique(levels)) < 2:
        only = runs[0].gpu if axis is Axis.POWER else f"{levels[0]:g}"
        raise InvalidInput(
            f"every run has {'the GPU' if axis is Axis.POWER else axis} {only or '(unknown)'}: "
            f"add runs with {'a weaker or stronger one' if axis is Axis.POWER else 'another'}"
        )
    return levels


def _splits(levels: Array) -> list[tuple[Mask, Mask]]:
    """Pairs of runs to fit and runs to leave out: the last level, and if possible the last two."""
    distinct = np.unique(levels)
    cuts = [distinct[-1]]
    if len(distinct) >= 2 * _UNSEEN:
        cuts.append(distinct[-_UNSEEN])
    return [(levels < cut, levels >= cut) for cut in cuts]


def _joint_splits(levels: Sequence[Array]) -> list[tuple[Mask, Mask]]:
    """The splits along each axis; with several, also one without the largest runs of all axes."""
    splits = [split for along_axis in levels for split in _splits(along_axis)]
    if len(levels) > 1:
        below = np.logical_and.reduce([along_axis < along_axis.max() for along_axis in levels])
        if below.any():
            splits.append((below, ~below))
    return splits


def _laws_for(axes: Sequence[Axis], laws: Sequence[Law], settings: Settings) -> list[Law]:
    """The laws that suit the axes, and networks of one depth or several."""
    useless = set(POWERLESS) if Axis.POWER in axes else set()
    if (settings.modules == settings.modules[0]).all():
        useless.add("M")
    # The optimizer's step takes the same time at any batch, so a line in the batch has a constant.
    needed = {"1"} if tuple(axes) == (Axis.BATCH,) else set()
    return [law for law in laws if needed <= {*law.features} and not useless & {*law.features}]


def _distinct(laws: Sequence[Law], settings: Settings) -> list[Law]:
    """The laws without those that are the same as an earlier one on these runs."""
    kept: list[tuple[Law, Array]] = []
    for law in laws:
        columns = law.columns(settings)
        columns = columns[:, independent(columns)]
        columns = columns / np.abs(columns).max(axis=0)
        if not any(
            columns.shape == other.shape and np.allclose(columns, other) for _, other in kept
        ):
            kept.append((law, columns))
    return [law for law, _ in kept]


def _try(law: Law, settings: Settings, times: Array, splits: Sequence[tuple[Mask, Mask]]) -> Trial:
    columns = law.columns(settings)
    errors = []
    for seen, left_out in splits:
        # A coefficient that the remaining runs do not determine counts as 0.
        kept = independent(columns[seen])
        if seen.sum() < len(kept):
            return Trial(law, None)
        fitted = least_squares.fit(columns[seen][:, kept], times[seen], _METHOD)
        predicted = fitted.predict(columns[left_out][:, kept])
        errors.append(np.abs(signed_errors(predicted, times[left_out])))
    every = np.concatenate(errors)
    count = int(np.logical_or.reduce([left_out for _, left_out in splits]).sum())
    doubt = float(every.std(ddof=1) / np.sqrt(count)) if count > 1 else 0.0
    return Trial(law, float(every.mean()), doubt, count)


def _best(trials: Sequence[Trial]) -> Law:
    tried = [trial for trial in trials if trial.error is not None]
    if not tried:
        raise InvalidInput("too few runs to try any law without the extreme ones; add runs")
    least = min(tried, key=_error)
    bound = _error(least) + least.doubt + 1e-9
    return next(trial.law for trial in tried if _error(trial) <= bound)


def _error(trial: Trial) -> float:
    return np.inf if trial.error is None else trial.error
