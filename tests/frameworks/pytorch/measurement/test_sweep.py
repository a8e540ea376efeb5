"""A sweep of single layers: what is drawn, and when it ends; without a GPU."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from made import mm

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.drawn import network_layers, newer_layers
from wavecast.frameworks.pytorch.drawn.network_layers import Layer, ShapeDraw, TooLarge, through
from wavecast.frameworks.pytorch.measurement import sweep as sweeping
from wavecast.frameworks.pytorch.measurement.sweep import CHUNK, MIXED, SET_WEIGHTS, SETS, drawn
from wavecast.traces.step import Call, Phase, Trace

SLOW_ON_META = {network_layers.recurrent, newer_layers.recurrence}
NEEDS_A_GPU = {newer_layers.transcribed}
Maker = Callable[[ShapeDraw], Layer]


@pytest.mark.parametrize(
    "make",
    [make for make, _ in MIXED if make not in SLOW_ON_META | NEEDS_A_GPU],
    ids=lambda make: f"{make.__module__.rpartition('.')[2]}-{make.__name__}",
)
def test_every_layer_runs_forward_and_backward(make: Maker) -> None:
    ran = 0
    for seed in range(8):
        try:
            make(ShapeDraw(random.Random(seed), "bf16", "nhwc", "meta"))()
        except TooLarge:
            continue
        except RuntimeError as error:
            if "fused" in str(error):  # such optimizers know no tensors without storage
                continue
            raise
        ran += 1
        if ran == 2:
            return
    pytest.fail("too few of the drawn sizes can be made")


def test_the_sets_of_layers_have_their_weights() -> None:
    assert len(MIXED) == sum(map(len, SETS.values()))
    for name, kinds in SETS.items():
        own = sum(weight for make, weight in MIXED if make in [kind for kind, _ in kinds])
        assert own == pytest.approx(1000 * SET_WEIGHTS[name], rel=0.01)


def test_sizes_that_do_not_fit_are_drawn_again_and_those_that_fail_are_left_out() -> None:
    tried: Counter[str] = Counter()

    def small(draw: ShapeDraw) -> Layer:
        tried[draw.layout] += 1
        if sum(tried.values()) % 3 == 1:
            raise TooLarge
        if sum(tried.values()) % 3 == 2:
            raise RuntimeError("out of memory")
        x = draw.tensor(4, 4)
        return through(lambda: torch.relu(x), x)

    layers = list(drawn([(small, 1)], random.Random(0), "fp32", "cpu"))
    assert len(layers) == CHUNK // 2
    assert sum(tried.values()) == pytest.approx(CHUNK * 1.5, abs=2)
    assert tried["nhwc"] > tried["nchw"] > 0


def test_a_sweep_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CaptureError, match="needs a GPU"):
        sweeping.sweep(1.0)


@pytest.mark.parametrize(("capability", "newest"), [((7, 5), "fp16"), ((9, 0), "bf16")])
def test_chunks_follow_until_the_time_is_up(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], newest: str
) -> None:
    chunks: list[tuple[str, bool]] = []
    clock = iter(range(1000))

    def fake(kinds: Any, pick: random.Random, precision: str, *, searching: bool) -> Trace:
        chunks.append((precision, searching))
        torch.backends.cudnn.benchmark = True
        return Trace((Call(mm(), Phase.FORWARD),) * 2)

    before = torch.backends.cudnn.benchmark
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(sweeping, "recorded_chunk", fake)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    reported: list[int] = []
    traces = sweeping.sweep(15.0, reported.append)
    assert len(traces) == len(chunks) == 15
    assert reported[:3] == [2, 4, 6]
    assert newest in {precision for precision, _ in chunks}
    assert ("bf16" in {precision for precision, _ in chunks}) == (capability >= (8, 0))
    assert sum(searching for _, searching in chunks) == 2
    assert torch.backends.cudnn.benchmark == before
    assert len(sweeping.sweep(0.0)) == 1
