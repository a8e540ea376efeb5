"""Linear fits through measured times: five methods, with their uncertainty.

With weighted rows X and times y, the QR decomposition of X gives a triangle R and z = Q'y. Each of
the five problems has the same solution on (R, z) as on (X, y). The triangle of many rows follows
from the triangles of parts of them. So the uncertainty costs the same for six runs as for a
million, and a fit of a million runs needs little more memory than their features.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wavecast.errors import InvalidInput, needing_extra

Array = NDArray[np.float64]

_DRAWS = 2000
_TAILS = ((1 - 0.9) / 2, (1 + 0.9) / 2)
"""The quantiles between which nine in ten values lie."""
_SEED = 20190502  # of the random draws, so that the same data give the same range
_RANK_TOLERANCE = 1e-9
_PART = 50_000
"""Rows that are decomposed at a time."""
_ROUNDS = 100
_SETTLED = 1e-9
_LEAST = 1e-3
"""The least prediction, as a share of the measured time, while weights are iterated."""


class Method(StrEnum):
    """What a fit minimises, and whether coefficients may be negative."""

    ORDINARY = "ordinary"
    """Squared errors, as published (Gianniti et al. 2019)."""
    RELATIVE = "relative"
    """Squared relative errors."""
    NON_NEGATIVE = "non-negative"
    """Squared errors, with no coefficient below 0."""
    RELATIVE_NON_NEGATIVE = "relative non-negative"
    """Squared relative errors, with no coefficient below 0. This is the default."""
    PROPORTIONAL = "proportional non-negative"
    """Squared errors relative to the predicted, not the measured time; no coefficient below 0.

    Where times scatter widely about any line, relative errors are least for a line that lies too
    low, since an underestimate costs at most 100%. This method has no such bias. It is the
    quasi-likelihood of errors whose size grows with the mean (Wedderburn 1974; McCullagh and
    Nelder, chapter 9).
    """

    @property
    def relative(self) -> bool:
        """Whether errors are relative to a time."""
        return self not in (Method.ORDINARY, Method.NON_NEGATIVE)

    @property
    def non_negative(self) -> bool:
        """Whether coefficients must not be negative."""
        return self not in (Method.ORDINARY, Method.RELATIVE)


@dataclass(frozen=True)
class LinearFit:
    """The coefficients of a fit, and what their uncertainty follows from."""

    method: Method
    values: Array
    """One coefficient for each column."""
    noise: float
    """Standard deviation of the residuals: of relative errors, or in seconds."""
    freedom: int
    """Rows minus columns. With 0 nothing is known about the noise, and there are no ranges."""
    triangle: Array
    """R of the weighted rows, with columns divided by `scales`."""
    scales: Array
    """The largest absolute value of each weighted column."""

    def predict(self, rows: Array) -> Array:
        """The time of each row."""
        return rows @ self.values

    def coefficient_ranges(self) -> Array:
        """The low and high end of each coefficient's range: (2, columns)."""
        return np.quantile(self._drawn[0], _TAILS, axis=0)

    def ranges(self, rows: Array) -> Array:
        """The range of the time of one more run, for each of these rows: (2, rows)."""
        drawn, noise = self._drawn
        rng = np.random.default_rng(_SEED + 1)
        ends = np.empty((2, len(rows)))
        for index, row in enumerate(rows):
            means = drawn @ row
            size = np.abs(means) if self.method.relative else 1.0
            times = means + size * noise * rng.standard_normal(len(means))
            ends[:, index] = np.quantile(times, _TAILS)
        return np.maximum(ends, 0.0)

    @cached_property
    def _drawn(self) -> tuple[Array, Array]:
        """Random coefficients and noise that are consistent with the data.

        This is a parametric bootstrap on (R, z). The size of the noise is drawn as well, because
        few runs hardly determine it; the ranges become as wide as those of Student's t.
        """
        if not self.freedom:
            raise InvalidInput(
                "there are as many coefficients as times, so their uncertainty is unknown"
            )
        rng = np.random.default_rng(_SEED)
        columns = len(self.values)
        noise = self.noise * np.sqrt(self.freedom / rng.chisquare(self.freedom, _DRAWS))
        middle = self.triangle @ (self.values * self.scales)
        z = middle + noise[:, None] * rng.standard_normal((_DRAWS, columns))
        if self.method.non_negative:
            scaled = np.array([_non_negative(self.triangle, draw) for draw in z])
        else:
            scaled = np.linalg.solve(self.triangle, z.T).T
        return scaled / self.scales, noise


