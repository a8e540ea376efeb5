"""Which layers a network answers for, and the sweep over depths and widths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.fit import mlp_sweep
from lab.fit.mlp_coverage import answered, ranges_by_gpu
from lab.places import ROOT
from wavecast.hardware.devices import device
from wavecast.predictors.mlp.features import device_features

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


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """An empty file of public layers."""
    empty: dict[str, Any] = {"linear.layers": np.zeros((0, 4), np.int32)}
    empty |= {"linear.gpu": np.zeros(0, str)}
    empty |= {f"linear.{name}_s": np.zeros(0) for name in ("forward", "backward")}
    np.savez_compressed(tmp_path / "public.npz", **empty)
    return tmp_path / "public.npz"


def test_the_sweep_prints_an_error_for_each_size(
    public: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = ROOT / "measurements" / "h200" / "layers" / "h200-sxm-linear-0.csv"
    sizes = ["--depths", "1", "2", "--widths", "4", "8", "--epochs", "2", "--rows", "200"]
    mlp_sweep.main([str(public), str(ours), "--kinds", "linear", *sizes])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "linear: 200 rows, 2 epochs"
    assert printed[-4:-2] == ["| layers | 4 | 8 |", "|---|---|---|"]
    cells = [cell for line in printed[-2:] for cell in line.strip("| ").split(" | ")[1:]]
    assert len(cells) == 4
    assert all(0 < float(cell) < 1000 for cell in cells)
