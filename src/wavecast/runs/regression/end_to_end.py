"""The time of whole runs, from past runs (Gianniti, Zhang and Ardagna 2019, sections 3 and 4.3).

    wc.EndToEnd().fit(runs).predict(batch=64, iterations=90_000)

The features are 1, b, i and b*i for batch b and iterations i (theorem 3.1). If the runs differ in
only one of the two, they are 1 and that one. Training and testing have separate models. The time is
that of the whole run, as in the paper, if the runs say it, and else that of their iterations. The
paper fits by ordinary least squares. The default here minimises relative errors with no coefficient
below 0, which is more accurate on short runs.

If the time of an iteration is not linear in the batch, its predicted time can replace the batch in
all features (`work`). This is our extension; it needs the network's code or a trace of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import product

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.predictors.base import Estimate
from wavecast.results import Shown, checked
from wavecast.runs.regression import least_squares as least_squares
from wavecast.runs.regression.least_squares import (
    Array,
    LinearFit,
    Method,
    mape,
    rank,
    signed_errors,
)
from wavecast.runs.run import PHASES, Run

FULL = ("1", "batch", "iterations", "batch*iterations")
BY_ITERATIONS = ("1", "iterations")
BY_BATCH = ("1", "batch")
WITHOUT_BATCH = ("1", "iterations", "batch*iterations")
"""An option, not the default: it is better on six short runs and worse on twenty (docs/runs.md)."""
FEATURES = (FULL, BY_ITERATIONS, BY_BATCH, WITHOUT_BATCH)
BatchWork = Callable[[int], float]
"""Gives the amount of work of a batch: the predicted seconds of an iteration."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """One coefficient of a fit, in seconds per unit of its feature, with its 90% range."""

    feature: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EndToEnd:
    """The model of whole runs; `fit` it on runs of one network on one machine.

    Args:
        method: What the fit minimises; `Method.ORDINARY` is the method of the paper.
        phase: "training" or "testing", which have separate models.
        features: One of `FEATURES`; by default those of the dimensions in which the runs vary.
        work: Replaces the batch in all features by `work(batch)`.
        time: "total" to learn the time of whole runs, or "iterations" for that of the timed
            iterations. By default "total" if every run says it.

    Example:
        >>> model = EndToEnd().fit(wavecast.read_runs("runs.csv"))
        >>> model.predict(batch=64, iterations=90_000).seconds
    """

    method: Method | str = Method.RELATIVE_NON_NEGATIVE
    phase: str = "training"
    features: tuple[str, ...] | None = None
    work: BatchWork | None = None
    time: RunTime | str | None = None

    def fit(self, runs: Iterable[Run]) -> RunModel:
        """The model fitted on the runs of the phase.

        Raises:
            InvalidInput: The runs are of different networks or machines, or do not determine the
                coefficients; the message says which run to add.
        """
        table = tabulate(runs, self.phase, self.time)
        table.require_one("model", "gpu", "gpus", "precision", "framework", "inner_modules")
        features = self.features or _varying(table)
        if features not in FEATURES:
            raise InvalidInput(f"features are one of {FEATURES}, not {features}")
        _check_identified(table, features)
        rows = rows_of(features, sizes(table.batch, self.work), table.iterations)
        fitted = least_squares.fit(rows, table.seconds, Method(self.method))
        return RunModel(features, fitted, table, self.work)


@dataclass(frozen=True)
class RunModel(Shown):
    """A fitted end-to-end model."""

    features: tuple[str, ...]
    fit: LinearFit
    table: RunTable
    """The runs on which it was fitted."""
    work: BatchWork | None = None
    """Replaces the batch in the features; None to use the batch."""

    @property
    def coefficients(self) -> tuple[Coefficient, ...]:
        """The coefficients in the order of `features`; "work" replaces "batch" if it was given."""
        low, high = self.fit.coefficient_ranges()
        names = [
            name if self.work is None else name.replace("batch", "work") for name in self.features
        ]
        rows = zip(names, self.fit.values, low, high, strict=True)
        return tuple(Coefficient(name, *map(float, numbers)) for name, *numbers in rows)

    def predict(self, batch: int | None = None, iterations: int | None = None) -> Estimate:
        """The time of a run, with its 90% range.

        Args:
            batch: Samples in a batch; by default that of the runs, if all have the same.
            iterations: Iterations of the run; by default those of the runs, if all have the same.
        """
        row = self._rows(
            np.array([self._value("batch", batch)]),
            np.array([self._value("iterations", iterations)]),
        )
        seconds = float(self.fit.predict(row)[0])
        low, high = self.fit.ranges(row)
        # A line through few runs may have a range that reaches below 0, which no time does.
        low_s, high_s = max(0.0, min(float(low[0]), seconds)), max(float(high[0]), seconds)
        source = f"{len(self.table)} runs"
        estimate = Estimate(seconds=seconds, low_s=low_s, high_s=high_s, source=source)
        return checked(estimate, f"the time from {source}", ("seconds", "low_s", "high_s"))

    @property
    def predicted(self) -> Array:
        """The model's time for each run of the fit."""
        return self.fit.predict(self._rows(self.table.batch, self.table.iterations))

    @property
    def errors(self) -> Array:
        """(predicted - actual) / actual of each run of the fit; negative if too short."""
        return signed_errors(self.predicted, self.table.seconds)

    @property
    def mape(self) -> float:
        """The mean absolute relative error on the runs of the fit; 0.03 is 3%."""
        return mape(self.predicted, self.table.seconds)

    def by_method(self, method: Method | str) -> RunModel:
        """The same model fitted on the same runs by another method."""
        rows = self._rows(self.table.batch, self.table.iterations)
        return replace(self, fit=least_squares.fit(rows, self.table.seconds, Method(method)))

    @property
    def longest_mape(self) -> float | None:
        """The mean absolute relative error on the longest fifth of the runs, fitted without them.

        None if the other runs do not determine the coefficients.
        """
        order = np.argsort(self.table.seconds, kind="stable")
        count = len(order) // 5
        if not count:
            return None
        rows = self._rows(self.table.batch, self.table.iterations)
        shorter, longest = order[:-count], order[-count:]
        if rank(rows[shorter]) < len(self.features):
            return None
        fitted = least_squares.fit(rows[shorter], self.table.seconds[shorter], self.fit.method)
        return mape(fitted.predict(rows[longest]), self.table.seconds[longest])

    def errors_on(self, runs: Iterable[Run]) -> Array:
        """The signed relative errors on other runs of the same phase."""
        table = tabulate(runs, self.table.phase, self.table.time)
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
        """The batch and the iterations, as far as all runs have the same."""
        axes = {"batch": self.table.batch, "iterations": self.table.iterations}
        return {name: float(axis[0]) for name, axis in axes.items() if (axis == axis[0]).all()}

    def _value(self, name: str, value: int | None) -> float:
        if value is not None and value < 1:
            raise InvalidInput(f"{name} must be at least 1, not {value}")
        only = self._only.get(name)
        if value is None and only is None:
            raise InvalidInput(f"the runs differ in {name}: give the {name} to predict for")
        if only is not None and value is not None and value != only:
            raise InvalidInput(
                f"every run has {name} {only:g}, so nothing is known about {name} {value}; add a "
                f"run with {name} {value}, or near it"
            )
        return float(only if value is None else value)  # type: ignore[arg-type]


