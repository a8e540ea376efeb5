"""Models of whole runs: Gianniti et al. 2019, section 4.3, on made-up runs."""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import (
    BATCHES,
    BETAS,
    ITERATIONS,
    SPLITS,
    grid_runs,
    seconds,
    seen,
    unseen,
)

from wavecast.errors import InvalidInput, MissingExtra
from wavecast.runs.regression import least_squares as least_squares
from wavecast.runs.regression.end_to_end import FULL, WITHOUT_BATCH, EndToEnd
from wavecast.runs.regression.least_squares import Method, mape, signed_errors
from wavecast.runs.run import Run


def runs_at(*points: tuple[int, int]) -> list[Run]:
    return [Run("made", b, i, seconds(BETAS["AlexNet-like"], b, i)) for b, i in points]


def test_the_splits_have_the_published_numbers_of_runs() -> None:
    runs = grid_runs(BETAS["AlexNet-like"])
    assert len(runs) == 160
    assert [len(seen(runs, count)) for count in SPLITS] == [6, 12, 20]
    assert len(unseen(runs)) == 140
    assert set(seen(runs, 6)) < set(seen(runs, 12)) < set(seen(runs, 20))


@pytest.mark.parametrize("beta", BETAS.values(), ids=BETAS)
@pytest.mark.parametrize("count", SPLITS)
@pytest.mark.parametrize("method", Method)
def test_without_noise_the_coefficients_are_recovered(
    beta: tuple[float, ...], count: int, method: Method
) -> None:
    model = EndToEnd(method).fit(seen(grid_runs(beta), count))
    assert model.features == FULL
    assert [coefficient.value for coefficient in model.coefficients] == pytest.approx(
        beta, rel=1e-8
    )
    assert model.mape < 1e-8


@pytest.mark.parametrize("beta", BETAS.values(), ids=BETAS)
@pytest.mark.parametrize(("count", "bound"), [(6, 5.0), (12, 2.5), (20, 1.7)])
def test_with_one_percent_of_noise_long_runs_are_met(
    beta: tuple[float, ...], count: int, bound: float
) -> None:
    errors = []
    for seed in range(100):
        runs = grid_runs(beta, 0.01, seed)
        errors.append(np.abs(EndToEnd().fit(seen(runs, count)).errors_on(unseen(runs))).mean())
    assert 100 * np.mean(errors) <= bound


def test_the_default_is_nearer_than_ordinary_least_squares_on_six_short_runs() -> None:
    off: dict[str, list[float]] = {"ordinary": [], "relative non-negative": []}
    for seed in range(100):
        runs = grid_runs(BETAS["GoogLeNet-like"], 0.03, seed)
        for method, errors in off.items():
            model = EndToEnd(method).fit(seen(runs, 6))
            errors.append(float(np.abs(model.errors_on(unseen(runs))).mean()))
    assert np.mean(off["relative non-negative"]) < 0.8 * np.mean(off["ordinary"])


@pytest.mark.parametrize("count", SPLITS)
def test_nine_in_ten_runs_are_within_their_range(count: int) -> None:
    inside = []
    for seed in range(30):
        runs = grid_runs(BETAS["VGG-like"], 0.02, seed)
        model = EndToEnd().fit(seen(runs, count))
        for run in unseen(runs)[seed::20]:
            estimate = model.predict(run.batch, run.iterations)
            assert estimate.low_s <= estimate.seconds <= estimate.high_s
            inside.append(estimate.low_s <= run.seconds <= estimate.high_s)
    assert 0.8 <= np.mean(inside) <= 0.97


def test_ranges_of_coefficients_hold_the_true_ones() -> None:
    beta = BETAS["GoogLeNet-like"]
    held = []
    for seed in range(300):
        model = EndToEnd("relative").fit(seen(grid_runs(beta, 0.02, seed), 20))
        pairs = zip(model.coefficients, beta, strict=True)
        held += [coefficient.low <= true <= coefficient.high for coefficient, true in pairs]
    assert 0.82 <= np.mean(held) <= 0.97


