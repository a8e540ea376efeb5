"""Two batches that are accumulated before an update, computed from the trace of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Step
from shell import run
from torch import nn

import wavecast
from wavecast.footprint.largest_batch import accumulate_twice
from wavecast.traces.editing import without_values
from wavecast.traces.step import Phase, Role, Trace

VOCABULARY, WIDTH = 1000, 128


class _Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layers: list[nn.Module] = []
        for _ in range(3):
            layers += [nn.Linear(WIDTH, 512), nn.GELU(), nn.Linear(512, WIDTH), nn.LayerNorm(WIDTH)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.layers(self.embed(tokens)))


class _Tied(_Perceptron):
    """A weight that is used twice: its gradient is complete with the last call of the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embed.weight


class _Pictures(nn.Module):
    """Convolutions whose weight gradients come in another layout than the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.Sequential(
            *(nn.Conv2d(16, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 128, 3)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, VOCABULARY)),
        )

    def forward(self, tokens: Any) -> Any:
        return self.layers(self.embed(tokens).permute(0, 3, 1, 2))


def _step(
    make_model: Callable[[], nn.Module], shape: tuple[int, ...], times: int, dtype: Any
) -> Callable[[], Step]:
    """A training step that updates its weights after so many batches."""

    def make_step() -> Step:
        model = make_model().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.zeros(shape, dtype=torch.long, device="cuda")

        def step() -> None:
            optimizer.zero_grad()
            for _ in range(times):
                with torch.autocast("cuda", dtype, enabled=dtype is not None):
                    loss = model(tokens).float().logsumexp(-1).mean()
                loss.backward()
            optimizer.step()

        return step

    return make_step


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (_Perceptron, (8, 64)),
    "tied weights": (_Tied, (8, 64)),
    "pictures": (_Pictures, (8, 16, 16)),
}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("make_model", "shape"), MODELS.values(), ids=MODELS)
def test_two_batches_need_what_a_step_of_two_batches_needs(
    make_model: Callable[[], nn.Module], shape: tuple[int, ...], dtype: Any
) -> None:
    single, two = (wavecast.trace(_step(make_model, shape, times, dtype)) for times in (1, 2))
    computed = accumulate_twice(single)
    assert computed is not None
    assert sorted(c.op.base for c in computed) == sorted(c.op.base for c in two)
    for gpu in (None, "l4"):
        needed, traced = wavecast.memory(computed, gpu), wavecast.memory(two, gpu)
        assert needed.peak_bytes == traced.peak_bytes
        assert needed.reserved_bytes == traced.reserved_bytes
        assert needed.peak_bytes > wavecast.memory(single, gpu).peak_bytes


def test_gradients_that_stay_in_place_need_no_more_memory() -> None:
    def make_step() -> Step:
        model = _Perceptron().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.zeros((4, 8), dtype=torch.long, device="cuda")

        def step() -> None:
            optimizer.zero_grad(set_to_none=False)
            model(tokens).mean().backward()
            optimizer.step()

        return step

    single = wavecast.trace(make_step)
    computed = accumulate_twice(single)
    assert computed is not None
    assert wavecast.memory(computed).peak_bytes == wavecast.memory(single).peak_bytes


def _phases(trace: Trace, *phases: Phase) -> Trace:
    call = without_values(trace).calls[0]
    return Trace(tuple(replace(call, phase=phase) for phase in phases))


def test_steps_with_several_updates_or_none_are_left_alone() -> None:
    trace = wavecast.trace(_step(_Perceptron, (4, 8), 1, None))
    both = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
    assert accumulate_twice(_phases(trace, *both)) is not None
    assert accumulate_twice(_phases(trace, *both, *both)) is None
    assert accumulate_twice(_phases(trace, Phase.FORWARD)) is None


def test_the_advice_is_the_memory_of_two_accumulated_batches(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "def make_step(batch=8, times=1):\n"
        "    model = torch.nn.Sequential(\n"
        "        *(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU())"
        " for _ in range(8))).cuda()\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)\n"
        "    def step():\n"
        "        optimizer.zero_grad()\n"
        "        for _ in range(times):\n"
        "            model(torch.randn(batch, 512, device='cuda')).mean().backward()\n"
        "        optimizer.step()\n"
        "    return step\n"
        "def make_accumulated(batch):\n"
        "    return make_step(batch, 2)\n"
    )
    done = run(
        *("memory", f"{path}:make_step", "--batch", "16384", "--gpu", "l4", "--advice", "--json")
    )
    [record] = json.loads(done.out)
    [advice] = [change for change in record["advice"] if "accumulated twice" in change["name"]]
    target = f"{path}:make_accumulated"
    [traced] = json.loads(run("memory", target, "--batch", "8192", "--gpu", "l4", "--json").out)
    assert advice["peak_bytes"] == traced["peak_bytes"]
    assert advice["reserved_bytes"] == traced["reserved_bytes"]
    assert advice["saved_bytes"] == record["reserved_bytes"] - traced["reserved_bytes"]
    one = f"{path}:make_step"
    [half] = json.loads(run("memory", one, "--batch", "8192", "--gpu", "l4", "--json").out)
    assert half["peak_bytes"] < traced["peak_bytes"]


def test_the_gradients_of_the_first_batch_stay() -> None:
    single = wavecast.trace(_step(_Perceptron, (4, 8), 1, None))
    computed = accumulate_twice(single)
    assert computed is not None
    kept = [a for a in computed.allocations if a.role is Role.GRADIENT and a.born is not None]
    assert len(kept) == len([a for a in single.allocations if a.role is Role.GRADIENT and a.born])
    assert all(gradient.freed is None for gradient in kept)
