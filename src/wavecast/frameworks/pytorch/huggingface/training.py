"""The training step of an `hf:` target."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from wavecast.frameworks.pytorch.huggingface.adapters import quantized, trained, with_adapters
from wavecast.frameworks.pytorch.huggingface.inputs import Batch, in_precision, inputs_of
from wavecast.frameworks.pytorch.huggingface.models import (
    DTYPES,
    checkpointed,
    model_of,
    refuse_quantized,
)
from wavecast.frameworks.pytorch.huggingface.options import lora_of
from wavecast.frameworks.pytorch.huggingface.recipes import TrainingRecipe
from wavecast.suite.training import Minimizer

_LEARNING_RATE = 1e-4
_CLIP_NORM = 1.0
"""The norm that gradients are clipped to, as transformers' Trainer does by default."""


@dataclass(frozen=True)
class ModelStep:
    """The training step of a model on one batch. Call it repeatedly to train."""

    model: torch.nn.Module
    inputs: Batch
    minimize: Minimizer

    def __call__(self) -> Tensor:
        """Run one training step, and return the loss as a tensor on the device."""
        return self.minimize()


def make_step(recipe: TrainingRecipe, device: str = "cuda") -> ModelStep:
    """The step: forward pass, loss, backward pass, clipping and fused AdamW.

    This is what transformers' Trainer runs with its defaults, without data loading and logging.
    """
    options, config, task = recipe.options, recipe.config, recipe.task
    refuse_quantized(config, options.qlora)
    lora = lora_of(options)
    dtype = torch.bfloat16 if options.qlora else DTYPES[options.weights or "fp32"]
    model, settings = model_of(config, task, dtype, device)
    precision = recipe.precision or "fp32"
    if options.qlora:
        model = quantized(model, DTYPES.get(precision, torch.float32), config.name)
    if options.checkpointing:
        checkpointed(model, config.name)
    if lora is not None:
        model = with_adapters(model, lora, options.targets, task, config.name)
    inputs = inputs_of(task.name, settings, recipe.batch, recipe.sequence, device)
    inputs = inputs if options.qlora else in_precision(inputs, dtype)

    def loss() -> Tensor:
        if task.name != "denoising":
            value: Tensor = model(**inputs).loss
            return value
        noise = model(**inputs).sample
        return F.mse_loss(noise.float(), torch.randn_like(noise).float())

    optimizer = torch.optim.AdamW(trained(model), lr=_LEARNING_RATE, fused=True)
    minimize = Minimizer(loss, optimizer, precision, device, clip_norm=_CLIP_NORM)
    return ModelStep(model, inputs, minimize)
