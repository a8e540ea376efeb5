"""The training step of an `hf:` target."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.configs import config_of
from wavecast.frameworks.pytorch.huggingface.models import (
    DTYPES,
    checkpointed,
    in_4_bits,
    model_of,
    needing,
    refuse_quantized,
)
from wavecast.frameworks.pytorch.huggingface.options import Lora, lora_of
from wavecast.frameworks.pytorch.huggingface.recipes import Task, TrainingRecipe, task_of
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


# Low-rank adapters by peft, also over 4-bit weights.


UNET_TARGETS = ("to_k", "to_q", "to_v", "to_out.0")
"""The layers that diffusers' own training scripts give adapters (train_text_to_image_lora.py)."""


def with_adapters(
    model: nn.Module, lora: Lora, targets: str | None, task: Task, name: str
) -> nn.Module:
    """The model with adapters, which alone are trained."""
    with needing(f"--lora with hf:{name}"):
        import peft
    unet = task.name == "denoising"
    config = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=_targets(targets) or (list(UNET_TARGETS) if unet else None),
        task_type=task.adapted,
    )
    try:
        if unet:
            model.requires_grad_(False)
            peft.inject_adapter_in_model(config, model)
            peft.tuners.tuners_utils.cast_adapter_dtype(model, "default")
            return model
        with warnings.catch_warnings():
            # peft warns that it handles the transposed weights of GPT-2 by itself.
            warnings.filterwarnings("ignore", "fan_in_fan_out")
            adapted: nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise InvalidInput(
            f"peft refuses the adapters of hf:{name}: {_reason(error)}; its linear layers are "
            f"{', '.join(_linear_layers(model))}"
        ) from error
    return adapted


def _targets(text: str | None) -> Any:
    if text is None or text.strip() == "all-linear":
        return text and text.strip()
    return [name.strip() for name in text.split(",") if name.strip()]


def _linear_layers(model: nn.Module) -> list[str]:
    """The names that linear layers of a model have in their parents."""
    linear = (path for path, layer in model.named_modules() if isinstance(layer, nn.Linear))
    return list(dict.fromkeys(path.rpartition(".")[2] for path in linear))


def _reason(error: ValueError) -> str:
    line = " ".join(str(error).split())
    if "target_modules" in line and "specify" in line:
        return "it has no default for this architecture; give --targets, or --targets all-linear"
    return line.split(". ")[0]


def quantized(model: nn.Module, compute_dtype: Any, name: str) -> nn.Module:
    """The model with its linear layers in 4 bits, as for QLoRA.

    It is what transformers does for `BitsAndBytesConfig(load_in_4bit=True,
    bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)`, followed by peft's
    `prepare_model_for_kbit_training`: the last layer and the embeddings stay unquantized, in
    float32.
    """
    with needing(f"--qlora with hf:{name}"):
        import peft
    in_4_bits(model, compute_dtype, f"--qlora with hf:{name}")
    return peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def trained(model: nn.Module) -> list[torch.Tensor]:
    """The parameters that the optimizer changes."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


# A batch of inputs for each task, with random values and labels, on the GPU.


Batch = dict[str, Any]
"""The keyword arguments of a model's forward pass: tensors, or tables of tensors."""

_CONTEXT = 77
"""The tokens of a text that CLIP's encoders give to a U-Net."""
_FRAMES_PER_POSITION = 2
"""Whisper's encoder halves the frames of its input."""


def inputs_of(task: str, config: Any, batch: int, sequence: int | None, device: str) -> Batch:
    """A batch for a model."""
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


# The tensor-parallel plan that transformers has for a model: `base_model_tp_plan`.


def tensor_plan_of(name: str, task: str | None = None) -> dict[str, str] | None:
    """The plan of a model and its head, for `Parallel(tensor_plan=...)`; None if it has none."""
    config = config_of(name)
    if config.diffusion_class is not None:
        return None
    auto_class = task_of(config, task).auto_class
    with needing(f"hf:{name}"):
        import transformers
    if config.model_type not in transformers.CONFIG_MAPPING:
        return None
    settings = transformers.CONFIG_MAPPING[config.model_type]
    base = getattr(settings, "base_model_tp_plan", None)
    if not base:
        return None
    known = getattr(transformers, auto_class)._model_mapping
    model = known.get(settings, None)
    models = model if isinstance(model, tuple) else (model,)
    return {**base, **(getattr(models[0], "_tp_plan", None) or {})}
