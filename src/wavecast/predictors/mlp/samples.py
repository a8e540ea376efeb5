"""Random layers to measure: the same ones, from the same seed, on every GPU (Habitat, 4.3.1)."""

from __future__ import annotations

import random
from collections.abc import Iterator

from wavecast.predictors.mlp.layers import Bmm, Conv2d, Layer, Linear, Lstm, layer, layer_type


def sample(kind: str, seed: int) -> Iterator[Layer]:
    """Endless layers of a kind within their ranges, without duplicates.

    They are the same on every machine and Python version: only `random()` of `random.Random` is
    used, whose sequence Python guarantees, and the rest is exact arithmetic. The paper gives ranges
    but no distribution. Here each size is drawn from its whole range half of the time, and else
    from a range whose high end is halved 0, 1, 2, ... times. Uniform sizes alone would hardly ever
    give a layer as small as in real networks, and logarithmic ones hardly ever a large one.
    """
    cls = layer_type(kind)
    draw = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    while True:
        values = tuple(_size(draw, low, high) for low, high in cls.ranges().values())
        if values not in seen and _acceptable(kind, values):
            seen.add(values)
            yield layer(kind, values)


def small(kind: str, seed: int) -> Iterator[Layer]:
    """The layers of a sample that a CPU runs in milliseconds, for a trial without a GPU."""
    return (drawn for drawn in sample(kind, seed) if _products(drawn) <= _SMALL_PRODUCTS)


_SMALL_PRODUCTS = 10_000_000
"""The most multiplications in a forward pass of a small layer."""


def _products(sized: Layer) -> int:
    """How many multiplications a forward pass has, of weights or of two matrices."""
    match sized:
        case Bmm():
            return sized.batch * sized.left * sized.middle * sized.right
        case Linear():
            return sized.batch * sized.in_features * sized.out_features
        case Conv2d():
            weights = sized.in_channels * sized.out_channels * sized.kernel**2
            return sized.batch * sized.out_image**2 * weights
        case Lstm():
            directions = 1 + sized.bidirectional
            inner = directions * sized.hidden
            inputs = sized.inputs + (sized.layers - 1) * inner + sized.layers * sized.hidden
            return sized.batch * sized.sequence * directions * 4 * sized.hidden * inputs


def _whole(draw: random.Random, low: int, high: int) -> int:
    return low + int(draw.random() * (high - low + 1))


_WIDE = 32
"""Ranges at least this wide are of sizes; narrower ones are of strides, filters and switches."""


def _size(draw: random.Random, low: int, high: int) -> int:
    if high - low >= _WIDE and draw.random() < 0.5:
        halvings = _whole(draw, 0, (high // low).bit_length() - 1)
        high = max(low, high >> halvings)
    return _whole(draw, low, high)


def _acceptable(kind: str, values: tuple[int, ...]) -> bool:
    """Whether a drawn layer can exist and is not too large.

    Habitat's code rejects convolutions of image^1.15 * in * out * kernel > 3.5e7. Both sides are
    raised to the 20th power here, so that all numbers are integers, which no machine rounds.
    """
    if kind != Conv2d.KIND:
        return True
    _, _, image, inwards, out, kernel, _, padding = values
    if kernel > image + 2 * padding:
        return False
    return bool(image**23 * (inwards * out * kernel) ** 20 <= 35_000_000**20)
