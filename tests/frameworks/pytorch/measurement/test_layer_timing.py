"""Single layers are timed forwards and backwards; a layer that cannot run gets a status."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from wavecast.campaigns.layer_times import collect, read_rows
from wavecast.frameworks.pytorch.measurement import layers as timing
from wavecast.frameworks.pytorch.measurement.layers import gpu_id, software, time_layer
from wavecast.predictors.mlp import (
    Bmm,
    Conv2d,
    Layer,
    LayerStatus,
    Linear,
    Lstm,
    PassTimes,
    sample,
)

SMALL: list[Layer] = [
    Conv2d(True, 2, 8, 3, 16, 3, 2, 1),
    Conv2d(False, 1, 5, 3, 16, 5, 1, 0),
    Lstm(True, True, 2, 4, 8, 16, 2),
    Lstm(False, False, 1, 1, 1, 1, 1),
    Bmm(2, 8, 4, 3),
    Linear(True, 4, 8, 2),
    Linear(False, 1, 1, 1),
]


@pytest.mark.parametrize("layer", SMALL, ids=repr)
def test_a_layer_has_a_time_each_way(layer: Layer) -> None:
    times = time_layer(layer, "cpu")
    assert times.status is LayerStatus.OK
    assert times.forward_s is not None
    assert times.backward_s is not None
    assert 0 < times.forward_s < 10
    assert 0 < times.backward_s < 10


@pytest.mark.parametrize("layer", SMALL, ids=repr)
def test_the_layer_that_runs_has_the_asked_shapes(layer: Layer) -> None:
    runnable = timing._runnable(layer, {"device": "cpu", "dtype": torch.float32})
    out = runnable.forward().shape
    match layer:
        case Conv2d():
            side = layer.out_image
            assert out == (layer.batch, layer.out_channels, side, side)
        case Lstm():
            width = layer.hidden * (1 + layer.bidirectional)
            assert out == (layer.sequence, layer.batch, width)
        case Bmm():
            assert out == (layer.batch, layer.left, layer.right)
        case Linear():
            assert out == (layer.batch, layer.out_features)
    assert all(leaf.requires_grad for leaf in runnable.leaves)


class Counting:
    """A layer that counts how often it runs, and may take long or fail."""

    def __init__(self, run: Any = None) -> None:
        self.weight = torch.ones(2, requires_grad=True)
        self.runs = 0
        self.run = run

    def forward(self) -> Any:
        self.runs += 1
        if self.run is not None:
            self.run()
        return self.weight * 2

    @property
    def leaves(self) -> list[Any]:
        return [self.weight]


def counted(monkeypatch: pytest.MonkeyPatch, run: Any = None) -> Counting:
    counting = Counting(run)
    monkeypatch.setattr(timing, "_runnable", lambda *_: counting)
    return counting


def test_three_runs_warm_up_and_three_count(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = counted(monkeypatch)
    time_layer(SMALL[0], "cpu")
    assert counting.runs >= 3 + 3


def test_a_slow_layer_runs_three_times_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = counted(monkeypatch)
    monkeypatch.setattr(timing, "SLOW_S", 0.0)
    assert time_layer(SMALL[0], "cpu", repeats=10).status is LayerStatus.OK
    assert counting.runs == 3


def test_no_memory_is_a_status_after_a_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    counting = counted(monkeypatch, full)
    assert time_layer(SMALL[0], "cpu") == PassTimes(None, None, LayerStatus.OOM)
    assert counting.runs == 2


def test_a_layer_that_fails_is_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported() -> None:
        raise RuntimeError("no algorithm")

    counted(monkeypatch, unsupported)
    assert time_layer(SMALL[0], "cpu") == PassTimes(None, None, LayerStatus.FAILED)


def test_a_broken_gpu_stops_the_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    def breaking() -> None:
        monkeypatch.setattr(timing, "_synchronize", broken)
        broken()

    counted(monkeypatch, breaking)
    with pytest.raises(RuntimeError, match="illegal"):
        time_layer(SMALL[0], "cpu")


def test_tf32_is_off_while_timing_and_as_before_after(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, bool]] = []

    def look() -> None:
        cudnn = torch.backends.cudnn.allow_tf32
        seen.append((torch.get_float32_matmul_precision(), cudnn))

    counted(monkeypatch, look)
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    time_layer(SMALL[0], "cpu")
    assert set(seen) == {("highest", False)}
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_timing_and_collecting_go_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    small = [layer for layer in islice(sample("bmm", 0), 200) if max(layer.features()) < 64][:3]
    collect(
        "bmm",
        "small",
        3,
        path,
        lambda layer: time_layer(layer, "cpu"),
        gpu=gpu_id("cpu"),
        software=software(),
        layers=small,
    )
    rows = read_rows(path)
    assert [row.layer for row in rows] == small
    assert {row.gpu for row in rows} == {"cpu"}
    assert f"torch {torch.__version__}" in rows[0].software


@pytest.mark.gpu
@pytest.mark.parametrize("layer", SMALL, ids=repr)
def test_small_layers_take_microseconds_on_a_gpu(layer: Layer) -> None:
    times = time_layer(layer)
    assert times.forward_s is not None
    assert times.forward_s < 1e-3


@pytest.mark.gpu
def test_a_gpu_without_the_memory_says_so_and_goes_on() -> None:
    assert time_layer(Linear(False, 1, 1 << 20, 1 << 20)).status is LayerStatus.OOM
    assert time_layer(Linear(False, 1, 8, 8)).status is LayerStatus.OK
