"""The four layers whose kernels vary between GPUs (Habitat, section 3.2), and samples of them.

A library chooses other kernels for these on other GPUs, so their times are learned from
measurements: of the same layers, drawn from the same seed, on every GPU (section 4.3.1).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, ClassVar

from wavecast.errors import InvalidInput, UnknownName

Ranges = Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class _Sized:
    """Whole numbers that may be any from 1 up, unless their range begins at 0; and switches."""

    KIND: ClassVar[str]
    RANGES: ClassVar[Ranges]
    """What is sampled (Habitat, section 4.3.1), ends included; switches are 0 or 1."""

    def __post_init__(self) -> None:
        for name, (low, high) in self.RANGES.items():
            value = getattr(self, name)
            least, most = min(low, 1), 1 if (low, high) == (0, 1) else value
            if not least <= value <= most:
                raise InvalidInput(f"a {self.KIND} layer cannot have {name} = {value}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The dimensions, in the order of `features`."""
        return tuple(field.name for field in fields(cls))

    def features(self) -> tuple[int, ...]:
        """The dimensions as numbers, in the order of the fields; a switch is 0 or 1."""
        return tuple(int(getattr(self, name)) for name in self.names())


@dataclass(frozen=True, slots=True)
class Conv2d(_Sized):
    """A convolution of square images by square filters, in one group and without dilation."""

    KIND = "conv2d"
    RANGES: ClassVar[Ranges] = {
        "bias": (0, 1),
        "batch": (1, 64),
        "image": (1, 256),
        "in_channels": (3, 2048),
        "out_channels": (16, 2048),
        "kernel": (1, 11),
        "stride": (1, 4),
        "padding": (0, 3),
    }

    bias: bool
    batch: int
    image: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    padding: int

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
        """The side of the images that come out."""
        return (self.image + 2 * self.padding - self.kernel) // self.stride + 1


@dataclass(frozen=True, slots=True)
class Lstm(_Sized):
    """An LSTM over whole sequences, cuDNN's layout: sequence first."""

    KIND = "lstm"
    RANGES: ClassVar[Ranges] = {
        "bias": (0, 1),
        "bidirectional": (0, 1),
        "batch": (1, 128),
        "sequence": (1, 64),
        "inputs": (1, 1280),
        "hidden": (1, 1280),
        "layers": (1, 6),
    }

    bias: bool
    bidirectional: bool
    batch: int
    sequence: int
    inputs: int
    hidden: int
    layers: int


@dataclass(frozen=True, slots=True)
class Bmm(_Sized):
    """A batched product: `batch` times (left, middle) by (middle, right)."""

    KIND = "bmm"
    RANGES: ClassVar[Ranges] = {
        "batch": (1, 128),
        "left": (1, 1024),
        "middle": (1, 1024),
        "right": (1, 1024),
    }

    batch: int
    left: int
    middle: int
    right: int


@dataclass(frozen=True, slots=True)
class Linear(_Sized):
    """A fully connected layer of `batch` rows."""

    KIND = "linear"
    RANGES: ClassVar[Ranges] = {
        "bias": (0, 1),
        "batch": (1, 3500),
        "in_features": (1, 32768),
        "out_features": (1, 32768),
    }

    bias: bool
    batch: int
    in_features: int
    out_features: int


Layer = Conv2d | Lstm | Bmm | Linear
KINDS: Mapping[str, type[Layer]] = {each.KIND: each for each in (Conv2d, Lstm, Bmm, Linear)}


def layer_type(kind: str) -> type[Layer]:
    """The class of the layers of a kind."""
    if kind not in KINDS:
        raise UnknownName(f'unknown kind of layer "{kind}"; the kinds are {", ".join(KINDS)}')
    return KINDS[kind]


def layer(kind: str, features: Sequence[float]) -> Layer:
    """The layer of these features: what `features()` gave."""
    cls = layer_type(kind)
    names = cls.names()
    if len(features) != len(names):
        raise InvalidInput(f"a {kind} layer has {len(names)} features, not {len(features)}")
    switches = {name for name, ends in cls.RANGES.items() if ends == (0, 1)}
    pairs = zip(names, features, strict=True)
    values: dict[str, Any] = {
        name: bool(value) if name in switches else int(value) for name, value in pairs
    }
    return cls(**values)


def sample(kind: str, seed: int) -> Iterator[Layer]:
    """Layers of a kind within their ranges, without end and without duplicates.

    The same on every machine and Python: of `random.Random` only `random()` is used, whose
    sequence Python guarantees, and all that follows is exact arithmetic. The paper gives ranges
    but no distribution. Here each size is drawn from its whole range half of the time, and else
    from a range whose high end is halved 0, 1, 2, ... times: uniform sizes alone would hardly
    ever make a layer as small as those of real networks, and logarithmic ones hardly a large one.
    """
    cls = layer_type(kind)
    draw = random.Random(seed)
    seen: set[tuple[int, ...]] = set()
    while True:
        values = tuple(_size(draw, low, high) for low, high in cls.RANGES.values())
        if values not in seen and _acceptable(kind, values):
            seen.add(values)
            yield layer(kind, values)


def _whole(draw: random.Random, low: int, high: int) -> int:
    return low + int(draw.random() * (high - low + 1))


_WIDE = 32
"""Ranges from here on are of sizes; the narrower are of strides, filters and switches."""


def _size(draw: random.Random, low: int, high: int) -> int:
    if high - low >= _WIDE and draw.random() < 0.5:
        halvings = _whole(draw, 0, (high // low).bit_length() - 1)
        high = max(low, high >> halvings)
    return _whole(draw, low, high)


def _acceptable(kind: str, values: tuple[int, ...]) -> bool:
    """Whether a drawn layer exists and is not too large.

    Habitat's code rejects convolutions of image^1.15 * in * out * kernel > 3.5e7; the same to the
    20th power is in whole numbers, which no machine rounds.
    """
    if kind != Conv2d.KIND:
        return True
    _, _, image, inwards, out, kernel, _, padding = values
    if kernel > image + 2 * padding:
        return False
    return bool(image**23 * (inwards * out * kernel) ** 20 <= 35_000_000**20)


# What is measured of a layer.


class LayerStatus(StrEnum):
    """How the measurement of a layer ended."""

    OK = "ok"
    OOM = "oom"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PassTimes:
    """Mean times of a layer, forwards and backwards; None when the status is not ok."""

    forward_s: float | None
    backward_s: float | None
    status: LayerStatus = LayerStatus.OK