def test_training_and_testing_are_models_of_their_own() -> None:
    training = grid_runs(BETAS["VGG-like"])
    testing = grid_runs(BETAS["AlexNet-like"], phase="testing")
    both = [*training, *testing]
    for phase, beta in (("training", "VGG-like"), ("testing", "AlexNet-like")):
        predicted_s = EndToEnd(phase=phase).fit(both).predict(64, 90_000).seconds
        assert predicted_s == pytest.approx(seconds(BETAS[beta], 64, 90_000), rel=1e-6)
    with pytest.raises(InvalidInput, match=r"no run of testing .* there are runs of training"):
        EndToEnd(phase="testing").fit(training)
    with pytest.raises(InvalidInput, match="training or testing"):
        EndToEnd(phase="serving").fit(training)


def test_runs_that_vary_in_one_dimension_tell_nothing_about_the_other() -> None:
    model = EndToEnd().fit(runs_at((8, 100), (8, 200), (8, 300)))
    assert model.features == ("1", "iterations")
    assert model.predict(iterations=1000).seconds == pytest.approx(
        seconds(BETAS["AlexNet-like"], 8, 1000)
    )
    with pytest.raises(InvalidInput, match=r"every run has batch 8, .* add a run with batch 64"):
        model.predict(batch=64, iterations=1000)
    by_batch = EndToEnd().fit(runs_at((8, 100), (16, 100), (32, 100)))
    assert by_batch.features == ("1", "batch")
    assert by_batch.predict(batch=64).seconds == pytest.approx(
        seconds(BETAS["AlexNet-like"], 64, 100)
    )


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([(8, 100)], "nothing varies"),
        ([(8, 100), (8, 100), (8, 100)], "add a run with 200 iterations, and one with batch 16"),
        ([(8, 100), (8, 200)], r"add \(batch 8, 400 iterations\)$"),
        ([(8, 100), (16, 200), (24, 300), (32, 400)], r"add \(batch 8, 200 iterations\)"),
        ([(8, 100), (8, 120), (16, 100), (16, 120)], r"add \(batch 8, 240 iterations\)$"),
    ],
)
def test_undetermined_coefficients_are_refused_with_the_runs_to_add(
    points: list[tuple[int, int]], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        EndToEnd().fit(runs_at(*points))


@given(
    points=st.lists(
        st.tuples(st.sampled_from((8, 16, 32)), st.sampled_from((100, 200, 400))),
        min_size=2,
        max_size=6,
    )
)
def test_after_adding_the_runs_that_are_named_it_fits(points: list[tuple[int, int]]) -> None:
    added: list[tuple[int, int]] = []
    try:
        EndToEnd().fit(runs_at(*points))
    except InvalidInput as error:
        named = re.findall(r"\(batch (\d+), (\d+) iterations\)", str(error))
        added = [(int(batch), int(iterations)) for batch, iterations in named]
    if added or len(set(points)) > 1:
        assert EndToEnd().fit(runs_at(*points, *added)).mape < 1e-6


@pytest.mark.parametrize(
    ("field", "values"),
    [("model", ("a", "b")), ("gpu", ("l4", "t4")), ("gpus", (1, 2)), ("precision", ("", "bf16"))],
)
def test_runs_of_different_things_are_refused(field: str, values: tuple[object, object]) -> None:
    runs = grid_runs(BETAS["VGG-like"])
    one, other = (replace(runs[0], **{field: value}) for value in values)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"differ in {field}"):
        EndToEnd().fit([one, other, *runs[2:]])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_run_that_took_no_time_is_refused_by_its_source(bad: float) -> None:
    runs = grid_runs(BETAS["VGG-like"])
    runs[3] = replace(runs[3], seconds=bad, source="runs.csv, line 5")
    with pytest.raises(InvalidInput, match=r"runs\.csv, line 5: .* is not a time"):
        EndToEnd().fit(runs)


def test_objects_that_are_not_runs_are_refused() -> None:
    with pytest.raises(InvalidInput, match="run 1 is a dict"):
        EndToEnd().fit([{"batch": 8}])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="no run of training"):
        EndToEnd().fit([])


def test_errors_are_signed_below_zero_when_predicted_too_short() -> None:
    assert signed_errors(np.array([9.0, 12.0]), np.array([10.0, 10.0])) == pytest.approx(
        [-0.1, 0.2]
    )
    assert mape(np.array([9.0, 12.0]), np.array([10.0, 10.0])) == pytest.approx(0.15)


