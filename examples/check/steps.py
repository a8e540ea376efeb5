"""Three training steps that `wavecast check` watches: images, text, and tables.

Each function builds model, optimizer and inputs as for CUDA, and returns one training step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.utils.checkpoint import checkpoint

Step = Callable[[], Any]


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.last_norm = nn.BatchNorm2d(width)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Any) -> Any:
        inner = self.activation(self.norm(self.first(x)))
        return self.activation(x + self.last_norm(self.second(inner)))


class Classifier(nn.Module):
    """A small convolutional network."""

    def __init__(self, width: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, stride=2, padding=1, bias=False)
        self.blocks = nn.Sequential(*(Residual(width) for _ in range(4)))
        self.head = nn.Linear(width, classes)

    def forward(self, images: Any) -> Any:
        features = self.blocks(self.stem(images))
        return self.head(features.mean((2, 3)))


def vision(batch: int = 64) -> Step:
    """Images: channels last, bfloat16, copies that do not wait."""
    model = Classifier().cuda().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(batch, 3, 64, 64).pin_memory()
    labels = torch.randint(10, (batch,)).pin_memory()

    def step() -> None:
        x = images.to("cuda", non_blocking=True).to(memory_format=torch.channels_last)
        y = labels.to("cuda", non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


class Block(nn.Module):
    """Attention and a feed-forward network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.inner_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def attend(self, q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        mixed = self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.inner_norm(x))))


class Decoder(nn.Module):
    """A small language model whose blocks are computed again in the backward pass."""

    def __init__(self, words: int = 16000, width: int = 512, depth: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(512, width)
        self.blocks = nn.ModuleList(Block(width, 8) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Any) -> Any:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.positions(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


def language(batch: int = 8) -> Step:
    """Text: fused attention and optimizer, bfloat16, activations computed again."""
    model = Decoder().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    tokens = torch.randint(16000, (batch, 513), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    return step


class Ranker(nn.Module):
    """Embeddings of categories and a network over them."""

    def __init__(self, tables: int = 8, rows: int = 20000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.hidden = nn.Linear(tables * width + 16, 512)
        self.middle = nn.Linear(512, 256)
        self.score = nn.Linear(256, 1)

    def forward(self, categories: Any, numbers: Any) -> Any:
        found = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        x = torch.relu(self.hidden(torch.cat([*found, numbers], 1)))
        return self.score(torch.relu(self.middle(x)))


def ranking(batch: int = 2048) -> Step:
    """Tables: a step that the host limits."""
    model = Ranker().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    categories = torch.randint(20000, (batch, 8), device="cuda")
    numbers = torch.randn(batch, 16, device="cuda")
    clicks = torch.rand(batch, 1, device="cuda").round()

    def step() -> None:
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(categories, numbers), clicks)
        loss.backward()
        optimizer.step()

    return step
