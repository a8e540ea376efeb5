"""The choice of runs from which a model learns the most within a budget (Ernest, NSDI 2016).

Given the possible runs, the estimated time of each, and a budget, a design chooses the runs that
leave a fitted model the least uncertain. Uncertainty is the volume of the coefficients' confidence
region (D), the sum of their variances (A), or the mean variance of predictions over all possible
runs (I). First scipy solves the relaxed problem, in which a run may count as a fraction.
The fractions are then rounded, and runs are replaced by others as long as that helps.

    space = configurations(batches, iterations, seconds_of)
    design(space, budget_s=600).runs
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.results import Shown
from wavecast.runs.regression.end_to_end import FULL, rows_of
from wavecast.runs.regression.extrapolation import RING, Settings
from wavecast.runs.regression.least_squares import Array, needing_scipy, rank

MOST = 500
"""The most configurations to choose from; more would take minutes."""
_STARTS = 20
_SEED = 2016
_RIDGE = 1e-10
"""Added to the information, so that the uncertainty of too few runs is huge, not undefined."""


class Criterion(StrEnum):
    """The uncertainty that is minimised."""

    D = "D"
    """The volume of the coefficients' confidence region."""
    A = "A"
    """The sum of the coefficients' variances, each relative to its scale."""
    I = "I"  # noqa: E741  (its name in the literature)
    """The mean variance of predictions over the space."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A possible run, with its estimated time."""

    batch: int
    iterations: int
    seconds: float
    gpus: int = 1

    @property
    def cost_s(self) -> float:
        """The cost of the run in GPU-seconds."""
        return self.seconds * self.gpus


@dataclass(frozen=True)
class Design(Shown):
    """The runs to make."""

    criterion: Criterion
    runs: tuple[Configuration, ...]
    """A run that is listed twice should run twice."""
    cost_s: float
    budget_s: float
    efficiency: float
    """The information relative to that of the relaxed problem, which no whole runs can exceed."""
    spread: float
    """The standard deviation of predictions in percent of the predicted time, averaged over the
    space, if the times of single runs have a standard deviation of 1%."""


def linear_seconds(
    startup_s: float, iteration_s: float, sample_s: float
) -> Callable[[int, int], float]:
    """A function that guesses the time of a run from batch and iterations.

    It adds the seconds before the first iteration, those of each iteration whatever its batch, and
    those of each sample.
    """
    if iteration_s + sample_s <= 0 or min(startup_s, iteration_s, sample_s) < 0:
        raise InvalidInput("the guessed times must not be negative, nor all be 0")
    return lambda batch, iterations: startup_s + iterations * (iteration_s + batch * sample_s)


def configurations(
    batches: Iterable[int],
    iterations: Iterable[int],
    seconds_of: Callable[[int, int], float],
    gpus: Iterable[int] = (1,),
) -> tuple[Configuration, ...]:
    """Every combination, with the time `seconds_of(batch, iterations)` on one GPU.

    A run on g GPUs is estimated to take 1/g of it, which is good enough to compare costs.
    """
    combinations = []
    for batch, length, count in product(batches, iterations, gpus):
        if min(batch, length, count) < 1:
            raise InvalidInput("batches, iterations and gpus must be at least 1")
        seconds = seconds_of(batch, length) / count
        if not 0 < seconds < math.inf:
            raise InvalidInput(f"batch {batch}, {length} iterations: {seconds} s is not a time")
        combinations.append(Configuration(batch, length, seconds, count))
    return tuple(combinations)


