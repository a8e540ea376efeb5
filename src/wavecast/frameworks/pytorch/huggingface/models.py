"""A model of transformers or diffusers, built from its config with random weights."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from wavecast.errors import InvalidInput, MissingExtra, UnknownName
from wavecast.frameworks.pytorch.huggingface.configs import ModelConfig, naming_torchvision
from wavecast.frameworks.pytorch.huggingface.recipes import Task

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@contextmanager
def needing(what: str) -> Iterator[None]:
    """A context in which a missing library of Hugging Face raises MissingExtra."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"{what} needs {_missing(error)}: pip install 'wavecast[huggingface]'"
        ) from error


def _missing(error: ModuleNotFoundError) -> str:
    """The library that could not be imported.

    transformers loads its parts late, and wraps what went wrong in an error without a name.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            return cause.name.partition(".")[0]
        cause = cause.__cause__ or cause.__context__
    return "more libraries of Hugging Face"


def model_of(config: ModelConfig, task: Task, dtype: Any, device: str) -> tuple[nn.Module, Any]:
    """The model, in training mode, and its config as an object of its library."""
    with needing(f"hf:{config.name}"):
        if config.diffusion_class is not None:
            return _unet(config, dtype, device)
        return _transformer(config, task, dtype, device)


def _transformer(config: ModelConfig, task: Task, dtype: Any, device: str) -> tuple[nn.Module, Any]:
    import transformers

    settings = settings_of(config)
    with naming_torchvision(f"hf:{config.name}"):
        builder = getattr(transformers, task.auto_class)
        is_known = type(settings) in builder._model_mapping
    if not is_known:
        raise InvalidInput(
            f"transformers has no {config.model_type} model for the task {task.name} "
            f"({task.auto_class}); choose another with --task"
        )
    with torch.device(device):
        model = builder.from_config(settings, dtype=dtype)
    return model.train(), model.config


def settings_of(config: ModelConfig) -> Any:
    """The config of a transformer as an object of transformers.

    Raises:
        UnknownName: transformers has no such model.
    """
    import transformers

    known = list(transformers.CONFIG_MAPPING.keys())
    if config.model_type not in known:
        raise UnknownName(_unknown_type(config, known, transformers.__version__))
    with naming_torchvision(f"hf:{config.name}"):
        leave = ("auto_map", "quantization_config", "dtype", "torch_dtype")  # foreign code, dtypes
        values = {name: value for name, value in config.values.items() if name not in leave}
        return transformers.CONFIG_MAPPING[config.model_type].from_dict(values)


def _unknown_type(config: ModelConfig, known: list[str], version: str) -> str:
    start = f"hf:{config.name} is a model of type {config.model_type!r}"
    if config.values.get("auto_map"):
        return (
            f"{start} with code of its own (auto_map), which is never run; write the step "
            "yourself and name it as FILE.py:FUNCTION"
        )
    near = difflib.get_close_matches(config.model_type, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "a newer transformers may know it"
    return f"{start}, which transformers {version} does not know; {hint}"


def _unet(config: ModelConfig, dtype: Any, device: str) -> tuple[nn.Module, Any]:
    from diffusers import UNet2DConditionModel

    with torch.device(device):
        model = UNet2DConditionModel.from_config(dict(config.values))
    if dtype is not torch.float32:
        nn.Module.to(model, dtype)  # diffusers' own method warns about layers that it does not have
    return model.train(), model.config


def refuse_quantized(config: ModelConfig, qlora: bool) -> None:
    """Refuse a config whose weights are stored quantized in a way that is not built here."""
    stored: Mapping[str, Any] = config.values.get("quantization_config") or {}
    if stored and not (qlora and stored.get("load_in_4bit")):
        method = stored.get("quant_method", "an unknown method")
        raise InvalidInput(
            f"the weights of hf:{config.name} are quantized ({method}), but would be built "
            "in full; use --qlora for 4-bit weights of bitsandbytes, or the config of the original "
            "model"
        )


def checkpointed(model: nn.Module, name: str) -> None:
    """Enable activation checkpointing in a model."""
    enable = getattr(model, "gradient_checkpointing_enable", None) or getattr(
        model, "enable_gradient_checkpointing", None
    )
    if enable is None or not getattr(model, "supports_gradient_checkpointing", True):
        raise InvalidInput(
            f"hf:{name} has no checkpointing in its library; leave --checkpointing out"
        )
    enable()


# Linear layers with weights in 4 or 8 bits, by bitsandbytes, as transformers puts them in.


MakeLinear = Callable[[Tensor, Tensor | None], nn.Module]
"""Makes a quantized layer of a weight and a bias."""
_OUTLIERS = 6.0
"""Inputs above this are multiplied in 16 bits: the default of `BitsAndBytesConfig`."""


def in_4_bits(model: Any, compute_dtype: torch.dtype, what: str) -> None:
    """Store the linear layers of a model in 4 bits (NF4), their scales in 8 bits.

    The last layer and the embeddings stay as they are. It is what transformers does for
    `BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True)`.
    """
    with needing(what):
        import bitsandbytes

    def linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
        outputs, inputs = weight.shape
        layer: nn.Module = bitsandbytes.nn.Linear4bit(
            inputs,
            outputs,
            bias=bias is not None,
            compute_dtype=compute_dtype,
            quant_type="nf4",
            device=weight.device,
        )
        layer.weight = bitsandbytes.nn.Params4bit(
            weight, requires_grad=False, quant_type="nf4", module=layer
        ).to(weight.device)
        return layer

    _replace_linear(model, linear, what)
    model.is_loaded_in_4bit = True


def in_8_bits(model: Any, what: str) -> None:
    """Store the linear layers of a model in 8 bits, but for the last one.

    It is what transformers does for `BitsAndBytesConfig(load_in_8bit=True)`. Weights and inputs are
    multiplied in 8 bits (LLM.int8()).
    """
    with needing(what):
        import bitsandbytes

    def linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
        outputs, inputs = weight.shape
        layer: nn.Module = bitsandbytes.nn.Linear8bitLt(
            inputs,
            outputs,
            bias=bias is not None,
            has_fp16_weights=False,
            threshold=_OUTLIERS,
            device=weight.device,
        )
        layer.weight = bitsandbytes.nn.Int8Params(
            weight, requires_grad=False, has_fp16_weights=False
        ).to(weight.device)
        return layer

    _replace_linear(model, linear, what)
    model.is_loaded_in_8bit = True


def _replace_linear(model: nn.Module, linear: MakeLinear, what: str) -> None:
    """Put quantized layers in the places of those that transformers would quantize."""
    with needing(what):
        from transformers.pytorch_utils import Conv1D
        from transformers.quantizers.base import get_keys_to_not_convert
        from transformers.quantizers.quantizers_utils import should_convert_module
    kept = get_keys_to_not_convert(model)
    kinds = (nn.Linear, Conv1D)
    layers = [
        (path, layer)
        for path, layer in model.named_modules()
        if type(layer) in kinds and should_convert_module(path, kept)
    ]
    for path, layer in layers:
        weight = layer.weight.data.T if isinstance(layer, Conv1D) else layer.weight.data
        quantized = linear(weight, layer.bias)
        if layer.bias is not None:
            quantized.bias = nn.Parameter(layer.bias.data, requires_grad=False)
        model.set_submodule(path, quantized)
