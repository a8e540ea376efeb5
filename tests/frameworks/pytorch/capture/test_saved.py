"""Traces saved to files and loaded again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from networks import Step, forward, minimize
from torch import nn

from wavecast.frameworks.pytorch.capture import capture
from wavecast.traces.step import load_trace


def _transformer() -> Step:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(layer, 32, enable_nested_tensor=False).cuda()
    x = torch.randn(4, 128, 256, device="cuda")

    def loss() -> Any:
        with torch.autocast("cuda", torch.bfloat16):
            return model(x).float().sum()

    return minimize(loss, torch.optim.AdamW(model.parameters()))


def test_a_transformer_of_32_layers_takes_less_than_a_megabyte(tmp_path: Path) -> None:
    trace, path = capture(_transformer), tmp_path / "trace.json.gz"
    trace.save(path)
    assert len(trace) > 3000
    assert path.stat().st_size < 1_000_000
    assert load_trace(path) == trace


def test_values_that_are_not_numbers_are_saved_as_text(tmp_path: Path) -> None:
    trace = forward(lambda x: x.masked_fill(x > 0, float("-inf")), (4, 4))
    path = tmp_path / "trace.json.gz"
    trace.save(path)
    assert load_trace(path) == trace
    assert any(call.op.attr("value") == "-inf" for call in trace)