def sizes(batch: Array, work: BatchWork | None) -> Array:
    """The batch of each run, or its work if that replaces the batch."""
    if work is None:
        return batch
    batches, places = np.unique(batch, return_inverse=True)
    amounts = np.array([work(int(size)) for size in batches])
    if not (np.isfinite(amounts).all() and (amounts > 0).all()):
        raise InvalidInput("the work of a batch must be a finite number above 0")
    of_runs: Array = amounts[places]
    return of_runs


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
    """The features of the dimensions in which runs differ."""
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
    """Check that the runs determine the coefficients; the error says which runs to add."""
    needed = len(features) + 1  # with no more runs than coefficients, errors are unknown
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
    """The fewest runs that must be added to determine the coefficients.

    They have batches and iterations of existing runs, or twice the largest ones.
    """
    batches = _candidates(table.batch, any("batch" in name for name in features))
    lengths = _candidates(table.iterations, any("iterations" in name for name in features))
    existing = list(zip(table.batch, table.iterations, strict=True))
    added: list[tuple[float, float]] = []

    def worth(candidate: tuple[float, float]) -> tuple[int, bool, float]:
        extended = [*existing, *added, candidate]
        rows = rows_of(features, *np.array(extended, dtype=float).T)
        # Among those that help most, the cheapest.
        return rank(rows), candidate not in (*existing, *added), -candidate[0] * candidate[1]

    while True:
        now = np.array([*existing, *added], dtype=float)
        if len(now) >= needed and rank(rows_of(features, *now.T)) == len(features):
            return [(int(batch), int(iterations)) for batch, iterations in added]
        added.append(max(product(batches, lengths), key=worth))


def _candidates(values: Array, varies: bool) -> list[float]:
    distinct = sorted(set(values.tolist()))
    return [*distinct, 2 * distinct[-1]] if varies else distinct


# Runs divided at a batch and a length: fitted on the small ones, judged on the others.
#
# This is how Gianniti, Zhang and Ardagna 2019 judge their models of whole runs (section 4.3 and
# table 4): a model is fitted on the runs up to a threshold, and all models are judged on the same
# runs, which are those beyond every threshold.


