"""The time of whole runs from past runs: Gianniti, Zhang and Ardagna 2019, sections 3 and 4.3.

    wc.EndToEnd().fit(runs).predict(batch=64, iterations=90_000)

Features are (1, b, i, b*i) of batch b and iterations i (theorem 3.1), or those of the one axis that
varies. Training and testing are two models. As published the fit is by ordinary least squares; by
default it is by relative errors with no coefficient below 0, which is nearer on short runs.

Where an iteration is no line in the batch, what it is predicted to take can stand for the batch
(`work`): an extension of ours, for which the network's code is needed, or its trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.predictors.base import Estimate
from wavecast.regression import least_squares
from wavecast.regression.least_squares import Array, LinearFit, Method, mape, rank, signed_errors
from wavecast.regression.run_table import RunTable, tabulate
from wavecast.runs.run import Run

FULL = ("1", "batch", "iterations", "batch*iterations")
BY_ITERATIONS = ("1", "iterations")
BY_BATCH = ("1", "batch")
WITHOUT_BATCH = ("1", "iterations", "batch*iterations")
"""An option, not the default: better on six short runs, worse on twenty (docs/runs.md)."""
FEATURES = (FULL, BY_ITERATIONS, BY_BATCH, WITHOUT_BATCH)
BatchWork = Callable[[int], float]
"""From a batch to how much there is to do: the seconds that an iteration is predicted to take."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One coefficient of a fit, in seconds for each unit of its feature, with its 90% range."""

    feature: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EndToEnd:
    """How to learn the time of runs from runs of one network on one machine.

    Args:
        method: what the fit makes small; `Method.ORDINARY` is the paper's own.
        phase: "training" or "testing": each is a model of its own.
        features: which of `FEATURES`; by default those that the runs vary in.
        work: what stands for the batch in all features; the batch itself if not given.
    """

    method: Method | str = Method.RELATIVE_NON_NEGATIVE
    phase: str = "training"
    features: tuple[str, ...] | None = None
    work: BatchWork | None = None

    def fit(self, runs: Iterable[Run]) -> RunModel:
        """Learn from runs, of which those of the phase count.

        Raises:
            InvalidInput: the runs are of different things, or do not determine the coefficients;
                says which run to add.
        """
        table = tabulate(runs, self.phase)
        table.require_one("model", "gpu", "gpus", "precision", "framework", "inner_modules")
        features = self.features or _varying(table)
        if features not in FEATURES:
            raise InvalidInput(f"features are one of {FEATURES}, not {features}")
        _check_identified(table, features)
        rows = rows_of(features, sizes(table.batch, self.work), table.iterations)
        found = least_squares.fit(rows, table.seconds, Method(self.method))
        return RunModel(features, found, table, self.work)


@dataclass(frozen=True)
class RunModel:
    """A fitted end-to-end model."""

    features: tuple[str, ...]
    fit: LinearFit
    table: RunTable
    """The runs it was fitted on."""
    work: BatchWork | None = None
    """What stands for the batch; None: itself."""

    @property
    def coefficients(self) -> tuple[Coefficient, ...]:
        """In the order of `features`; where work stands for the batch, its name does, too."""
        low, high = self.fit.coefficient_ranges()
        names = [
            name if self.work is None else name.replace("batch", "work") for name in self.features
        ]
        found = zip(names, self.fit.values, low, high, strict=True)
        return tuple(Coefficient(name, *map(float, numbers)) for name, *numbers in found)

    def predict(self, batch: int | None = None, iterations: int | None = None) -> Estimate:
        """The time of a run, with its 90% range.

        Args:
            batch: samples in a batch; that of the runs if all had the same.
            iterations: of the run; likewise.
        """
        row = self._rows(
            np.array([self._value("batch", batch)]),
            np.array([self._value("iterations", iterations)]),
        )
        seconds = float(self.fit.predict(row)[0])
        low, high = self.fit.ranges(row)
        return Estimate(
            seconds=seconds,
            low_s=min(float(low[0]), seconds),
            high_s=max(float(high[0]), seconds),
            source=f"{len(self.table)} runs",
        )

    @property
    def predicted(self) -> Array:
        """The model's time for each run it was fitted on."""
        return self.fit.predict(self._rows(self.table.batch, self.table.iterations))

    @property
    def errors(self) -> Array:
        """(predicted - actual) / actual of each of these runs: below 0 is too short."""
        return signed_errors(self.predicted, self.table.seconds)

    @property
    def mape(self) -> float:
        """The mean of their sizes; 0.03 is 3%."""
        return mape(self.predicted, self.table.seconds)

    def errors_on(self, runs: Iterable[Run]) -> Array:
        """Signed relative errors on other runs of the same phase."""
        table = tabulate(runs, self.table.phase)
        for name in ("batch", "iterations"):
            for value in np.unique(getattr(table, name)):
                self._value(name, int(value))
        return signed_errors(
            self.fit.predict(self._rows(table.batch, table.iterations)), table.seconds
        )

    def _rows(self, batch: Array, iterations: Array) -> Array:
        return rows_of(self.features, sizes(batch, self.work), iterations)

    @cached_property
    def _only(self) -> dict[str, float]:
        """What all runs have in common."""
        axes = {"batch": self.table.batch, "iterations": self.table.iterations}
        return {name: float(axis[0]) for name, axis in axes.items() if (axis == axis[0]).all()}

    def _value(self, name: str, value: int | None) -> float:
        if value is not None and value < 1:
            raise InvalidInput(f"{name} must be at least 1, not {value}")
        only = self._only.get(name)
        if value is None and only is None:
            raise InvalidInput(f"the runs differ in {name}: say for which to predict")
        if only is not None and value is not None and value != only:
            raise InvalidInput(
                f"every run has {name} {only:g}, so nothing is known about {name} {value}; add a "
                f"run with {name} {value}, or near it"
            )
        return float(only if value is None else value)  # type: ignore[arg-type]


