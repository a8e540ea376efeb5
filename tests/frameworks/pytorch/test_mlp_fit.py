"""Habitat's networks and their training."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from wavecast.frameworks.pytorch.layers.mlp_fit import (
    Recipe,
    fit,
    milliseconds,
    network,
    split_by_configuration,
)
from wavecast.predictors.mlp import DEVICE_FEATURES, KINDS, MlpNetwork

Floats = NDArray[np.float64]
TINY = Recipe(width=16, depth=2, epochs=60, batch=64, late_after=30, rate=5e-3, late_rate=1e-3)


def made(rows: int = 500) -> tuple[Floats, Floats]:
    """Layers whose time is a simple product; the last feature never varies."""
    draw = np.random.default_rng(0)
    features = np.column_stack([draw.uniform(1, 10, (rows, 3)), np.full(rows, 0.1)])
    return features, features[:, 0] * features[:, 1] + 1


@pytest.mark.parametrize(
    ("kind", "count"),
    [("linear", 8_407_041), ("bmm", 8_407_041), ("lstm", 8_410_113), ("conv2d", 8_411_137)],
)
def test_the_published_shape_has_as_many_parameters(kind: str, count: int) -> None:
    features = len(KINDS[kind].names()) + len(DEVICE_FEATURES)
    with torch.device("meta"):
        assert sum(tensor.numel() for tensor in network(features).parameters()) == count


def test_the_default_is_the_published_recipe() -> None:
    assert dataclasses.asdict(Recipe()) == {
        "width": 1024,
        "depth": 8,
        "epochs": 80,
        "batch": 512,
        "rate": 5e-4,
        "late_rate": 1e-4,
        "late_after": 40,
        "decay": 1e-4,
        "seed": 0,
    }


@pytest.mark.slow
def test_it_learns() -> None:
    features, times = made()
    fitted = fit(features, times, TINY)
    assert len(fitted.losses) == TINY.epochs
    assert fitted.losses[0] > 0.5
    error = np.abs(milliseconds(fitted, features) / times - 1).mean()
    assert error < 0.1
    assert error == pytest.approx(fitted.losses[-1], abs=0.05)


def test_the_same_seed_gives_the_same_network() -> None:
    features, times = made(100)
    short = dataclasses.replace(TINY, epochs=2)
    first, second = (milliseconds(fit(features, times, short), features) for _ in range(2))
    other = milliseconds(fit(features, times, dataclasses.replace(short, seed=1)), features)
    assert (first == second).all()
    assert (first != other).any()


def test_training_leaves_the_random_numbers_of_others_alone() -> None:
    before = torch.get_rng_state()
    fit(*made(50), dataclasses.replace(TINY, epochs=1))
    assert torch.equal(torch.get_rng_state(), before)


def test_features_are_standardised_and_one_that_never_varied_is_ignored() -> None:
    features, times = made()
    fitted = fit(features, times, dataclasses.replace(TINY, epochs=1))
    scaled = (features - fitted.mean) * fitted.scale
    assert scaled[:, :3].mean(0) == pytest.approx(0, abs=1e-9)
    assert scaled[:, :3].std(0) == pytest.approx(1)
    assert (scaled[:, 3] == 0).all()
    moved = features + np.array([0, 0, 0, 5])
    assert (milliseconds(fitted, moved) == milliseconds(fitted, features)).all()


def test_numpy_answers_as_torch_does() -> None:
    features, times = made(100)
    fitted = fit(features, times, dataclasses.replace(TINY, epochs=3))
    by_numpy = MlpNetwork(fitted.mean, fitted.scale, fitted.weights).milliseconds(features)
    assert by_numpy == pytest.approx(milliseconds(fitted, features), rel=1e-4, abs=1e-5)


def test_fewer_rows_than_a_batch_are_one_batch() -> None:
    features, times = made(10)
    assert len(fit(features, times, dataclasses.replace(TINY, epochs=2)).losses) == 2


def test_a_configuration_is_for_training_on_every_gpu_or_on_none() -> None:
    layers = np.random.default_rng(0).integers(0, 6, (400, 3))
    train = split_by_configuration(layers)
    chosen = {tuple(row) for row in layers[train].tolist()}
    rest = {tuple(row) for row in layers[~train].tolist()}
    assert not chosen & rest
    assert len(chosen) == round(0.8 * len(chosen | rest))


@pytest.mark.gpu
def test_a_graph_trains_as_single_steps_do() -> None:
    features, times = made()
    short = dataclasses.replace(TINY, epochs=4, late_after=2)
    graphed, single = (fit(features, times, short, device="cuda", graph=g) for g in (True, False))
    assert graphed.losses == pytest.approx(single.losses, rel=1e-3)
