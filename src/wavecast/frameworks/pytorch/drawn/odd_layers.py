"""Layers that the third and the fourth blind test predicted badly.

Attention with masks of long sequences, convolutions in groups with long kernels, images that are
unfolded into columns, resized or normalized, rows that are added to few places, lists of an
optimizer's tensors, and the loss over large vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F

from wavecast.frameworks.pytorch.drawn.drawing import LARGEST, Layer, ShapeDraw, TooLarge, through

_LENGTHS = (64, 128, 196, 197, 256, 384, 512, 577, 768, 1024, 1024, 1500, 2048, 2048, 4096)
MOST_SCORES = 2**31
"""The most scores of an attention, over all sequences and heads."""


def masked(draw: ShapeDraw) -> Layer:
    """Attention with a mask, a bias or none, of as many heads for the keys or fewer."""
    pick = draw.random
    batch, heads = pick.choice((1, 2, 4, 4, 8, 16, 32)), pick.choice((4, 8, 12, 16, 16, 32))
    length, head = pick.choice(_LENGTHS), pick.choice((32, 64, 64, 80, 96, 128, 128))
    if batch * heads * length**2 > MOST_SCORES:
        raise TooLarge
    of_keys = heads // pick.choice((1, 1, 1, 2, 4))
    q = draw.tensor(batch, length, heads, head).detach().transpose(1, 2).requires_grad_()
    k, v = (
        draw.tensor(batch, length, of_keys, head).detach().transpose(1, 2).requires_grad_()
        for _ in range(2)
    )
    form = pick.choices(("causal", "none", "bool", "added", "bias"), (20, 10, 40, 20, 10))[0]
    shape = (batch if pick.random() < 0.7 else 1, heads if form == "bias" else 1, length, length)
    mask = None
    if form == "bool":
        seen = torch.rand(shape, device=draw.device) < 0.8
        mask = seen | torch.eye(length, dtype=torch.bool, device=draw.device)
    elif form in ("added", "bias"):
        mask = draw.tensor(*shape, grad=form == "bias" and pick.random() < 0.3)
    drop = pick.choice((0.0, 0.0, 0.1))
    run = partial(F.scaled_dot_product_attention, q, k, v, mask, drop, form == "causal")
    return through(partial(run, enable_gqa=of_keys < heads), q, k, v)


def long_kernel(draw: ShapeDraw) -> Layer:
    """A convolution in groups over a sequence, as speech networks have for positions."""
    pick = draw.random
    batch, width = pick.choice((2, 4, 8, 12, 16, 24, 32)), pick.choice((512, 768, 768, 1024, 1280))
    kernel, groups = pick.choice((19, 31, 48, 64, 95, 128, 128, 128)), pick.choice((8, 16, 16, 16))
    x = draw.tensor(batch, width, pick.choice((49, 99, 199, 249, 299, 374, 499, 749, 999)))
    weight = draw.tensor(width, width // groups, kernel)
    return through(partial(F.conv1d, x, weight, None, 1, kernel // 2, 1, groups), x, weight)


def unfolded(draw: ShapeDraw) -> Layer:
    """An image unfolded into columns or folded from them, as mobile transformers have."""
    pick = draw.random
    batch, side = pick.choice((2, 4, 8, 16, 32, 64, 96)), pick.choice((8, 14, 16, 28, 32, 56))
    width, size = pick.choice((32, 64, 128, 192, 256, 384)), pick.choice((2, 2, 3, 4, 7))
    stride = size if side % size == 0 else 1
    columns = width * size**2 * ((side - size) // stride + 1) ** 2
    if batch * columns > LARGEST // 2:
        raise TooLarge
    x = draw.tensor(batch, width, side, side)
    if pick.random() < 0.6:
        return through(partial(F.unfold, x, size, stride=stride), x)
    y = F.unfold(x, size, stride=stride).detach().requires_grad_()
    return through(partial(F.fold, y, side, size, stride=stride), y)


def resized(draw: ShapeDraw) -> Layer:
    """A resized image, larger or smaller, also of a few points."""
    pick = draw.random
    batch, side = pick.choice((1, 2, 4, 8, 16, 32)), pick.choice((1, 2, 3, 7, 14, 16, 28, 32, 64))
    width, factor = pick.choice((32, 64, 128, 256, 384, 512)), pick.choice((0.5, 2, 2, 4, 8))
    size = max(int(side * factor), 1)
    if batch * width * max(size, side) ** 2 > LARGEST // 2:
        raise TooLarge
    mode = pick.choice(("bilinear", "bilinear", "bicubic", "nearest"))
    corners = {} if mode == "nearest" else {"align_corners": pick.random() < 0.3}
    x = draw.tensor(batch, width, side, side)
    return through(partial(F.interpolate, x, size=size, mode=mode, **corners), x)


def gathered(draw: ShapeDraw) -> Layer:
    """Rows fetched from a table, whose gradients are added to few places or many."""
    pick = draw.random
    rows, width = (
        pick.choice((4, 8, 32, 128, 2000, 50_000)),
        pick.choice((32, 128, 768, 2048, 4096)),
    )
    count = pick.choice((512, 2048, 4096, 16_384, 65_536))
    if count * width > LARGEST // 2:
        raise TooLarge
    table, sent = draw.tensor(rows, width), draw.tensor(count, width)
    where = torch.randint(0, rows, (count,), device=draw.device)
    empty = torch.zeros_like(table).detach()
    forms: tuple[Layer, ...] = (
        through(lambda: table[where], table),
        through(lambda: table.index_select(0, where), table),
        through(partial(F.embedding, where, table), table),
        through(lambda: empty.clone().index_add_(0, where, sent), sent),
        through(lambda: empty.clone().index_put_((where,), sent, accumulate=True), sent),
    )
    return pick.choice(forms)


def scored(draw: ShapeDraw) -> Layer:
    """A loss over a vocabulary, in the network's precision or in float32."""
    pick = draw.random
    tokens, words = (
        pick.choice((512, 1024, 2048, 4096, 8192, 16_384)),
        pick.choice((32, 1000, 21_841, 30_522, 32_000, 50_257, 128_256, 151_936)),
    )
    if tokens * words > LARGEST:
        raise TooLarge
    whole = draw if pick.random() < 0.3 else replace(draw, precision="fp32")
    x, goal = whole.tensor(tokens, words), torch.randint(0, words, (tokens,), device=draw.device)
    return through(partial(F.cross_entropy, x, goal), x)


