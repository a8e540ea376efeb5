"""Extrapolation to larger batches: a line through at least three, and its range."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, mm, trace

from wavecast import extrapolate_batch
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device, device
from wavecast.hardware.hosts import REFERENCE_HOST
from wavecast.predictors.base import Estimate, Predictor
from wavecast.steps.prediction import Prediction
from wavecast.steps.request import predict
from wavecast.traces.step import Op

small = st.integers(1, 1024)


@given(
    st.sets(small, min_size=3, max_size=8),
    st.integers(1, 1 << 16),
    st.floats(1e-5, 1e-2),
    st.floats(0, 1),
)
def test_a_line_is_found_exactly(
    known: set[int], batch: int, per_sample_s: float, fixed_s: float
) -> None:
    times = {size: fixed_s + per_sample_s * size for size in known}
    extrapolated = extrapolate_batch(times, batch)
    expected = fixed_s + per_sample_s * batch
    assert extrapolated.seconds == pytest.approx(expected)
    assert extrapolated.low_s == pytest.approx(expected, rel=1e-5)
    assert extrapolated.high_s == pytest.approx(expected, rel=1e-5)
    assert extrapolated.per_sample_s == pytest.approx(per_sample_s)
    assert extrapolated.throughput == batch / extrapolated.seconds
    assert extrapolated.points == times
    assert list(extrapolated.points) == sorted(known)


def test_what_lies_off_the_line_widens_the_range() -> None:
    # By hand: the line 1 + 2x misses (1, 2, 3) by d, -2d, d; so s^2 = 6 d^2 and Sxx = 2.
    d = 0.1
    extrapolated = extrapolate_batch({1: 3 + d, 2: 5 - 2 * d, 3: 7 + d}, 10)
    assert extrapolated.seconds == pytest.approx(21)
    off = 6.314 * d * math.sqrt(6) * math.sqrt(1 + 1 / 3 + 8**2 / 2)
    assert extrapolated.high_s == pytest.approx(21 + off)
    assert extrapolated.low_s == pytest.approx(max(21 - off, 0))


@pytest.mark.parametrize("count", [4, 12, 13, 20])
def test_more_batches_make_a_line_more_certain(count: int) -> None:
    def width(points: int) -> float:
        times = {size: 1.0 + size + (-1) ** size * 0.1 for size in range(1, points + 1)}
        extrapolated = extrapolate_batch(times, 100)
        return extrapolated.high_s - extrapolated.low_s

    assert 0 < width(count) < width(count - 1)


@dataclass(frozen=True)
class Affine(Predictor):
    """A predictor for which a product takes a fixed time, and some more per row."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        seconds = 0.5 + 0.25 * op.inputs[0].shape[0]
        return Estimate(seconds, seconds, seconds, "affine")


def predicted(batch: int, gpu: str = "l4") -> Prediction:
    step = trace(call(mm(batch)), samples=batch)
    return predict(step, device(gpu), predictor=Affine(), host=REFERENCE_HOST.scaled(0))


def test_predictions_are_taken_by_their_seconds() -> None:
    extrapolated = extrapolate_batch({size: predicted(size) for size in (2, 4, 8)}, 64)
    assert extrapolated.seconds == pytest.approx(16.5)
    assert extrapolated.points == {2: 1.0, 4: 1.5, 8: 2.5}


def test_predictions_on_several_gpus_make_no_line() -> None:
    known = {2: predicted(2), 4: predicted(4), 8: predicted(8, "t4")}
    with pytest.raises(InvalidInput, match="on several GPUs: l4, t4"):
        extrapolate_batch(known, 64)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_batch_sizes_are_refused(count: int) -> None:
    known = {size: float(size) for size in (8, 16)[:count]}
    sizes = "size is" if count == 1 else "sizes are"
    with pytest.raises(InvalidInput, match=f"{count} batch {sizes} too few for a line"):
        extrapolate_batch(known, 64)


@pytest.mark.parametrize(
    ("known", "batch"), [({1: 1.0, 2: 2.0, 3: 3.0}, 0), ({0: 1.0, 2: 2.0, 3: 3.0}, 9)]
)
def test_a_batch_without_samples_is_refused(known: dict[int, float], batch: int) -> None:
    with pytest.raises(InvalidInput, match="at least one sample"):
        extrapolate_batch(known, batch)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_is_none_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidInput, match=r"must be positive and finite; these are 1: 1 s, 2: "):
        extrapolate_batch({1: 1.0, 2: wrong, 3: 3.0}, 9)


def test_times_that_fall_with_the_batch_do_not_reach_below_0() -> None:
    with pytest.raises(InvalidInput, match=r"not above 0 s at 64.*8: 3 s, 16: 2 s, 24: 1 s"):
        extrapolate_batch({8: 3.0, 16: 2.0, 24: 1.0}, 64)


def test_times_near_the_largest_number_are_refused() -> None:
    with pytest.raises(InvalidInput):
        extrapolate_batch({2: 1e300, 4: 1.7e308, 8: 1e-3}, 10**6)