def fit(rows: Array, times: Array, method: Method = Method.RELATIVE_NON_NEGATIVE) -> LinearFit:
    """The coefficients with which rows @ coefficients are closest to the times.

    Raises:
        InvalidInput: A time is not positive and finite, or the rows do not determine the
            coefficients.
    """
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise InvalidInput("times must be finite and above 0")
    count, columns = rows.shape
    if count < columns:
        raise InvalidInput(f"{columns} coefficients need more than {count} times")
    if rank(rows) < columns:
        raise InvalidInput(f"{columns} coefficients are not determined by these {count} times")
    fitted = _weighted(rows, times, times if method.relative else np.ones(count), method)
    if method is Method.PROPORTIONAL:
        for _ in range(_ROUNDS):
            before = fitted
            sizes = np.maximum(before.predict(rows), _LEAST * times)
            fitted = _weighted(rows, times, sizes, method)
            if np.allclose(fitted.values, before.values, rtol=_SETTLED, atol=0):
                break
    return fitted


def _weighted(rows: Array, times: Array, sizes: Array, method: Method) -> LinearFit:
    """The fit whose errors are divided by these sizes."""
    count, columns = rows.shape
    # Columns differ by orders of magnitude: one is iterations times batch, another is 1.
    with np.errstate(over="ignore"):
        peaks = [np.abs(x / w[:, None]).max(axis=0) for x, w in _parts(rows, sizes)]
    scales = np.max(peaks, axis=0)
    if not np.isfinite(scales).all():
        least = f"a time of {times.min():.3g} s"
        raise InvalidInput(f"{least} is too short to be compared with the others; leave it out")
    scales = np.where(scales > 0, scales, 1.0)
    parts = _parts(rows, times, sizes)
    whole = _triangle(
        (np.column_stack([x / w[:, None] / scales, y / w]) for x, y, w in parts), columns + 1
    )
    triangle, z = whole[:columns, :columns], whole[:columns, columns]
    scaled = _non_negative(triangle, z) if method.non_negative else np.linalg.solve(triangle, z)
    left = np.append(z - triangle @ scaled, whole[columns:, columns])
    freedom = count - columns
    return LinearFit(
        method=method,
        values=scaled / scales,
        noise=float(np.sqrt(left @ left / freedom)) if freedom else 0.0,
        freedom=freedom,
        triangle=triangle,
        scales=scales,
    )


def _parts(*arrays: Array) -> Iterator[tuple[Array, ...]]:
    """The same rows of each array, `_PART` rows at a time."""
    for begin in range(0, len(arrays[0]), _PART):
        yield tuple(array[begin : begin + _PART] for array in arrays)


def _triangle(parts: Iterable[Array], columns: int) -> Array:
    """R of all rows together; only one part is in memory at a time."""
    triangle = np.empty((0, columns))
    for part in parts:
        triangle = cast(Array, np.linalg.qr(np.vstack([triangle, part]), mode="r"))
    return triangle


def rank(rows: Array) -> int:
    """The number of coefficients that these rows determine."""
    if not len(rows):
        return 0
    scales = np.abs(rows).max(axis=0)
    scales = np.where(scales > 0, scales, 1.0)
    triangle = _triangle((part / scales for (part,) in _parts(rows)), rows.shape[1])
    return int(np.linalg.matrix_rank(triangle, tol=_RANK_TOLERANCE))


def signed_errors(predicted: Array, actual: Array) -> Array:
    """(predicted - actual) / actual (Gianniti et al., equation 1); negative if too short."""
    return (predicted - actual) / actual


def mape(predicted: Array, actual: Array) -> float:
    """The mean absolute relative error, as a share (0.03 is 3%)."""
    return float(np.abs(signed_errors(predicted, actual)).mean())


def needing_scipy(what: str, module: str) -> Any:
    """A module of scipy.

    Raises:
        MissingExtra: scipy is not installed; the message says how to install it.
    """
    with needing_extra(what):
        return importlib.import_module(module)


def _non_negative(rows: Array, target: Array) -> Array:
    coefficients: Array = needing_scipy("fitting", "scipy.optimize").nnls(rows, target)[0]
    return coefficients