@dataclass(frozen=True, slots=True)
class Split:
    """The runs to fit: those with at most this batch and this many iterations."""

    batch: int
    iterations: int

    def has(self, run: Run, time: RunTime | str | None = None) -> bool:
        """Whether a run is one to fit."""
        length = run.total_iterations if time == RunTime.TOTAL else run.iterations
        return run.batch <= self.batch and (length or run.iterations) <= self.iterations


BATCHES = tuple(range(8, 65, 8))
ITERATIONS = (
    *(100, 120, 150, 170, 200, 230, 250, 300, 350, 400, 500, 700, 800, 950, 1000, 1100, 1400),
    *(1600, 2000, 2300),
)
"""The published grid: every number of section 4.3."""
SPLITS = (Split(16, 150), Split(24, 170), Split(32, 200))
"""The thresholds of table 4: they leave 6, 12 and 20 runs to fit, and 140 to judge by."""
NETS = ("alexnet", "googlenet", "vgg16")
PUBLISHED = {
    "alexnet": (0.0294, 0.0318, 0.0643, 0.0301),
    "googlenet": (0.0097, 0.0579, 0.0109, 0.0243),
    "vgg16": (0.0153, 0.0370, 0.0220, 0.0341),
}
"""The paper's mean errors (Caffe on a P100, ordinary least squares): fitted and judged on all
runs, then fitted up to each of `SPLITS` and judged beyond them."""


@dataclass(frozen=True)
class SplitScore(Shown):
    """How well a model fitted on small runs predicts the larger ones."""

    model: str
    split: Split | None
    """The threshold; None if the model was fitted and judged on all runs."""
    method: Method
    """What the fit minimises."""
    fitted: int
    """How many runs it was fitted on."""
    judged: int
    """How many runs it was judged by."""
    mape: float
    """The mean absolute relative error on these."""
    worst: float
    """The signed relative error that is furthest from 0; negative if too short."""
    published: float | None = None
    """The mean error that the paper printed for this network and threshold; None if none."""


def judge(
    runs: Iterable[Run],
    splits: Sequence[Split],
    methods: Sequence[Method | str] = (Method.RELATIVE_NON_NEGATIVE, Method.ORDINARY),
    *,
    phase: str = "training",
    time: RunTime | str | None = None,
) -> tuple[SplitScore, ...]:
    """The errors of models fitted below each threshold on the runs beyond all of them.

    Args:
        runs: runs of one network on one machine.
        methods: the least-squares fits to compare.
        phase: "training" or "testing".
        time: the time to learn; by default that of whole runs if every run says it.

    Returns:
        For each method a score on all runs, then one for each threshold.

    Raises:
        InvalidInput: the runs below a threshold do not determine the model, or no run is beyond
            all thresholds.
    """
    every = [run for run in runs if run.phase == phase]
    learned = tabulate(every, phase, time).time
    beyond = [run for run in every if not any(split.has(run, learned) for split in splits)]
    if not beyond:
        largest = max(splits, key=lambda split: (split.batch, split.iterations))
        raise InvalidInput(
            f"no run is beyond a batch of {largest.batch} and {largest.iterations} iterations; "
            "give smaller thresholds, or add larger runs"
        )
    name = every[0].model
    printed: Sequence[float | None] = (None,) * (1 + len(splits))
    if tuple(splits) == SPLITS and phase == "training":
        printed = PUBLISHED.get(name, printed)
    scores = []
    for method in map(Method, methods):
        way = EndToEnd(method, phase, time=learned)
        for split, value in zip((None, *splits), printed, strict=True):
            small = every if split is None else [run for run in every if split.has(run, learned)]
            model = way.fit(small)
            judged = every if split is None else beyond
            errors = np.asarray(model.errors_on(judged))
            scores.append(
                SplitScore(
                    *(name, split, method, len(small), len(judged)),
                    *(float(np.abs(errors).mean()), float(errors[np.abs(errors).argmax()]), value),
                )
            )
    return tuple(scores)


# Runs as columns of numbers, so that a million runs fit into memory.


_LABELS = ("model", "gpu", "gpus", "precision", "framework", "inner_modules")
_MOST_LABELS = 1000
_NUMBERS = ("batch", "iterations", "seconds", "total_iterations", "total_s")


class RunTime(StrEnum):
    """The time of a run that a model learns."""

    ITERATIONS = "iterations"
    """`Run.seconds` of `Run.iterations`: the iterations that were timed."""
    TOTAL = "total"
    """`Run.total_s` of `Run.total_iterations`: the whole run, as in Gianniti et al. 2019."""

    @property
    def words(self) -> str:
        """What the time includes."""
        if self is RunTime.TOTAL:
            return "whole runs, with start-up, warm-up, tests and checkpoints"
        return "timed iterations, without start-up, warm-up, tests and checkpoints"


