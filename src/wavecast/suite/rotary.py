"""Rotary positions of decoders."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Turn = tuple[Tensor | None, Tensor | None]
"""Cosines and sines of the angles of all positions."""


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021)."""

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        """Rotate pairs of `x`, taken from its two halves, by the angles of their positions."""
        cos, sin = turn
        assert cos is not None
        assert sin is not None
        first, second = x.chunk(2, dim=-1)
        return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)
