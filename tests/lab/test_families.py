"""One trace serves all GPUs that choose the same kernels, from Python as from a shell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import wavecast
from wavecast.hardware.devices import family


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("k80", (0, 0)),
        ("m40", (5, 0)),
        ("v100-sxm-32gb", (7, 0)),
        ("t4", (7, 5)),
        ("a100-sxm-80gb", (8, 0)),
        ("l4", (8, 0)),
        ("h100-sxm-80gb", (9, 0)),
        ("b200-sxm", (10, 0)),
        ("rtx-5090", (8, 0)),
        ("mi300x", (8, 0)),
    ],
)
def test_every_gpu_has_a_family(gpu: str, expected: tuple[int, int]) -> None:
    assert family(wavecast.device(gpu)) == expected


@pytest.mark.parametrize(("gpu", "kernel"), [("h100-sxm-80gb", "cudnn"), ("mi300x", "flash")])
def test_a_trace_for_a_gpu_has_the_kernels_of_its_family(gpu: str, kernel: str) -> None:
    def make_step() -> Any:
        x = torch.randn(2, 4, 16, 32, device="cuda", dtype=torch.bfloat16)
        return lambda: F.scaled_dot_product_attention(x, x, x)

    names = [call.op.name for call in wavecast.trace(make_step, gpu=gpu)]
    assert f"aten._scaled_dot_product_{kernel}_attention" in names