def design(
    space: Sequence[Configuration],
    budget_s: float,
    *,
    criterion: Criterion | str = Criterion.D,
    repeats: int = 1,
    most_runs: int | None = None,
) -> Design:
    """The runs of a space to make within a budget of GPU-seconds.

    Args:
        space: The configurations to choose from.
        budget_s: GPU-seconds for all runs together.
        criterion: The uncertainty to minimise, one of `Criterion`.
        repeats: How often one configuration may be run.
        most_runs: The largest number of runs; by default there is no limit.

    Raises:
        InvalidInput: The budget or the space is too small to determine the coefficients; the
            message says how much is needed.
    """
    aim = _criterion(criterion)
    rows, costs = features(space), np.array([run.cost_s for run in space])
    needed = rows.shape[1] + 1
    most = len(space) * repeats if most_runs is None else most_runs
    if not space or rank(rows) < rows.shape[1]:
        raise InvalidInput(
            "these configurations do not determine the coefficients: give two batches and two "
            "numbers of iterations, or more"
        )
    if len(space) > MOST:
        raise InvalidInput(f"{len(space)} configurations are too many; give {MOST} at most")
    cheapest = np.sort(np.repeat(costs, repeats))[:needed].sum()
    if most < needed or budget_s < cheapest:
        raise InvalidInput(
            f"{rows.shape[1]} coefficients need {needed} runs, which take {cheapest:.4g} GPU-s at "
            f"least; the budget is {budget_s:.4g} GPU-s and {most} runs"
        )
    problem = _Problem(rows, costs, aim, repeats, budget_s, needed, most)
    weights = problem.relax()
    counts = problem.round(weights)
    runs = tuple(run for run, n in zip(space, counts, strict=True) for _ in range(int(n)))
    return Design(
        criterion=aim,
        runs=runs,
        cost_s=float(counts @ costs),
        budget_s=budget_s,
        efficiency=problem.efficiency(counts, weights),
        spread=_spread(rows, counts),
    )


def features(space: Sequence[Configuration]) -> Array:
    """The features of each run divided by its time, because errors are relative."""
    batch = np.array([run.batch for run in space], dtype=float)
    length = np.array([run.iterations for run in space], dtype=float)
    gpus = np.array([run.gpus for run in space], dtype=float)
    if (gpus == 1).all():
        rows = rows_of(FULL, batch, length)
    else:
        ones = np.ones_like(batch)
        per_iteration = RING.columns(Settings(batch, gpus, ones, ones, ones))
        rows = np.column_stack([ones, per_iteration * length[:, None]])
    rows = rows / np.array([run.seconds for run in space])[:, None]
    scaled: Array = rows / np.abs(rows).max(axis=0)
    return scaled


