"""Layers that the revisited steps predicted badly; `lab.collect.sweep filters`.

Convolutions depthwise, in groups of any width, of images of three channels, of one point and of
videos, in both layouts; attention by each of torch's kernels; recurrent layers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from wavecast.frameworks.pytorch.drawn.network_layers import (
    LARGEST,
    Layer,
    ShapeDraw,
    TooLarge,
    through,
)

MOST_FLOP = 2e11
_SIDES = (7, 7, 8, 10, 14, 14, 16, 20, 28, 28, 32, 40, 56, 56, 64, 80, 112, 112)
_BATCHES = (2, 4, 8, 16, 16, 32, 32, 48, 64, 64, 128)
_WIDTHS = (16, 24, 32, 40, 48, 57, 64, 80, 96, 112, 128, 152, 160, 192, 240, 256, 320, 384, 448,
           480, 512, 640, 672, 768, 896, 960, 1024, 1152, 1280, 1536, 1824, 2048)  # fmt: skip
_LENGTHS = (49, 64, 128, 196, 197, 256, 256, 384, 499, 512, 577, 749, 1024, 1024, 2048, 4096)
_KERNELS = (
    SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
)  # fmt: skip


def convolved(
    draw: ShapeDraw, image: tuple[int, ...], weight: tuple[int, ...], *, first: bool = False,
    stride: int | tuple[int, ...] = 1, padding: int | tuple[int, ...] = 0, dilation: int = 1,
    groups: int = 1, transposed: bool = False,
) -> Layer:  # fmt: skip
    """A convolution of a layer's sizes; the image of a first one needs no gradient."""
    plain = (F.conv1d, F.conv2d, F.conv3d), (stride, padding, dilation, groups)
    other = (
        (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d),
        (stride, padding, 0, groups, dilation),
    )
    runs, sizes = other if transposed else plain
    run: Any = runs[len(image) - 3]
    with torch.device("meta"):
        out = run(torch.empty(image), torch.empty(weight), None, *sizes)
    points = torch.Size(image if transposed else out.shape).numel()
    if 2.0 * points * torch.Size(weight[1:]).numel() > MOST_FLOP:
        raise TooLarge
    if max(torch.Size(image).numel(), out.numel()) > LARGEST // 2:
        raise TooLarge
    x, w = draw.tensor(*image, grad=not first), draw.tensor(*weight)
    bias = draw.tensor(out.shape[1]) if draw.random.random() < 0.2 else None
    leaves = tuple(leaf for leaf in (x, w, bias) if leaf is not None and leaf.requires_grad)
    return through(partial(run, x, w, bias, *sizes), *leaves)


def _sized(draw: ShapeDraw, most: int = 15_000) -> tuple[int, int, int]:
    """The images, channels and side of a common image: the finer, the fewer channels."""
    pick = draw.random
    side = pick.choice(_SIDES)
    return pick.choice(_BATCHES), pick.choice([w for w in _WIDTHS if w * side <= most]), side


def depthwise(draw: ShapeDraw) -> Layer:
    """A depthwise convolution of images."""
    pick, (batch, channels, side) = draw.random, _sized(draw)
    kernel = pick.choices((3, 5, 7, 9, 2), (44, 26, 24, 4, 2))[0]
    stride = 2 if side >= 14 and pick.random() < 0.25 else 1
    image, weight = (batch, channels, side, side), (channels, 1, kernel, kernel)
    return convolved(
        draw, image, weight, stride=stride, padding=kernel // 2, groups=channels
    )  # fmt: skip


