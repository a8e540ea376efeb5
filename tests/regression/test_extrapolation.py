"""Extrapolation by GPU, number of GPUs, depth and batch, on synthetic runs of a known law."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

import wavecast
from wavecast.errors import InvalidInput, UnknownName
from wavecast.runs.regression.extrapolation import LAWS, POWERLESS, RING, Axis, Extrapolation, Law
from wavecast.runs.run import Run

WEAK, MIDDLE, STRONG = "t4", "v100-sxm-16gb", "a100-sxm-40gb"


def per_iteration(run: Run, power: float = 1.0) -> float:
    """The law of MG-3: a fixed time, work over GPUs and power, and a ring of exchanges."""
    modules = run.inner_modules or 1
    work = 0.004 * run.batch * modules / (run.gpus * power)
    return 0.01 + work + 0.02 * (run.gpus - 1) / run.gpus


def made(
    batches: Iterable[int] = (32, 64, 96),
    gpus: Iterable[int] = (1,),
    modules: Iterable[int | None] = (None,),
    names: Iterable[str] = ("",),
    sigma: float = 0.0,
    seed: int = 0,
) -> list[Run]:
    rng = np.random.default_rng(seed)
    runs = []
    for batch in batches:
        for count in gpus:
            for depth in modules:
                for name in names:
                    run = Run("made", batch, 100, 1.0, gpu=name, gpus=count, inner_modules=depth)
                    power = wavecast.device(name).fp32_flops / 1e13 if name else 1.0
                    noise = float(np.exp(sigma * rng.standard_normal()))
                    took = 100 * per_iteration(run, power) * noise
                    runs.append(replace(run, seconds=took))
    return runs


def test_more_gpus_follow_without_noise() -> None:
    model = Extrapolation("gpus").fit(made(gpus=(1, 2, 3)))
    (truth,) = made(batches=(64,), gpus=(8,))
    assert model.predict(batch=64, iterations=100, gpus=8).seconds == pytest.approx(truth.seconds)
    assert model.features == ("1", "bM/gP", "(g-1)/g")


def test_a_stronger_gpu_follows_without_noise() -> None:
    model = Extrapolation("power").fit(made(names=(WEAK, MIDDLE)))
    (truth,) = made(batches=(64,), names=(STRONG,))
    estimate = model.predict(batch=64, iterations=100, gpu=STRONG)
    assert estimate.seconds == pytest.approx(truth.seconds)


def test_a_deeper_network_follows_without_noise() -> None:
    model = Extrapolation("inner_modules").fit(made(modules=(3, 4, 5)))
    (truth,) = made(batches=(64,), modules=(8,))
    estimate = model.predict(batch=64, iterations=100, inner_modules=8)
    assert estimate.seconds == pytest.approx(truth.seconds)


def test_a_larger_batch_follows_without_noise() -> None:
    model = Extrapolation("batch").fit(made())
    (truth,) = made(batches=(256,))
    assert model.predict(batch=256, iterations=100).seconds == pytest.approx(truth.seconds)


@pytest.mark.parametrize(
    ("axis", "seen", "asked", "bound"),
    [
        ("gpus", {"gpus": (1, 2, 3)}, {"gpus": 4}, 0.03),
        ("gpus", {"gpus": (1, 2, 4)}, {"gpus": 8}, 0.05),
        ("inner_modules", {"modules": (3, 4, 5, 6)}, {"inner_modules": 8}, 0.03),
        ("batch", {"batches": (32, 48, 64, 96)}, {"batch": 192}, 0.045),
    ],
)
def test_noise_of_three_percent_stays_small(
    axis: str, seen: dict[str, tuple[int, ...]], asked: dict[str, int], bound: float
) -> None:
    errors = []
    for seed in range(30):
        model = Extrapolation(axis).fit(made(sigma=0.03, seed=seed, **seen))  # type: ignore[arg-type]
        wanted = {"batch": 64, **asked}
        truth = per_iteration(
            Run(
                *("made", wanted["batch"], 1, 1.0),
                gpus=wanted.get("gpus", 1),
                inner_modules=wanted.get("inner_modules"),
            )
        )
        errors.append(abs(model.predict(**wanted).seconds / truth - 1))  # type: ignore[arg-type]
    assert np.mean(errors) < bound


def test_plain_numbers_of_gpus_lose_against_their_inverse() -> None:
    plain = Law("plain", ("1", "b", "g-1"))
    model = Extrapolation("gpus", laws=(plain, RING)).fit(made(gpus=(1, 2, 3)))
    assert model.law == RING
    errors = {trial.law.name: trial.error or 0.0 for trial in model.trials}
    assert errors["plain"] > 0.1 > errors[RING.name]
    assert "fitted without them" in model.reason
    assert "plain" in model.reason


def test_the_choice_is_made_on_runs_left_out_and_not_on_fit() -> None:
    # A law that fits everything best loses because it fails on the most GPUs.
    wild = Law("wild", ("1", "b", "b/g", "1/g", "g-1"))
    runs = made(gpus=(1, 2, 3, 4), sigma=0.02, seed=5)
    model = Extrapolation("gpus", laws=(wild, RING)).fit(runs)
    assert model.law == RING
    assert model.trial.left_out == 6  # with 3 and 4 GPUs; three of them were left out twice


def test_with_two_levels_the_simplest_law_of_exchange_is_taken() -> None:
    model = Extrapolation("gpus").fit(
        [Run("made", 32 * gpus, 1, 1.0 + 0.1 * (gpus > 1), gpus=gpus) for gpus in (1, 2)]
    )
    assert "(g-1)/g" in model.features
    estimate = model.predict(batch=128, gpus=4)
    assert estimate.seconds == pytest.approx(1.15)
    assert estimate.low_s < 1.15 < estimate.high_s


def test_more_gpus_than_any_run_had_have_a_wide_range() -> None:
    # Exact runs say nothing of the link or the network that more GPUs need.
    model = Extrapolation("gpus").fit(made(gpus=(1, 2, 4)))
    known, twice, four = (model.predict(batch=64, gpus=gpus) for gpus in (3, 8, 16))
    assert known.low_s == pytest.approx(known.high_s)
    for estimate, doublings in ((twice, 1), (four, 2)):
        assert estimate.low_s <= (1 - 0.1 * doublings) * estimate.seconds
        assert estimate.high_s >= (1 + 0.4 * doublings) * estimate.seconds


def test_a_prediction_that_the_runs_do_not_determine_is_refused() -> None:
    # The batch of each GPU is always 32, so nothing is known about 64.
    model = Extrapolation("gpus").fit(
        [Run("made", 32 * gpus, 1, 1.0 + 0.1 * (gpus > 1), gpus=gpus) for gpus in (1, 2)]
    )
    with pytest.raises(InvalidInput, match="do not separate"):
        model.predict(batch=256, gpus=4)


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("gpus", "every run has gpus 1"),
        ("power", "every run has the GPU"),
        ("inner_modules", "do not say how many inner modules"),
        ("memory", "an axis is power, gpus, inner_modules, batch"),
    ],
)
def test_an_axis_on_which_nothing_varies_is_refused(axis: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Extrapolation(axis).fit(made())


def test_runs_of_several_networks_or_none_are_refused() -> None:
    runs = made(gpus=(1, 2, 3))
    with pytest.raises(InvalidInput, match="differ in model"):
        Extrapolation("gpus").fit([replace(runs[0], model="other"), *runs])
    with pytest.raises(InvalidInput, match="no run of testing"):
        Extrapolation("gpus", phase="testing").fit(runs)


def test_the_number_of_gpus_is_asked_for_where_runs_differ_in_it() -> None:
    model = Extrapolation("gpus").fit(made(gpus=(1, 2, 3)))
    with pytest.raises(InvalidInput, match="differ in gpus"):
        model.predict(batch=64)
    alone = Extrapolation("batch").fit(made())
    assert alone.predict(batch=64) == alone.predict(batch=64, gpus=1)
    with pytest.raises(InvalidInput, match="nothing is known about 2"):
        alone.predict(batch=64, gpus=2)


def test_an_unknown_gpu_is_refused_when_there_are_several() -> None:
    runs = made(names=(WEAK, MIDDLE))
    with pytest.raises(UnknownName, match="unknown device"):
        Extrapolation("power").fit([replace(runs[0], gpu="abacus"), *runs])
    model = Extrapolation("power").fit(runs)
    with pytest.raises(InvalidInput, match="to predict for"):
        model.predict(batch=64)
    one = Extrapolation("gpus").fit(made(gpus=(1, 2, 3)))
    with pytest.raises(InvalidInput, match="nothing is known about l4"):
        one.predict(batch=64, gpus=2, gpu="l4")


def test_every_axis_can_be_learned_from_one_set_of_runs() -> None:
    runs = made(gpus=(1, 2), modules=(3, 4), names=(WEAK, STRONG))
    for axis in Axis:
        model = Extrapolation(axis).fit(runs)
        assert len(model.trials) > 1
        assert model.axes == (axis,)
    assert RING in LAWS


def test_features_without_the_speed_of_the_gpu_are_not_used_for_power() -> None:
    model = Extrapolation("power").fit(made(names=(WEAK, MIDDLE)))
    assert not any(POWERLESS & {*trial.law.features} for trial in model.trials)
    assert any(POWERLESS & {*law.features} for law in LAWS)


def test_all_four_axes_are_extrapolated_at_once() -> None:
    runs = made(gpus=(1, 2, 3), modules=(3, 4, 5), names=(WEAK, MIDDLE))
    model = Extrapolation(("power", "gpus", "inner_modules", "batch")).fit(runs)
    (truth,) = made(batches=(256,), gpus=(8,), modules=(9,), names=(STRONG,))
    beyond = {"gpus": 8, "gpu": STRONG, "inner_modules": 9}
    estimate = model.predict(batch=256, iterations=100, **beyond)  # type: ignore[arg-type]
    assert estimate.seconds == pytest.approx(truth.seconds)
    assert model.axes == (Axis.POWER, Axis.GPUS, Axis.MODULES, Axis.BATCH)
    assert "largest power or gpus or inner_modules or batch" in model.reason


def test_runs_at_the_top_of_any_axis_are_left_out_together() -> None:
    runs = made(gpus=(1, 2, 3))
    alone = [Extrapolation(axis).fit(runs).trial.left_out for axis in ("gpus", "batch")]
    joint = Extrapolation(("gpus", "batch")).fit(runs)
    assert alone == [3, 3]
    assert joint.trial.left_out == 5  # all with 3 GPUs or batch 96, each counted once


def test_axes_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidInput, match="name the axes to extrapolate along: power"):
        Extrapolation(()).fit(made())
    with pytest.raises(InvalidInput, match=r'an axis is power, .* not "depth"'):
        Extrapolation(("batch", "depth")).fit(made())
