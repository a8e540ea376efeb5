"""Layers of speech and segmentation networks with random sizes.

Where the third blind test was off: convolutions over sounds (of the raw wave, of one element, in
groups with very long kernels, depthwise), resized images, patches of images and videos, attention
with a mask over sequences of odd lengths, and the loss of connectionist classification.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from wavecast.frameworks.pytorch.drawn.drawing import LARGEST, Layer, ShapeDraw, TooLarge, through

_LENGTHS = (99, 149, 249, 250, 299, 399, 499, 500, 749, 1500)


def wave(draw: ShapeDraw) -> Layer:
    """The first convolutions of a speech network, over the raw wave or the one before."""
    pick = draw.random
    batch, width = pick.choice((2, 4, 8, 12, 16, 24)), pick.choice((128, 256, 512, 512))
    if pick.random() < 0.4:
        samples, kernel, stride = pick.choice((16_000, 80_000, 160_000, 240_000)), 10, 5
        x, weight = draw.tensor(batch, 1, samples, grad=False), draw.tensor(width, 1, kernel)
        return through(partial(F.conv1d, x, weight, None, stride), weight)
    length = pick.choice((999, 1999, 3999, 7999, 15_999, 31_999))
    if batch * width * length > LARGEST // 2:
        raise TooLarge
    kernel = pick.choice((3, 3, 2))
    x, weight = draw.tensor(batch, width, length), draw.tensor(width, width, kernel)
    return through(partial(F.conv1d, x, weight, None, 2), x, weight)


def positions(draw: ShapeDraw) -> Layer:
    """A convolution in groups with a long kernel, which gives positions."""
    pick = draw.random
    batch, width = pick.choice((2, 4, 8, 12, 16, 24)), pick.choice((256, 384, 512, 768, 768, 1024))
    kernel, groups = pick.choice((19, 32, 64, 95, 128, 128)), pick.choice((4, 8, 16, 16))
    x = draw.tensor(batch, width, pick.choice(_LENGTHS))
    weight = draw.tensor(width, width // groups, kernel)
    return through(partial(F.conv1d, x, weight, None, 1, kernel // 2, 1, groups), x, weight)


def depthwise_sound(draw: ShapeDraw) -> Layer:
    """A depthwise convolution of a conformer."""
    pick = draw.random
    width, kernel = pick.choice((144, 256, 384, 512, 768, 1024)), pick.choice((3, 4, 9, 15, 31, 31))
    x = draw.tensor(pick.choice((2, 4, 8, 16, 24, 32)), width, pick.choice(_LENGTHS))
    weight = draw.tensor(width, 1, kernel)
    return through(partial(F.conv1d, x, weight, None, 1, kernel // 2, 1, width), x, weight)


def pointwise_sound(draw: ShapeDraw) -> Layer:
    """A convolution of one element, over a sequence as it is or a transposed one."""
    pick = draw.random
    widths = (144, 256, 384, 512, 768, 1024, 1536)
    batch, width, filters = (
        pick.choice((2, 4, 8, 16, 24, 32)),
        pick.choice(widths),
        pick.choice(widths),
    )
    length = pick.choice(_LENGTHS)
    x = draw.tensor(batch, width, length)
    if pick.random() < 0.5:
        x = draw.tensor(batch, length, width).detach().transpose(1, 2).requires_grad_()
    weight = draw.tensor(filters, width, 1)
    return through(partial(F.conv1d, x, weight), x, weight)


def resized(draw: ShapeDraw) -> Layer:
    """An image that is resized, as between the stages of a segmentation network."""
    pick = draw.random
    batch, side = pick.choice((2, 4, 8, 16, 32)), pick.choice((1, 2, 3, 6, 7, 8, 14, 16, 32, 64))
    width, factor = pick.choice((32, 64, 128, 150, 256, 384, 512)), pick.choice((2, 2, 4, 8))
    if batch * width * (side * factor) ** 2 > LARGEST // 2:
        raise TooLarge
    mode = pick.choice(("bilinear", "bilinear", "nearest"))
    corners = {} if mode == "nearest" else {"align_corners": pick.random() < 0.2}
    x = draw.tensor(batch, width, side, side)
    return through(partial(F.interpolate, x, size=side * factor, mode=mode, **corners), x)


def patches(draw: ShapeDraw) -> Layer:
    """Patches of images and videos: convolutions that do not overlap."""
    pick = draw.random
    width, size = pick.choice((64, 96, 192, 384, 768, 1024)), pick.choice((4, 8, 14, 16, 16, 32))
    if pick.random() < 0.5:
        batch, frames = pick.choice((1, 2, 4, 8, 16)), pick.choice((8, 16))
        x = draw.tensor(batch, 3, frames, 224, 224, grad=False)
        weight = draw.tensor(width, 3, 2, max(size, 8), max(size, 8))
        return through(partial(F.conv3d, x, weight, None, weight.shape[2:]), weight)
    x = draw.tensor(pick.choice((8, 16, 32, 64, 128, 192)), 3, 224, 224, grad=False)
    weight = draw.tensor(width, 3, size, size)
    return through(partial(F.conv2d, x, weight, None, size), weight)


def masked(draw: ShapeDraw) -> Layer:
    """Attention with a mask or a bias over sequences of odd lengths."""
    pick = draw.random
    batch, heads = pick.choice((2, 4, 8, 16, 24)), pick.choice((4, 6, 8, 12, 16))
    length, head = pick.choice((64, 128, 197, 256, 299, 499, 512, 749)), pick.choice((32, 64, 64))
    q, k, v = (draw.tensor(batch, heads, length, head) for _ in range(3))
    bias = draw.tensor(*pick.choice(((batch, 1), (batch, heads), (1, 1))), length, length,
                       grad=False)  # fmt: skip
    drop = pick.choice((0.0, 0.1))
    return through(
        lambda: F.scaled_dot_product_attention(q, k, v, bias, dropout_p=drop), q, k, v
    )  # fmt: skip


def transcribed(draw: ShapeDraw) -> Layer:
    """The loss of connectionist temporal classification."""
    pick = draw.random
    batch, length, labels = pick.choice((2, 8, 16, 24)), pick.choice(_LENGTHS), 32
    x = torch.randn(length, batch, labels, device=draw.device).requires_grad_()
    goal = torch.randint(1, labels, (batch, 40), device=draw.device)
    long, short = (torch.full((batch,), n, device=draw.device) for n in (length, 40))
    return through(lambda: F.ctc_loss(x.log_softmax(-1), goal, long, short, reduction="none"), x)


SOUNDS: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = (
    *((wave, 10), (positions, 16), (depthwise_sound, 8), (pointwise_sound, 18), (resized, 18)),
    *((patches, 10), (masked, 14), (transcribed, 4)),
)
"""Layers and the weights with which they are drawn."""
