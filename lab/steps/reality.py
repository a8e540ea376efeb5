"""Training steps whose traces are compared with recordings of the same code on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from wavecast import suite
from wavecast.suite.training import Minimizer, TrainingStep

PRECISIONS = ("fp32", "bf16")


def mobilenet_v3(batch: int, precision: str) -> TrainingStep:
    """MobileNetV3-Large (Howard et al., 2019): depthwise convolutions, squeeze-excite, SGD."""
    return _classifier(_MobileNetV3(), (batch, 3, 224, 224), precision, channels_last=True)


def vit(batch: int, precision: str) -> TrainingStep:
    """ViT-Base/16 (Dosovitskiy et al., 2021) with torch's encoder layers and AdamW."""
    return _classifier(_ViT(), (batch, 3, 224, 224), precision, adam=True)


def lstm(batch: int, precision: str) -> TrainingStep:
    """A two-layer bidirectional LSTM with dropout over 128 tokens, Adam."""
    return _sequence_classifier(nn.LSTM, batch, precision)


def gru(batch: int, precision: str) -> TrainingStep:
    """The same with GRU cells."""
    return _sequence_classifier(nn.GRU, batch, precision)


def _suite(name: str) -> Callable[[int, str], Any]:
    return lambda batch, precision: suite.benchmark(name).make_step(batch, precision)


STEPS: dict[str, tuple[Callable[[int, str], Any], int]] = {
    "resnet50": (_suite("resnet50"), 32),
    "mobilenet_v3": (mobilenet_v3, 32),
    "bert-base": (_suite("bert-base"), 16),
    "gpt2": (_suite("gpt2"), 4),
    "vit": (vit, 32),
    "lstm": (lstm, 64),
    "gru": (gru, 64),
    "dcgan": (_suite("dcgan"), 64),
}
"""Name -> (make_step(batch, precision), batch)."""


def _huggingface(architecture: str, config: Any, **extra: Any) -> Callable[[str], TrainingStep]:
    """Makes a step of a Hugging Face model, which computes its loss from labels."""

    def make(precision: str) -> TrainingStep:
        import transformers

        model = getattr(transformers, architecture)(config(transformers)).cuda().train()
        if "vocab_size" in model.config.to_dict():
            tokens = torch.randint(5, 1000, (4, 64), device="cuda")
            inputs = {"input_ids": tokens, "labels": tokens, **extra}
        else:
            images = torch.randn(4, 3, 224, 224, device="cuda")
            inputs = {"pixel_values": images, "labels": torch.zeros(4, device="cuda").long()}
        if "attention_mask" in inputs:
            shown = torch.ones(4, 64, dtype=torch.long, device="cuda")
            shown[1:, extra["attention_mask"] :] = 0
            inputs["attention_mask"] = shown
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        minimize = Minimizer(lambda: model(**inputs).loss, optimizer, precision, "cuda", 1.0)
        return TrainingStep(model, (), minimize)

    return make


LIBRARY_STEPS: dict[str, Callable[[str], TrainingStep]] = {
    "hf bert, full": _huggingface(
        "BertForMaskedLM", lambda t: t.BertConfig(num_hidden_layers=4), attention_mask=64
    ),
    "hf bert, padded": _huggingface(
        "BertForMaskedLM", lambda t: t.BertConfig(num_hidden_layers=4), attention_mask=40
    ),
    "hf gpt2": _huggingface("GPT2LMHeadModel", lambda t: t.GPT2Config(n_layer=4)),
    "hf t5": _huggingface(
        "T5ForConditionalGeneration",
        lambda t: t.T5Config(num_layers=2, decoder_start_token_id=0, pad_token_id=0),
    ),
    "hf vit": _huggingface("ViTForImageClassification", lambda t: t.ViTConfig(num_hidden_layers=4)),
    "hf llama, grouped": _huggingface(
        "LlamaForCausalLM",
        lambda t: t.LlamaConfig(
            num_hidden_layers=3, hidden_size=512, intermediate_size=1024, num_key_value_heads=8
        ),
    ),
}
"""Steps of models from transformers. Trace and recording must use the same version of it."""


