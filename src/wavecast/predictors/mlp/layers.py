"""The four layers whose kernels vary between GPUs (Habitat, section 3.2), and their measured times.

Libraries choose different kernels for these on different GPUs, so their times are learned from
measurements (section 4.3.1).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

from wavecast.errors import InvalidInput, UnknownName

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Sized:
    """Checks the sizes of a layer: integers of at least 1 (or 0 if the range begins there).

    Switches are 0 or 1. Sizes may exceed the range, which is only for sampling.
    """

    KIND: ClassVar[str]
    """The name of the kind of layer."""

    def __post_init__(self) -> None:
        for name, (low, high) in self.ranges().items():
            value = getattr(self, name)
            least, most = min(low, 1), 1 if (low, high) == (0, 1) else value
            if not least <= value <= most:
                raise InvalidInput(f"a {self.KIND} layer cannot have {name} = {value}")

    @classmethod
    def ranges(cls) -> Ranges:
        """The range from which each size is sampled, ends included (Habitat, section 4.3.1)."""
        return {field.name: field.metadata["range"] for field in fields(cls)}

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names of the sizes, in the order of `features`."""
        return tuple(field.name for field in fields(cls))

    def features(self) -> tuple[int, ...]:
        """The sizes as integers, in the order of the fields; a switch is 0 or 1."""
        return tuple(int(getattr(self, name)) for name in self.names())


def _size(low: int, high: int) -> Any:
    return field(metadata={"range": (low, high)})


@dataclass(frozen=True, slots=True)
class Conv2d(_Sized):
    """A convolution of square images with square filters, in one group and without dilation."""

    KIND = "conv2d"

    bias: bool = _size(0, 1)
    batch: int = _size(1, 64)
    image: int = _size(1, 256)
    in_channels: int = _size(3, 2048)
    out_channels: int = _size(16, 2048)
    kernel: int = _size(1, 11)
    stride: int = _size(1, 4)
    padding: int = _size(0, 3)

    def __post_init__(self) -> None:
        # Explicit: super() without arguments does not work in a dataclass with slots.
        _Sized.__post_init__(self)
        if self.kernel > self.image + 2 * self.padding:
            raise InvalidInput(
                f"a filter of {self.kernel} does not fit an image of {self.image} "
                f"with a padding of {self.padding}"
            )

    @property
    def out_image(self) -> int:
        """The side of the output images."""
        return (self.image + 2 * self.padding - self.kernel) // self.stride + 1


@dataclass(frozen=True, slots=True)
class Lstm(_Sized):
    """An LSTM over whole sequences, in cuDNN's layout: sequence first."""

    KIND = "lstm"

    bias: bool = _size(0, 1)
    bidirectional: bool = _size(0, 1)
    batch: int = _size(1, 128)
    sequence: int = _size(1, 64)
    inputs: int = _size(1, 1280)
    hidden: int = _size(1, 1280)
    layers: int = _size(1, 6)


@dataclass(frozen=True, slots=True)
class Bmm(_Sized):
    """A batched matmul: `batch` times (left, middle) by (middle, right)."""

    KIND = "bmm"

    batch: int = _size(1, 128)
    left: int = _size(1, 1024)
    middle: int = _size(1, 1024)
    right: int = _size(1, 1024)


@dataclass(frozen=True, slots=True)
class Linear(_Sized):
    """A fully connected layer of `batch` rows."""

    KIND = "linear"

    bias: bool = _size(0, 1)
    batch: int = _size(1, 3500)
    in_features: int = _size(1, 32768)
    out_features: int = _size(1, 32768)


Layer = Conv2d | Lstm | Bmm | Linear
KINDS: Mapping[str, type[Layer]] = {cls.KIND: cls for cls in (Conv2d, Lstm, Bmm, Linear)}
"""The class of each kind of layer."""


def layer_type(kind: str) -> type[Layer]:
    """The class of a kind of layer.

    Raises:
        UnknownName: There is no such kind.
    """
    if kind not in KINDS:
        raise UnknownName(f'unknown kind of layer "{kind}"; the kinds are {", ".join(KINDS)}')
    return KINDS[kind]


def layer(kind: str, features: Sequence[float]) -> Layer:
    """The layer with these sizes, as `features()` returned them.

    Raises:
        InvalidInput: Their number is wrong, or a layer cannot have such sizes.
    """
    cls = layer_type(kind)
    names = cls.names()
    if len(features) != len(names):
        raise InvalidInput(f"a {kind} layer has {len(names)} features, not {len(features)}")
    switches = {name for name, ends in cls.ranges().items() if ends == (0, 1)}
    pairs = zip(names, features, strict=True)
    values: dict[str, Any] = {
        name: bool(value) if name in switches else int(value) for name, value in pairs
    }
    return cls(**values)


class LayerStatus(StrEnum):
    """How the measurement of a layer ended."""

    OK = "ok"
    OOM = "oom"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PassTimes:
    """The mean times of a layer's forward and backward pass; None if the status is not ok."""

    forward_s: float | None
    backward_s: float | None
    status: LayerStatus = LayerStatus.OK


# Random layers to measure: the same ones, from the same seed, on every GPU (Habitat, 4.3.1).


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
        values = tuple(_drawn_size(draw, low, high) for low, high in cls.ranges().values())
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


def _drawn_size(draw: random.Random, low: int, high: int) -> int:
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
