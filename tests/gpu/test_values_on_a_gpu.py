"""The values of a step that was traced without a GPU are those of a real one: pytest -m gpu."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import wavecast as wc
from wavecast import suite
from wavecast.traces.step import Trace

pytestmark = pytest.mark.gpu


def checkpointed_step() -> Callable[[], Any]:
    layers = [nn.TransformerEncoderLayer(256, 4, 512, batch_first=True) for _ in range(3)]
    model = nn.ModuleList(layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.randn(4, 64, 256, device="cuda", requires_grad=True)

    def step() -> None:
        optimizer.zero_grad()
        y = x
        for layer in model:
            y = checkpoint(layer, y, use_reentrant=False)
        y.square().mean().backward()
        optimizer.step()

    return step


STEPS: dict[str, Callable[[], Callable[[], Any]]] = {
    "resnet50": lambda: suite.benchmark("resnet50").make_step(8, "fp32"),
    "gpt2": lambda: suite.benchmark("gpt2").make_step(2, "bf16"),
    "bert": lambda: suite.benchmark("bert").make_step(4, "fp16"),
    "checkpointed": checkpointed_step,
}


def flow_of(trace: Trace) -> Counter[tuple[str, tuple[str, ...]]]:
    """Each call with what wrote the values that it reads; autocast casts arguments in any order."""
    flow: Counter[tuple[str, tuple[str, ...]]] = Counter()
    writer: dict[int, str] = {}
    for call in trace:
        sources = (
            trace.values[value].parameter or writer.get(value, "before the step")
            for value in call.reads
        )
        flow[call.op.name, tuple(sources)] += 1
        writer.update(dict.fromkeys(call.writes, call.op.name))
    return flow


@pytest.mark.parametrize("name", STEPS)
def test_calls_read_what_they_read_in_a_real_step(name: str) -> None:
    traced = wc.trace(STEPS[name], gpu=wc.device(torch.cuda.get_device_name()))
    measured = wc.measure(STEPS[name]())
    assert flow_of(measured) == flow_of(traced)
    assert {v.gradient_of for v in measured.values} == {v.gradient_of for v in traced.values}
