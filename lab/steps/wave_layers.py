"""Convolutions of waves and of volumes, which the seventh blind test predicted badly.

Vocoders and codecs of sound convolve long waves of few channels, with filters that are dilated,
strided or transposed. Coders of videos convolve volumes of more than three channels.
`lab.collect.sweep waves`.
"""

from __future__ import annotations

from collections.abc import Callable

from lab.steps.filter_layers import convolved
from wavecast.frameworks.pytorch.drawn.network_layers import Layer, ShapeDraw

_BATCHES = (1, 2, 4, 8, 8, 16, 16, 32)
_CHANNELS = (1, 2, 8, 16, 24, 32, 32, 48, 64, 64, 96, 128, 128, 192, 256, 384, 512, 768, 1024)
_LENGTHS = tuple(2**power for power in range(8, 18))
_MOST = 2**21
"""The most elements of one wave."""


def _wave(draw: ShapeDraw) -> tuple[int, int, int]:
    """Images, channels and length; the longer, the fewer channels."""
    pick = draw.random
    length = pick.choice(_LENGTHS) + pick.choice((0, 0, 0, 8, -56))
    return pick.choice(_BATCHES), pick.choice([c for c in _CHANNELS if c * length <= _MOST]), length


def residual(draw: ShapeDraw) -> Layer:
    """A convolution that keeps the length, often dilated."""
    pick, (batch, channels, length) = draw.random, _wave(draw)
    filters = pick.choice((channels, channels, channels, channels, 2 * channels, 1, 80))
    kernel, dilation = pick.choice((1, 3, 3, 5, 7, 7, 11, 15)), pick.choice((1, 1, 1, 2, 3, 5, 9))
    return convolved(
        draw, (batch, channels, length), (filters, channels, kernel),
        padding=dilation * (kernel // 2), dilation=dilation,
    )  # fmt: skip


def shorter(draw: ShapeDraw) -> Layer:
    """A strided convolution, as encoders have."""
    pick, (batch, channels, length) = draw.random, _wave(draw)
    stride, filters = pick.choice((2, 2, 4, 5, 8)), pick.choice((channels, 2 * channels, 32))
    kernel = pick.choice((stride, 2 * stride, 2 * stride, 3))
    return convolved(
        draw, (batch, channels, length), (filters, channels, kernel), stride=stride,
        padding=kernel // 4,
    )  # fmt: skip


def longer(draw: ShapeDraw) -> Layer:
    """A transposed convolution, as vocoders have."""
    pick, (batch, channels, length) = draw.random, _wave(draw)
    stride = pick.choice((2, 2, 4, 5, 8))
    kernel, filters = pick.choice((stride, 2 * stride)), max(channels // pick.choice((1, 2, 2)), 1)
    return convolved(
        draw, (batch, channels, length // stride), (channels, filters, kernel), stride=stride,
        padding=(kernel - stride) // 2, transposed=True,
    )  # fmt: skip


def volume(draw: ShapeDraw) -> Layer:
    """A convolution of space and time; causal ones are padded before."""
    pick = draw.random
    kernel = pick.choice(((3, 3, 3), (3, 3, 3), (1, 3, 3), (3, 1, 1), (1, 1, 1), (5, 5, 5)))
    frames, side = pick.choice((4, 8, 16, 17, 32, 64)), pick.choice((8, 14, 16, 28, 32, 56, 64, 96))
    most = _MOST * 4 // (frames * side**2)
    channels = pick.choice([c for c in (4, 16, 32, 48, 64, 96, 128, 192, 256, 384) if c <= most])
    filters = pick.choice((channels, channels, channels // 2, 2 * channels, 16))
    stride = pick.choice((1, 1, 1, 2)) if min(kernel[0], kernel[2]) > 1 else 1
    padding = pick.choice(((0, 0, 0), tuple(size // 2 for size in kernel)))
    return convolved(
        draw, (pick.choice((1, 1, 2, 4, 8)), channels, frames, side, side),
        (filters, channels, *kernel), stride=stride, padding=padding,
    )  # fmt: skip


WAVES: tuple[tuple[Callable[[ShapeDraw], Layer], int], ...] = (
    *((residual, 44), (shorter, 10), (longer, 12), (volume, 34)),
)
"""Layers and the weights with which they are drawn."""
