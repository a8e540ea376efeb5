"""Training steps before and after a change that `wavecast advise` proposes, written by hand.

Each pair is plain PyTorch. The step before is what advice is asked about; the step after is what a
person would write who follows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from wavecast.suite.models.vision import ResNet

Step = Callable[[], Any]
VOCABULARY, PADDED = 50257, 50304


@dataclass(frozen=True)
class Pair:
    """A step before and after one change, and the name of the change in `wavecast advise`."""

    name: str
    change: str
    before: Callable[[], Step]
    after: Callable[[], Step]
    samples: tuple[int, int] = (1, 1)
    """The samples of one step before and after; times are compared for each sample."""


class EitherAttention(nn.Module):
    """Causal attention, written by hand as in nanoGPT, or by torch's own function."""

    def __init__(self, width: int, heads: int, context: int, by_hand: bool) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        mask = torch.tril(torch.ones(context, context)).view(1, 1, context, context)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to earlier tokens."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        if self.by_hand:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    """A block of a decoder."""

    def __init__(self, width: int, heads: int, context: int, by_hand: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = EitherAttention(width, heads, context, by_hand)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attention and the feed-forward network, each added to its input."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SmallDecoder(nn.Module):
    """A GPT of a few layers."""

    def __init__(
        self,
        layers: int = 6,
        vocabulary: int = PADDED,
        by_hand: bool = False,
        recompute: bool = False,
        context: int = 1024,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.tokens, self.places = nn.Embedding(vocabulary, 768), nn.Embedding(context, 768)
        self.blocks = nn.ModuleList(Block(768, 12, context, by_hand) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, vocabulary, bias=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the output layer reads."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        normed: Tensor = self.norm(x)
        return normed

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of the next tokens."""
        logits: Tensor = self.head(self.hidden(tokens))
        return logits


def decoder_step(
    *,
    amp: bool = True,
    batch: int = 8,
    length: int = 1024,
    compiled: bool = False,
    chunks: int = 0,
    reads: int = 0,
    optimizer: dict[str, Any] | None = None,
    tf32: bool = False,
    **sizes: Any,
) -> Step:
    """The training step of a decoder."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    model = SmallDecoder(**sizes).cuda()
    update = torch.optim.AdamW(model.parameters(), lr=1e-4, **(optimizer or {"fused": True}))
    vocabulary = model.head.out_features
    text = torch.randint(min(vocabulary, VOCABULARY), (batch, length + 1), device="cuda")
    tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    run = torch.compile(model) if compiled else model

    def part(hidden: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model.head(hidden), target, reduction="sum")

    def loss_of() -> Tensor:
        if not chunks:
            return F.cross_entropy(run(tokens).view(-1, vocabulary), targets.view(-1))
        hidden, labels = model.hidden(tokens).flatten(0, 1), targets.flatten()
        pairs = zip(hidden.chunk(chunks), labels.chunk(chunks), strict=True)
        sums = [checkpoint(part, *pair, use_reentrant=False) for pair in pairs]
        return torch.stack(sums).sum() / labels.numel()

    def step() -> None:
        update.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if amp else nullcontext():
            loss = loss_of()
        loss.backward()
        for parameter in list(model.parameters())[:reads]:
            parameter.grad.norm().item()
        update.step()

    return step


def image_step(
    *, amp: bool = True, batch: int = 64, channels_last: bool = False, compiled: bool = False
) -> Step:
    """The training step of a ResNet-50."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = True
    model = ResNet().cuda()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.randint(1000, (batch,), device="cuda")
    if channels_last:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    update = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    run = torch.compile(model) if compiled else model

    def step() -> None:
        update.zero_grad()
        with torch.autocast("cuda", torch.bfloat16) if amp else nullcontext():
            loss = F.cross_entropy(run(images), labels)
        loss.backward()
        update.step()

    return step


def small_step(*, reads: bool = True, batch: int = 256, fused: bool = True) -> Step:
    """The training step of a small network of many layers, bound by the host."""
    torch.backends.cuda.matmul.allow_tf32 = True
    layers = [nn.Sequential(nn.Linear(512, 512), nn.ReLU()) for _ in range(32)]
    model = nn.Sequential(*layers, nn.Linear(512, 10)).cuda()
    data = torch.randn(batch, 512, device="cuda")
    labels = torch.randint(10, (batch,), device="cuda")
    ways = {"fused": True} if fused else {"foreach": False}
    update = torch.optim.Adam(model.parameters(), lr=1e-3, **ways)

    def step() -> None:
        update.zero_grad()
        outputs = model(data)
        loss = F.cross_entropy(outputs, labels)
        if reads:
            loss.item()
            (outputs.argmax(1) == labels).float().mean().item()
        loss.backward()
        update.step()

    return step


def _pair(
    name: str, change: str, make: Callable[..., Step], before: dict[str, Any], after: dict[str, Any]
) -> Pair:
    sizes = tuple(given.get("batch", 1) for given in (before, after))
    return Pair(name, change, partial(make, **before), partial(make, **after), (sizes[0], sizes[1]))


PAIRS = (
    _pair("decoder-amp", "bf16", decoder_step, {"amp": False}, {}),
    _pair("decoder-tf32", "tf32", decoder_step, {"amp": False}, {"amp": False, "tf32": True}),
    _pair("resnet50-amp", "bf16", image_step, {"amp": False}, {}),
    _pair("resnet50-channels-last", "channels_last", image_step, {}, {"channels_last": True}),
    _pair("resnet50-compile", "compile", image_step, {}, {"compiled": True}),
    _pair("decoder-compile", "compile", decoder_step, {}, {"compiled": True}),
    _pair("decoder-sdpa", "sdpa", decoder_step, {"by_hand": True}, {}),
    _pair("decoder-sdpa-fp32", "sdpa", decoder_step, {"by_hand": True, "amp": False, "batch": 4},
          {"amp": False, "batch": 4}),
    _pair("decoder-fused", "fused_optimizer", decoder_step,
          {"optimizer": {"foreach": False}, "batch": 1}, {"batch": 1}),
    _pair("decoder-fused-foreach", "fused_optimizer", decoder_step,
          {"optimizer": {"foreach": True}, "batch": 1}, {"batch": 1}),
    _pair("small-fused", "fused_optimizer", small_step, {"reads": False, "fused": False},
          {"reads": False}),
    _pair("small-waits", "fewer_waits", small_step, {}, {"reads": False}),
    _pair("decoder-waits", "fewer_waits", decoder_step, {"reads": 60, "batch": 1}, {"batch": 1}),
    _pair("decoder-batch", "batch", decoder_step, {"batch": 1}, {"batch": 2}),
    _pair("resnet50-batch", "batch", image_step, {"batch": 8}, {"batch": 16}),
    _pair("decoder-checkpoint", "checkpointing", decoder_step, {}, {"recompute": True}),
    _pair("decoder-chunked-loss", "chunked_loss", decoder_step, {}, {"chunks": 8}),
    _pair("decoder-padding", "padding", decoder_step, {"vocabulary": VOCABULARY}, {}),
)  # fmt: skip
"""What is measured, and what advice is judged by."""
