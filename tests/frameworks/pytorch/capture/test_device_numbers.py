"""GPUs that are named by a number alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from networks import Step

from wavecast.errors import CaptureError
from wavecast.frameworks.pytorch.capture import capture

WAYS: dict[str, Callable[[], Any]] = {
    "a device": lambda: torch.randn(2, 8, device=torch.device(0)),
    "a factory": lambda: torch.randn(2, 8, device=0),
    "like another tensor": lambda: torch.zeros_like(torch.randn(2, 8), device=0),
    "a tensor that is moved": lambda: torch.randn(2, 8).to(0),
    "a tensor that is moved by keyword": lambda: torch.randn(2, 8).to(
        device=0, dtype=torch.float32
    ),
    "a fake tensor that is moved": lambda: torch.randn(2, 8, device="cuda").to(0),
    "from data": lambda: torch.tensor([[1.0] * 8] * 2, device=0),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_number_is_the_gpu(way: str) -> None:
    def make_step() -> Step:
        layer = torch.nn.Linear(8, 4).to(0)
        inputs = WAYS[way]()
        assert inputs.device == torch.device("cuda", 0)
        return lambda: layer(inputs).sum().backward()

    assert len(capture(make_step))


def test_devices_are_still_devices() -> None:
    def make_step() -> Step:
        for device in (torch.device(0), torch.device("cuda:0"), torch.device("cuda", 0)):
            assert isinstance(device, torch.device)
            assert device == torch.randn(1, device="cuda").device
        assert not isinstance("cuda", torch.device)
        with torch.device(0):
            layer = torch.nn.Linear(8, 4)
        return lambda: layer(torch.randn(2, 8, device=0))

    assert len(capture(make_step))


def test_another_number_is_another_gpu() -> None:
    with pytest.raises(CaptureError, match="cuda:1"):
        capture(lambda: torch.nn.Linear(8, 4).to(1))


def test_torch_is_as_before() -> None:
    before = torch.device, torch.randn, torch.zeros_like, torch._C._nn._parse_to
    capture(lambda: lambda: torch.randn(4, device=0) + 1)
    assert (torch.device, torch.randn, torch.zeros_like, torch._C._nn._parse_to) == before
