"""Networks of the sixth blind test that no library has (`lab.steps.blind_7`)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.steps.blind_3_nets import normed_block


class CrossNet(nn.Module):
    """Crossed features beside a deep network (Wang et al., DCN V2, 2021)."""

    def __init__(self, fields: int, rows: int, width: int, numbers: int, crosses: int) -> None:
        super().__init__()
        self.table = nn.Embedding(fields * rows, width)
        self.register_buffer("first", torch.arange(fields) * rows)
        inputs = fields * width + numbers
        self.crosses = nn.ModuleList(nn.Linear(inputs, inputs) for _ in range(crosses))
        self.deep = nn.Sequential(
            nn.Linear(inputs, 1024),
            nn.BatchNorm1d(1024),
            nn.ReLU(),
            nn.Linear(1024, 512),
            nn.ReLU(),
        )
        self.last = nn.Linear(inputs + 512, 1)

    def forward(self, numbers: Tensor, given: Tensor) -> Tensor:
        x0 = torch.cat([self.table(given + self.first).flatten(1), numbers], 1)
        x = x0
        for cross in self.crosses:
            x = x0 * cross(x) + x
        return self.last(torch.cat([x, self.deep(x0)], 1))[:, 0]


class VideoBlock(nn.Module):
    """Attention within a frame, then along time, then a perceptron, all steered by the time."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.joint = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.perceptron = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.steer = nn.Linear(width, 9 * width)

    def _attend(self, number: int, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(-3, -2)
            for part in self.joint[number](x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out[number](y.transpose(-3, -2).flatten(-2))

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        parts = self.steer(F.silu(when))[:, None, None].chunk(9, -1)
        y = self.norms[0](x) * (1 + parts[0]) + parts[1]
        x = x + parts[2] * self._attend(0, y)
        y = (self.norms[1](x) * (1 + parts[3]) + parts[4]).transpose(1, 2)
        x = x + parts[5] * self._attend(1, y).transpose(1, 2)
        y = self.norms[2](x) * (1 + parts[6]) + parts[7]
        return x + parts[8] * self.perceptron(y)


class VideoDenoiser(nn.Module):
    """A transformer that removes noise from the patches of frames (Ma et al., Latte, 2024)."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, width), nn.Linear(width, 16)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(VideoBlock(width, heads) for _ in range(layers))
        self.register_buffer("waves", torch.exp(-torch.arange(128) / 128 * 9.2))

    def forward(self, x: Tensor, when: Tensor) -> Tensor:
        angles = when[:, None] * self.waves
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, time)
        return self.leave(x)


class PictureCoder(nn.Module):
    """An autoencoder of pictures, as latent diffusion has it (Rombach et al., 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        a, b, c = width, 2 * width, 4 * width
        self.layers = nn.Sequential(
            nn.Conv2d(3, a, 3, padding=1), normed_block(a, a), nn.Conv2d(a, a, 3, 2, 1),
            normed_block(a, b), nn.Conv2d(b, b, 3, 2, 1), normed_block(b, c),
            nn.Conv2d(c, 8, 3, padding=1),
            nn.Conv2d(8, c, 3, padding=1), normed_block(c, c), nn.Upsample(scale_factor=2),
            nn.Conv2d(c, b, 3, padding=1), normed_block(b, b), nn.Upsample(scale_factor=2),
            nn.Conv2d(b, a, 3, padding=1), normed_block(a, a), nn.GroupNorm(32, a), nn.SiLU(),
            nn.Conv2d(a, 3, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)
