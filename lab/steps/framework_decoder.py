"""A Llama decoder written as eager frameworks of several GPUs write it, for one rank of a group.

Norms and rotary positions are Triton kernels behind autograd functions, tensor-parallel matmuls are
autograd functions around collectives, queries, keys and values are copied into the layout that the
attention kernel wants, the loss of a divided vocabulary is written op by op in float32, and each
gradient is added to one in float32. What these habits cost is measured against the plain decoder of
the suite (`lab/collect/framework_decoders.py`). Only the Triton kernels need a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

HEAD = 64
"""The size of a head."""


@dataclass(frozen=True)
class DecoderHabits:
    """Which habits the decoder has. All off is the way of plain PyTorch."""

    functions: bool = True
    """Norms and rotary positions are Triton kernels behind autograd functions."""
    copies: bool = True
    """Queries, keys and values are copied into the layout of the attention kernel."""
    own_loss: bool = True
    """The loss of a divided vocabulary, op by op, in float32."""
    lengths: bool = True
    """The lengths of the sequences are counted again in each layer, from a mask."""


def _plainly_turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    wide, high = (torch.cat((one, one), dim=-1).to(x.dtype).unsqueeze(1) for one in (cos, sin))
    first, second = x.chunk(2, dim=-1)
    return x * wide + torch.cat((-second, first), dim=-1) * high


def _gathered(x: Tensor, group: Any, ranks: int) -> Tensor:
    whole = torch.empty((x.shape[0] * ranks, *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(whole, x.contiguous(), group=group)
    return whole


def _scattered(x: Tensor, group: Any, ranks: int) -> Tensor:
    part = torch.empty((x.shape[0] // ranks, *x.shape[1:]), dtype=x.dtype, device=x.device)
    dist.reduce_scatter_tensor(part, x.contiguous(), group=group)
    return part


class _ColumnMatmul(torch.autograd.Function):
    """An all-gather of positions, then a matmul with the rank's columns."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Any, ranks: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.ranks = group, ranks
        whole = _gathered(x, group, ranks) if ranks > 1 else x
        return F.linear(whole, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        whole = _gathered(x, ctx.group, ctx.ranks) if ctx.ranks > 1 else x
        dx = dy.matmul(weight)
        if ctx.ranks > 1:
            dx = _scattered(dx, ctx.group, ctx.ranks)
        flat = dy.reshape(-1, dy.shape[-1])
        return dx, flat.t().matmul(whole.reshape(-1, whole.shape[-1])), None, None


class _RowMatmul(torch.autograd.Function):
    """A matmul with the rank's rows, then a reduce-scatter of positions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Any, ranks: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.ranks = group, ranks
        y = F.linear(x, weight)
        return _scattered(y, group, ranks) if ranks > 1 else y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        whole = _gathered(dy, ctx.group, ctx.ranks) if ctx.ranks > 1 else dy
        flat = whole.reshape(-1, whole.shape[-1])
        return whole.matmul(weight), flat.t().matmul(x.reshape(-1, x.shape[-1])), None, None


class _FlashAttention(torch.autograd.Function):
    """FlashAttention 2 of sequences of given lengths."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, ends: Tensor, longest: int) -> Tensor:
        out, scale, seed, offset, _ = torch.ops.aten._flash_attention_forward(
            q, k, v, ends, ends, longest, longest, 0.0, True, False
        )
        ctx.save_for_backward(q, k, v, out, scale, ends, seed, offset)
        ctx.longest = longest
        return out

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        q, k, v, out, scale, ends, seed, offset = ctx.saved_tensors
        given = (dy.contiguous(), q, k, v, out, scale, ends, ends, ctx.longest, ctx.longest)
        made = torch.ops.aten._flash_attention_backward(*given, 0.0, True, seed, offset)
        return *made[:3], None, None


class _DividedLoss(torch.autograd.Function):
    """The cross-entropy of logits whose vocabulary is divided, each op a kernel of its own."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, group: Any, ranks: int) -> Tensor:
        highest = torch.max(logits, dim=-1)[0]
        if ranks > 1:
            dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
        logits = logits - highest.unsqueeze(-1)
        width = logits.shape[-1]
        outside = (target < 0) | (target >= width)
        own = target.clone()
        own[outside] = 0
        rows = torch.arange(own.numel(), device=own.device)
        chosen = logits.view(-1, width)[rows, own.view(-1)].clone().view_as(target)
        chosen[outside] = 0.0
        if ranks > 1:
            dist.all_reduce(chosen, group=group)
        torch.exp(logits, out=logits)
        total = logits.sum(dim=-1)
        if ranks > 1:
            dist.all_reduce(total, group=group)
        loss = torch.log(total) - chosen
        logits.div_(total.unsqueeze(-1))
        ctx.save_for_backward(logits, outside, own)
        return loss

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        logits, outside, own = ctx.saved_tensors
        rows = torch.arange(own.numel(), device=own.device)
        logits.view(-1, logits.shape[-1])[rows, own.view(-1)] -= 1.0 - outside.view(-1).float()
        logits.mul_(dy.unsqueeze(-1))
        return logits, None, None, None


class FrameworkBlock(nn.Module):
    """Attention and a gated feed-forward network; positions come before the batch in memory."""

    def __init__(
        self, hidden: int, ffn: int, group: Any, ranks: int, habits: DecoderHabits
    ) -> None:
        super().__init__()
        self.group, self.ranks, self.habits = group, ranks, habits
        self.heads = hidden // HEAD // ranks
        own = hidden // ranks
        self.first = nn.Parameter(torch.ones(hidden))
        self.second = nn.Parameter(torch.ones(hidden))
        self.qkv = nn.Parameter(torch.randn(3 * own, hidden) * 0.02)
        self.project = nn.Parameter(torch.randn(hidden, own) * 0.02)
        self.up = nn.Parameter(torch.randn(2 * ffn // ranks, hidden) * 0.02)
        self.down = nn.Parameter(torch.randn(hidden, ffn // ranks) * 0.02)

    def forward(self, x: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(positions of the rank, batch, hidden) -> the same."""
        y = _ColumnMatmul.apply(self._norm(x, self.first), self.qkv, self.group, self.ranks)
        y = self._attention(y, mask, cos, sin)
        x = x + _RowMatmul.apply(y, self.project, self.group, self.ranks)
        y = _ColumnMatmul.apply(self._norm(x, self.second), self.up, self.group, self.ranks)
        gate, value = torch.split(y, y.shape[-1] // 2, dim=-1)
        y = F.silu(gate) * value
        return x + _RowMatmul.apply(y, self.down, self.group, self.ranks)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if self.habits.functions:
            from lab.steps.triton_functions import TritonNorm

            return TritonNorm.apply(x, weight)
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.habits.functions:
            from lab.steps.triton_functions import TritonTurn

            return TritonTurn.apply(x, cos, sin)
        return _plainly_turned(x, cos, sin)

    def _attention(self, y: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        seq, batch, _ = y.shape
        parts = y.view(seq, batch, 3, self.heads, HEAD)
        if self.habits.copies:
            query, key, value = parts.permute(2, 1, 0, 3, 4).contiguous()
            pair = torch.cat([key.unsqueeze(0), value.unsqueeze(0)], dim=0)
            pair = pair.permute(1, 2, 0, 3, 4).contiguous()
            key, value = (one.squeeze(2) for one in torch.split(pair, 1, dim=2))
        else:
            query, key, value = (one.transpose(0, 1) for one in parts.unbind(2))
        query, key = (self._turned(one, cos, sin) for one in (query, key))
        if self.habits.lengths:
            ends = torch.zeros((batch + 1,), dtype=torch.int32, device=y.device)
            counts = mask.sum(-1, dtype=torch.int32)
            torch.cumsum(counts, dim=0, dtype=torch.int32, out=ends[1:])
            again = torch.zeros((batch + 1,), dtype=torch.int32, device=y.device)
            torch.cumsum(mask.sum(-1, dtype=torch.int32), dim=0, dtype=torch.int32, out=again[1:])
        else:
            ends = torch.arange(0, (batch + 1) * seq, seq, dtype=torch.int32, device=y.device)
        flat = (one.reshape(batch * seq, self.heads, HEAD) for one in (query, key, value))
        out = _FlashAttention.apply(*flat, ends, seq)
        return out.view(batch, seq, self.heads * HEAD).transpose(0, 1)


class FrameworkDecoder(nn.Module):
    """Embedding, blocks and the loss of one rank."""

    def __init__(
        self,
        layers: int,
        hidden: int,
        ffn: int,
        vocab: int,
        seq: int,
        ranks: int,
        habits: DecoderHabits,
    ) -> None:
        super().__init__()
        self.group = dist.group.WORLD if ranks > 1 else None
        self.ranks, self.habits = ranks, habits
        self.words = nn.Embedding(vocab // ranks, hidden)
        self.blocks = nn.ModuleList(
            FrameworkBlock(hidden, ffn, self.group, ranks, habits) for _ in range(layers)
        )
        self.last = nn.Parameter(torch.ones(hidden))
        self.output = nn.Parameter(torch.randn(vocab // ranks, hidden) * 0.02)
        rates = 10_000.0 ** (-torch.arange(0, HEAD, 2) / HEAD)
        angles = torch.outer(torch.arange(seq).float(), rates)
        self.cos, self.sin = nn.Buffer(angles.cos()), nn.Buffer(angles.sin())

    def forward(self, tokens: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        """The mean loss of (batch, positions) tokens."""
        x = self.words(tokens.clamp(max=self.words.num_embeddings - 1)).transpose(0, 1)
        if self.ranks > 1:
            x = x[: x.shape[0] // self.ranks].contiguous()
        for block in self.blocks:
            x = block(x, mask, self.cos, self.sin)
        x = self.blocks[0]._norm(x, self.last)
        logits = _ColumnMatmul.apply(x, self.output, self.group, self.ranks)
        targets = targets.transpose(0, 1).contiguous()
        if not self.habits.own_loss:
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        loss = _DividedLoss.apply(logits.float(), targets, self.group, self.ranks)
        kept = mask.transpose(0, 1)
        return (loss * kept).sum(dtype=torch.float32) / kept.sum()
