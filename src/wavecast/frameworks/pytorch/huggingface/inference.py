"""The steps of inference with an `hf:` language model: reading a prompt, and one more token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.models import (
    DTYPES,
    in_4_bits,
    in_8_bits,
    model_of,
    needing,
    refuse_quantized,
    settings_of,
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
        """The next token of each sequence. A growing cache is as long before each call."""
        inputs: dict[str, Any] = {"input_ids": self.tokens, "use_cache": True, "logits_to_keep": 1}
        if self.cache is not None:
            inputs["past_key_values"] = self.cache
        with torch.no_grad(), autocast(self.precision, self.tokens.device.type):
            logits = self.model(**inputs).logits
        for layer in [] if self.cache is None else self.cache.layers:
            self.shorten(layer)
        return torch.argmax(logits[:, -1], dim=-1)

    @staticmethod
    def shorten(layer: Any) -> None:
        """Take the latest token out of a layer of a growing cache. Its keys and values stay
        contiguous, as `generate` leaves them."""
        drop_latest(layer)
        if not (layer.is_compileable or layer.is_sliding):
            layer.keys, layer.values = (
                torch.empty_like(kept, memory_format=torch.contiguous_format)
                for kept in (layer.keys, layer.values)
            )


def make_step(recipe: TrainingRecipe, device: str = "cuda") -> InferenceStep:
    """The step of the task prefill, on prompts of `sequence` tokens, or decode, after so many.

    Weights are in bf16 unless the options say otherwise, and in fp16 beside int8. InvalidInput if
    an option is for training only.
    """
    options, config = recipe.options, recipe.config
    if options.lora or options.qlora or options.checkpointing:
        raise InvalidInput(
            f"--task {recipe.task.name} runs the model only; leave out --lora, --qlora and "
            "--checkpointing"
        )
    refuse_quantized(config, False)
    dtype = _dtype_of(recipe)
    model, _ = model_of(config, recipe.task, dtype, device)
    if options.quantize is not None:
        what = f"--quantize with hf:{config.name}"
        model.requires_grad_(False)
        in_4_bits(model, dtype, what) if options.quantize == "nf4" else in_8_bits(model, what)
    return step_of(model.eval(), recipe, device)


def _dtype_of(recipe: TrainingRecipe) -> torch.dtype:
    """The precision of weights that are not quantized, and of keys and values."""
    usual = "fp16" if recipe.options.quantize == "int8" else "bf16"  # as LLM.int8() computes
    return DTYPES[recipe.options.weights or usual]


def step_of(model: Any, recipe: TrainingRecipe, device: str = "cuda") -> InferenceStep:
    """The step of a recipe with a model that was built before."""
    length, decodes = recipe.sequence or 1, recipe.task.name == "decode"
    text, dtype = model.config.get_text_config(), _dtype_of(recipe)
    shape = (recipe.batch, 1 if decodes else length)
    tokens = torch.randint(text.vocab_size, shape, device=device)
    make_cache = _static if recipe.options.cache == "static" else _growing
    cache = make_cache(text, recipe.batch, length, dtype, device) if decodes else None
    return InferenceStep(model, tokens, cache, recipe.precision or "fp32")


def cache_bytes(recipe: TrainingRecipe) -> int:
    """The keys and values of a recipe's sequences, in bytes; none are allocated for it."""
    text = settings_of(recipe.config).get_text_config()
    make_cache = _static if recipe.options.cache == "static" else _growing
    cache = make_cache(text, recipe.batch, recipe.sequence or 1, _dtype_of(recipe), "meta")
    return sum(kept.nbytes for layer in cache.layers for kept in (layer.keys, layer.values))


def _growing(settings: Any, batch: int, length: int, dtype: torch.dtype, device: str) -> Any:
    """A cache with the keys and values of so many tokens, which every token makes longer."""
    with needing("the cache of keys and values"):
        from transformers import DynamicCache
    heads, size = _head_sizes(settings)
    cache = DynamicCache(config=settings)
    for layer in range(settings.num_hidden_layers):
        key, value = (
            torch.zeros(batch, heads, length, size, dtype=dtype, device=device) for _ in range(2)
        )
        cache.update(key, value, layer)
    return cache


def _static(settings: Any, batch: int, length: int, dtype: torch.dtype, device: str) -> Any:
    """A cache with places for so many tokens and one more. Attention reads all places behind a
    mask, so it begins empty: the number of tokens in it changes no kernel."""
    with needing("the cache of keys and values"):
        from transformers import StaticCache
    heads, size = _head_sizes(settings)
    cache = StaticCache(config=settings, max_cache_len=length + 1)
    cache.early_initialization(batch, heads, size, dtype, torch.device(device))
    return cache


def _head_sizes(settings: Any) -> tuple[int, int]:
    """The heads of keys and values, and the width of one."""
    heads = settings.num_attention_heads
    groups = getattr(settings, "num_key_value_heads", None) or heads
    return groups, getattr(settings, "head_dim", None) or settings.hidden_size // heads


def drop_latest(layer: Any) -> None:
    """Leave the latest token out of a layer of a growing cache, by a view of the others."""
    if layer.is_compileable:
        return  # a static cache has its places whatever is in them
    if layer.is_sliding and layer.cumulative_length >= layer.sliding_window:
        layer.cumulative_length -= 1  # a full window is as long with every token
    else:
        layer.crop(-1)
