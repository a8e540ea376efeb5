"""The feed-forward networks of decoders."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PlainLayers(nn.Module):
    """GPT's feed-forward network."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, ffn)
        self.activation = nn.GELU(approximate="tanh")
        self.down = nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        return self.down(self.activation(self.up(x)))


class GatedLayers(nn.Module):
    """Llama's feed-forward network (SwiGLU; Shazeer 2020)."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.activation = GatedSilu()
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        return self.down(self.activation(self.gate(x), self.up(x)))


class GatedSilu(nn.Module):
    """The gate of SwiGLU."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """SiLU of one tensor times the other."""
        return F.silu(gate) * up


class JointGate(nn.Module):
    """The gate of SwiGLU, where one matmul computes both tensors."""

    def forward(self, both: Tensor) -> Tensor:
        """SiLU of one half of the last dimension times the other."""
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate) * up


class JointLayers(nn.Module):
    """Llama's feed-forward network, where one matmul computes both inputs of the gate."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * ffn, bias=False)
        self.activation = JointGate()
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        return self.down(self.activation(self.gate_up(x)))
