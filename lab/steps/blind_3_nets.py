"""Networks of the third blind test that no library has: diffusion, graphs, recommenders."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Modulated(nn.Module):
    """A block of a diffusion transformer: norms are shifted and scaled by the time of the noise."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.changes = nn.Linear(width, 6 * width)

    def forward(self, x: Any, when: Any) -> Any:
        batch, length, width = x.shape
        a, b, c, d, e, f = self.changes(F.silu(when))[:, None].chunk(6, -1)
        y = self.norms[0](x) * (1 + b) + a
        q, k, v = self.qkv(y).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + c * self.out(y)
        return x + f * self.inner(self.norms[1](x) * (1 + e) + d)


class FlowTransformer(nn.Module):
    """Patches of a latent image, their velocity (Peebles and Xie, 2023; flow matching)."""

    def __init__(self, depth: int, width: int, heads: int, side: int, channels: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv2d(channels, width, 2, 2)
        self.places = nn.Parameter(torch.randn(1, (side // 2) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Modulated(width, heads) for _ in range(depth))
        self.norm, self.leave = nn.LayerNorm(width), nn.Linear(width, 4 * channels)

    def forward(self, x: Any, when: Any) -> Any:
        rates = torch.exp(-math.log(10_000) * torch.arange(128, device=x.device) / 128)
        angles = when[:, None] * rates
        when = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        y = self.enter(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            y = block(y, when)
        return self.leave(self.norm(y))


class Cross(nn.Module):
    """Self-attention and attention to a text, between convolutions."""

    def __init__(self, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, width)
        self.itself = nn.MultiheadAttention(width, heads, batch_first=True)
        self.other = nn.MultiheadAttention(width, heads, kdim=text, vdim=text, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Any, text: Any) -> Any:
        y = self.norm(x).flatten(2).transpose(1, 2)
        z = self.norms[0](y)
        y = y + self.itself(z, z, z, need_weights=False)[0]
        y = y + self.other(self.norms[1](y), text, text, need_weights=False)[0]
        return x + y.transpose(1, 2).unflatten(2, x.shape[2:])


class TextUNet(nn.Module):
    """A U-Net of latent diffusion with two resolutions that attend to a text."""

    def __init__(self, width: int, text: int = 768) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(
            normed_block(a, b) for a, b in zip((width, *widths), widths, strict=False)
        )
        self.seen = nn.ModuleList(Cross(w, w // 64, text) for w in widths)
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in widths[:2])
        self.up = nn.ModuleList(
            normed_block(a + b, b) for a, b in ((4 * width, 2 * width), (2 * width, width))
        )
        self.leave = nn.Sequential(
            nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1)
        )

    def forward(self, x: Any, text: Any) -> Any:
        x = self.enter(x)
        kept = []
        for number, (block, seen) in enumerate(zip(self.down, self.seen, strict=True)):
            x = seen(block(x), text)
            if number < 2:
                kept.append(x)
                x = self.shrink[number](x)
        for block in self.up:
            x = F.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], 1))
        return self.leave(x)


def normed_block(inner: int, outer: int) -> nn.Sequential:
    """Two convolutions of images, each after a group norm."""
    return nn.Sequential(
        nn.GroupNorm(32, inner), nn.SiLU(), nn.Conv2d(inner, outer, 3, padding=1),
        nn.GroupNorm(32, outer), nn.SiLU(), nn.Conv2d(outer, outer, 3, padding=1),
    )  # fmt: skip


class Attentive(nn.Module):
    """Attention over the neighbours in a graph (Velickovic et al., 2018), summed by scatter_add."""

    def __init__(self, width: int, heads: int, depth: int, inputs: int, classes: int) -> None:
        super().__init__()
        self.heads = heads
        self.enter = nn.Linear(inputs, width)
        self.values = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.weights = nn.ParameterList(
            nn.Parameter(torch.randn(2, heads, width // heads) * 0.1) for _ in range(depth)
        )
        self.leave = nn.Linear(width, classes)

    def forward(self, nodes: Any, edges: Any) -> Any:
        x = self.enter(nodes)
        source, target = edges
        count = nodes.shape[0]
        for layer, weight in zip(self.values, self.weights, strict=True):
            v = layer(x).view(count, self.heads, -1)
            to, at = (v * weight[0]).sum(-1), (v * weight[1]).sum(-1)
            score = torch.exp(F.leaky_relu(to[source] + at[target], 0.2).clamp(max=10))
            total = torch.zeros_like(to).index_add(0, target, score)
            share = (score / (total[target] + 1e-9)).unsqueeze(-1)
            heard = torch.zeros_like(v).index_add(0, target, v[source] * share)
            x = x + F.elu(heard.flatten(1))
        return self.leave(x)


class Isomorphism(nn.Module):
    """Sums over neighbours and perceptrons with batch norms (Xu et al., 2019)."""

    def __init__(self, width: int, depth: int, inputs: int, classes: int) -> None:
        super().__init__()
        self.enter = nn.Linear(inputs, width)
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(),
                nn.Linear(2 * width, width), nn.ReLU(),
            )
            for _ in range(depth)
        )  # fmt: skip
        self.leave = nn.Linear(width, classes)

    def forward(self, nodes: Any, edges: Any) -> Any:
        x = self.enter(nodes)
        for layer in self.layers:
            heard = torch.zeros_like(x).index_add_(0, edges[1], x.index_select(0, edges[0]))
            x = layer(x + heard)
        return self.leave(x)


class Crossed(nn.Module):
    """Bags of embeddings, cross layers and a perceptron (Wang et al., 2021)."""

    def __init__(self, tables: int, rows: int, width: int, layers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        wide = tables * width + 64
        self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, 64))
        self.cross = nn.ModuleList(nn.Linear(wide, wide) for _ in range(layers))
        self.deep = nn.Sequential(
            nn.Linear(wide, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, numbers: Any, bags: Any) -> Any:
        found = [table(bag) for table, bag in zip(self.tables, bags.unbind(1), strict=True)]
        first = torch.cat([self.dense(numbers), *found], -1)
        x = first
        for layer in self.cross:
            x = first * layer(x) + x
        return self.deep(x).squeeze(-1)


class SequentialUser(nn.Module):
    """Items a user saw, their order, and gated attention without softmax (as HSTU, 2024)."""

    def __init__(self, items: int, width: int, heads: int, depth: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.items, self.places = nn.Embedding(items, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.enter = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.leave = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, seen: Any) -> Any:
        batch, length = seen.shape
        x = self.items(seen) + self.places.weight
        mask = torch.ones(length, length, device=seen.device, dtype=torch.bool).tril()
        for number, (enter, leave) in enumerate(zip(self.enter, self.leave, strict=True)):
            u, v, q, k = F.silu(enter(self.norms[2 * number](x))).chunk(4, -1)
            q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
            scores = F.silu(q @ k.transpose(-2, -1)) / length * mask
            y = (scores @ v).transpose(1, 2).reshape(batch, length, -1)
            x = x + leave(F.dropout(self.norms[2 * number + 1](y) * u, 0.1, self.training))
        return x


def sampled_loss(x: Tensor, items: Tensor, wanted: Tensor, others: Tensor) -> Tensor:
    """Softmax over the wanted item and a few others."""
    chosen = torch.cat([wanted.unsqueeze(-1), others], -1)
    scores = torch.einsum("bld,blnd->bln", x, F.embedding(chosen, items))
    return F.cross_entropy(scores.flatten(0, 1), torch.zeros_like(wanted.flatten()))
