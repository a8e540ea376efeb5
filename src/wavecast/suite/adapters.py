"""Low-rank adapters for decoders (Hu et al., LoRA, ICLR 2022)."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from wavecast.errors import InvalidInput

ADAPTED = ("query", "key", "value", "query_key_value")
"""The layers with adapters if none are named: those that make queries, keys and values."""


class AdaptedLinear(nn.Module):
    """A linear layer that is not trained, and beside it a trained one of low rank."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.narrow = nn.Linear(layer.in_features, rank, bias=False, dtype=layer.weight.dtype)
        self.wide = nn.Linear(rank, layer.out_features, bias=False, dtype=layer.weight.dtype)
        with torch.no_grad():
            self.wide.weight.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        result: Tensor = self.layer(x) + self.wide(self.narrow(x))
        return result


def adapt(model: nn.Module, rank: int, names: Collection[str] = ADAPTED) -> None:
    """Give layers of these names adapters, and train nothing else.

    Raises:
        InvalidInput: the rank is not positive, or no linear layer has one of the names.
    """
    if rank < 1:
        raise InvalidInput(f"the rank of adapters must be at least 1, not {rank}")
    model.requires_grad_(False)
    layers = {
        path: module for path, module in model.named_modules() if isinstance(module, nn.Linear)
    }
    chosen = {path: layer for path, layer in layers.items() if path.rpartition(".")[2] in names}
    if not chosen:
        known = ", ".join(sorted({path.rpartition(".")[2] for path in layers}))
        raise InvalidInput(f"no layer is named {', '.join(names)}; there are {known}")
    for path, layer in chosen.items():
        model.set_submodule(path, AdaptedLinear(layer, rank))
