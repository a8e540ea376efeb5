"""The four layers: their features, impossible sizes, and samples that never change."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecast.errors import InvalidInput, UnknownName
from wavecast.predictors.mlp import (
    KINDS,
    Bmm,
    Conv2d,
    Layer,
    Linear,
    Lstm,
    layer,
    layer_type,
    sample,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
seeds = st.integers(0, 2**32)


def first(kind: str, seed: int, count: int = 200) -> list[Layer]:
    return list(islice(sample(kind, seed), count))


def test_the_features_are_those_that_habitat_counts() -> None:
    assert {kind: len(cls.names()) for kind, cls in KINDS.items()} == {
        "conv2d": 8,
        "lstm": 7,
        "bmm": 4,
        "linear": 4,
    }


@every_kind
@given(seed=seeds)
def test_a_layer_comes_back_from_its_features(kind: str, seed: int) -> None:
    for drawn in first(kind, seed, 5):
        assert layer(kind, drawn.features()) == drawn


@every_kind
@given(seed=seeds)
def test_samples_lie_within_the_published_ranges_without_duplicates(kind: str, seed: int) -> None:
    layers = first(kind, seed, 60)
    assert len(set(layers)) == len(layers)
    for drawn in layers:
        for value, (low, high) in zip(drawn.features(), drawn.ranges().values(), strict=True):
            assert low <= value <= high


@given(seeds)
def test_convolutions_are_valid_and_not_too_large(seed: int) -> None:
    for drawn in first("conv2d", seed, 50):
        assert isinstance(drawn, Conv2d)
        assert drawn.out_image >= 1
        size = drawn.image**1.15 * drawn.in_channels * drawn.out_channels * drawn.kernel
        assert size <= 3.5e7 * (1 + 1e-9)


@every_kind
def test_both_ends_of_every_range_are_reached(kind: str) -> None:
    layers = [drawn.features() for drawn in first(kind, 1, 20_000)]
    for values, (low, high) in zip(
        zip(*layers, strict=True), layer_type(kind).ranges().values(), strict=True
    ):
        assert min(values) <= low + 0.02 * (high - low)
        # The largest convolutions are rejected, so the largest channels are rare.
        assert max(values) >= high - 0.05 * (high - low)


# Fixed digests: a machine or Python version that draws differently must fail here.
@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("conv2d", "f84a4835f24dd7ea"),
        ("lstm", "fd994725ee56823a"),
        ("bmm", "61bc10004f35c3db"),
        ("linear", "c1caa71158643aa6"),
    ],
)
def test_a_seed_gives_the_same_layers_everywhere(kind: str, digest: str) -> None:
    text = repr([drawn.features() for drawn in first(kind, 0, 1000)])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_the_sample_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from itertools import islice; from wavecast.predictors.mlp import sample;"
        "print([x.features() for x in islice(sample('conv2d', 3), 20)])"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


@pytest.mark.parametrize(
    ("kind", "features"),
    [
        ("linear", (0, 0, 4, 4)),
        ("linear", (2, 4, 4, 4)),
        ("bmm", (1, 1, -1, 1)),
        ("lstm", (1, 0, 1, 1, 1, 1, 0)),
        ("conv2d", (0, 1, 4, 3, 16, 7, 1, 1)),
        ("conv2d", (0, 1, 4, 3, 16, 3, 1, -1)),
    ],
)
def test_impossible_layers_are_refused(kind: str, features: tuple[int, ...]) -> None:
    layer_class: Any = KINDS[kind]
    with pytest.raises(InvalidInput):
        layer_class(*features)


def test_layers_outside_the_sampled_ranges_are_allowed() -> None:
    assert Linear(True, 100_000, 1, 50_000).batch == 100_000
    assert Conv2d(False, 1, 512, 1, 1, 1, 1, 0).out_image == 512
    assert Bmm(4096, 1, 1, 1).batch == 4096
    assert Lstm(True, False, 1, 1000, 1, 1, 1).sequence == 1000


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownName, match="conv2d, lstm, bmm, linear"):
        next(sample("conv3d", 0))


def test_features_of_another_kind_are_refused() -> None:
    with pytest.raises(InvalidInput, match="4 features, not 3"):
        layer("bmm", (1, 2, 3))
