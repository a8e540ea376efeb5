"""The steps of inference with an `hf:` language model: reading a prompt, and one more token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.models import (
    DTYPES,
    model_of,
    needing,
    refuse_quantized,
)
from wavecast.frameworks.pytorch.huggingface.recipes import TrainingRecipe
from wavecast.suite.training import autocast


@dataclass(frozen=True)
class InferenceStep:
    """One forward pass that gives each sequence its next token, as `generate` runs it."""

    model: torch.nn.Module
    tokens: Tensor
    """The prompts, or the latest token of each sequence."""
    cache: Any
    """Keys and values of the tokens before. None for prompts."""
    precision: str

    def __call__(self) -> Tensor:
        """The next token of each sequence. The cache is as long before each call."""
        inputs: dict[str, Any] = {"input_ids": self.tokens, "use_cache": True, "logits_to_keep": 1}
        if self.cache is not None:
            inputs["past_key_values"] = self.cache
        with torch.no_grad(), autocast(self.precision, self.tokens.device.type):
            logits = self.model(**inputs).logits
        if self.cache is not None:
            self.cache.crop(-1)  # the token that was just added
        return torch.argmax(logits[:, -1], dim=-1)


def make_step(recipe: TrainingRecipe, device: str = "cuda") -> InferenceStep:
    """The step of the task prefill, on prompts of `sequence` tokens, or decode, after so many.

    Weights are stored in bf16 unless the options say otherwise.

    Raises:
        InvalidInput: an option is for training only.
    """
    options, config = recipe.options, recipe.config
    if options.lora or options.qlora or options.checkpointing:
        raise InvalidInput(
            f"--task {recipe.task.name} runs the model only; leave out --lora, --qlora and "
            "--checkpointing"
        )
    refuse_quantized(config, False)
    dtype = DTYPES[options.weights or "bf16"]
    model, settings = model_of(config, recipe.task, dtype, device)
    length = recipe.sequence or 1
    decodes = recipe.task.name == "decode"
    text = settings.get_text_config()
    shape = (recipe.batch, 1 if decodes else length)
    tokens = torch.randint(text.vocab_size, shape, device=device)
    cache = _filled(text, recipe.batch, length, dtype, device) if decodes else None
    return InferenceStep(model.eval(), tokens, cache, recipe.precision or "fp32")


def _filled(settings: Any, batch: int, length: int, dtype: torch.dtype, device: str) -> Any:
    """A cache with the keys and values of so many tokens."""
    with needing("the cache of keys and values"):
        from transformers import DynamicCache
    heads = settings.num_attention_heads
    groups = getattr(settings, "num_key_value_heads", None) or heads
    size = getattr(settings, "head_dim", None) or settings.hidden_size // heads
    cache = DynamicCache()
    for layer in range(settings.num_hidden_layers):
        key, value = (
            torch.zeros(batch, groups, length, size, dtype=dtype, device=device) for _ in range(2)
        )
        cache.update(key, value, layer)
    return cache