def _layers(build: Callable[[], nn.Module], run: Callable[[nn.Module], Any], **options: Any) -> Any:
    """Makes a step of a few layers: `run` computes a loss, and Adam with `options` minimises it."""

    def make(precision: str) -> TrainingStep:
        model = build().cuda()
        optimizer = torch.optim.Adam(model.parameters(), **options)
        minimize = Minimizer(lambda: run(model), optimizer, precision, "cuda")
        return TrainingStep(model, (), minimize)

    return make


def _random(*shape: int) -> Any:
    return torch.randn(*shape, device="cuda")


def _packed(model: nn.Module) -> Any:
    lengths = torch.tensor([20, 17, 9, 9, 4])
    packed = nn.utils.rnn.pack_padded_sequence(_random(5, 20, 32), lengths, batch_first=True)
    return nn.utils.rnn.pad_packed_sequence(model(packed)[0], batch_first=True)[0].square().mean()


def _cells(model: nn.Module) -> Any:
    cell, gated = model.children()
    hidden, state = cell(_random(5, 32))
    return cell(_random(5, 32), (hidden, state))[0].mean() + gated(_random(5, 32)).square().mean()


def _ctc(model: nn.Module) -> Any:
    scores = model(_random(50, 4, 32)).log_softmax(-1)
    targets = torch.randint(1, 20, (4, 10), device="cuda")
    # Lengths are tuples: tensors take another path under a dispatch mode.
    return F.ctc_loss(scores, targets, (50,) * 4, (10,) * 4)


def _bags(model: nn.Module) -> Any:
    tokens = torch.randint(0, 100, (64,), device="cuda")
    return model(tokens, torch.arange(0, 64, 8, device="cuda")).square().mean()


def _checkpointed(model: nn.Module) -> Any:
    return checkpoint(model, _random(8, 64), use_reentrant=False).square().mean()


def _attended(model: nn.Module) -> Any:
    x = _random(4, 24, 64)
    out, weights = model(x, x, x, need_weights=True)
    return out.square().mean() + weights.square().mean()


def _square(*shape: int, layout: Any = torch.contiguous_format) -> Callable[[nn.Module], Any]:
    return lambda model: model(_random(*shape).contiguous(memory_format=layout)).square().mean()


LAYER_STEPS: dict[str, Callable[[str], TrainingStep]] = {
    "packed lstm": _layers(lambda: nn.LSTM(32, 48, 2, batch_first=True, dropout=0.1), _packed),
    "plain rnn": _layers(
        lambda: _First(nn.RNN(32, 48, 2, bidirectional=True)), _square(20, 5, 32), fused=True
    ),
    "cells": _layers(lambda: nn.ModuleList([nn.LSTMCell(32, 48), nn.GRUCell(32, 48)]), _cells),
    "activations": _layers(
        lambda: nn.Sequential(nn.Linear(32, 32), nn.SiLU(), nn.Linear(32, 32), nn.Mish()),
        _square(20, 32),
    ),
    "ctc": _layers(lambda: nn.Linear(32, 20), _ctc),
    "bags": _layers(lambda: nn.EmbeddingBag(100, 32), _bags, foreach=False),
    "checkpointed": _layers(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), _checkpointed
    ),
    "attention with weights": _layers(
        lambda: nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True), _attended
    ),
    "3-d": _layers(
        lambda: nn.Sequential(
            nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.ConvTranspose3d(8, 4, 3, 2)
        ),
        _square(2, 3, 8, 8, 8),
    ),
    "norms, channels last": _layers(
        lambda: nn.Sequential(
            nn.Conv2d(4, 16, 3),
            nn.GroupNorm(4, 16),
            nn.Conv2d(16, 16, 3, groups=16),
            nn.InstanceNorm2d(16, affine=True),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
        ).to(memory_format=torch.channels_last),
        _square(4, 4, 32, 32, layout=torch.channels_last),
    ),
    "rms norm, softmax": _layers(
        lambda: nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64), nn.Softmax(-1), nn.LayerNorm(64)),
        _square(8, 64),
    ),
    "transformer": _layers(
        lambda: nn.Transformer(64, 4, 1, 1, 128, batch_first=True),
        lambda model: model(_random(2, 10, 64), _random(2, 7, 64)).square().mean(),
    ),
}
"""Steps of a few layers each, which the models above do not use."""


