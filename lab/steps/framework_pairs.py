"""Six models, each written in torch and in JAX: the same layers, sizes, batch and optimizer.

Torch runs as it is written, with what it offers for a layer: its own attention, its own LSTM,
autocast and fused optimizers. JAX is compiled by XLA and written in plain `jax.numpy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.suite.models.language import gpt2
from wavecast.suite.models.vision import resnet50
from wavecast.suite.training import Minimizer, TrainingStep

if TYPE_CHECKING:
    from wavecast.suite.jax_models import JaxTraining

FRAMEWORKS = ("torch", "jax")


@dataclass(frozen=True)
class FrameworkPair:
    """A model in both frameworks."""

    name: str
    torch: Callable[[], Callable[[], Any]]
    """Makes the step."""
    jax: str
    """The function in `lab.steps` or the suite, "MODULE:FUNCTION"."""
    arguments: tuple[Any, ...]

    def make_jax(self) -> JaxTraining:
        """The step in JAX, which is imported only now."""
        from importlib import import_module

        module, _, function = self.jax.partition(":")
        made: JaxTraining = getattr(import_module(module), function)(*self.arguments)
        return made


def _trained(
    model: nn.Module, inputs: tuple[Tensor, ...], precision: str, *, adam: bool
) -> TrainingStep:
    model = model.cuda()
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        if adam
        else torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    )

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x).flatten(0, -2), y.flatten())

    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, "cuda"))


def _labelled(shape: tuple[int, ...], classes: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(shape, device="cuda")
    return x, torch.randint(classes, shape[:1], device="cuda")


def dense(batch: int, width: int, depth: int, precision: str) -> TrainingStep:
    """`lab.steps.jax_nets.mlp` in torch."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(width, 1000, bias=False))
    return _trained(model, _labelled((batch, width), 1000), precision, adam=True)


def plain_convnet(batch: int, image: int, widths: tuple[int, ...], precision: str) -> TrainingStep:
    """`lab.steps.jax_nets.plain_convnet` in torch, with channels last as in JAX."""
    layers: list[nn.Module] = []
    for before, width in zip((3, *widths), widths, strict=False):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    flat = (image // 2 ** len(widths)) ** 2 * widths[-1]
    layers += [nn.Flatten(), nn.Linear(flat, 1024, bias=False), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(1024, 100, bias=False))
    model = model.to(memory_format=torch.channels_last)
    x, y = _labelled((batch, 3, image, image), 100)
    inputs = x.to(memory_format=torch.channels_last), y
    return _trained(model, inputs, precision, adam=False)


class AllToAllAttention(nn.Module):
    """Attention of all tokens with all, in one matmul for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class NormFirstBlock(nn.Module):
    """A block of a vision transformer, norms first."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = AllToAllAttention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Run the block."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEncoder(nn.Module):
    """A vision transformer whose tokens are averaged."""

    def __init__(self, image: int, patch: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, patch, patch, bias=False)
        self.positions = nn.Parameter(torch.randn((image // patch) ** 2, width))
        self.blocks = nn.Sequential(*[NormFirstBlock(width, heads) for _ in range(layers)])
        self.head = nn.Linear(width, 1000, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The scores of classes."""
        x = self.stem(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.blocks(x).mean(1))


def encoder(
    batch: int, image: int, patch: int, width: int, layers: int, heads: int, precision: str
) -> TrainingStep:
    """`lab.steps.jax_nets.encoder` in torch."""
    model = PatchEncoder(image, patch, width, layers, heads)
    return _trained(model, _labelled((batch, 3, image, image), 1000), precision, adam=True)


class LstmLanguageModel(nn.Module):
    """LSTM layers between a table and a head."""

    def __init__(self, width: int, layers: int, vocabulary: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.cells = nn.LSTM(width, width, layers)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """The scores of the next tokens."""
        return self.head(self.cells(self.table(tokens))[0])


def recurrent(
    batch: int, sequence: int, width: int, layers: int, precision: str, vocabulary: int = 8000
) -> TrainingStep:
    """`lab.steps.jax_loops.recurrent` in torch, with cuDNN's LSTM."""
    tokens = torch.randint(vocabulary, (2, sequence, batch), device="cuda")
    model = LstmLanguageModel(width, layers, vocabulary)
    return _trained(model, (tokens[0], tokens[1]), precision, adam=True)


_MLP = 2048, 3072, 4
_VGG = 96, 112, (64, 128, 256, 512), "bf16"
_VIT = 64, 224, 16, 384, 6, 6, "bf16"
_LSTM = 64, 128, 1024, 2
_NETS, _SUITE = "lab.steps.jax_nets", "wavecast.suite.jax_models"

# JAX rounds the operands of float32 matmuls to TF32, so torch is told to do so.
PAIRS = [
    FrameworkPair("mlp", partial(dense, *_MLP, "tf32"), f"{_NETS}:mlp", (*_MLP, "fp32")),
    FrameworkPair("vgg", partial(plain_convnet, *_VGG), f"{_NETS}:plain_convnet", _VGG),
    FrameworkPair("resnet50", partial(resnet50, 64, "bf16"), f"{_SUITE}:resnet50", (64, "bf16")),
    FrameworkPair("gpt2", partial(gpt2, 4, "bf16", dropout=0.0), f"{_SUITE}:gpt2", (4, "bf16")),
    FrameworkPair("vit", partial(encoder, *_VIT), f"{_NETS}:encoder", _VIT),
    FrameworkPair(
        "lstm",
        partial(recurrent, *_LSTM, "tf32"),
        "lab.steps.jax_loops:recurrent",
        (*_LSTM, "fp32"),
    ),
]
"""The pairs. Their sizes are none of the fit or of the blind test."""


def pair_named(name: str) -> FrameworkPair:
    """The pair of a name."""
    return next(pair for pair in PAIRS if pair.name == name)
