"""A Llama decoder written as eager frameworks of several GPUs write it, for one rank of a group.

Norms and rotary positions are Triton kernels behind autograd functions, tensor-parallel matmuls are
autograd functions around collectives, queries, keys and values are copied into the layout that the
attention kernel wants, the loss of a divided vocabulary is written op by op in float32, and each
gradient is added to one in float32. What these habits cost is measured against the plain decoder of
the suite (`lab/collect/framework_decoders.py`). Needs a GPU and Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
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


@triton.jit  # type: ignore[untyped-decorator]
def _norm_kernel(x, weight, y, inverse, width, eps, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    columns = tl.arange(0, block)
    inside = columns < width
    value = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    tl.store(inverse + row, scale)
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * width + columns, value * scale * factor, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_backward_kernel(x, weight, dy, inverse, dx, dw, rows, width, each, block: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0)
    columns = tl.arange(0, block)
    inside = columns < width
    factor = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((block,), dtype=tl.float32)
    for row in range(program * each, tl.minimum((program + 1) * each, rows)):
        value = tl.load(x + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        back = tl.load(dy + row * width + columns, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(inverse + row)
        normed, weighted = value * scale, back * factor
        mean = tl.sum(normed * weighted, 0) / width
        tl.store(dx + row * width + columns, (weighted - normed * mean) * scale, mask=inside)
        total += back * normed
    tl.store(dw + program * width + columns, total, mask=inside)


class _TritonNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        rows, width = flat.shape
        y = torch.empty_like(flat)
        inverse = torch.empty((rows,), dtype=torch.float32, device=x.device)
        block = triton.next_power_of_2(width)
        with torch.cuda.device(x.device.index):
            _norm_kernel[(rows,)](flat, weight, y, inverse, width, 1e-5, block=block, num_warps=8)
        ctx.save_for_backward(flat, weight, inverse)
        return y.reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        flat, weight, inverse = ctx.saved_tensors
        rows, width = flat.shape
        back = dy.reshape(-1, width).contiguous()
        programs = torch.cuda.get_device_properties(back.device).multi_processor_count
        dx = torch.empty_like(flat)
        dw = torch.empty((programs, width), dtype=torch.float32, device=back.device)
        each = triton.cdiv(rows, programs)
        block = triton.next_power_of_2(width)
        with torch.cuda.device(back.device.index):
            _norm_backward_kernel[(programs,)](
                flat, weight, back, inverse, dx, dw, rows, width, each, block=block, num_warps=8
            )
        return dx.reshape(dy.shape), dw.sum(0).to(weight.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _turn_kernel(x, out, cos, sin, seq, heads, sign: tl.constexpr, half: tl.constexpr):  # type: ignore[no-untyped-def]
    position = tl.program_id(0)
    head = tl.program_id(1)
    columns = tl.arange(0, half)
    angle = (position % seq) * half + columns
    c = tl.load(cos + angle)
    s = tl.load(sin + angle) * sign
    base = (position * heads + head) * 2 * half
    first = tl.load(x + base + columns).to(tl.float32)
    second = tl.load(x + base + half + columns).to(tl.float32)
    tl.store(out + base + columns, first * c - second * s)
    tl.store(out + base + half + columns, first * s + second * c)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    batch, seq, heads, size = x.shape
    x = x.contiguous()
    out = torch.empty_like(x)
    with torch.cuda.device(x.device.index):
        _turn_kernel[(batch * seq, heads)](
            x, out, cos, sin, seq, heads, sign=sign, half=size // 2, num_warps=1
        )
    return out


class _TritonTurn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return _turned(dy, cos, sin, -1), None, None


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
            return _TritonNorm.apply(x, weight)
        return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)

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
        turn = _TritonTurn.apply if self.habits.functions else _plainly_turned
        query, key = turn(query, cos, sin), turn(key, cos, sin)
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
