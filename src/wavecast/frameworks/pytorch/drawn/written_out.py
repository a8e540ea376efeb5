"""What people write out by hand: a norm, rotary positions, Newton and Schulz's iteration."""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonal(matrix: Tensor, rounds: int = 5) -> Tensor:
    """The nearest orthogonal matrix, nearly, in bfloat16."""
    x = matrix.bfloat16()
    turned = x.shape[0] > x.shape[1]
    x = x.T if turned else x
    x = x / (x.norm() + 1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if turned else x


def scaled(x: Tensor, scale: Tensor) -> Tensor:
    """Root-mean-square norm, written out."""
    whole = x.float()
    whole = whole * torch.rsqrt(whole.pow(2).mean(-1, keepdim=True) + 1e-6)
    return scale * whole.to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions, as transformers writes them."""
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cos + torch.cat((-second, first), -1) * sin