def normed(draw: ShapeDraw) -> Layer:
    """A batch norm of an image or of features."""
    pick = draw.random
    side = pick.choice((1, 7, 7, 14, 14, 28, 56, 56, 112))
    widths = (24, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
    channels = pick.choice([c for c in widths if c * side <= 15_000])
    batch = pick.choice((8, 16, 32, 64, 64, 96, 128))
    if batch * channels * side**2 > LARGEST // 2:
        raise TooLarge
    x = draw.tensor(batch, channels, side, side)
    whole = replace(draw, precision="fp32")
    weight, bias = whole.tensor(channels), whole.tensor(channels)
    mean, var = torch.zeros_like(weight).detach(), torch.ones_like(weight).detach()
    run = partial(F.batch_norm, x, mean, var, weight, bias, training=True)
    return through(run, x, weight, bias)


def updated(draw: ShapeDraw) -> Layer:
    """An optimizer's update of a list of tensors of mixed sizes."""
    pick = draw.random
    width, layers = pick.choice((192, 384, 512, 768, 1024, 2048)), pick.choice((2, 4, 6, 12, 24))
    shapes = ((width,), (width,), (3 * width, width), (4 * width, width), (width, 4 * width))
    if 11 * width**2 * layers > LARGEST:
        raise TooLarge
    dtype = draw.dtype if pick.random() < 0.3 else torch.float32
    tensors = [torch.randn(shape, device=draw.device, dtype=dtype) for shape in shapes * layers]
    for tensor in tensors:
        tensor.requires_grad_().grad = torch.randn_like(tensor)
    made = (
        partial(torch.optim.AdamW, fused=True), partial(torch.optim.AdamW, foreach=True),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True),
    )  # fmt: skip
    optimizer = pick.choice(made)(tensors)

    def run() -> None:
        if clip:
            torch.nn.utils.clip_grad_norm_(tensors, 1.0)
        optimizer.step()

    clip = pick.random() < 0.4
    return run


ODD: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = (
    *((masked, 30), (long_kernel, 14), (unfolded, 8), (resized, 12), (gathered, 12)),
    *((scored, 8), (normed, 8), (updated, 8)),
)
"""Layers and the weights with which they are drawn."""
