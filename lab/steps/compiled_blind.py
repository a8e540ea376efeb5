"""Compiled steps of models that no fit of compiled steps has seen.

Their predictions were written down and committed before they were measured (`lab.score.compiled`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from lab.steps.compiled import (
    CompiledStep,
    detection,
    hf,
    of_suite,
    pictures_to_pictures,
    sequence,
    vision,
)
from lab.steps.llama import PlainLlama


def _opt(t: Any) -> Any:
    return t.OPTConfig(num_hidden_layers=4)


def _neox(t: Any) -> Any:
    return t.GPTNeoXConfig(
        num_hidden_layers=4, hidden_size=512, num_attention_heads=8, intermediate_size=2048
    )


def _qwen(t: Any) -> Any:
    return t.Qwen2Config(
        num_hidden_layers=4,
        hidden_size=896,
        intermediate_size=4864,
        num_attention_heads=14,
        num_key_value_heads=2,
        vocab_size=32_000,
    )


def _mistral(t: Any) -> Any:
    return t.MistralConfig(
        num_hidden_layers=3,
        hidden_size=1024,
        intermediate_size=3584,
        num_attention_heads=16,
        num_key_value_heads=4,
    )


def _bart(t: Any) -> Any:
    return t.BartConfig(encoder_layers=2, decoder_layers=2, d_model=768)


def _wide_llama(how: str) -> Any:
    build = partial(PlainLlama, 2, 2048, 5632, 16, 32_000)
    return sequence(build, 2, 1024, 32_000, "bf16", how, optimizer="fused", clip=1.0)


BLIND: tuple[CompiledStep, ...] = (
    CompiledStep("blind-resnet34", "resnet", vision("resnet34", 64, "bf16", True)),
    CompiledStep("blind-opt", "opt", hf("OPTForCausalLM", _opt, 8, 512, "bf16")),
    CompiledStep("blind-squeezenet", "squeezenet", vision("squeezenet1_1", 64, "fp32")),
    CompiledStep("blind-distilbert", "distilbert",
                 hf("DistilBertForMaskedLM", lambda t: t.DistilBertConfig(n_layers=3),
                                16, 128, "fp32")),
    CompiledStep("blind-unet", "unet",
                 partial(pictures_to_pictures, 8, "tf32", width=96)),
    CompiledStep("blind-neox", "neox",
                 hf("GPTNeoXForCausalLM", _neox, 8, 512, "bf16")),
    CompiledStep("blind-vgg13", "vgg", vision("vgg13", 16, "bf16")),
    CompiledStep("blind-qwen2", "qwen2",
                 hf("Qwen2ForCausalLM", _qwen, 4, 512, "fp32", dtype=torch.bfloat16,
                                optimizer="fused", clip=1.0)),
    CompiledStep("blind-detector", "detection", lambda how: detection(32, "tf32", how, True)),
    CompiledStep("blind-roberta", "roberta",
                 hf("RobertaForMaskedLM",
                                lambda t: t.RobertaConfig(num_hidden_layers=4), 8, 256, "tf32")),
    CompiledStep("blind-llama-wide", "llama", _wide_llama),
    CompiledStep("blind-deit", "deit",
                 hf("DeiTForImageClassification",
                                lambda t: t.DeiTConfig(num_hidden_layers=4, num_labels=1000),
                                32, 0, "bf16")),
    CompiledStep("blind-gpt", "gpt",
                 lambda how: of_suite("gpt2", 4, "tf32", how, layers=3, sequence=256)),
    CompiledStep("blind-dlrm", "dlrm",
                 lambda how: of_suite("dlrm", 4096, "tf32", how, tables=(50_000,) * 26)),
    CompiledStep("blind-mnasnet", "mobile", vision("mnasnet0_5", 32, "tf32")),
    CompiledStep("blind-mistral", "mistral",
                 hf("MistralForCausalLM", _mistral, 4, 512, "bf16")),
    CompiledStep("blind-albert", "albert",
                 hf("AlbertForMaskedLM",
                                lambda t: t.AlbertConfig(
                                    num_hidden_layers=4, hidden_size=768, num_attention_heads=12,
                                    intermediate_size=3072), 16, 128, "bf16")),
    CompiledStep("blind-bart", "bart",
                 hf("BartForConditionalGeneration", _bart, 8, 128, "tf32")),
    CompiledStep("blind-regnet", "regnet", vision("regnet_y_400mf", 64, "bf16", True)),
    CompiledStep("blind-shufflenet", "shufflenet",
                 vision("shufflenet_v2_x1_0", 64, "bf16", True)),
)  # fmt: skip
"""The steps, in the order in which they are measured."""
