"""An ordinary training step for a GPU. Nothing in this file was written for wavecast.

wavecast predict examples/train.py:make_step --batch 256 --gpu h100-sxm-80gb --gpu l4
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

CHANNELS, CLASSES = 64, 100


class Block(nn.Module):
    """Two convolutions with a residual connection around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, channels, height, width) -> the same."""
        y = relu(self.first_norm(self.first(x)))
        return relu(x + self.second_norm(self.second(y)))


def make_step(batch: int = 256) -> Callable[[], None]:
    """Build model, optimizer and a batch; return the function that trains once."""
    model = nn.Sequential(
        nn.Conv2d(3, CHANNELS, 3, padding=1),
        *(Block(CHANNELS) for _ in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(CHANNELS, CLASSES),
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    images = torch.randn(batch, 3, 64, 64, device="cuda")
    labels = torch.randint(CLASSES, (batch,), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step
