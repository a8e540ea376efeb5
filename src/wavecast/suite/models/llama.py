"""Language modelling: Llama, the decoder with rotary positions, SwiGLU and grouped queries."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput
from wavecast.suite.models.mixtures import rotate
from wavecast.suite.training import Minimizer, TrainingStep, next_tokens


def llama_1b(
    batch: int,
    precision: str,
    *,
    device: str = "cuda",
    sequence: int = 2048,
    layers: int = 16,
    width: int = 2048,
    heads: int = 32,
    key_value_heads: int = 8,
    inner: int = 8192,
    vocabulary: int = 128_256,
    tied: bool = True,
    rotary_base: float = 500_000.0,
    learning_rate: float = 3e-4,
) -> TrainingStep:
    """Llama 3.2 1B pre-training. The inputs are `tokens`, and `targets`, the next tokens.

    Meta gives no optimizer settings for this size; they are those of the first Llama (Touvron et
    al. 2023, section 2.3). AdamW is fused, as is usual for models of this size.
    """
    if width % heads or heads % key_value_heads or width // heads % 2:
        raise InvalidInput(
            f"the width, {width}, must divide into {heads} heads of an even size, and the heads "
            f"into {key_value_heads} equal groups of key and value heads"
        )
    with torch.device(device):  # made on the device, because a CPU takes long to fill the weights
        model = Llama(
            layers, width, heads, key_value_heads, inner, vocabulary, tied=tied, base=rotary_base
        )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    inputs = next_tokens(vocabulary, batch, sequence, device)
    return TrainingStep(model, inputs, Minimizer(loss, optimizer, precision, device, clip_norm=1.0))


class Llama(nn.Module):
    """The decoder of Touvron et al. 2023 with the grouped queries of its successors.

    No layer has a bias. With a vocabulary of V, N layers of width D, an inner width I, H heads and
    G heads of keys and values, it has V·D parameters in the embedding, N(2D² (1 + G/H) + 3DI + 2D)
    in the layers and D in the last norm. If `tied`, the embedding is also the output layer, as in
    Llama 3.2 1B and 3B.
    """

    def __init__(
        self,
        layers: int = 16,
        width: int = 2048,
        heads: int = 32,
        key_value_heads: int = 8,
        inner: int = 8192,
        vocabulary: int = 128_256,
        *,
        tied: bool = True,
        base: float = 500_000.0,
    ) -> None:
        super().__init__()
        self.head_size, self.base = width // heads, base
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, heads, key_value_heads, inner) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.output = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.output.weight = self.words.weight
        self.apply(_initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) -> logits of each next token, (batch, sequence, vocabulary)."""
        x = self.words(tokens)
        turn = rotations(tokens.shape[1], self.head_size, self.base, tokens.device)
        for block in self.blocks:
            x = block(x, turn)
        return self.output(self.norm(x))


class LlamaBlock(nn.Module):
    """Attention to the past and a gated feed-forward network, each with a norm before it."""

    def __init__(self, width: int, heads: int, key_value_heads: int, inner: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(width, eps=1e-5)
        self.attention = GroupedQueryAttention(width, heads, key_value_heads)
        self.feed_forward_norm = nn.RMSNorm(width, eps=1e-5)
        self.feed_forward = SwiGLU(width, inner)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """(batch, sequence, width) -> the same."""
        x = x + self.attention(self.attention_norm(x), turn)
        return x + self.feed_forward(self.feed_forward_norm(x))


class GroupedQueryAttention(nn.Module):
    """Causal attention in which several query heads share one head of keys and values."""

    def __init__(self, width: int, heads: int, key_value_heads: int) -> None:
        super().__init__()
        self.head_size, self.queries_per_key = width // heads, heads // key_value_heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_value_heads * self.head_size, bias=False)
        self.value = nn.Linear(width, key_value_heads * self.head_size, bias=False)
        self.project = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        """(batch, sequence, width) -> the same."""
        query, key, value = (
            part(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        query, key = rotate(query, turn), rotate(key, turn)
        if self.queries_per_key > 1:
            # Repeated, as in Meta's code, because `enable_gqa` has no fast kernel in float32.
            key = key.repeat_interleave(self.queries_per_key, dim=1)
            value = value.repeat_interleave(self.queries_per_key, dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """A feed-forward network with gated inner values (SwiGLU; Shazeer 2020)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


def rotations(places: int, size: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """The cosines and sines of the rotary angles, (positions, size) each (Su et al. 2021).

    For longer texts, Llama 3.2 also scales the low frequencies. That changes the numbers, not the
    work.
    """
    rates = base ** (-torch.arange(0, size, 2, device=device) / size)
    angles = torch.outer(torch.arange(places, device=device).float(), rates).repeat(1, 2)
    return angles.cos(), angles.sin()


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