def test_fewer_features_are_an_option() -> None:
    model = EndToEnd(features=WITHOUT_BATCH).fit(seen(grid_runs((2.0, 0.0, 0.02, 0.002)), 6))
    assert len(model.coefficients) == 3
    assert model.predict(64, 1000).seconds == pytest.approx(2 + 20 + 128)
    with pytest.raises(InvalidInput, match="features are one of"):
        EndToEnd(features=("batch",)).fit(grid_runs(BETAS["VGG-like"]))


def test_runs_may_come_one_by_one() -> None:
    model = EndToEnd().fit(run for run in grid_runs(BETAS["VGG-like"]))
    assert len(model.table) == 160


@given(
    scale=st.floats(1e-6, 1e6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_another_unit_of_time_changes_nothing_but_the_unit(scale: float, seed: int) -> None:
    runs = seen(grid_runs(BETAS["VGG-like"], 0.05, seed), 12)
    scaled = [replace(run, seconds=run.seconds * scale) for run in runs]
    for method in Method:
        plain = EndToEnd(method).fit(runs).predict(64, 1000)
        other = EndToEnd(method).fit(scaled).predict(64, 1000)
        assert other.seconds == pytest.approx(scale * plain.seconds, rel=1e-6)
        assert other.high_s == pytest.approx(scale * plain.high_s, rel=1e-6)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_non_negative_fits_never_predict_below_zero(seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = [Run("made", b, i, float(rng.uniform(0.1, 10))) for b in (8, 16) for i in (1, 5, 9)]
    for method in (Method.NON_NEGATIVE, Method.RELATIVE_NON_NEGATIVE):
        model = EndToEnd(method).fit(runs)
        assert all(coefficient.value >= 0 for coefficient in model.coefficients)
        assert model.predict(64, 1000).low_s >= 0


def test_without_scipy_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name.split(".")[0] == "scipy":
            raise ModuleNotFoundError("No module named 'scipy'", name="scipy")
        return real(name, *args, **kwargs)

    for name in [module for module in sys.modules if module.split(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", lambda name: without(name))
    with pytest.raises(MissingExtra, match=r"pip install 'wavecast\[regression\]'"):
        EndToEnd().fit(grid_runs(BETAS["VGG-like"]))
    assert EndToEnd(Method.ORDINARY).fit(grid_runs(BETAS["VGG-like"])).mape < 1e-8


def test_as_many_coefficients_as_times_have_no_ranges() -> None:
    fitted = least_squares.fit(np.eye(2), np.array([1.0, 2.0]))
    assert fitted.values == pytest.approx([1.0, 2.0])
    with pytest.raises(InvalidInput, match="uncertainty is unknown"):
        fitted.coefficient_ranges()
    with pytest.raises(InvalidInput, match="not determined"):
        least_squares.fit(np.ones((3, 2)), np.ones(3))
    with pytest.raises(InvalidInput, match="more than 1"):
        least_squares.fit(np.ones((1, 2)), np.ones(1))


def test_work_replaces_the_batch_where_time_is_not_linear_in_it() -> None:
    def work(batch: int) -> float:
        return float(0.002 * batch**0.7)

    runs = [
        Run("made", b, i, 0.5 + i * (0.001 + 1.2 * work(b))) for b in BATCHES for i in ITERATIONS
    ]
    few, many = seen(runs, 6), [run for run in runs if run.batch > 16]
    bent = EndToEnd(work=work).fit(few)
    assert np.abs(bent.errors_on(many)).max() < 1e-6
    assert bent.predict(64, 900).seconds == pytest.approx(0.5 + 900 * (0.001 + 1.2 * work(64)))
    names = [coefficient.feature for coefficient in bent.coefficients]
    assert names == ["1", "work", "iterations", "work*iterations"]
    assert np.abs(EndToEnd().fit(few).errors_on(many)).mean() > 0.1


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_invalid_work_is_refused(wrong: float) -> None:
    with pytest.raises(InvalidInput, match="work of a batch"):
        EndToEnd(work=lambda batch: wrong).fit(grid_runs(BETAS["VGG-like"]))
