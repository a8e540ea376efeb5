"""Linear layers with weights in 4 or 8 bits, by bitsandbytes, as transformers puts them in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from wavecast.frameworks.pytorch.huggingface.models import needing

MakeLinear = Callable[[Tensor, Tensor | None], nn.Module]
"""Makes a quantized layer of a weight and a bias."""
_OUTLIERS = 6.0
"""Inputs above this are multiplied in 16 bits: the default of `BitsAndBytesConfig`."""


def in_4_bits(model: Any, compute_dtype: torch.dtype, what: str) -> None:
    """Store the linear layers of a model in 4 bits (NF4), their scales in 8 bits.

    The last layer and the embeddings stay as they are. It is what transformers does for
    `BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True)`.

    Args:
        model: the model, which is changed.
        compute_dtype: the precision of matmuls.
        what: what needs bitsandbytes, for the message if it is missing.
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

    Args:
        model: the model, which is changed.
        what: what needs bitsandbytes, for the message if it is missing.
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
        made = linear(weight, layer.bias)
        if layer.bias is not None:
            made.bias = nn.Parameter(layer.bias.data, requires_grad=False)
        model.set_submodule(path, made)
