"""One rank of a fake group on real tensors: our reducer in place of torch's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from networks import mlp
from parallel_code import RANKS, group
from torch.nn.parallel import DistributedDataParallel

from lab.collect import fake_ranks
from lab.steps import own_parallel
from wavecast.suite.models.language import GPT2


def test_our_reducer_reduces_real_gradients() -> None:
    x = torch.randn(4, 8)
    with group("fake"), fake_ranks._reducer_of_ours():
        model = mlp()
        wrapped = DistributedDataParallel(model)
        for _ in range(3):
            wrapped.zero_grad()
            wrapped(x).sum().backward()
        reduced = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    # The fake group adds nothing, so that each rank's share of the mean remains.
    for parameter, gradient in zip(model.parameters(), reduced, strict=True):
        torch.testing.assert_close(gradient, parameter.grad / RANKS)


def test_measured_steps_are_compared_with_their_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = (lambda: GPT2(1, 32, 2, 100, 8, 0.0), 2, 8, 100)
    monkeypatch.setitem(own_parallel._SIZES, "gpt2", small)
    rows = [{"step": f"{name} gpt2", "peak_bytes": 1 << 20} for name in ("ddp", "fsdp", "tensor")]
    file = tmp_path / "measured.json"
    file.write_text(json.dumps({"steps": [*rows, {"step": "ddp llama", "error": "no memory"}]}))
    lines = fake_ranks.compare(file)
    assert [line.split()[0] for line in lines] == ["ddp", "fsdp", "tensor", "ddp"]
    assert all("traced" in line for line in lines[:3])
    assert "no memory" in lines[3]
