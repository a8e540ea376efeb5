"""Training steps of NVIDIA's DeepLearningExamples, which both NVIDIA and Lambda have measured.

Most are made by `make(batch, precision, layout)`, where the precision is "fp32", "tf32" or
"amp_fp16". The published times include data loading; these steps do not.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lab.measured.public_steps import ssd
from lab.measured.public_steps.recipes import (
    LoopedAdam,
    add_biases_apart,
    copy_biases,
    half_step,
    smoothed_cross_entropy,
    steady_step,
)
from wavecast import suite
from wavecast.suite.models.vision import ResNet

Step = Callable[[], Any]

SOURCE_TOKENS = TARGET_TOKENS = 22.3
"""The mean number of tokens in a WMT16 sentence of at most 50. Lambda's tokens/s, step times and
batch sizes give 42.9 to 46.9 for both languages together."""
PADDED_TOKENS = 28
"""The assumed length of a batch. Sentences are batched in five buckets of length, each 10 tokens
wide, and padded to the longest sentence of the batch."""


def classifier(
    build: Callable[[], Any], image: int, batch: int, precision: str, layout: str
) -> Step:
    """An image classifier: SGD with momentum and smoothed labels, without mixup."""
    model, images = _prepared(build(), batch, image, layout)
    labels = torch.randint(1000, (batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.875, foreach=False)
    return steady_step(lambda: smoothed_cross_entropy(model(images), labels), optimizer, precision)


def _prepared(model: nn.Module, batch: int, image: int, layout: str) -> tuple[nn.Module, Tensor]:
    """The model and its images. As in NVIDIA's scripts, cuDNN searches for algorithms."""
    torch.backends.cudnn.benchmark = True
    form = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    images = torch.randn(batch, 3, image, image, device="cuda").contiguous(memory_format=form)
    return model.cuda().to(memory_format=form).train(), images


def resnet50(batch: int, precision: str, layout: str) -> Step:
    """ResNet-50 v1.5."""
    return classifier(ResNet, 224, batch, precision, layout)


def ssd300(batch: int, precision: str, layout: str) -> Step:
    """SSD300: SGD with momentum."""
    model, images = _prepared(ssd.SSD300(), batch, 300, layout)
    boxes, labels = ssd.targets(batch)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=False)

    def loss() -> Tensor:
        offsets, scores = model(images)
        return ssd.loss((offsets.float(), scores.float()), boxes, labels)

    return steady_step(loss, optimizer, precision)


def bert_squad(size: str, batch: int, precision: str, *, old: bool, sequence: int = 384) -> Step:
    """Fine-tuning of BERT on SQuAD (start and end of an answer), gradients clipped at norm 1.

    `old` is torch before 1.10, which copied biases and synchronised to clip gradients.
    """
    import transformers as hf

    model = _bert(hf.BertForQuestionAnswering, size)
    model = copy_biases(model) if old else model
    tokens = torch.randint(30_000, (batch, sequence), device="cuda")
    given = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    places = torch.randint(sequence, (2, batch), device="cuda")

    def loss() -> Tensor:
        start, end = model(**given, token_type_ids=torch.zeros_like(tokens), return_dict=False)
        return (F.cross_entropy(start, places[0]) + F.cross_entropy(end, places[1])) / 2

    if precision == "amp_fp16":
        return half_step(model, loss, clip_norm=1.0)
    optimizer = LoopedAdam(model.parameters(), old=old)
    return steady_step(loss, optimizer, precision, clip_norm=1.0)


def bert_pretraining(sequence: int, batch: int, precision: str, layout: str) -> Step:
    """Pre-training of BERT-large: one forward and backward pass of gradient accumulation."""
    half = precision == "amp_fp16"
    model, loss = _pretraining("large", sequence, batch)
    model = model.half() if half else model

    def step() -> None:
        (loss() * 1024 if half else loss()).backward()

    return step


def bert_pretraining_step(size: str, sequence: int, batch: int, precision: str) -> Step:
    """Pre-training of BERT with an update of the weights in each step: Adam for LAMB."""
    model, loss = _pretraining(size, sequence, batch)
    if precision == "amp_fp16":
        return half_step(model, loss)
    return steady_step(loss, torch.optim.Adam(model.parameters(), fused=True), precision)


