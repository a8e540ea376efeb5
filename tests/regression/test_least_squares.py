"""Fits by QR: rows in parts give the same fit, and proportional errors have no bias."""

from __future__ import annotations

import numpy as np
import pytest

from wavecast.errors import InvalidInput
from wavecast.runs.regression import least_squares as least_squares
from wavecast.runs.regression.least_squares import Array, Method, fit, rank


def _scattered(scatter: float, seed: int = 0, count: int = 400) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    work = rng.uniform(1, 100, count)
    rows = np.column_stack([np.ones(count), work])
    noise = np.exp(scatter * rng.standard_normal(count) - scatter**2 / 2)
    return rows, rows @ np.array([2.0, 0.5]) * noise


@pytest.mark.parametrize("method", [*Method])
def test_rows_in_parts_give_the_same_fit(method: Method, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, times = _scattered(0.05)
    whole = fit(rows, times, method)
    monkeypatch.setattr(least_squares, "_PART", 7)
    parts = fit(rows, times, method)
    assert parts.values == pytest.approx(whole.values, rel=1e-9)
    assert parts.noise == pytest.approx(whole.noise, rel=1e-9)
    assert rank(rows) == 2


@pytest.mark.parametrize("method", [*Method])
def test_the_noise_is_that_of_the_residuals(method: Method) -> None:
    rows, times = _scattered(0.05)
    fitted = fit(rows, times, method)
    predicted = rows @ fitted.values
    sizes = {Method.PROPORTIONAL: predicted}.get(method, times if method.relative else 1.0)
    left = (times - predicted) / sizes
    assert fitted.noise == pytest.approx(np.sqrt(left @ left / (len(times) - 2)), rel=1e-6)


def test_wide_scatter_biases_relative_fits_but_not_proportional_ones() -> None:
    sums: dict[Method, list[float]] = {Method.RELATIVE_NON_NEGATIVE: [], Method.PROPORTIONAL: []}
    for method, biases in sums.items():
        for seed in range(20):
            rows, times = _scattered(0.5, seed)
            biases.append((rows @ fit(rows, times, method).values).sum() / times.sum() - 1)
    assert np.mean(sums[Method.RELATIVE_NON_NEGATIVE]) < -0.2
    assert abs(np.mean(sums[Method.PROPORTIONAL])) < 0.02


def test_a_line_without_noise_is_found_by_every_method() -> None:
    rows, times = _scattered(0.0)
    for method in Method:
        assert fit(rows, times, method).values == pytest.approx([2.0, 0.5], rel=1e-8)


def test_a_time_too_short_to_divide_by_is_refused() -> None:
    rows, times = _scattered(0.0)
    times[3] = 5e-324
    with pytest.raises(InvalidInput, match="too short to be compared"):
        fit(rows * 1e9, times, Method.RELATIVE_NON_NEGATIVE)