def sizes(batch: Array, work: BatchWork | None) -> Array:
    """What stands for each batch in the features."""
    if work is None:
        return batch
    batches, places = np.unique(batch, return_inverse=True)
    found = np.array([work(int(each)) for each in batches])
    if not (np.isfinite(found).all() and (found > 0).all()):
        raise InvalidInput("the work of a batch must be a finite number above 0")
    chosen: Array = found[places]
    return chosen


def rows_of(features: Sequence[str], batch: Array, iterations: Array) -> Array:
    """The features of runs: a row for each run, a column for each feature."""
    columns = {
        "1": np.ones_like(batch),
        "batch": batch,
        "iterations": iterations,
        "batch*iterations": batch * iterations,
    }
    return np.stack([columns[name] for name in features], axis=1)


def _varying(table: RunTable) -> tuple[str, ...]:
    """The features of the axes on which runs differ."""
    batches, lengths = len(np.unique(table.batch)), len(np.unique(table.iterations))
    if batches > 1 and lengths > 1:
        return FULL
    if lengths > 1:
        return BY_ITERATIONS
    if batches > 1:
        return BY_BATCH
    batch, iterations = int(table.batch[0]), int(table.iterations[0])
    raise InvalidInput(
        f"all {len(table)} runs have batch {batch} and {iterations} iterations: nothing varies, so "
        f"nothing can be learned; add a run with {2 * iterations} iterations, and one with batch "
        f"{2 * batch}"
    )


def _check_identified(table: RunTable, features: Sequence[str]) -> None:
    """Refuse what cannot be identified, saying which runs would change that."""
    needed = len(features) + 1  # one more than coefficients: else nothing tells how good the fit is
    rows = rows_of(features, table.batch, table.iterations)
    if rank(rows) == len(features) and len(rows) >= needed:
        return
    missing = _runs_to_add(table, features, needed)
    listed = ", ".join(f"(batch {batch}, {iterations} iterations)" for batch, iterations in missing)
    raise InvalidInput(
        f"{len(table)} {'run does' if len(table) == 1 else 'runs do'} not determine the "
        f"{len(features)} coefficients of {', '.join(features)}; add {listed}"
    )


def _runs_to_add(table: RunTable, features: Sequence[str], needed: int) -> list[tuple[int, int]]:
    """The fewest runs after which the coefficients are determined.

    Taken among batches and lengths that are there, and one twice as large as the largest.
    """
    batches = _candidates(table.batch, any("batch" in name for name in features))
    lengths = _candidates(table.iterations, any("iterations" in name for name in features))
    known = list(zip(table.batch, table.iterations, strict=True))
    added: list[tuple[float, float]] = []

    def worth(candidate: tuple[float, float]) -> tuple[int, bool, float]:
        there = [*known, *added, candidate]
        rows = rows_of(features, *np.array(there, dtype=float).T)
        # The cheapest of those that help most.
        return rank(rows), candidate not in (*known, *added), -candidate[0] * candidate[1]

    while True:
        now = np.array([*known, *added], dtype=float)
        if len(now) >= needed and rank(rows_of(features, *now.T)) == len(features):
            return [(int(batch), int(iterations)) for batch, iterations in added]
        added.append(max(product(batches, lengths), key=worth))


def _candidates(values: Array, varies: bool) -> list[float]:
    found = sorted(set(values.tolist()))
    return [*found, 2 * found[-1]] if varies else found
