"""Small convolutional models whose blocks are sharded by channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

CHANNELS, WIDE, SIZE, CLASSES = 16, 48, 10, 20


class InvertedBlock(nn.Module):
    """Expand, filter each channel by itself, project (MobileNet V2)."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(CHANNELS, WIDE, 1, bias=False)
        self.expand_norm = nn.BatchNorm2d(WIDE)
        self.filter = nn.Conv2d(WIDE, WIDE, 3, padding=1, groups=WIDE, bias=False)
        self.filter_norm = nn.BatchNorm2d(WIDE)
        self.project = nn.Conv2d(WIDE, CHANNELS, 1, bias=False)
        self.project_norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, x: Any) -> Any:
        inner = F.relu6(self.expand_norm(self.expand(x)))
        inner = F.relu6(self.filter_norm(self.filter(inner)))
        return x + self.project_norm(self.project(inner))


class Bottleneck(nn.Module):
    """Narrow, mix, widen (ResNet). The first two convolutions are a pair; the last is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(CHANNELS, WIDE // 2, 1)
        self.narrow_norm = nn.BatchNorm2d(WIDE // 2)
        self.mix = nn.Conv2d(WIDE // 2, WIDE // 4, 3, padding=1, bias=False)
        self.mix_norm = nn.BatchNorm2d(WIDE // 4)
        self.widen = nn.Conv2d(WIDE // 4, CHANNELS, 1)

    def forward(self, x: Any) -> Any:
        inner = F.relu(self.narrow_norm(self.narrow(x)))
        inner = F.relu(self.mix_norm(self.mix(inner)))
        return F.relu(x + self.widen(inner))


class ImageModel(nn.Module):
    """A stem, blocks, and classes."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks = nn.Sequential(block(), block())
        self.output = nn.Linear(CHANNELS, CLASSES)

    def forward(self, images: Any) -> Any:
        return self.output(self.blocks(self.stem(images)).mean((2, 3)))


def images() -> Any:
    """A batch of small images."""
    return torch.randn(2, 3, SIZE, SIZE)
