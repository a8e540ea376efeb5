"""Small models with odd blocks. Each runs on one GPU, and as a tensor rank with its local shards.

No module stores how many heads it has: a view with -1 finds the local ones, as expert code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

BATCH, SEQUENCE, WIDTH, HEADS, HEAD, INNER, VOCABULARY = 2, 12, 64, 8, 8, 160, 112
EXPERTS, CAPACITY, CHOSEN, RANK, BUCKETS = 3, 5, 2, 4, 6
Make = Callable[[], nn.Module]


def heads_of(x: Any) -> Any:
    """[batch, sequence, features] as [batch, heads, sequence, features of a head]."""
    return x.unflatten(-1, (-1, HEAD)).transpose(1, 2)


def attend(q: Any, k: Any, v: Any, causal: bool = True, dropout: float = 0.0) -> Any:
    """Attention by one fused op, with the features of all heads side by side again."""
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=causal, dropout_p=dropout)
    return mixed.transpose(1, 2).flatten(2)


def attend_with(bias: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention by single ops, with a bias for each head."""
    scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD) + bias
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Separate queries, keys and values; `key_heads` below `HEADS` for grouped queries."""

    def __init__(
        self, key_heads: int = HEADS, bias: bool = True, rotary: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias)
        self.key = nn.Linear(WIDTH, key_heads * HEAD, bias)
        self.value = nn.Linear(WIDTH, key_heads * HEAD, bias)
        self.project = nn.Linear(WIDTH, WIDTH, bias)
        self.repeats, self.rotary, self.dropout = HEADS // key_heads, rotary, dropout
        angles = torch.zeros(SEQUENCE, HEAD)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, x: Any) -> Any:
        q, k, v = (heads_of(part(x)) for part in (self.query, self.key, self.value))
        if self.rotary:
            q, k = (self._rotated(tensor) for tensor in (q, k))
        if self.repeats > 1:
            k, v = (tensor.repeat_interleave(self.repeats, 1) for tensor in (k, v))
        return self.project(attend(q, k, v, dropout=self.dropout))

    def _rotated(self, x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * self.cosine + torch.cat([-second, first], -1) * self.sine


class FusedAttention(nn.Module):
    """One weight for queries, keys and values: [q; k; v], by head, or by group of heads."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        parts = {"packed": 3 * HEADS, "head": 3 * HEADS, "group": HEADS + 2 * (HEADS // 2)}
        self.query_key_value = nn.Linear(WIDTH, parts[order] * HEAD)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        fused = self.query_key_value(x)
        if self.order == "packed":
            q, k, v = (heads_of(part) for part in fused.chunk(3, -1))
        elif self.order == "head":
            q, k, v = fused.unflatten(-1, (-1, 3 * HEAD)).transpose(1, 2).chunk(3, -1)
        else:  # two queries, one key and one value in each group
            grouped = fused.unflatten(-1, (-1, 4, HEAD))
            q = grouped[..., :2, :].flatten(2, 3).transpose(1, 2)
            k, v = (
                part.expand(-1, -1, -1, 2, -1).flatten(2, 3).transpose(1, 2)
                for part in (grouped[..., 2:3, :], grouped[..., 3:4, :])
            )
        return self.project(attend(q, k, v))


class MultiQueryAttention(nn.Module):
    """All queries share one key and one value."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key_value = nn.Linear(WIDTH, 2 * HEAD)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q = heads_of(self.query(x))
        k, v = (
            heads_of(part).expand(-1, q.shape[1], -1, -1) for part in self.key_value(x).chunk(2, -1)
        )
        return self.project(attend(q, k, v))


class CrossAttention(nn.Module):
    """Queries of the decoder, keys and values [k; v] of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key_value = nn.Linear(WIDTH, 2 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, encoded: Any) -> Any:
        k, v = self.key_value(encoded).chunk(2, -1)
        q = heads_of(self.query(x))
        return self.project(attend(q, heads_of(k), heads_of(v), causal=False))


class AlibiAttention(nn.Module):
    """A slope for each head, times the distance (BLOOM)."""

    def __init__(self) -> None:
        super().__init__()
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("bias", torch.zeros(HEADS, SEQUENCE, SEQUENCE), persistent=False)

    def forward(self, x: Any) -> Any:
        fused = self.query_key_value(x).unflatten(-1, (-1, 3 * HEAD)).transpose(1, 2)
        return self.project(attend_with(self.bias, *fused.chunk(3, -1)))


