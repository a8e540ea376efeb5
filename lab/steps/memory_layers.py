"""Layers whose time is that of memory: sums, norms, lookups, resizes; `lab.collect.sweep memory`.

Sums, means and softmaxes over any dimensions, places that are fetched and added to, many times and
few, images that are resized or pooled, norms of images in both layouts, and lists of tensors of
very different sizes. What is reduced was just computed, as in a network.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wavecast.frameworks.pytorch.drawn.network_layers import Layer, ShapeDraw, TooLarge, through

MOST = 2**28
"""The most elements of a reduced tensor."""
USUAL = 2**26
"""The most elements of other tensors."""
WIDTHS = (1, 2, 4, 8, 16, 19, 24, 32, 40, 64, 64, 96, 128, 128, 152, 192, 256, 256, 320, 384, 512,
          640, 768, 768, 1000, 1024, 1024, 1536, 2048, 3072, 4096, 8192, 32_000)  # fmt: skip
_SIDES = (1, 2, 4, 7, 7, 8, 14, 14, 16, 28, 28, 32, 56, 56, 64, 112, 128)
_BATCHES = (1, 2, 4, 8, 8, 16, 16, 32, 32, 64, 64, 96, 128)


def _few(elements: float, most: float = USUAL) -> None:
    if elements > most:
        raise TooLarge


def _count(draw: ShapeDraw, low: float, high: float) -> int:
    """A random count between two limits, uniform in the logarithm; half of them round."""
    if draw.random.random() < 0.5:
        return draw.usual(low, high)
    return int(low * (high / low) ** draw.random.random())


def _image(draw: ShapeDraw, sides: tuple[int, ...] = _SIDES, most: float = USUAL) -> Tensor:
    pick = draw.random
    batch, side = pick.choice(_BATCHES), pick.choice(sides)
    channels = pick.choice([width for width in WIDTHS[4:29] if width * side <= 24_000])
    _few(batch * channels * side**2, most)
    return draw.tensor(batch, channels, side, side)


def _of_computed(x: Tensor, *reduced: Callable[[Tensor], Any]) -> Layer:
    """Runs reductions, each of a tensor that a pass over memory has just written."""
    x = x.detach()

    def run() -> None:
        for reduce in reduced:
            reduce(x * 1.5)

    return run


def columns(draw: ShapeDraw) -> Layer:
    """Sums over the rows of a matrix, or over all dimensions but the last: gradients of biases."""
    pick = draw.random
    rows, width = _count(draw, 8, 2e6), pick.choice(WIDTHS)
    _few(rows * width, MOST // 2)
    if pick.random() < 0.6:
        return _of_computed(draw.tensor(rows, width), lambda x: x.sum(0, keepdim=True))
    outside = pick.choice([n for n in _BATCHES if n <= rows])
    x = draw.tensor(outside, rows // outside, width)
    return _of_computed(x, pick.choice((lambda x: x.sum((0, 1)), lambda x: x.mean(0))))


def of_images(draw: ShapeDraw) -> Layer:
    """Sums and means over dimensions of images, in both layouts."""
    x, pick = _image(draw, most=MOST // 2), draw.random
    over = pick.choice(((0, 2, 3), (0, 2, 3), (2, 3), (2, 3), (1,), (0,), (1, 2), (0, 1), (3,)))
    if pick.random() < 0.35:  # an image whose channels are last in its shape, too
        x = draw.tensor(x.shape[0], x.shape[2] * x.shape[3], x.shape[1])
        x = x.detach().unflatten(1, (-1, int(x.shape[1] ** 0.5)))
        over = pick.choice(((1, 2), (1, 2), (0, 1, 2), (3,), (0,)))
    kept = pick.random() < 0.5
    if pick.random() < 0.6:
        return _of_computed(x, lambda x: x.sum(over, keepdim=kept))
    return _of_computed(x, lambda x: x.mean(over, keepdim=kept))


def short_rows(draw: ShapeDraw) -> Layer:
    """Sums over a short last or middle dimension, of many rows."""
    pick = draw.random
    rows, heads = _count(draw, 100, 2e6), pick.choice((1, 1, 2, 4, 8, 16))
    width = pick.choice((2, 3, 4, 8, 10, 16, 24, 27, 32, 40, 48, 64, 64, 96, 100, 128, 196, 256))
    _few(rows * heads * width, MOST)
    x = draw.tensor(rows, heads, width)
    over = -1 if pick.random() < 0.7 else 1
    return _of_computed(x, pick.choice((lambda x: x.sum(over), lambda x: x.sum(over, True))))


def long_rows(draw: ShapeDraw) -> Layer:
    """Sums, means, maxima, norms and variances of long rows, or of whole tensors."""
    pick = draw.random
    rows, width = _count(draw, 1, 60_000), _count(draw, 200, 300_000)
    _few(rows * width, MOST // 4)
    x = draw.tensor(rows, width)
    if pick.random() < 0.5:
        inside = pick.choice([n for n in (1, 4, 8, 16) if rows >= n])
        x = draw.tensor(inside, rows // inside, width)
    if pick.random() < 0.12:
        return _of_computed(x, pick.choice((torch.sum, torch.mean, torch.norm, torch.amax)))
    forms = ("mean", "mean", "mean", "sum", "sum", "amax", "argmax", "var", "norm", "max")
    name = pick.choice(forms)
    return _of_computed(x, lambda x: getattr(x, name)(dim=-1))


def softmaxes(draw: ShapeDraw) -> Layer:
    """A softmax over a dimension that is not the last, or over short rows."""
    pick = draw.random
    form = pick.choice(("tokens", "tokens", "classes", "rows"))
    log = pick.random() < 0.3
    over, heads = -2, 1
    if form == "tokens":
        batch, heads = pick.choice(_BATCHES), pick.choice((1, 4, 8, 12, 16))
        length = pick.choice((16, 49, 50, 196, 197, 257, 577, 785, 1024, 3137, 4096, 16_384))
        width = pick.choice((8, 16, 19, 24, 32, 64, 100))
        shape: tuple[int, ...] = (batch, heads, length, width)
    elif form == "classes":
        side, over = pick.choice((28, 64, 96, 128, 256, 512)), 1
        shape = (pick.choice((1, 2, 4, 8)), pick.choice((2, 4, 19, 21, 91, 150)), side, side)
    else:
        over, log = pick.choice((0, 1)), False
        shape = (_count(draw, 16, 60_000), pick.choice(WIDTHS[:25]))
    _few(torch.Size(shape).numel())
    x = draw.tensor(*shape)
    if form == "tokens" and pick.random() < 0.7:  # heads of a wider tensor, as attention has
        x = draw.tensor(shape[0], shape[2], heads * shape[3])
        heads_of = x.detach().unflatten(2, (heads, -1)).transpose(1, 2)
        x = heads_of.requires_grad_()
    if form == "classes" and pick.random() < 0.6:
        goal = torch.randint(0, shape[1], (shape[0], *shape[2:]), device="cuda")
        whole = replace(draw, precision="fp32" if pick.random() < 0.7 else draw.precision)
        x = whole.tensor(*shape)
        return through(partial(F.cross_entropy, x, goal), x)
    return through(partial(F.log_softmax if log else F.softmax, x, over), x)


def layer_norms(draw: ShapeDraw) -> Layer:
    """A layer norm over the last dimension, of few rows or many."""
    pick = draw.random
    rows, width = _count(draw, 32, 600_000), pick.choice(WIDTHS[6:-1])
    _few(rows * width)
    x = draw.tensor(rows, width)
    weight, bias = draw.tensor(width), draw.tensor(width)
    return through(partial(F.layer_norm, x, (width,), weight, bias), x, weight, bias)


def batch_norms(draw: ShapeDraw) -> Layer:
    """A batch norm of images, sequences or features; a few with fixed statistics."""
    pick = draw.random
    x = _image(draw, most=2**27)
    if pick.random() < 0.2:
        shape: tuple[int, ...] = (_count(draw, 16, 60_000), pick.choice(WIDTHS[6:28]))
        if pick.random() < 0.5:
            shape = (pick.choice(_BATCHES), shape[1], pick.choice((16, 49, 196, 256, 1024, 4096)))
        _few(torch.Size(shape).numel())
        x = draw.tensor(*shape)
    whole = replace(draw, precision="fp32")
    weight, bias = whole.tensor(x.shape[1]), whole.tensor(x.shape[1])
    mean, var = torch.zeros_like(weight).detach(), torch.ones_like(weight).detach()
    training = pick.random() < 0.92
    run = partial(F.batch_norm, x, mean, var, weight, bias, training=training)
    return through(run, x, weight, bias)


def group_norms(draw: ShapeDraw) -> Layer:
    """A group norm of images in both layouts, also with one group."""
    x, pick = _image(draw), draw.random
    channels = x.shape[1]
    groups = pick.choice([n for n in (1, 4, 8, 16, 32, 32, 32) if channels % n == 0])
    precise = draw if pick.random() < 0.6 else replace(draw, precision="fp32")
    x = precise.tensor(*x.shape)
    weight, bias = precise.tensor(channels), precise.tensor(channels)
    return through(partial(F.group_norm, x, groups, weight, bias), x, weight, bias)


def pooled(draw: ShapeDraw) -> Layer:
    """A pooled image: means and maxima of windows, in both layouts."""
    x, pick = _image(draw, _SIDES[3:]), draw.random
    size, stride, padding = pick.choice(
        ((3, 1, 1), (3, 1, 1), (2, 2, 0), (3, 2, 1), (3, 3, 0), (5, 1, 2), (7, 7, 0), (4, 4, 0))
    )
    form = pick.choice(("mean", "mean", "max", "point"))
    if form == "point":
        return through(partial(F.adaptive_avg_pool2d, x, pick.choice((1, 1, 2, 3, 6, 7))), x)
    pool = F.avg_pool2d if form == "mean" else F.max_pool2d
    return through(partial(pool, x, size, stride, padding), x)


def resized(draw: ShapeDraw) -> Layer:
    """A resized image, from one point or a few, to larger and smaller ones."""
    pick = draw.random
    batch, width = pick.choice((1, 2, 4, 8, 8, 16, 32)), pick.choice(WIDTHS[4:26])
    side = pick.choice((1, 1, 2, 3, 6, 7, 14, 16, 28, 32, 56, 64, 64, 128))
    size = pick.choice((7, 14, 16, 28, 32, 56, 64, 65, 96, 128, 128, 224, 256, 512))
    if (size > 32 * side and side > 1) or side > 4 * size:
        raise TooLarge
    _few(batch * width * max(size, side) ** 2)
    mode = pick.choice(("bilinear", "bilinear", "bilinear", "nearest", "nearest", "bicubic"))
    corners = {} if mode == "nearest" else {"align_corners": pick.random() < 0.2}
    precise = draw if pick.random() < 0.5 else replace(draw, precision="fp32")
    x = precise.tensor(batch, width, side, side)
    return through(partial(F.interpolate, x, size=(size, size), mode=mode, **corners), x)


def lists(draw: ShapeDraw) -> Layer:
    """Lists of tensors of like sizes, or of a large one and many small ones."""
    pick = draw.random
    dtype = draw.dtype if pick.random() < 0.5 else torch.float32
    small = [_count(draw, 16, 1e6) for _ in range(_count(draw, 1, 200))]
    large = [_count(draw, 1e6, 1e8) for _ in range(pick.choice((0, 1, 1, 1, 2)))]
    _few(sum((*small, *large)), 2 * USUAL)
    a, b, c = ([torch.rand(n, device="cuda", dtype=dtype) for n in (*small, *large)]
               for _ in range(3))  # fmt: skip
    forms: tuple[Layer, ...] = (
        partial(torch._foreach_norm, a),
        partial(torch._foreach_mul_, a, 0.9),
        partial(torch._foreach_add_, a, b, alpha=-0.1),
        partial(torch._foreach_lerp_, a, b, 0.1),
        partial(torch._foreach_addcmul_, a, b, c, 0.1),
        partial(torch._foreach_sqrt, b),
    )
    chosen = (forms[0], *pick.sample(forms, 2))
    return lambda: [run() for run in chosen]