def _pretraining(size: str, sequence: int, batch: int) -> tuple[Any, Callable[[], Tensor]]:
    """BERT and the loss of masked words and following sentences."""
    import transformers as hf

    model = copy_biases(_bert(hf.BertForPreTraining, size))
    masked = {128: 20, 512: 80}[sequence]
    tokens = torch.randint(30_000, (batch, sequence), device="cuda")
    segments, shown = torch.zeros_like(tokens), torch.ones_like(tokens)
    places = torch.randint(batch * sequence, (batch * masked,), device="cuda")
    words = torch.randint(30_000, (batch * masked,), device="cuda")
    follows = torch.randint(2, (batch,), device="cuda")

    def loss() -> Tensor:
        states, pooled = model.bert(
            tokens, attention_mask=shown, token_type_ids=segments, return_dict=False
        )
        chosen = states.flatten(0, 1).index_select(0, places)
        scores = model.cls.predictions(chosen)
        value = F.cross_entropy(scores.float(), words)
        return value + F.cross_entropy(model.cls.seq_relationship(pooled).float(), follows)

    return model, loss


def gnmt(batch: int, precision: str, layout: str) -> Step:
    """GNMT with four encoder and four decoder layers, all sentences padded to one length."""
    return suite.benchmark("gnmt").make_step(
        batch, _suite_precision(precision), sequence=PADDED_TOKENS, vocabulary=32_320
    )


def half_gnmt(batch: int) -> Step:
    """GNMT at Apex's level O2, whose gradients are float16."""
    step = suite.benchmark("gnmt").make_step(
        batch, "fp32", sequence=PADDED_TOKENS, vocabulary=32_320
    )
    source, target, following = step.inputs

    def loss() -> Tensor:
        return F.cross_entropy(
            step.model(source, target).flatten(0, 1).float(), following.flatten()
        )

    return half_step(step.model, loss, clip_norm=5.0)


def ncf(batch: int, precision: str, layout: str) -> Step:
    """NeuMF (He et al., Neural Collaborative Filtering, 2017) on MovieLens 20M, fused Adam."""
    model = NeuMF().cuda()
    users = torch.randint(NeuMF.USERS, (batch,), device="cuda")
    items = torch.randint(NeuMF.ITEMS, (batch,), device="cuda")
    clicked = torch.rand(batch, 1, device="cuda")
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def loss() -> Tensor:
        return F.binary_cross_entropy_with_logits(model(users, items).float(), clicked)

    return steady_step(loss, optimizer, precision)


class NeuMF(nn.Module):
    """A product of 64 factors, beside a perceptron with layers of 256, 256, 128 and 64."""

    USERS, ITEMS = 138_493, 26_744

    def __init__(self) -> None:
        super().__init__()
        self.user_factors, self.item_factors = (
            nn.Embedding(rows, 64) for rows in (self.USERS, self.ITEMS)
        )
        self.users, self.items = (nn.Embedding(rows, 128) for rows in (self.USERS, self.ITEMS))
        sizes = (256, 256, 128, 64)
        self.layers = nn.ModuleList(
            nn.Linear(inputs, outputs) for inputs, outputs in pairwise(sizes)
        )
        self.dropout = nn.Dropout(0.5)
        self.output = nn.Linear(128, 1)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """(batch,), (batch,) -> (batch, 1)."""
        product = self.user_factors(users) * self.item_factors(items)
        x = torch.cat([self.users(users), self.items(items)], dim=1)
        for layer in self.layers:
            x = self.dropout(torch.relu(layer(x)))
        logits: Tensor = self.output(torch.cat([product, x], dim=1))
        return logits


def timm(name: str) -> Any:
    """A model of timm with random weights."""
    from lab.steps.libraries import import_timm

    return import_timm().create_model(name)


def _bert(kind: Any, size: str) -> Any:
    import transformers as hf

    layers, width, heads = {"base": (12, 768, 12), "large": (24, 1024, 16)}[size]
    config = hf.BertConfig(
        vocab_size=30_528,  # a multiple of 8, for tensor cores
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
    )
    model = kind._from_config(config, attn_implementation="eager").cuda().train()
    return add_biases_apart(model)


def _suite_precision(precision: str) -> str:
    return "fp16" if precision == "amp_fp16" else precision
