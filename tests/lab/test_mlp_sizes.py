"""Which layers a network answers for."""

from __future__ import annotations

from typing import Any

import numpy as np

from lab.fit.mlp import answered, ranges_by_gpu
from wavecast.hardware.devices import device
from wavecast.predictors.mlp import device_features

GPUS = ("p4", "t4", "p100-pcie-16gb")


def rows(*measured: tuple[str, int]) -> tuple[Any, Any]:
    """The features and GPUs of square batched products, from (GPU, size) pairs."""
    features = [(1, size, size, size, *(device_features(device(g)) or ())) for g, size in measured]
    return np.array(features, dtype=float), np.array([gpu for gpu, _ in measured])


def test_a_network_answers_for_layers_measured_on_two_gpus_of_its_training() -> None:
    measured = [(gpu, size) for gpu in GPUS for size in (8, 64)] + [("p4", 512)]
    features, gpu = rows(*measured)
    assert ranges_by_gpu("bmm", features, gpu)["p4"]["left"] == (8.0, 512.0)
    train = gpu != "t4"
    assert answered("bmm", features, gpu, train).all()
    # Of the size 512 only the P4 was measured.
    features, gpu = rows(*measured, ("t4", 512))
    known = answered("bmm", features, gpu, gpu != "t4")
    assert known.tolist() == [True] * 7 + [False]