@dataclass(frozen=True)
class RunTable:
    """Runs of one phase, with a column for each number."""

    phase: str
    batch: Array
    iterations: Array
    seconds: Array
    labels: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """The distinct values of each property, such as "model" or "gpu"."""
    time: RunTime = RunTime.ITERATIONS
    """The time that `seconds` holds, of this many `iterations`."""
    whole: int = 0
    """How many of the runs say the time of the whole run."""

    def __len__(self) -> int:
        return len(self.seconds)

    def require_one(self, *names: str) -> None:
        """Check that all runs have the same value of each of these properties.

        Raises:
            InvalidInput: They differ.
        """
        for name in names:
            values = self.labels.get(name, ())
            if len(values) > 1:
                shown = ", ".join(str(value) or "(unknown)" for value in values[:5])
                more = f" and {len(values) - 5} more" if len(values) > 5 else ""
                raise InvalidInput(
                    f"these runs differ in {name}: {shown}{more}; choose runs with one value, or "
                    "fit an Extrapolation if they are runs of one network"
                )


def tabulate(runs: Iterable[Run], phase: str, time: RunTime | str | None = None) -> RunTable:
    """The runs of a phase as columns; the runs are read only once.

    Args:
        phase: "training" or "testing".
        time: the time to learn; by default that of whole runs if all runs say it, else that of
            the timed iterations.

    Raises:
        InvalidInput: There are none, or one of them is not a valid run; the message says which.
    """
    if phase not in PHASES:
        raise InvalidInput(f'a phase is {" or ".join(PHASES)}, not "{phase}"')
    others: set[str] = set()
    labels: dict[str, dict[object, None]] = {name: {} for name in _LABELS}
    chosen = _of_phase(runs, phase, others, labels)
    if time is not None and time not in list(RunTime):
        raise InvalidInput(f'the time of a run is {" or ".join(RunTime)}, not "{time}"')
    dtype = np.dtype([(name, np.float64) for name in _NUMBERS])
    table = np.fromiter(chosen, dtype=dtype)
    if not len(table):
        hint = f"; there are runs of {', '.join(sorted(others))}" if others else ""
        raise InvalidInput(f"no run of {phase} to learn from{hint}")
    whole = int(np.isfinite(table["total_s"]).sum())
    if time == RunTime.TOTAL and whole < len(table):
        raise InvalidInput(
            f"{len(table) - whole} of {len(table)} runs do not say the time of the whole run "
            '(total_s); learn that of their iterations: time="iterations", or --time iterations'
        )
    chosen_time = RunTime(time or (RunTime.TOTAL if whole == len(table) else RunTime.ITERATIONS))
    total = chosen_time is RunTime.TOTAL
    return RunTable(
        phase=phase,
        batch=np.ascontiguousarray(table["batch"]),
        iterations=np.ascontiguousarray(table["total_iterations" if total else "iterations"]),
        seconds=np.ascontiguousarray(table["total_s" if total else "seconds"]),
        labels={name: tuple(values) for name, values in labels.items()},
        time=chosen_time,
        whole=whole,
    )


def check_run(number: int, run: Run) -> Run:
    """The run, unchanged, if its numbers are valid.

    Raises:
        InvalidInput: They are not.
    """
    if not isinstance(run, Run):
        raise InvalidInput(f"run {number} is a {type(run).__name__}, not a wavecast.runs.run.Run")
    where = run.source or f"run {number}"
    if run.batch < 1 or run.iterations < 1 or run.gpus < 1:
        raise InvalidInput(f"{where}: batch, iterations and gpus must be at least 1")
    if not 0 < run.seconds < math.inf:
        raise InvalidInput(f"{where}: {run.seconds} s is not a time")
    if run.total_s is not None and not (0 < run.total_s < math.inf and run.total_iterations):
        raise InvalidInput(f"{where}: {run.total_s} s is not the time of a whole run")
    return run


def _of_phase(
    runs: Iterable[Run], phase: str, others: set[str], labels: dict[str, dict[object, None]]
) -> Iterable[tuple[float, ...]]:
    for number, unchecked in enumerate(runs, start=1):
        run = check_run(number, unchecked)
        if run.phase != phase:
            others.add(run.phase)
            continue
        for name, values in labels.items():
            if len(values) < _MOST_LABELS:
                values[getattr(run, name)] = None
        total_s, iterations = run.total_s, run.total_iterations
        unknown = total_s is None or iterations is None
        totals = (math.nan, math.nan) if unknown else (iterations, total_s)
        yield (run.batch, run.iterations, run.seconds, *totals)