class RelativeAttention(nn.Module):
    """A table of biases by distance and head (T5)."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("query", "key", "value", "project"):
            setattr(self, name, nn.Linear(WIDTH, WIDTH, bias=False))
        self.relative = nn.Embedding(BUCKETS, HEADS)
        distance = torch.zeros(SEQUENCE, SEQUENCE, dtype=torch.long)
        self.register_buffer("distance", distance, persistent=False)

    def forward(self, x: Any) -> Any:
        q, k, v = (heads_of(part(x)) for part in (self.query, self.key, self.value))
        return self.project(attend_with(self.relative(self.distance).permute(2, 0, 1), q, k, v))


class LoraLinear(nn.Module):
    """A frozen layer with an adapter of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.down = nn.Linear(WIDTH, RANK, bias=False)
        self.up = nn.Linear(RANK, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + 0.5 * self.up(self.down(x))


class LoraAttention(Attention):
    """Attention whose queries and projection have adapters."""

    def __init__(self) -> None:
        super().__init__(bias=False)
        self.query, self.project = LoraLinear(), LoraLinear()


class FeedForward(nn.Module):
    """Up, activation, down."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Any) -> Any:
        return self.down(self.dropout(F.gelu(self.up(x))))


class GatedFeedForward(nn.Module):
    """SwiGLU with two weights."""

    def __init__(self, inner: int = INNER) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class FusedGatedFeedForward(nn.Module):
    """SwiGLU with one weight, [gate; up]."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class ThreeLayers(nn.Module):
    """A feed-forward of three matmuls. The last one is sharded by column, and gathered."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, INNER), nn.Linear(INNER, INNER // 2)
        self.third = nn.Linear(INNER // 2, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.third(F.relu(self.second(F.relu(self.first(x)))))


class ExpertChoice(nn.Module):
    """Each expert takes the tokens that the router ranks highest for it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(GatedFeedForward(INNER // 2) for _ in range(EXPERTS))

    def forward(self, x: Any) -> Any:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(CAPACITY, 0)
        mixed = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows = chosen[:, index]
            result = expert(tokens[rows]) * weights[:, index, None]
            mixed = mixed.index_add(0, rows, result.to(mixed.dtype))
        return mixed.view_as(x)


class GroupedExperts(nn.Module):
    """Gated experts as grouped matmuls over stacked weights, as Hugging Face has them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.zeros(EXPERTS, WIDTH, 2 * INNER))
        self.down_proj = nn.Parameter(torch.zeros(EXPERTS, INNER, WIDTH))

    def forward(self, tokens: Any, chosen: Any, weights: Any) -> Any:
        order = chosen.flatten().argsort()
        counts = torch.zeros(EXPERTS, dtype=torch.int32, device=tokens.device)
        counts = counts.scatter_add(0, chosen.flatten(), torch.ones_like(order, dtype=torch.int32))
        ends = counts.cumsum(0).to(torch.int32)
        rows = order // CHOSEN
        both = torch._grouped_mm(tokens[rows], self.gate_up_proj, offs=ends)
        gate, up = both.chunk(2, -1)
        result = torch._grouped_mm(F.silu(gate) * up, self.down_proj, offs=ends)
        result = result * weights.flatten()[order, None]
        return torch.zeros_like(tokens).index_add(0, rows, result)


class SharedExperts(nn.Module):
    """Routed experts beside one that every token takes (DeepSeek)."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = GroupedExperts()
        self.shared = GatedFeedForward()

    def forward(self, x: Any) -> Any:
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(CHOSEN, -1)
        return self.experts(tokens, chosen, weights).view_as(x) + self.shared(x)


class Block(nn.Module):
    """Pre-norm: a norm before attention and before the feed-forward."""

    def __init__(self, attention: Make, feed_forward: Make, norm: type[nn.Module]) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = norm(WIDTH), norm(WIDTH)
        self.attention, self.feed_forward = attention(), feed_forward()

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class CheckpointedBlock(Block):
    """A block whose activations are recomputed in the backward pass."""

    def forward(self, x: Any) -> Any:
        return checkpoint(super().forward, x, use_reentrant=False)


class ParallelBlock(Block):
    """Attention and feed-forward side by side, each with a norm of its own (GPT-NeoX)."""

    def forward(self, x: Any) -> Any:
        attended = self.attention(self.attention_norm(x))
        return x + attended + self.feed_forward(self.feed_forward_norm(x))


class OneNormBlock(nn.Module):
    """Attention and feed-forward side by side, behind one norm (GPT-J, Falcon)."""

    def __init__(self, attention: Make, feed_forward: Make) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention, self.feed_forward = attention(), feed_forward()

    def forward(self, x: Any) -> Any:
        normed = self.norm(x)
        return x + self.attention(normed) + self.feed_forward(normed)


class PostNormBlock(Block):
    """A norm after each sum (BERT)."""

    def forward(self, x: Any) -> Any:
        x = self.attention_norm(x + F.dropout(self.attention(x), 0.1))
        return self.feed_forward_norm(x + F.dropout(self.feed_forward(x), 0.1))


class Decoder(nn.Module):
    """Embedding, blocks, norm and logits."""

    def __init__(self, block: Make, norm: type[nn.Module], tied: bool = False) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.norm = norm(WIDTH)
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.output.weight = self.tokens.weight

    def forward(self, tokens: Any) -> Any:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


class DecoderBlock(Block):
    """Self-attention, cross attention and feed-forward."""

    def __init__(self, attention: Make, feed_forward: Make, norm: type[nn.Module]) -> None:
        super().__init__(attention, feed_forward, norm)
        self.cross_norm, self.cross = norm(WIDTH), CrossAttention()

    def forward(self, x: Any, encoded: Any = None) -> Any:
        x = x + self.attention(self.attention_norm(x))
        x = x + self.cross(self.cross_norm(x), encoded)
        return x + self.feed_forward(self.feed_forward_norm(x))


class EncoderDecoder(nn.Module):
    """Two blocks that encode, and two that read what they gave."""

    def __init__(self, encoder: Make, decoder: Make) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.encoder = nn.ModuleList(encoder() for _ in range(2))
        self.decoder = nn.ModuleList(decoder() for _ in range(2))
        self.output = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Any) -> Any:
        x = encoded = self.tokens(tokens)
        for block in self.encoder:
            encoded = block(encoded)
        for block in self.decoder:
            x = block(x, encoded)
        return self.output(x)