def grouped(draw: ShapeDraw) -> Layer:
    """A convolution in groups of one channel to many, with as many filters or twice as many."""
    pick, side = draw.random, draw.random.choice(_SIDES)
    width = pick.choice((1, 1, 2, 3, 4, 4, 8, 8, 16, 16, 24, 32, 40, 48, 56, 64, 64))
    counts = (2, 3, 4, 4, 8, 8, 16, 16, 18, 32, 32, 64, 64, 96, 128, 192, 256, 384, 512)
    groups = pick.choice([n for n in counts if n * width * side <= 20_000 and n * width <= 2560])
    filters = width * pick.choices((1, 2, 4), (60, 34, 6))[0]
    if width == filters == 1:
        filters = 2
    kernel = pick.choices((3, 5, 7, 1), (52, 16, 27, 5))[0]
    stride = 2 if side >= 14 and pick.random() < 0.3 else 1
    image = (pick.choice(_BATCHES), groups * width, side, side)
    weight = (groups * filters, width, kernel, kernel)
    return convolved(draw, image, weight, stride=stride, padding=kernel // 2, groups=groups)


def stem(draw: ShapeDraw) -> Layer:
    """The first convolution of a network of images."""
    pick = draw.random
    kernel, stride, padding = pick.choice(
        ((3, 2, 1), (3, 2, 1), (3, 1, 1), (7, 2, 3), (7, 2, 3), (4, 4, 0), (4, 4, 0), (7, 4, 3),
         (5, 2, 2), (6, 2, 2), (8, 8, 0), (14, 14, 0), (16, 16, 0), (11, 4, 2), (2, 2, 0))
    )  # fmt: skip
    filters = pick.choice((16, 24, 32, 40, 48, 64, 64, 80, 96, 128))
    if kernel >= 8 and stride == kernel:
        filters = pick.choice((192, 384, 768, 768, 1024))
    side, channels = pick.choice((128, 160, 224, 224, 224, 256, 384)), pick.choice((1, 3, 3, 3, 4))
    image, weight = (pick.choice(_BATCHES), channels, side, side), (filters, channels, kernel)
    return convolved(
        draw, image, (*weight, kernel), stride=stride, padding=padding, first=pick.random() < 0.9
    )  # fmt: skip


def point(draw: ShapeDraw) -> Layer:
    """A convolution of one point, also of very small images."""
    pick, (batch, channels, side) = draw.random, _sized(draw, 40_000)
    side = pick.choice((side, side, side, 1, 4))
    filters = pick.choice([w for w in (*_WIDTHS, 21, 1000) if w * side <= 40_000])
    stride = 2 if side >= 14 and pick.random() < 0.1 else 1
    return convolved(draw, (batch, channels, side, side), (filters, channels, 1, 1), stride=stride)


def plain(draw: ShapeDraw) -> Layer:
    """A convolution over all channels."""
    pick, (batch, channels, side) = draw.random, _sized(draw)
    kernel = pick.choices((3, 5, 7, 2), (80, 6, 4, 10))[0]
    filters = max(int(channels * pick.choice((0.25, 0.5, 1, 1, 1, 2, 4))) // 8 * 8, 8)
    stride = kernel if kernel == 2 else pick.choices((1, 2), (75, 25))[0]
    image, weight = (batch, channels, side, side), (filters, channels, kernel, kernel)
    return convolved(draw, image, weight, stride=stride, padding=kernel // 2 if kernel > 2 else 0)


def video(draw: ShapeDraw) -> Layer:
    """A convolution of videos, whole or of space and time apart, or the first one."""
    pick = draw.random
    kernel = pick.choice(((1, 3, 3), (1, 3, 3), (3, 1, 1), (3, 3, 3), (1, 1, 1), (5, 1, 1)))
    frames, side = pick.choice((4, 8, 16, 16, 32)), pick.choice((7, 14, 28, 28, 56, 56, 112))
    widths = (45, 64, 64, 128, 144, 230, 256, 288, 460, 512, 576)
    channels = pick.choice([c for c in widths if c * side <= 9000])
    filters, stride = pick.choice((channels, 64, 128, 144, 256, 512)), pick.choice((1, 1, 1, 2))
    first = pick.random() < 0.2
    if first:
        channels, filters, side, stride = 3, pick.choice((24, 45, 64)), 112, 2
        kernel = pick.choice(((1, 7, 7), (3, 7, 7), (1, 3, 3), (5, 7, 7)))
    strides = tuple(stride if size > 1 and not (first and axis == 0) else 1
                    for axis, size in enumerate(kernel))  # fmt: skip
    padding = tuple(size // 2 for size in kernel)
    image = (pick.choice((1, 2, 4, 8, 16)), channels, frames, side, side)
    return convolved(
        draw, image, (filters, channels, *kernel), stride=strides, padding=padding, first=first
    )  # fmt: skip


def sound(draw: ShapeDraw) -> Layer:
    """A depthwise convolution of a sequence, as conformers and state-space networks have."""
    pick = draw.random
    width, kernel = pick.choice((80, 144, 256, 384, 512, 512, 768, 1024, 1536)), pick.choice(
        (3, 4, 5, 7, 9, 15, 15, 31, 31)
    )  # fmt: skip
    image = (pick.choice((2, 4, 8, 8, 16, 32)), width, pick.choice(_LENGTHS))
    return convolved(draw, image, (width, 1, kernel), padding=kernel // 2, groups=width)


def attended(draw: ShapeDraw) -> Layer:
    """Attention by a kernel of torch's choice or by a given one."""
    draw, pick = replace(draw, layout="nchw"), draw.random
    batch, heads = pick.choice((1, 2, 4, 4, 8, 16, 32, 64)), pick.choice((4, 6, 8, 8, 12, 16, 32))
    length, head = pick.choice(_LENGTHS), pick.choice((32, 32, 48, 64, 64, 64, 72, 80, 96, 128))
    if batch * heads * length**2 * head * 4.0 > MOST_FLOP or batch * heads * length**2 > 2**29:
        raise TooLarge
    of_keys = heads // pick.choice((1, 1, 1, 2, 4)) if heads % 4 == 0 else heads
    q, k, v = (
        draw.tensor(batch, length, n, head).detach().transpose(1, 2).requires_grad_()
        for n in (heads, of_keys, of_keys)
    )
    form = pick.choices(("causal", "none", "added", "bias"), (35, 27, 15, 23))[0]
    mask = None
    if form in ("added", "bias"):
        shape = (batch if pick.random() < 0.5 else 1, heads if form == "bias" else 1)
        mask = draw.tensor(*shape, length, length, grad=form == "bias" and pick.random() < 0.4)
    drop = pick.choice((0.0, 0.0, 0.1))
    kernel = pick.choices((None, *_KERNELS), (45, 25, 10, 20) if mask is None else (50, 10, 0, 40))[
        0
    ]
    run = partial(F.scaled_dot_product_attention, q, k, v, mask, drop, form == "causal")

    def by_kernel() -> Any:
        with nullcontext() if kernel is None else sdpa_kernel(kernel):
            return run(enable_gqa=of_keys < heads)

    return through(by_kernel, q, k, v, *(() if mask is None else (mask,)))


def recurrent(draw: ShapeDraw) -> Layer:
    """An LSTM or GRU; those in bfloat16, which cuDNN has not, of few steps."""
    pick = draw.random
    cell, steps = (
        pick.choice((nn.LSTM, nn.LSTM, nn.GRU)),
        pick.choice((8, 16, 32, 50, 64, 100, 200)),
    )
    batch, hidden = pick.choice((8, 16, 32, 64, 128, 256)), pick.choice((128, 256, 512, 512, 1024))
    inputs, layers = pick.choice((hidden, hidden, 64, 256, 80)), pick.choice((1, 1, 2, 2, 3))
    both, first, half = (pick.random() < share for share in (0.25, 0.5, 0.7))
    if 40.0 * steps * batch * hidden * (hidden + inputs) * layers * (1 + both) > MOST_FLOP:
        raise TooLarge
    dtype = torch.float16 if draw.precision == "bf16" and half else draw.dtype
    steps = min(steps, 16) if dtype is torch.bfloat16 else steps
    net = cell(inputs, hidden, layers, bidirectional=both, batch_first=first, dtype=dtype,
               device="cuda")  # fmt: skip
    shape = (batch, steps, inputs) if first else (steps, batch, inputs)
    x = torch.randn(shape, device="cuda", dtype=dtype, requires_grad=True)
    return through(partial(net, x), x, *net.parameters())


FILTERS: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = (
    *((depthwise, 21), (grouped, 24), (stem, 8), (point, 12), (plain, 8), (video, 5)),
    *((sound, 4), (attended, 13), (recurrent, 5)),
)
"""Layers and the weights with which they are drawn."""
