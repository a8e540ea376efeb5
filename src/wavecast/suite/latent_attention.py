"""DeepSeek's attention, whose keys and values come from a narrow tensor (DeepSeek-V2, 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecast.suite.rotary import Rotary, Turn


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
