"""Training steps that are run eagerly and with torch.compile: the same code on a GPU and traced.

Models whose layers repeat have few of them, because the time to compile grows with their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lab.steps.hand_written import Denoiser, Detector, PlainLlama, SequenceNet, Tower, focal_loss
from lab.steps.libraries import import_torchvision
from wavecast import suite
from wavecast.suite.training import Minimizer

EAGER, DEFAULT, GRAPHS = "eager", "default", "reduce-overhead"
DEVICE = os.environ.get("WAVECAST_LAB_DEVICE", "cuda")
"""Where steps run; "cpu" to try the scripts on a machine without a GPU."""

Step = Callable[[], Any]
Make = Callable[[str], Step]


@dataclass(frozen=True)
class CompiledStep:
    """A step that can be made in several ways: EAGER, DEFAULT or GRAPHS."""

    name: str
    family: str
    """The kind of network. Validation leaves out all steps of a family."""
    make: Make
    mode: str = DEFAULT
    """How it is compiled when it is."""


def trained(
    model: nn.Module,
    loss: Callable[..., Any],
    how: str,
    precision: str,
    *,
    optimizer: str = "adamw",
    clip: float | None = None,
    compiled_optimizer: bool = False,
) -> Step:
    """The training step of a model on the device, in a way and a precision."""
    chosen = OPTIMIZERS[optimizer]([p for p in model.parameters() if p.requires_grad])
    if how != EAGER:
        model.compile(mode=None if how == DEFAULT else how)
        if compiled_optimizer:
            chosen.step = torch.compile(chosen.step)
    return Minimizer(partial(loss, model), chosen, precision, DEVICE, clip)


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": partial(torch.optim.SGD, lr=0.01),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=1e-4),
    "adamw": partial(torch.optim.AdamW, lr=1e-4),
    "fused": partial(torch.optim.AdamW, lr=1e-4, fused=True),
    "loop": partial(torch.optim.AdamW, lr=1e-4, foreach=False),
}


def images(
    build: Callable[[], nn.Module],
    batch: int,
    precision: str,
    how: str,
    *,
    last: bool = False,
    side: int = 224,
    **options: Any,
) -> Step:
    """A classifier of images, whose loss is outside of the compiled module."""
    with torch.device(DEVICE):
        model = build()
        pictures = torch.randn(batch, 3, side, side)
        labels = torch.randint(0, 1000, (batch,))
    if last:
        model = model.to(memory_format=torch.channels_last)
        pictures = pictures.contiguous(memory_format=torch.channels_last)
    options = {"optimizer": "momentum", **options}
    return trained(model, lambda m: F.cross_entropy(m(pictures), labels), how, precision, **options)


def _vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        models = import_torchvision().models
        model: nn.Module = models.get_model(name, weights=None, **options)
        return model

    return build


def vision(
    name: str, batch: int, precision: str, last: bool = False, **options: Any
) -> Callable[[str], Step]:
    """A classifier of torchvision, to be made in any way."""
    build = _vision(name)
    return lambda how: images(build, batch, precision, how, last=last, **options)


def words(
    architecture: str,
    settings: Callable[[Any], Any],
    batch: int,
    length: int,
    precision: str,
    how: str,
    dtype: Any = None,
    **options: Any,
) -> Step:
    """A model of transformers, which computes its loss from labels."""
    import transformers

    with torch.device(DEVICE):
        model = getattr(transformers, architecture)(settings(transformers))
        tokens = torch.randint(5, 1000, (batch, length))
        pixels = torch.randn(batch, 3, 224, 224)
        classes = torch.zeros(batch, dtype=torch.long)
    model = model.train() if dtype is None else model.to(dtype).train()
    if "vocab_size" in model.config.to_dict():
        inputs = {"input_ids": tokens, "labels": tokens}
    else:
        inputs = {"pixel_values": pixels, "labels": classes}
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False
    return trained(model, lambda m: m(**inputs).loss, how, precision, **options)


def hf(
    architecture: str,
    settings: Callable[[Any], Any],
    batch: int,
    length: int,
    precision: str,
    **options: Any,
) -> Callable[[str], Step]:
    """A model of transformers, to be made in any way."""
    return lambda how: words(architecture, settings, batch, length, precision, how, **options)


def of_suite(name: str, batch: int, precision: str, how: str, **options: Any) -> Step:
    """A step of the suite, whose model is compiled."""
    step = suite.benchmark(name).make_step(batch, precision, device=DEVICE, **options)
    if how != EAGER:
        step.model.compile(mode=None if how == DEFAULT else how)
    return step


def _of_suite(name: str, batch: int, precision: str, **options: Any) -> Callable[[str], Step]:
    return lambda how: of_suite(name, batch, precision, how, **options)


def sequence(
    build: Callable[[], nn.Module],
    batch: int,
    length: int,
    vocabulary: int,
    precision: str,
    how: str,
    **options: Any,
) -> Step:
    """A model that predicts the next token; its loss is outside of the compiled module."""
    with torch.device(DEVICE):
        model = build()
        tokens = torch.randint(0, vocabulary, (batch, length))

    def loss(m: nn.Module) -> Any:
        return F.cross_entropy(m(tokens).flatten(0, 1), tokens.flatten())

    return trained(model, loss, how, precision, **options)


def _llama(batch: int, precision: str, **options: Any) -> Callable[[str], Step]:
    build = partial(PlainLlama, 4, 1024, 2816, 16, 32_000)
    return lambda how: sequence(build, batch, 1024, 32_000, precision, how, **options)


def pictures_to_pictures(
    batch: int, precision: str, how: str, last: bool = False, width: int = 64
) -> Step:
    """A U-Net that is trained to remove noise."""
    with torch.device(DEVICE):
        model = Denoiser(width)
        noisy = torch.randn(batch, 4, 64, 64)
        times = torch.rand(batch)
    if last:
        model = model.to(memory_format=torch.channels_last)
        noisy = noisy.contiguous(memory_format=torch.channels_last)
    return trained(model, lambda m: F.mse_loss(m(noisy, times), noisy), how, precision)


def detection(batch: int, precision: str, how: str, last: bool = False) -> Step:
    """A dense detector in one stage, with its focal loss in the compiled code."""
    with torch.device(DEVICE):
        model = Detector()
        seen = torch.randn(batch, 3, 256, 256)
        places = sum((256 // s) ** 2 for s in (8, 16, 32)) * 3
        truth = (torch.rand(batch, places, 20) > 0.99).float()
        boxes = torch.randn(batch, places, 4)
    if last:
        model = model.to(memory_format=torch.channels_last)
        seen = seen.contiguous(memory_format=torch.channels_last)
    return trained(
        model, lambda m: focal_loss(m(seen), truth, boxes), how, precision, optimizer="momentum"
    )


def recurrent(batch: int, precision: str, how: str) -> Step:
    """An LSTM between an embedding and a perceptron: torch.compile leaves it out."""
    with torch.device(DEVICE):
        model = SequenceNet()
        tokens = torch.randint(0, 10_000, (batch, 64))
        labels = torch.randint(0, 10, (batch,))
    return trained(model, lambda m: F.cross_entropy(m(tokens), labels), how, precision, clip=1.0)


def tower(
    width: int,
    depth: int,
    batch: int,
    precision: str,
    how: str,
    breaks: int = 0,
    **options: Any,
) -> Step:
    """A perceptron with norms, dropout and residuals; its graph may be broken between layers."""
    with torch.device(DEVICE):
        model = Tower(width, depth, breaks)
        x, y = torch.randn(batch, width), torch.randn(batch, width)
    return trained(model, lambda m: F.mse_loss(m(x), y), how, precision, **options)


def _gpt(t: Any, layers: int = 4) -> Any:
    return t.GPT2Config(n_layer=layers)


def _bert(t: Any) -> Any:
    return t.BertConfig(num_hidden_layers=4)


def _small_llama(t: Any) -> Any:
    return t.LlamaConfig(
        num_hidden_layers=4,
        hidden_size=1024,
        intermediate_size=2816,
        num_attention_heads=16,
        num_key_value_heads=8,
        vocab_size=32_000,
    )


def _t5(t: Any) -> Any:
    return t.T5Config(num_layers=3, decoder_start_token_id=0, pad_token_id=0)


def _vit(t: Any) -> Any:
    return t.ViTConfig(num_hidden_layers=4, num_labels=1000)


_HAND_GPT = {"layers": 4, "sequence": 512}

STEPS: tuple[CompiledStep, ...] = (
    CompiledStep("hf-gpt2-bf16", "gpt2", hf("GPT2LMHeadModel", _gpt, 8, 1024, "bf16")),
    CompiledStep("resnet50-bf16-last", "resnet", vision("resnet50", 64, "bf16", True)),
    CompiledStep("hf-bert-bf16", "bert", hf("BertForMaskedLM", _bert, 16, 512, "bf16")),
    CompiledStep("resnet18-fp32", "resnet", vision("resnet18", 64, "fp32")),
    CompiledStep("hand-gpt-bf16", "gpt", _of_suite("gpt2", 8, "bf16", **_HAND_GPT)),
    CompiledStep("mobilenet-v2-bf16-last", "mobile", vision("mobilenet_v2", 64, "bf16", True)),
    CompiledStep("hf-llama-bf16-weights", "llama",
                 hf("LlamaForCausalLM", _small_llama, 4, 1024, "fp32", dtype=torch.bfloat16,
                        optimizer="fused", clip=1.0)),
    CompiledStep("unet-bf16", "unet", lambda how: pictures_to_pictures(32, "bf16", how)),
    CompiledStep("hf-vit-bf16", "vit", hf("ViTForImageClassification", _vit, 64, 0, "bf16")),
    CompiledStep("convnext-bf16-last", "convnext",
                 vision("convnext_tiny", 32, "bf16", True, optimizer="adamw")),
    CompiledStep("lstm-fp32", "recurrent", lambda how: recurrent(64, "fp32", how)),
    CompiledStep("detector-bf16-last", "detection", lambda how: detection(16, "bf16", how, True)),
    CompiledStep("dlrm-fp32", "dlrm", _of_suite("dlrm", 2048, "fp32", tables=(200_000,) * 26)),
    CompiledStep("hf-t5-bf16", "t5",
                 hf("T5ForConditionalGeneration", _t5, 16, 256, "bf16")),
    CompiledStep("hand-gpt-graphs", "gpt", _of_suite("gpt2", 8, "bf16", **_HAND_GPT), GRAPHS),
    CompiledStep("vgg16-tf32", "vgg", vision("vgg16", 32, "tf32")),
    CompiledStep("efficientnet-bf16-last", "mobile",
                 vision("efficientnet_b0", 48, "bf16", True)),
    CompiledStep("plain-llama-bf16", "llama", _llama(4, "bf16", optimizer="fused", clip=1.0)),
    CompiledStep("tower-compiled-adamw", "tower",
                 lambda how: tower(2048, 6, 4096, "bf16", how, compiled_optimizer=True)),
    CompiledStep("resnet50-tf32", "resnet", vision("resnet50", 32, "tf32")),
    CompiledStep("hf-bert-fp32", "bert", hf("BertForMaskedLM", _bert, 8, 128, "fp32")),
    CompiledStep("mobilenet-v3-fp32", "mobile", vision("mobilenet_v3_large", 64, "fp32")),
    CompiledStep("unet-fp32-last", "unet", lambda how: pictures_to_pictures(16, "fp32", how, True)),
    CompiledStep("hf-gpt2-tf32-fused", "gpt2",
                 hf("GPT2LMHeadModel", _gpt, 4, 512, "tf32", optimizer="fused", clip=1.0)),
    CompiledStep("resnet18-bf16-graphs", "resnet", vision("resnet18", 32, "bf16", True), GRAPHS),
    CompiledStep("vit-hand-fp32", "vit",
                 _of_suite("vit", 16, "fp32", layers=4)),
    CompiledStep("lstm-bf16", "recurrent", lambda how: recurrent(256, "bf16", how)),
    CompiledStep("detector-fp32", "detection", lambda how: detection(8, "fp32", how)),
    CompiledStep("resnet18-bf16-last", "resnet", vision("resnet18", 128, "bf16", True)),
    CompiledStep("hand-bert-tf32", "bert",
                 _of_suite("bert-base", 32, "tf32", layers=4, width=768, heads=12)),
    CompiledStep("convnext-tf32", "convnext",
                 vision("convnext_tiny", 16, "tf32", optimizer="adamw")),
    CompiledStep("vgg11-bn-bf16", "vgg", vision("vgg11_bn", 32, "bf16")),
    CompiledStep("hf-llama-tf32", "llama",
                 hf("LlamaForCausalLM", _small_llama, 2, 512, "tf32")),
    CompiledStep("transformer-bf16", "translation", _of_suite("transformer", 64, "bf16")),
    CompiledStep("resnet18-compiled-sgd", "resnet",
                 vision("resnet18", 32, "bf16", True, compiled_optimizer=True)),
    CompiledStep("dlrm-bf16", "dlrm", _of_suite("dlrm", 8192, "bf16", tables=(100_000,) * 26)),
    CompiledStep("hf-bert-graphs", "bert",
                 hf("BertForMaskedLM", _bert, 8, 128, "bf16"), GRAPHS),
    CompiledStep("efficientnet-tf32", "mobile", vision("efficientnet_b0", 16, "tf32")),
    CompiledStep("tower-fp32-graphs", "tower",
                 lambda how: tower(512, 8, 512, "fp32", how), GRAPHS),
    CompiledStep("hf-vit-tf32", "vit", hf("ViTForImageClassification", _vit, 16, 0, "tf32")),
    CompiledStep("densenet-bf16-last", "densenet",
                 vision("densenet121", 32, "bf16", True)),
    CompiledStep("hf-t5-tf32", "t5",
                 hf("T5ForConditionalGeneration", _t5, 8, 128, "tf32", optimizer="fused")),
    CompiledStep("alexnet-fp32", "vgg", vision("alexnet", 128, "fp32")),
)  # fmt: skip
"""The steps, the most telling first."""
