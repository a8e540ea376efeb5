"""Lines and planes through measured times: five ways to fit, and how sure they are.

A fit sees its data only through a triangle: with weighted rows X and times y, QR of X gives R and
z = Q'y, and every one of the problems has the same solution on (R, z). The triangle of many rows is
that of the triangles of their parts. So uncertainty costs the same for six runs and for a million,
and a fit of a million needs little more memory than their features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wavecast.errors import InvalidInput, MissingExtra

Array = NDArray[np.float64]

_DRAWS = 2000
_SEED = 20190502  # of the draws behind every interval: the same data give the same interval
_RANK_TOLERANCE = 1e-9
_PART = 50_000
"""Rows that become a triangle at a time."""
_ROUNDS = 100
_SETTLED = 1e-9
_LEAST = 1e-3
"""Of a time, the least that is predicted while weights are still sought."""


class Method(StrEnum):
    """What a fit makes small, and whether coefficients may be negative."""

    ORDINARY = "ordinary"
    """Squared errors, as published (Gianniti et al. 2019)."""
    RELATIVE = "relative"
    """Squared relative errors."""
    NON_NEGATIVE = "non-negative"
    """Squared errors, no coefficient below 0."""
    RELATIVE_NON_NEGATIVE = "relative non-negative"
    """Squared relative errors, no coefficient below 0: the default."""
    PROPORTIONAL = "proportional non-negative"
    """Squared errors over the time that is predicted, not the one measured; none below 0.

    Where times scatter widely about any line, relative errors are least for one that lies low: too
    short costs 100% at most. This is the quasi-likelihood of errors whose size grows with the mean
    (Wedderburn 1974; McCullagh and Nelder, chapter 9), and leans to no side.
    """

    @property
    def relative(self) -> bool:
        """Whether errors count in shares of a time."""
        return self not in (Method.ORDINARY, Method.NON_NEGATIVE)

    @property
    def non_negative(self) -> bool:
        """Whether coefficients are kept from being negative."""
        return self not in (Method.ORDINARY, Method.RELATIVE)


@dataclass(frozen=True)
class LinearFit:
    """Coefficients, and what is needed to tell how sure they are."""

    method: Method
    values: Array
    """One coefficient for each column."""
    noise: float
    """Standard deviation of what is left: of relative errors, or in seconds."""
    freedom: int
    """Rows less columns; with 0 nothing is known about the noise, and there are no ranges."""
    triangle: Array
    """R of the weighted rows, columns divided by `scales`."""
    scales: Array

    def predict(self, rows: Array) -> Array:
        """The times of rows."""
        return rows @ self.values

    def coefficient_ranges(self, level: float = 0.9) -> Array:
        """Low and high of each coefficient: (2, columns)."""
        return np.quantile(self._drawn[0], _tails(level), axis=0)

    def ranges(self, rows: Array, level: float = 0.9) -> Array:
        """Low and high of the time of one more run, for each of these rows: (2, rows)."""
        drawn, noise = self._drawn
        rng = np.random.default_rng(_SEED + 1)
        found = np.empty((2, len(rows)))
        for index, row in enumerate(rows):
            means = drawn @ row
            size = np.abs(means) if self.method.relative else 1.0
            times = means + size * noise * rng.standard_normal(len(means))
            found[:, index] = np.quantile(times, _tails(level))
        return np.maximum(found, 0.0)

    @cached_property
    def _drawn(self) -> tuple[Array, Array]:
        """Coefficients and noise that might have been, given these data.

        A parametric bootstrap on (R, z), where the size of the noise is drawn as well: with few
        runs it is hardly known, and the ranges become as wide as Student's t would have them.
        """
        if not self.freedom:
            raise InvalidInput("as many coefficients as times: nothing tells how sure they are")
        rng = np.random.default_rng(_SEED)
        columns = len(self.values)
        noise = self.noise * np.sqrt(self.freedom / rng.chisquare(self.freedom, _DRAWS))
        middle = self.triangle @ (self.values * self.scales)
        z = middle + noise[:, None] * rng.standard_normal((_DRAWS, columns))
        if self.method.non_negative:
            scaled = np.array([_non_negative(self.triangle, each) for each in z])
        else:
            scaled = np.linalg.solve(self.triangle, z.T).T
        return scaled / self.scales, noise


def fit(rows: Array, times: Array, method: Method = Method.RELATIVE_NON_NEGATIVE) -> LinearFit:
    """Coefficients such that rows @ coefficients are near the times.

    Raises:
        InvalidInput: times that are none, or rows that leave coefficients undetermined.
    """
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise InvalidInput("times must be finite and above 0")
    count, columns = rows.shape
    if count < columns:
        raise InvalidInput(f"{columns} coefficients need more than {count} times")
    if rank(rows) < columns:
        raise InvalidInput(f"{columns} coefficients are not determined by these {count} times")
    found = _weighted(rows, times, times if method.relative else np.ones(count), method)
    if method is Method.PROPORTIONAL:
        for _ in range(_ROUNDS):
            before = found
            sizes = np.maximum(before.predict(rows), _LEAST * times)
            found = _weighted(rows, times, sizes, method)
            if np.allclose(found.values, before.values, rtol=_SETTLED, atol=0):
                break
    return found


def _weighted(rows: Array, times: Array, sizes: Array, method: Method) -> LinearFit:
    """The fit in which an error counts by its share of these sizes."""
    count, columns = rows.shape
    # Columns differ by orders of magnitude: iterations times batch, and 1.
    scales = np.max([np.abs(x / w[:, None]).max(axis=0) for x, w in _parts(rows, sizes)], axis=0)
    scales = np.where(scales > 0, scales, 1.0)
    parts = _parts(rows, times, sizes)
    whole = _triangle(
        (np.column_stack([x / w[:, None] / scales, y / w]) for x, y, w in parts), columns + 1
    )
    triangle, z = whole[:columns, :columns], whole[:columns, columns]
    found = _non_negative(triangle, z) if method.non_negative else np.linalg.solve(triangle, z)
    left = np.append(z - triangle @ found, whole[columns:, columns])
    freedom = count - columns
    return LinearFit(
        method=method,
        values=found / scales,
        noise=float(np.sqrt(left @ left / freedom)) if freedom else 0.0,
        freedom=freedom,
        triangle=triangle,
        scales=scales,
    )


def _parts(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The same rows of each of these, so many at a time."""
    for begin in range(0, len(arrays[0]), _PART):
        yield tuple(array[begin : begin + _PART] for array in arrays)


