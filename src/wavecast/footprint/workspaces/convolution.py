"""What cuDNN's convolutions take: one of a few algorithms, each with its own need.

Tensor cores want channels last, so that a convolution of plain (NCHW) tensors copies all of them.
Without tensor cores cuDNN multiplies in place, or goes through Fourier (Mathieu et al., ICLR 2014)
or Winograd transforms (Lavin and Gray, CVPR 2016), which are far larger than the tensors. Which
one it takes nobody has written down: small trees, fitted on an H200 (data/models/workspaces.toml),
say it from the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

NAMES = ("aten.convolution", "aten.convolution_backward")

_COMPLEX, _FLOAT = 8, 4
_SMALLEST_TILE = 16
_WINOGRAD_STEP, _WINOGRAD_TILE = 4, 36
_GRANULE_BYTES = 16
"""Tensor cores read channels in pieces of this size."""
_TILE = 128
_MOST_FULL, _FULL_ROWS = 14, 512
_MOST_HALF, _HALF_ROWS = 13, 8192
_COPYING = ("copies", "images")


@dataclass(frozen=True)
class Convolution:
    """A convolution: its tensors, and whether tensor cores run it."""

    backward: bool
    tensor: bool
    source: TensorSpec
    weight: TensorSpec
    output: TensorSpec
    stride: int
    padding: int
    groups: int
    transposed: bool
    wanted: tuple[bool, ...] = (True, True, False)
    """Of a backward pass: gradients of the source, the weight, the bias."""

    @classmethod
    def of(cls, op: Op, tensor: bool) -> Convolution:
        """The convolution of an op."""
        backward = op.base.endswith("backward")
        mask = op.attr("output_mask")
        source, weight = op.inputs[1:3] if backward else op.inputs[:2]
        return cls(
            backward=backward,
            tensor=tensor,
            source=source,
            weight=weight,
            output=op.inputs[0] if backward else op.outputs[0],
            stride=_product(op, "stride"),
            padding=max(_numbers(op, "padding"), default=0),
            groups=max(_numbers(op, "groups"), default=1),
            transposed=op.attr("transposed") is True,
            wanted=tuple(map(bool, mask)) if isinstance(mask, tuple) else (True, True, False),
        )

    @cached_property
    def pointwise(self) -> bool:
        """Whether the kernel is one pixel: a matrix product."""
        return math.prod(self.weight.shape[2:]) == 1

    @cached_property
    def features(self) -> tuple[float, ...]:
        """What the choice may depend on; `FEATURES` names them."""
        pixels, pixels_out = _pixels(self.source), _pixels(self.output)
        area = math.prod(self.weight.shape[2:])
        batch, channels = self.source.shape[:2]
        out = self.output.shape[1]
        return (
            math.log2(max(1, batch)),
            math.log2(max(1, channels)),
            math.log2(max(1, out)),
            math.log2(max(1, pixels)),
            math.log2(max(1, pixels_out)),
            math.log2(max(1, area)),
            float(self.stride),
            float(self.groups > 1),
            float(self.transposed),
            float(pixels % 8 == 0),
            math.log2(max(1, batch * pixels_out * channels * out * area)),
            float(self.wanted[0]),
            float(self.wanted[1]),
            float(min(self.weight.shape[2:], default=1)),
            _fill(self._extent) if pixels > 1 else 0.0,
            math.log2(max(1, batch * pixels_out)),
            self._growth,
        )

    @property
    def _extent(self) -> int:
        """The longer side of the padded image."""
        return max(self.source.shape[2:], default=1) + 2 * self.padding

    def candidates(self) -> Mapping[str, int]:
        """Bytes by algorithm."""
        x, w, y = (_aligned(t) for t in (self.source, self.weight, self.output))
        found = {"none": 0, "copies": x + w + y, "images": x + y}
        if self.backward:
            found["partials"] = self.source.shape[0] * self.weight.numel * _FLOAT
        return found if self.tensor else found | self._transforms()

    def slices_bytes(self, sm_count: int | None) -> int:
        """Partial gradients of the weights, in float32, where tensor cores sum over many pixels.

        Such a sum is cut into slices, until the SMs have a tile each. How many there are at most,
        and how long each is at least, was read off measured workspaces of an H200.
        """
        if not self.tensor or self.groups > 1 or sm_count is None:
            return 0
        rows = self.output.shape[0] * _pixels(self.output)
        out, *others = self.weight.shape
        tiles = math.ceil(out / _TILE) * math.ceil(math.prod(others) / _TILE)
        if DTYPE_BYTES[self.source.dtype] < _FLOAT:
            slices = min(_MOST_HALF, rows // _HALF_ROWS)
        elif tiles > sm_count:
            return sm_count * _TILE * _TILE * _FLOAT  # each SM has a part of a tile
        else:
            slices = min(_MOST_FULL, rows // _FULL_ROWS, sm_count // tiles)
        return slices * self.weight.numel * _FLOAT if slices > 1 else 0

    @property
    def _growth(self) -> float:
        """How much larger its transforms are than the tensors, in powers of two."""
        transform = self._transforms().get("fourier", 0)
        tensors = self.source.nbytes + self.weight.nbytes + self.output.nbytes
        return math.log2(1 + transform / max(1, tensors))

    def _transforms(self) -> dict[str, int]:
        if len(self.source.shape) != 4 or self.stride != 1 or self.pointwise:
            return {}
        x, w, y = self._planes()
        tile = _tile(self._extent)
        spectrum = _COMPLEX * tile * (tile // 2 + 1)
        found = {"fourier": 2 * spectrum * max(x + w, y) + self.weight.nbytes}
        if self.backward:
            data, weights = 2 * spectrum * max(y + w, x), 2 * spectrum * max(x + y, w)
            found = {"fourier": data, "fourier weights": weights}
        steps = math.prod(math.ceil(n / _WINOGRAD_STEP) for n in self.output.shape[2:])
        found["winograd"] = _FLOAT * _WINOGRAD_TILE * (w + steps * (x + y))
        return found

    def _planes(self) -> tuple[int, int, int]:
        """Images of one channel, in source, weight and output."""
        planes = (t.shape[0] * t.shape[1] for t in (self.source, self.weight, self.output))
        x, w, y = planes
        return x, w, y


FEATURES = (
    *("batch", "channels", "channels out", "pixels", "pixels out", "kernel pixels", "stride"),
    *("grouped", "transposed", "pixels by 8", "products", "data wanted", "weights wanted"),
    *("kernel side", "tile filled", "rows", "growth"),
)


@dataclass(frozen=True)
class Tree:
    """Questions in order: node i asks whether a feature is larger, and goes to one of two others.

    A leaf has the feature -1, and names its algorithm.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    lower: tuple[int, ...]
    higher: tuple[int, ...]
    answer: tuple[str, ...]

    def __call__(self, features: tuple[float, ...]) -> str:
        """The answer for these features."""
        node = 0
        while self.feature[node] >= 0:
            larger = features[self.feature[node]] > self.threshold[node]
            node = self.higher[node] if larger else self.lower[node]
        return self.answer[node]


