"""The train step of a compiled Keras 3 model on torch, as `fit` would run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from wavecast.frameworks.target_files import model_and_batch


def train_step(built: Any) -> Callable[[], Any]:
    """The function that runs one train step of a model, or of `(model, (x, y))`, on the GPU."""
    model, batch = model_and_batch(built)
    data = torch.utils._pytree.tree_map(_on_gpu, batch)
    model._symbolic_build(data_batch=data)
    model.optimizer.build(model.trainable_variables)

    def step() -> Any:
        return model.train_step(data)

    return step


def _on_gpu(array: Any) -> Any:
    if not hasattr(array, "shape"):
        return array
    dtype = str(array.dtype).removeprefix("torch.")
    return torch.zeros(tuple(array.shape), dtype=getattr(torch, dtype), device="cuda")
