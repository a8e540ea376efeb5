"""Rotary positions of decoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Turn = tuple[Tensor | None, Tensor | None]
"""Cosines and sines of the angles of all positions."""


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs of `x`, taken from its two halves, by the angles of their positions."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    # In float32, as in Meta's code: with 16 bits, late positions would become equal.
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021)."""

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        """The same as `rotate`."""
        cos, sin = turn
        assert cos is not None
        assert sin is not None
        return rotate(x, (cos, sin))