@dataclass(frozen=True)
class _Problem:
    rows: Array
    costs: Array
    criterion: Criterion
    repeats: int
    budget_s: float
    fewest: int
    most: int

    def loss(self, weights: Array) -> float:
        """The uncertainty of a design: how often to make each run, also in fractions."""
        information = self._information(weights)
        if self.criterion is Criterion.D:
            return -float(np.linalg.slogdet(information)[1])
        return float(np.log(np.trace(np.linalg.solve(information, self._of_interest))))

    def gradient(self, weights: Array) -> Array:
        inverse = np.linalg.inv(self._information(weights))
        middle, whole = inverse, 1.0
        if self.criterion is not Criterion.D:
            middle = inverse @ self._of_interest @ inverse
            whole = float(np.trace(inverse @ self._of_interest))
        slope: Array = -np.einsum("ij,jk,ik->i", self.rows, middle, self.rows) / whole
        return slope

    def relax(self) -> Array:
        """How often to make each run, in fractions: the solution of the relaxed problem."""
        optimize = needing_scipy("designing", "scipy.optimize")
        count = len(self.rows)
        share = min(1.0, self.budget_s / (self.repeats * self.costs.sum()))
        share = min(share, self.most / (self.repeats * count))
        limits = np.stack([self.costs / self.budget_s, np.full(count, 1 / self.most)])
        result = optimize.minimize(
            self.loss,
            np.full(count, share * self.repeats),
            jac=self.gradient,
            method="SLSQP",
            bounds=[(0.0, float(self.repeats))] * count,
            constraints=[
                {
                    "type": "ineq",
                    "fun": lambda weights: 1 - limits @ weights,
                    "jac": lambda weights: -limits,
                }
            ],
            options={"maxiter": 300, "ftol": 1e-9},
        )
        weights: Array = np.clip(result.x, 0.0, self.repeats)
        return weights

    def round(self, weights: Array) -> Array:
        """The best whole runs, found by replacing runs from many starts near the fractions."""
        rng = np.random.default_rng(_SEED)
        # Starting from no runs always reaches the needed number of runs.
        starts = [np.zeros_like(weights), np.floor(weights + 1e-6)]
        starts += [np.floor(weights + rng.uniform(size=len(weights))) for _ in range(_STARTS)]
        designs = [
            self._improve(self._shrink(start), per_cost)
            for start in starts
            for per_cost in (False, True)
        ]
        return min((counts for counts in designs if counts.sum() >= self.fewest), key=self.loss)

    def efficiency(self, counts: Array, weights: Array) -> float:
        lost = self.loss(counts) - self.loss(weights)
        return float(np.exp(-lost / (self.rows.shape[1] if self.criterion is Criterion.D else 1)))

    def _shrink(self, counts: Array) -> Array:
        """The runs without the most expensive ones, so that they fit the budget."""
        counts = np.minimum(counts, self.repeats)
        while counts @ self.costs > self.budget_s or counts.sum() > self.most:
            chosen = np.flatnonzero(counts)
            counts[chosen[np.argmax(self.costs[chosen])]] -= 1
        return counts

    def _improve(self, counts: Array, per_cost: bool) -> Array:
        """The runs after adding those that help most, and replacing runs as long as that helps."""
        counts = self._filled(counts, per_cost)
        while True:
            now, best = self.loss(counts), counts
            for out in np.flatnonzero(counts):
                fewer = counts.copy()
                fewer[out] -= 1
                for other in (self._filled(fewer, per_cost), self._filled(fewer, not per_cost)):
                    if self.loss(other) < min(now - 1e-9, self.loss(best)):
                        best = other
            if best is counts:
                return counts
            counts = best

    def _filled(self, counts: Array, per_cost: bool) -> Array:
        """The runs with as many more as the budget allows, those that help most first."""
        counts = counts.copy()
        while counts.sum() < self.most:
            left_s = self.budget_s * (1 + 1e-9) - counts @ self.costs - self._kept_back_s(counts)
            affordable = (self.costs <= left_s) & (counts < self.repeats)
            if not affordable.any():
                break
            gains = self._gains(counts) / (self.costs if per_cost else 1.0)
            counts[np.argmax(np.where(affordable, gains, -np.inf))] += 1
        return counts

    def _kept_back_s(self, counts: Array) -> float:
        """The least cost of the runs that are still needed after the next one."""
        missing = self.fewest - int(counts.sum()) - 1
        free = np.repeat(self.costs, (self.repeats - counts).astype(int))
        return float(np.sort(free)[:missing].sum()) if missing > 0 else 0.0

    def _gains(self, counts: Array) -> Array:
        """How much the loss falls with one more of each run (Sherman and Morrison)."""
        inverse = np.linalg.inv(self._information(counts))
        reach = np.einsum("ij,jk,ik->i", self.rows, inverse, self.rows)
        if self.criterion is Criterion.D:
            gains: Array = np.log1p(reach)
            return gains
        middle = inverse @ self._of_interest @ inverse
        saved = np.einsum("ij,jk,ik->i", self.rows, middle, self.rows) / (1 + reach)
        gains = -np.log1p(-saved / np.trace(inverse @ self._of_interest))
        return gains

    def _information(self, weights: Array) -> Array:
        columns = self.rows.shape[1]
        matrix: Array = (self.rows * weights[:, None]).T @ self.rows + _RIDGE * np.eye(columns)
        return matrix

    @property
    def _of_interest(self) -> Array:
        if self.criterion is Criterion.A:
            return np.eye(self.rows.shape[1])
        moments: Array = self.rows.T @ self.rows / len(self.rows)
        return moments


def _spread(rows: Array, counts: Array) -> float:
    inverse = np.linalg.inv((rows * counts[:, None]).T @ rows)
    return float(np.sqrt(np.einsum("ij,jk,ik->i", rows, inverse, rows)).mean())


def _criterion(name: Criterion | str) -> Criterion:
    try:
        return Criterion(name)
    except ValueError:
        raise InvalidInput(f'a criterion is {", ".join(Criterion)}, not "{name}"') from None