class _First(nn.Module):
    """Returns only the first result of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Any) -> Any:
        return self.module(x)[0]


def _classifier(
    model: nn.Module,
    shape: tuple[int, ...],
    precision: str,
    channels_last: bool = False,
    adam: bool = False,
) -> TrainingStep:
    model = model.cuda()
    images = torch.randn(shape, device="cuda")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (shape[0],), device="cuda")
    optimizer = (
        torch.optim.AdamW(model.parameters(), lr=1e-4)
        if adam
        else torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    )

    def loss(images: Any, labels: Any) -> Any:
        return F.cross_entropy(model(images), labels)

    return TrainingStep(model, (images, labels), Minimizer(loss, optimizer, precision, "cuda"))


def _sequence_classifier(cell: Any, batch: int, precision: str) -> TrainingStep:
    model = _Recurrent(cell).cuda()
    tokens = torch.randint(0, 10_000, (batch, 128), device="cuda")
    labels = torch.randint(0, 5, (batch,), device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss(tokens: Any, labels: Any) -> Any:
        return F.cross_entropy(model(tokens), labels)

    minimize = Minimizer(loss, optimizer, precision, "cuda", clip_norm=1.0)
    return TrainingStep(model, (tokens, labels), minimize)


class _Recurrent(nn.Module):
    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 256)
        self.layers = cell(256, 512, 2, bidirectional=True, dropout=0.2, batch_first=True)
        self.out = nn.Linear(1024, 5)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.layers(self.embedding(tokens))[0].mean(1))


class _ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, 768))
        self.position = nn.Parameter(torch.zeros(1, 197, 768))
        layer = nn.TransformerEncoderLayer(
            768, 12, 3072, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 12, nn.LayerNorm(768), False)
        self.head = nn.Linear(768, 1000)

    def forward(self, images: Any) -> Any:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
        return self.head(self.encoder(x)[:, 0])


class _SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(8, channels // 4 // 8 * 8)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Hardsigmoid(inplace=True),
        )

    def forward(self, x: Any) -> Any:
        return x * self.gate(x)


class _InvertedResidual(nn.Module):
    def __init__(
        self, inner: int, outer: int, kernel: int, stride: int, wide: int, excite: bool, act: Any
    ) -> None:
        super().__init__()
        self.adds = stride == 1 and inner == outer
        self.body = nn.Sequential(
            *_conv(inner, wide, 1, 1, 1, act),
            *_conv(wide, wide, kernel, stride, wide, act),
            *([_SqueezeExcite(wide)] if excite else []),
            *_conv(wide, outer, 1, 1, 1, None),
        )

    def forward(self, x: Any) -> Any:
        return x + self.body(x) if self.adds else self.body(x)


def _conv(inner: int, outer: int, kernel: int, stride: int, groups: int, act: Any) -> list[Any]:
    convolution = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outer), *([act(inplace=True)] if act else [])]


class _MobileNetV3(nn.Module):
    # kernel, expansion, out, squeeze-excite, hard-swish, stride (the paper's table 1)
    ROWS = (
        (3, 16, 16, 0, 0, 1), (3, 64, 24, 0, 0, 2), (3, 72, 24, 0, 0, 1), (5, 72, 40, 1, 0, 2),
        (5, 120, 40, 1, 0, 1), (5, 120, 40, 1, 0, 1), (3, 240, 80, 0, 1, 2), (3, 200, 80, 0, 1, 1),
        (3, 184, 80, 0, 1, 1), (3, 184, 80, 0, 1, 1), (3, 480, 112, 1, 1, 1),
        (3, 672, 112, 1, 1, 1), (5, 672, 160, 1, 1, 2), (5, 960, 160, 1, 1, 1),
        (5, 960, 160, 1, 1, 1),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        layers = _conv(3, 16, 3, 2, 1, nn.Hardswish)
        inner = 16
        for kernel, wide, outer, excite, swish, stride in self.ROWS:
            act = nn.Hardswish if swish else nn.ReLU
            layers.append(_InvertedResidual(inner, outer, kernel, stride, wide, bool(excite), act))
            inner = outer
        layers += _conv(inner, 960, 1, 1, 1, nn.Hardswish)
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(960, 1280), nn.Hardswish(inplace=True), nn.Dropout(0.2), nn.Linear(1280, 1000)
        )

    def forward(self, images: Any) -> Any:
        return self.head(F.adaptive_avg_pool2d(self.features(images), 1).flatten(1))