def algorithm_bytes(
    convolution: Convolution, trees: Mapping[str, Tree], sm_count: int | None = None
) -> tuple[int, ...]:
    """The workspaces of the algorithm that cuDNN is expected to take, one after the other.

    A backward pass is two convolutions, and each copies the tensors anew: first the gradient of
    the image, then that of the weights, which needs room for its slices, too.
    """
    if convolution.source.channels_last and convolution.tensor:
        return (0,)  # everything lies as tensor cores want it
    algorithm = trees[tree_name(convolution)](convolution.features)
    nbytes = convolution.candidates().get(algorithm, 0)
    both = convolution.backward and all(convolution.wanted[:2])
    if not both or algorithm not in _COPYING:
        return (nbytes,)
    return nbytes, nbytes + convolution.slices_bytes(sm_count)


def tree_name(convolution: Convolution) -> str:
    """The name of the tree that knows."""
    unit = "tensor" if convolution.tensor else "cores"
    return f"{unit} {'backward' if convolution.backward else 'forward'}"


def _tile(extent: int) -> int:
    """The side of the Fourier transform that holds an image."""
    return max(_SMALLEST_TILE, 1 << (extent - 1).bit_length())


def _fill(extent: int) -> float:
    return extent / _tile(extent)


def _aligned(spec: TensorSpec) -> int:
    """Bytes of a tensor with its channels filled up to what tensor cores read at once."""
    first, channels, *rest = spec.shape
    granule = max(1, _GRANULE_BYTES // DTYPE_BYTES[spec.dtype])
    filled = -(-channels // granule) * granule
    return first * filled * math.prod(rest) * DTYPE_BYTES[spec.dtype]


def _pixels(spec: TensorSpec) -> int:
    return math.prod(spec.shape[2:])


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    found = op.attr(name)
    if isinstance(found, int):
        return (found,)
    return tuple(int(n) for n in found) if isinstance(found, tuple) else ()


def _product(op: Op, name: str) -> int:
    return math.prod(_numbers(op, name) or (1,))
