"""Networks of the seventh blind test that no library has (`lab.steps.blind_8`)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class JointBlock(nn.Module):
    """Text and picture keep weights of their own but attend together (Esser et al., SD3, 2024)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.steer = nn.ModuleList(nn.Linear(width, 6 * width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(4))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.scales = nn.ModuleList(nn.RMSNorm(width // heads) for _ in range(4))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.inner = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
            for _ in range(2)
        )

    def forward(self, streams: tuple[Tensor, Tensor], when: Tensor) -> tuple[Tensor, ...]:
        parts = [layer(F.silu(when))[:, None].chunk(6, -1) for layer in self.steer]
        joined = []
        for n, x in enumerate(streams):
            y = self.norms[n](x) * (1 + parts[n][0]) + parts[n][1]
            q, k, v = self.qkv[n](y).unflatten(-1, (3, self.heads, -1)).unbind(2)
            joined.append((self.scales[n](q), self.scales[2 + n](k), v))
        q, k, v = (torch.cat(both, 1).transpose(1, 2) for both in zip(*joined, strict=True))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        found = []
        for n, seen in enumerate(y.split([x.shape[1] for x in streams], 1)):
            x = streams[n] + parts[n][2] * self.out[n](seen)
            z = self.norms[2 + n](x) * (1 + parts[n][3]) + parts[n][4]
            found.append(x + parts[n][5] * self.inner[n](z))
        return tuple(found)


class JointDenoiser(nn.Module):
    """The flow of a latent picture, with a text beside it in every block."""

    def __init__(self, width: int, heads: int, layers: int, text: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(16, width, 2, 2)
        self.text, self.when = nn.Linear(text, width), nn.Linear(256, width)
        self.blocks = nn.ModuleList(JointBlock(width, heads) for _ in range(layers))
        self.leave = nn.Linear(width, 64)

    def forward(self, x: Tensor, text: Tensor, when: Tensor) -> Tensor:
        streams = self.patches(x).flatten(2).transpose(1, 2), self.text(text)
        when = self.when(when)
        for block in self.blocks:
            streams = block(streams, when)
        return self.leave(streams[0])


class Causal3d(nn.Conv3d):
    """A convolution of frames that sees no later frame (Yu et al., MAGVIT-v2, 2024)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (1, 1, 1, 1, 2, 0)))


def _frames(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.GroupNorm(16, inner), nn.SiLU(), Causal3d(inner, outer, 3),
        nn.GroupNorm(16, outer), nn.SiLU(), Causal3d(outer, outer, 3),
    )  # fmt: skip


class VideoCoder(nn.Module):
    """An autoencoder of videos whose convolutions are causal in time, as video diffusion has it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.enter = Causal3d(3, width, 3)
        self.down = nn.Sequential(
            _frames(width, width), Causal3d(width, 2 * width, 3, stride=(1, 2, 2)),
            _frames(2 * width, 2 * width), Causal3d(2 * width, 4 * width, 3, stride=2),
        )  # fmt: skip
        self.code = nn.Sequential(
            _frames(4 * width, 4 * width), nn.Conv3d(4 * width, 16, 1),
            nn.Conv3d(16, 4 * width, 1), _frames(4 * width, 4 * width),
        )  # fmt: skip
        self.up = nn.Sequential(
            nn.Upsample(scale_factor=2), _frames(4 * width, 2 * width),
            nn.Upsample(scale_factor=(1, 2, 2)), _frames(2 * width, width),
        )  # fmt: skip
        self.leave = Causal3d(width, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.up(self.code(self.down(self.enter(x)))))


class ContinuousFilters(nn.Module):
    """Atoms whose filters are functions of their distances (Schuett et al., SchNet, 2017)."""

    def __init__(self, width: int, layers: int, waves: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(100, width)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(waves, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.enter = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.leave = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.Softplus(), nn.Linear(width, width))
            for _ in range(layers)
        )
        self.energy = nn.Sequential(nn.Linear(width, width // 2), nn.Softplus(),
                                    nn.Linear(width // 2, 1))  # fmt: skip
        self.register_buffer("centres", torch.linspace(0, 10, waves))

    def forward(self, kinds: Tensor, places: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        apart = (places[source] - places[target]).norm(dim=-1, keepdim=True)
        spread = torch.exp(-10 * (apart - self.centres) ** 2)
        near = 0.5 * (torch.cos(apart.clamp(max=10) * 0.314) + 1)
        x = self.kinds(kinds)
        for weigh, enter, leave in zip(self.filters, self.enter, self.leave, strict=True):
            sent = enter(x)[source] * weigh(spread) * near
            x = x + leave(torch.zeros_like(x).index_add(0, target, sent))
        return self.energy(x)[:, 0]


class GatedGraph(nn.Module):
    """Messages by kind of edge, and a gated recurrent cell at each node (Li et al., 2016)."""

    def __init__(self, width: int, kinds: int, rounds: int, classes: int) -> None:
        super().__init__()
        self.sent = nn.ModuleList(nn.Linear(width, width) for _ in range(kinds))
        self.cell = nn.GRUCell(width, width)
        self.rounds = rounds
        self.leave = nn.Linear(2 * width, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = nodes
        for _ in range(self.rounds):
            heard = torch.zeros_like(x)
            for layer, (source, target) in zip(self.sent, edges, strict=True):
                heard = heard.index_add(0, target, layer(x)[source])
            x = self.cell(heard, x)
        return self.leave(torch.cat([x, nodes], -1))


class InvertedSeries(nn.Module):
    """Attention between the variables of a series, each a token (Liu et al., 2024)."""

    def __init__(self, past: int, future: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(past, width), nn.Linear(width, future)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.1, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        mean, size = x.mean(1, keepdim=True), x.var(1, keepdim=True).add(1e-5).sqrt()
        y = self.leave(self.layers(self.enter(((x - mean) / size).transpose(1, 2))))
        return y.transpose(1, 2) * size + mean


class Interest(nn.Module):
    """What a user did before, weighed by the item that is offered (Zhou et al., DIN, 2018)."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width)
        self.weigh = nn.Sequential(
            nn.Linear(4 * width, 128), nn.Sigmoid(), nn.Linear(128, 64), nn.Sigmoid(),
            nn.Linear(64, 1),
        )  # fmt: skip
        self.deep = nn.Sequential(
            nn.Linear(3 * width, 512), nn.BatchNorm1d(512), nn.PReLU(512), nn.Linear(512, 128),
            nn.BatchNorm1d(128), nn.PReLU(128), nn.Linear(128, 1),
        )  # fmt: skip

    def forward(self, before: Tensor, offered: Tensor) -> Tensor:
        keys, query = self.items(before), self.items(offered)
        beside = query[:, None].expand_as(keys)
        score = self.weigh(torch.cat([beside, keys, beside - keys, beside * keys], -1))
        score = score.masked_fill(before[..., None] == 0, 0.0)
        user = (score * keys).sum(1)
        return self.deep(torch.cat([user, query, user * query], -1))[:, 0]


class Tasks(nn.Module):
    """Several goals that share experts, each with a gate of its own (Ma et al., MMoE, 2018)."""

    def __init__(self, fields: int, rows: int, width: int, experts: int, goals: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(fields))
        inputs = fields * width
        self.first = nn.Parameter(torch.randn(experts, inputs, 512) / inputs**0.5)
        self.second = nn.Parameter(torch.randn(experts, 512, 256) / 512**0.5)
        self.gates = nn.ModuleList(nn.Linear(inputs, experts) for _ in range(goals))
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 1))
            for _ in range(goals)
        )

    def forward(self, given: Tensor) -> Tensor:
        columns: Any = given.unbind(1)
        x = torch.cat([t(c) for t, c in zip(self.tables, columns, strict=True)], -1)
        said = torch.einsum("bi,eih->ebh", x, self.first).relu()
        said = torch.einsum("ebh,eho->beo", said, self.second).relu()
        found = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            share = gate(x).softmax(-1)
            found.append(tower(torch.einsum("be,beo->bo", share, said)))
        return torch.cat(found, -1)
