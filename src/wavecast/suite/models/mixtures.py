"""Mixtures of experts for decoders, as Megatron, torchtitan and Hugging Face compute them.

Each token goes to its `top_k` best experts. The tokens are sorted by expert, one grouped matmul
computes a layer of all experts, and the results go back to their tokens, weighted by the router.
No token is dropped, so the sizes of all tensors are known without the routes. How many tokens an
expert gets depends on the data: where costs depend on it, tokens are taken to be spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.errors import InvalidInput

BALANCE = 1e-2
"""The weight of the loss that balances the experts (Fedus et al. 2022)."""


@dataclass(frozen=True)
class MixtureShape:
    """The sizes of a mixture of experts."""

    experts: int
    top_k: int
    """The experts of each token."""
    shared_experts: int = 0
    """Experts that all tokens go to, as one network of so many times the width."""
    dense_layers: int = 0
    """The first blocks of the decoder, which have an ordinary feed-forward network."""
    dense_ffn: int | None = None
    """The inner width of that network. None for that of the experts of one token."""

    def __post_init__(self) -> None:
        if self.experts < 1 or not 1 <= self.top_k <= self.experts:
            raise InvalidInput(
                f"top_k={self.top_k} of experts={self.experts} is not possible; each token goes to "
                "at least one expert and at most to all"
            )
        for name in ("shared_experts", "dense_layers"):
            if getattr(self, name) < 0:
                raise InvalidInput(f"{name} must be at least 0, not {getattr(self, name)}")

    def dense_width(self, ffn: int) -> int:
        """The inner width of the dense blocks, where that of an expert is `ffn`."""
        return self.dense_ffn or (self.top_k + self.shared_experts) * ffn


class MixtureLayers(nn.Module):
    """A router, experts, and the experts that all tokens go to."""

    def __init__(self, sizes: MixtureShape, hidden: int, ffn: int) -> None:
        super().__init__()
        self.top_k = sizes.top_k
        self.router = nn.Linear(hidden, sizes.experts, bias=False)
        self.experts = GroupedLayers(sizes.experts, hidden, ffn)
        self.combine = Combination()
        many = sizes.shared_experts
        self.shared = GatedLayers(hidden, many * ffn) if many else None

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        words = x.flatten(0, 1)
        chances = torch.softmax(self.router(words).float(), dim=-1)
        weights, chosen = chances.topk(self.top_k, dim=-1)
        counts = torch.histc(
            chosen.flatten().float(), bins=chances.shape[1], min=0, max=chances.shape[1] - 1
        )
        weights = _WithLoss.apply(
            weights / weights.sum(-1, keepdim=True), _balance(chances, counts)
        )
        order = chosen.flatten().argsort(stable=True)  # pairs of a token and an expert, by expert
        sent = words.index_select(0, order // self.top_k)
        mixed = self.combine(self.experts(sent, counts.cumsum(0).int()), order, weights)
        mixed = mixed.view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)


class GroupedLayers(nn.Module):
    """The feed-forward networks of all experts, each with a gate: two grouped matmuls."""

    def __init__(self, experts: int, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up = _weights(experts, 2 * ffn, hidden)
        self.activation = JointGate()
        self.down = _weights(experts, hidden, ffn)

    def forward(self, words: Tensor, ends: Tensor) -> Tensor:
        """Tokens sorted by expert -> the same, where expert i has the tokens before `ends[i]`."""
        both = _grouped(words, self.gate_up, ends)
        return _grouped(self.activation(both), self.down, ends)


class Combination(nn.Module):
    """The results of experts, back in the order of the tokens, weighted and added up."""

    def forward(self, results: Tensor, order: Tensor, weights: Tensor) -> Tensor:
        """(pairs, width), the pairs that were sorted, (tokens, top_k) -> (tokens, width)."""
        back = results.index_select(0, order.argsort()).unflatten(0, weights.shape)
        return (back * weights[..., None].to(back.dtype)).sum(1)


def _weights(experts: int, wide_out: int, wide_in: int) -> nn.Parameter:
    bound = wide_in**-0.5
    return nn.Parameter(torch.empty(experts, wide_out, wide_in).uniform_(-bound, bound))


def _grouped(words: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """A grouped matmul. Autocast does not know it, so its inputs are cast here."""
    kind = words.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weights.dtype
    turned = weights.to(dtype).transpose(1, 2)
    product: Tensor = torch._grouped_mm(words.to(dtype), turned, offs=ends)
    return product


def _balance(chances: Tensor, counts: Tensor) -> Tensor:
    """The loss of Fedus et al. 2022: small where the tokens are spread evenly."""
    shares = counts / counts.sum()
    return BALANCE * chances.shape[1] * (shares * chances.mean(0)).sum()


class _WithLoss(torch.autograd.Function):
    """Gives a tensor on as it is, and adds a loss to that of the step, as Megatron does it."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, loss: Tensor) -> Tensor:
        context.save_for_backward(loss)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        (loss,) = context.saved_tensors
        return gradient, torch.ones_like(loss)


