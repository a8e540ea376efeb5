"""A plain network of equal wide layers, whose gradients fill several buckets of DDP."""

from __future__ import annotations

from typing import Any

LAYERS = 12
WIDTH = 1536
BATCH = 64


def wide_layers(device: str) -> tuple[Any, Any]:
    """The network and its input."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    model = nn.Sequential(*layers).to(device)
    return model, torch.randn(BATCH, WIDTH, device=device)


def training_step(model: Any, x: Any) -> Any:
    """A function that runs one step of SGD."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step
