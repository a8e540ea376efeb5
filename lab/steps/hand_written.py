"""What people write by hand: LoRA, Newton-Schulz optimizers, message passing, rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.frameworks.pytorch.drawn.newer_layers import orthogonal, rotated, scaled


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank addition (Hu et al., 2021)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        make = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.down = nn.Parameter(torch.randn(rank, base.in_features, **make) * 0.01)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank, **make))

    def forward(self, x: Any) -> Any:
        return self.base(x) + 2.0 * F.linear(F.linear(F.dropout(x, 0.05), self.down), self.up)


def adapt(model: nn.Module, names: Iterable[str], rank: int = 8) -> nn.Module:
    """Freeze a model and give its linear layers of these names a low-rank addition."""
    model.requires_grad_(False)
    wanted = set(names)
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in wanted and isinstance(child, nn.Linear):
                setattr(module, name, LowRank(child, rank))
    return model


class NewtonSchulz(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal by Newton and Schulz's iteration (Jordan, 2024).

    Other parameters take a plain step with momentum.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 1e-3,
        orthogonal: Callable[[Tensor], Tensor] = orthogonal,
    ) -> None:
        super().__init__(parameters, {"lr": lr})
        self.orthogonal = orthogonal

    def step(self, closure: Any = None) -> None:
        with torch.no_grad():
            self._update()

    def _update(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                moved = state["momentum"].lerp_(weight.grad, 0.05)
                moved = weight.grad.lerp(moved, 0.95)
                if weight.ndim == 2 and min(weight.shape) > 1:
                    moved = (
                        self.orthogonal(moved) * max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                    )
                weight.add_(moved.to(weight.dtype), alpha=-group["lr"])


class Messages(nn.Module):
    """Layers of a graph network: messages along edges are added up where they arrive."""

    def __init__(self, width: int, depth: int, inputs: int = 64, classes: int = 40) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.updates = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.leave = nn.Linear(width, classes)

    def forward(self, nodes: Any, edges: Any) -> Any:
        x = self.enter(nodes)
        source, target = edges
        for message, update, norm in zip(self.messages, self.updates, self.norms, strict=True):
            sent = F.relu(message(torch.cat([x[source], x[target]], -1)))
            heard = torch.zeros_like(x).index_add_(0, target, sent.to(x.dtype))
            x = x + F.relu(update(torch.cat([norm(x), heard], -1)))
        return self.leave(x)


class RotaryBlock(nn.Module):
    """Attention with rotary positions and soft-capped scores, written out; a gated layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(2))

    def forward(self, x: Any, cos: Any, sin: Any, mask: Any) -> Any:
        batch, length, width = x.shape
        y = scaled(x, self.scales[0])
        q, k, v = (
            layer(y).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        scores = 30.0 * torch.tanh(scores / 30.0) + mask
        y = torch.softmax(scores.float(), -1).to(v.dtype) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = scaled(x, self.scales[1])
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class RotaryNet(nn.Module):
    """A decoder of hand-written blocks, with soft-capped logits."""

    def __init__(self, depth: int, width: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(RotaryBlock(width, heads) for _ in range(depth))
        self.head = width // heads

    def forward(self, tokens: Any) -> Any:
        length = tokens.shape[1]
        places = torch.arange(length, device=tokens.device)
        rates = 10_000.0 ** (-torch.arange(0, self.head, 2, device=tokens.device) / self.head)
        angles = (places[:, None] * rates).repeat(1, 2)
        x = self.embedding(tokens)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        mask = torch.full((length, length), -1e9, device=tokens.device, dtype=x.dtype).triu(1)
        for block in self.blocks:
            x = block(x, cos, sin, mask)
        return 30.0 * torch.tanh(F.linear(x, self.embedding.weight) / 30.0)
