"""Low-rank adapters by peft, also over 4-bit weights."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.models import needing
from wavecast.frameworks.pytorch.huggingface.options import Lora
from wavecast.frameworks.pytorch.huggingface.quantization import in_4_bits
from wavecast.frameworks.pytorch.huggingface.tasks import Task

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
