"""A batch of inputs for each task, with random values and labels, on the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Any]
"""The keyword arguments of a model's forward pass: tensors, or tables of tensors."""

_CONTEXT = 77
"""The tokens of a text that CLIP's encoders give to a U-Net."""
_FRAMES_PER_POSITION = 2
"""Whisper's encoder halves the frames of its input."""


def inputs_of(task: str, config: Any, batch: int, sequence: int | None, device: str) -> Batch:
    """A batch for a model.

    Args:
        task: the name of the task.
        config: the config of the model, an object of transformers or diffusers.
        batch: how many samples.
        sequence: how many tokens each has, if any.
        device: where the tensors are made.
    """
    return _MAKERS[task](config, batch, sequence or 0, device)


def _tokens(config: Any, batch: int, sequence: int, device: str) -> Tensor:
    text = config.get_text_config()
    return torch.randint(text.vocab_size, (batch, sequence), device=device)


def _text(config: Any, batch: int, sequence: int, device: str) -> Batch:
    """Text without padding, and a label for every token."""
    return {
        "input_ids": _tokens(config, batch, sequence, device),
        "attention_mask": torch.ones((batch, sequence), dtype=torch.int64, device=device),
        "labels": _tokens(config, batch, sequence, device),
    }


def _causal(config: Any, batch: int, sequence: int, device: str) -> Batch:
    tokens = _tokens(config, batch, sequence, device)
    return {"input_ids": tokens, "labels": tokens.clone(), "use_cache": False}


def _labelled_text(config: Any, batch: int, sequence: int, device: str) -> Batch:
    labels = torch.randint(config.num_labels, (batch,), device=device)
    return {**_text(config, batch, sequence, device), "labels": labels}


def _labelled_tokens(config: Any, batch: int, sequence: int, device: str) -> Batch:
    labels = torch.randint(config.num_labels, (batch, sequence), device=device)
    return {**_text(config, batch, sequence, device), "labels": labels}


def _question(config: Any, batch: int, sequence: int, device: str) -> Batch:
    inputs = _text(config, batch, sequence, device)
    del inputs["labels"]
    places = {
        name: torch.randint(sequence, (batch,), device=device)
        for name in ("start_positions", "end_positions")
    }
    return inputs | places


def _seq2seq(config: Any, batch: int, sequence: int, device: str) -> Batch:
    return {**_text(config, batch, sequence, device), "use_cache": False}


def _images(config: Any, batch: int, _sequence: int, device: str) -> Batch:
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    return {
        "pixel_values": torch.randn(batch, channels, height, width, device=device),
        "labels": torch.randint(config.num_labels, (batch,), device=device),
    }


def _speech(config: Any, batch: int, sequence: int, device: str) -> Batch:
    """Thirty seconds of sound as a spectrogram, and the text that was spoken."""
    frames = _FRAMES_PER_POSITION * config.max_source_positions
    return {
        "input_features": torch.randn(batch, config.num_mel_bins, frames, device=device),
        "labels": torch.randint(config.vocab_size, (batch, sequence), device=device),
        "use_cache": False,
    }


def _latents(config: Any, batch: int, _sequence: int, device: str) -> Batch:
    """Noisy latents, times, encoded texts and, for SDXL, the sizes and the pooled text."""
    size = config.sample_size or 64
    height, width = (size, size) if isinstance(size, int) else size
    inputs: Batch = {
        "sample": torch.randn(batch, config.in_channels, height, width, device=device),
        "timestep": torch.randint(1000, (batch,), device=device),
        "encoder_hidden_states": torch.randn(
            batch, _CONTEXT, config.cross_attention_dim, device=device
        ),
    }
    if config.addition_embed_type == "text_time":
        sizes = 6  # original size, crop and target size: two numbers each
        pooled = config.projection_class_embeddings_input_dim - (
            sizes * config.addition_time_embed_dim
        )
        inputs["added_cond_kwargs"] = {
            "text_embeds": torch.randn(batch, pooled, device=device),
            "time_ids": torch.randn(batch, sizes, device=device),
        }
    return inputs


_MAKERS: dict[str, Callable[[Any, int, int, str], Batch]] = {
    "causal-lm": _causal,
    "masked-lm": _text,
    "seq2seq": _seq2seq,
    "sequence-classification": _labelled_text,
    "token-classification": _labelled_tokens,
    "question-answering": _question,
    "image-classification": _images,
    "speech-seq2seq": _speech,
    "denoising": _latents,
}


def in_precision(inputs: Batch, dtype: Any) -> Batch:
    """The inputs, with floating-point tensors in the precision of the weights."""

    def cast(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: cast(inner) for name, inner in value.items()}
        floating = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(dtype) if floating else value

    return {name: cast(value) for name, value in inputs.items()}