def _triangle(parts: Iterable[Array], columns: int) -> Array:
    """R of all of these rows, one below the other; only one part is looked at at a time."""
    found = np.empty((0, columns))
    for part in parts:
        found = cast(Array, np.linalg.qr(np.vstack([found, part]), mode="r"))
    return found


def rank(rows: Array) -> int:
    """How many coefficients these rows determine."""
    if not len(rows):
        return 0
    scales = np.abs(rows).max(axis=0)
    scales = np.where(scales > 0, scales, 1.0)
    triangle = _triangle((part / scales for (part,) in _parts(rows)), rows.shape[1])
    return int(np.linalg.matrix_rank(triangle, tol=_RANK_TOLERANCE))


def signed_errors(predicted: Array, actual: Array) -> Array:
    """(predicted - actual) / actual (Gianniti et al., equation 1): below 0 is too short."""
    return (predicted - actual) / actual


def mape(predicted: Array, actual: Array) -> float:
    """The mean absolute relative error, as a share (0.03 is 3%)."""
    return float(np.abs(signed_errors(predicted, actual)).mean())


def needing_scipy(what: str, module: str) -> Any:
    """A module of scipy, or an error that says how to get it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "scipy":
            raise
        raise MissingExtra(f"{what} needs scipy: pip install 'wavecast[regression]'") from error


def _non_negative(rows: Array, target: Array) -> Array:
    found: Array = needing_scipy("fitting", "scipy.optimize").nnls(rows, target)[0]
    return found


def _tails(level: float) -> Sequence[float]:
    if not 0 < level < 1:
        raise InvalidInput(f"a level is between 0 and 1, not {level}")
    return (1 - level) / 2, (1 + level) / 2
