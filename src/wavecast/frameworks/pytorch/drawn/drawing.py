"""Random sizes of layers, and how a layer runs forward and backward."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
LARGEST = 2**28
"""The most elements of a tensor."""


@dataclass(frozen=True)
class ShapeDraw:
    """The random source of a layer's sizes, its precision and its layout."""

    random: random.Random
    precision: str
    layout: str
    device: str = "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the layer's tensors."""
        return DTYPES[self.precision]

    def usual(self, low: float, high: float) -> int:
        """A random size between two limits, uniform in the logarithm and mostly a round number."""
        size = low * (high / low) ** self.random.random()
        step = self.random.choice((1, 8, 8, 16, 32, 64))
        return max(int(size / step + 0.5) * step, 1, int(low))

    def tensor(self, *shape: int, grad: bool = True) -> Tensor:
        """A random tensor in the drawn dtype and layout."""
        if not 0 < torch.Size(shape).numel() <= LARGEST:
            raise TooLarge
        made = torch.randn(shape, device=self.device, dtype=self.dtype)
        if self.layout == "nhwc" and len(shape) == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made.requires_grad_(grad)


class TooLarge(Exception):
    """The drawn sizes make a layer that is too large; draw others."""


Layer = Callable[[], Any]
"""Runs the layer once, forward and backward."""


def through(forward: Callable[[], Any], *leaves: Tensor) -> Layer:
    """Runs the forward pass, then the backward pass from a random gradient of the output."""
    grads: list[Tensor] = []

    def run() -> None:
        out = forward()
        out = out[0] if isinstance(out, tuple) else out
        if not grads:
            grads.append(torch.randn_like(out) if out.dim() else torch.ones_like(out))
        out.backward(grads[0])
        for leaf in leaves:
            leaf.grad = None

    return run
