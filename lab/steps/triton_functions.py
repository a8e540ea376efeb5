"""Norms and rotary positions as Triton kernels in autograd functions. Needs a GPU and Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


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


class TritonNorm(torch.autograd.Function):
    """The norm of Llama, one kernel in each pass."""

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


class TritonTurn(torch.autograd.Function):
    """Rotary positions, one kernel in each pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turned(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        return _turned(dy, cos, sin, -1), None, None