# The feed-forward networks of decoders.


class PlainLayers(nn.Module):
    """GPT's feed-forward network."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, ffn)
        self.activation = nn.GELU(approximate="tanh")
        self.down = nn.Linear(ffn, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        return self.down(self.activation(self.up(x)))


class GatedLayers(nn.Module):
    """Llama's feed-forward network (SwiGLU; Shazeer 2020)."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, ffn, bias=False)
        self.up = nn.Linear(hidden, ffn, bias=False)
        self.activation = GatedSilu()
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        return self.down(self.activation(self.gate(x), self.up(x)))


class GatedSilu(nn.Module):
    """The gate of SwiGLU."""

    def forward(self, gate: Tensor, up: Tensor) -> Tensor:
        """SiLU of one tensor times the other."""
        return F.silu(gate) * up


class JointGate(nn.Module):
    """The gate of SwiGLU, where one matmul computes both tensors."""

    def forward(self, both: Tensor) -> Tensor:
        """SiLU of one half of the last dimension times the other."""
        gate, up = both.chunk(2, dim=-1)
        return F.silu(gate) * up


class JointLayers(nn.Module):
    """Llama's feed-forward network, where one matmul computes both inputs of the gate."""

    def __init__(self, hidden: int, ffn: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * ffn, bias=False)
        self.activation = JointGate()
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, sequence, width) -> the same."""
        return self.down(self.activation(self.gate_up(x)))


# DeepSeek's attention, whose keys and values come from a narrow tensor (DeepSeek-V2, 2024).


@dataclass(frozen=True)
class LatentShape:
    """The ranks of DeepSeek's attention."""

    kv_rank: int
    q_rank: int = 0
    """0 for queries from a single matmul, as in DeepSeek-V2-Lite."""

    @staticmethod
    def turned(head_size: int) -> int:
        """The part of a head that is rotated, beside `head_size` features that are not."""
        return head_size // 2


class LatentAttention(nn.Module):
    """Causal attention. All heads share the rotated part of the keys."""

    def __init__(self, hidden: int, heads: int, size: int, ranks: LatentShape) -> None:
        super().__init__()
        self.heads, self.size, self.turned = heads, size, ranks.turned(size)
        self.kv_rank = ranks.kv_rank
        wide = heads * (size + self.turned)
        low = ranks.q_rank
        self.query_narrow = nn.Linear(hidden, low, bias=False) if low else None
        self.query_norm = nn.RMSNorm(low) if low else None
        self.query = nn.Linear(ranks.q_rank or hidden, wide, bias=False)
        self.key_value_narrow = nn.Linear(hidden, ranks.kv_rank + self.turned, bias=False)
        self.key_value_norm = nn.RMSNorm(ranks.kv_rank)
        self.key_value = nn.Linear(ranks.kv_rank, heads * 2 * size, bias=False)
        self.query_rotary = Rotary()
        self.key_rotary = Rotary()
        self.project = nn.Linear(heads * size, hidden, bias=False)

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        """(batch, sequence, width) -> the same."""
        narrow = x
        if self.query_narrow is not None and self.query_norm is not None:
            narrow = _normed(self.query_norm, self.query_narrow(x))
        query = self.query(narrow).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        plain, turning = query.split([self.size, self.turned], dim=-1)
        query = torch.cat([plain, self.query_rotary(turning, turn)], dim=-1)
        latent, shared = self.key_value_narrow(x).split([self.kv_rank, self.turned], dim=-1)
        both = self.key_value(_normed(self.key_value_norm, latent)).unflatten(-1, (self.heads, -1))
        key, value = both.transpose(1, 2).chunk(2, dim=-1)
        shared = self.key_rotary(shared.unsqueeze(1), turn).expand(-1, self.heads, -1, -1)
        key = torch.cat([key, shared], dim=-1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project(mixed.transpose(1, 2).flatten(2))


def _normed(norm: nn.RMSNorm, x: Tensor) -> Tensor:
    """A norm of a matmul's result, in the precision of the norm's weights."""
    result: Tensor = norm(x.to(norm.weight.dtype))
    return result


# Rotary positions of decoders.


Turn = tuple[Tensor | None, Tensor | None]
"""Cosines and sines of the angles of all positions."""


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs of `x`, taken from its two halves, by the angles of their positions."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    # In float32, as in Meta's code: with 16 bits, late positions would become equal.
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021)."""

    def forward(self, x: Tensor, turn: Turn) -> Tensor:
        """The same as `rotate`."""
        cos, sin = turn
        assert cos is not None
        assert sin is not None
        return rotate(x, (cos, sin))
