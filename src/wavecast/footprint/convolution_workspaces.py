"""The workspaces of cuDNN's convolutions, which depend on the algorithm that cuDNN chooses.

Tensor cores need the channels-last layout, so a convolution of contiguous (NCHW) tensors copies all
of them. Without tensor cores cuDNN multiplies in place, or uses Fourier (Mathieu et al., ICLR 2014)
or Winograd transforms (Lavin and Gray, CVPR 2016), which are far larger than the tensors. cuDNN's
choice is not documented. Small decision trees, fitted on an H200 (data/models/workspaces.toml),
predict it from the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from wavecast.predictors.learned.columns import FORWARD, OF_IMAGE, OF_WEIGHT
from wavecast.predictors.learned.convolutions import has_depthwise_kernel
from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

NAMES = ("aten.convolution", "aten.convolution_backward")

_COMPLEX, _FLOAT = 8, 4
_SMALLEST_TILE = 16
_WINOGRAD_STEP, _WINOGRAD_TILE = 4, 36
_GRANULE_BYTES = 16
"""Tensor cores read the channels of a pixel in pieces of this many bytes."""
_TILE = 128
"""The side of the output tile that one SM computes, in elements."""
_MOST_FULL, _FULL_ROWS = 14, 512
"""The most slices, and the fewest rows of each, of a weight gradient in full precision."""
_MOST_HALF, _HALF_ROWS = 13, 8192
"""The same in half precision."""
_DEPTHWISE_PARTIALS = 8
"""The partial sums of an image in the weight gradient of a depthwise convolution."""
_COPYING = ("copies", "images")
_FEW_CHANNELS = 4
"""Images with fewer channels than this are read as they are."""


@dataclass(frozen=True)
class Convolution:
    """The shapes of a convolution, and whether it runs on tensor cores."""

    backward: bool
    tensor: bool
    """Whether it runs on tensor cores."""
    source: TensorSpec
    """The input image (of the forward pass)."""
    weight: TensorSpec
    output: TensorSpec
    """The output of the forward pass, or its gradient."""
    stride: int
    """The product of the strides of all dimensions."""
    padding: int
    """The largest padding of all dimensions."""
    groups: int
    transposed: bool
    computes: tuple[bool, ...] = (True, True, False)
    """Whether a backward pass computes the gradients of the source, the weight and the bias."""

    @classmethod
    def of(cls, op: Op, tensor: bool) -> Convolution:
        """The shapes of a convolution op."""
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
            computes=tuple(map(bool, mask)) if isinstance(mask, tuple) else (True, True, False),
        )

    @cached_property
    def pointwise(self) -> bool:
        """Whether the filter covers one pixel, which makes it a matmul."""
        return math.prod(self.weight.shape[2:]) == 1

    @cached_property
    def features(self) -> tuple[float, ...]:
        """The numbers that the decision trees see; `FEATURES` names them."""
        pixels, pixels_out = _pixels(self.source), _pixels(self.output)
        area = math.prod(self.weight.shape[2:])
        batch, channels = self.source.shape[:2]
        out = self.output.shape[1]
        transform = self._transforms().get("fourier", 0)
        tensors = self.source.nbytes + self.weight.nbytes + self.output.nbytes
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
            float(self.computes[0]),
            float(self.computes[1]),
            float(min(self.weight.shape[2:], default=1)),
            _fill(self._extent) if pixels > 1 else 0.0,
            math.log2(max(1, batch * pixels_out)),
            math.log2(1 + transform / max(1, tensors)),
        )

    @property
    def _extent(self) -> int:
        """The longer side of the padded image."""
        return max(self.source.shape[2:], default=1) + 2 * self.padding

    def candidates(self) -> Mapping[str, int]:
        """The workspace of each algorithm, in bytes."""
        x, w, y = (_aligned(t) for t in (self.source, self.weight, self.output))
        by_algorithm = {"none": 0, "copies": x + w + y, "images": x + y}
        if self.backward:
            by_algorithm["partials"] = self.source.shape[0] * self.weight.numel * _FLOAT
        return by_algorithm if self.tensor else by_algorithm | self._transforms()

    def slices_bytes(self, sm_count: int | None) -> int:
        """The bytes of partial weight gradients, in float32, on tensor cores.

        The gradient is a sum over many pixels. It is cut into slices until every SM has a tile.
        The largest number of slices and the smallest length of one were derived from workspaces
        measured on an H200.
        """
        if not self.tensor or self.groups > 1 or sm_count is None:
            return 0
        rows = self.output.shape[0] * _pixels(self.output)
        out, *others = self.weight.shape
        tiles = math.ceil(out / _TILE) * math.ceil(math.prod(others) / _TILE)
        if DTYPE_BYTES[self.source.dtype] < _FLOAT:
            slices = min(_MOST_HALF, rows // _HALF_ROWS)
        elif tiles > sm_count:
            return sm_count * _TILE * _TILE * _FLOAT  # every SM holds one partial tile
        else:
            slices = min(_MOST_FULL, rows // _FULL_ROWS, sm_count // tiles)
        return slices * self.weight.numel * _FLOAT if slices > 1 else 0

    def transposed_bytes(self) -> tuple[int, ...]:
        """The workspaces of a convolution of channels-last tensors without tensor cores, in order.

        Its algorithms read contiguous tensors, so that all of them are copied; of images with few
        channels none is. The gradient of the weights then takes a Winograd transform, where one
        applies. The largest workspace was this in 56 of 69 convolutions that an H200 recorded
        (`lab.score.compiled_memory`).
        """
        if self.source.shape[1] < _FEW_CHANNELS:
            return (0,)
        candidates = self.candidates()
        copies = candidates["images" if self.pointwise else "copies"]
        transform = candidates.get("winograd", 0)
        if not self.backward or not transform or not all(self.computes[:2]):
            return (copies,)
        return copies, copies + transform

    def tuned_bytes(self, sm_count: int | None) -> int:
        """The workspace of the algorithm that XLA's tuner finds to be the fastest.

        Tensor cores read channels in pieces, so that tensors with other numbers of channels are
        padded, and others than channels-last ones are copied, both in the workspace. The gradient
        of a weight adds up partial sums, of which every SM holds a tile; that of a depthwise one
        in half precision holds eight for each image. These were derived from what XLA chose on an
        H200 (`python -m lab score jax`).
        """
        narrow = DTYPE_BYTES[self.source.dtype] < _FLOAT
        computes_weight = self.backward and self.computes[1]
        contiguous = not any(map(_has_channels_last, (self.source, self.output)))
        if self.groups > 1:
            return self._tuned_depthwise_bytes(narrow, computes_weight)
        copied = [
            tensor
            for tensor in (self.source, self.weight, self.output)
            if contiguous or _aligned(tensor) > tensor.nbytes
        ]
        if computes_weight and self.source in copied and not narrow:
            copied.append(self.output)
        partials = (sm_count or 0) * _TILE * _TILE * _FLOAT if computes_weight else 0
        return sum(map(_aligned, copied)) + partials

    def _tuned_depthwise_bytes(self, narrow: bool, computes_weight: bool) -> int:
        """That of a depthwise convolution: without a kernel of its own, its channels are padded."""
        item = DTYPE_BYTES[self.source.dtype]
        if self.weight.shape[1] > 1:
            return 0
        computes = OF_WEIGHT if computes_weight else OF_IMAGE if self.backward else FORWARD
        if not has_depthwise_kernel(computes, item, math.prod(self.weight.shape[2:])):
            copies_both = computes_weight and not narrow
            padded = self.source.nbytes + (self.output.nbytes if copies_both else 0)
            return padded * _GRANULE_BYTES // item
        partials = _DEPTHWISE_PARTIALS * self.source.shape[0] * self.weight.numel * _FLOAT
        return partials if computes_weight and narrow else 0

    def _transforms(self) -> dict[str, int]:
        """The workspaces of Fourier and Winograd algorithms, in bytes; empty if none applies."""
        if len(self.source.shape) != 4 or self.stride != 1 or self.pointwise:
            return {}
        x, w, y = self._planes()
        tile = _tile(self._extent)
        spectrum = _COMPLEX * tile * (tile // 2 + 1)
        transforms = {"fourier": 2 * spectrum * max(x + w, y) + self.weight.nbytes}
        if self.backward:
            data, weights = 2 * spectrum * max(y + w, x), 2 * spectrum * max(x + y, w)
            transforms = {"fourier": data, "fourier weights": weights}
        steps = math.prod(math.ceil(n / _WINOGRAD_STEP) for n in self.output.shape[2:])
        transforms["winograd"] = _FLOAT * _WINOGRAD_TILE * (w + steps * (x + y))
        return transforms

    def _planes(self) -> tuple[int, int, int]:
        """The number of single-channel images in source, weight and output."""
        x, w, y = (t.shape[0] * t.shape[1] for t in (self.source, self.weight, self.output))
        return x, w, y


FEATURES = (
    *("batch", "channels", "channels out", "pixels", "pixels out", "kernel pixels", "stride"),
    *("grouped", "transposed", "pixels by 8", "products", "data wanted", "weights wanted"),
    *("kernel side", "tile filled", "rows", "growth"),
)


@dataclass(frozen=True)
class Tree:
    """A decision tree, one entry per node. Node i compares a feature with a threshold."""

    feature: tuple[int, ...]
    """The position of the feature that each node compares; -1 for a leaf."""
    threshold: tuple[float, ...]
    lower: tuple[int, ...]
    """The next node when the feature is at most the threshold."""
    higher: tuple[int, ...]
    """The next node when the feature is larger."""
    answer: tuple[str, ...]
    """The algorithm that each leaf names."""

    def __call__(self, features: tuple[float, ...]) -> str:
        """The algorithm for these features."""
        node = 0
        while self.feature[node] >= 0:
            larger = features[self.feature[node]] > self.threshold[node]
            node = self.higher[node] if larger else self.lower[node]
        return self.answer[node]


def algorithm_bytes(
    convolution: Convolution, trees: Mapping[str, Tree], sm_count: int | None = None
) -> tuple[int, ...]:
    """The workspaces of the algorithm that cuDNN is expected to choose, in bytes, in order.

    A backward pass is two convolutions, each of which copies the tensors: first the gradient of
    the image, then that of the weights, which needs memory for its slices, too.
    """
    if convolution.source.channels_last and convolution.tensor:
        return (0,)  # the tensors already have the layout that tensor cores need
    if convolution.source.channels_last and convolution.groups == 1:
        return convolution.transposed_bytes()
    algorithm = trees[tree_name(convolution)](convolution.features)
    nbytes = convolution.candidates().get(algorithm, 0)
    both = convolution.backward and all(convolution.computes[:2])
    if not both or algorithm not in _COPYING:
        return (nbytes,)
    return nbytes, nbytes + convolution.slices_bytes(sm_count)


def tree_name(convolution: Convolution) -> str:
    """The name of the decision tree for a convolution: "tensor forward", "cores backward", ..."""
    unit = "tensor" if convolution.tensor else "cores"
    return f"{unit} {'backward' if convolution.backward else 'forward'}"


def _tile(extent: int) -> int:
    """The side of the Fourier transform of an image, in pixels."""
    return max(_SMALLEST_TILE, 1 << (extent - 1).bit_length())


def _fill(extent: int) -> float:
    return extent / _tile(extent)


def _aligned(spec: TensorSpec) -> int:
    """The bytes of a tensor whose channels are padded to what tensor cores read at once."""
    first, channels, *rest = spec.shape
    granule = max(1, _GRANULE_BYTES // DTYPE_BYTES[spec.dtype])
    padded = -(-channels // granule) * granule
    return first * padded * math.prod(rest) * DTYPE_BYTES[spec.dtype]


def _has_channels_last(spec: TensorSpec) -> bool:
    """Whether the channels of a pixel lie together, in any number of dimensions."""
    return spec.strides is not None and spec.strides[1] == 1


def _pixels(spec: TensorSpec) -> int:
    return math.prod(spec.shape[2:])


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    value = op.attr(name)
    if isinstance(value, int):
        return (value,)
    return tuple(int(n) for n in value) if isinstance(value, tuple) else ()


def _product(op: Op, name: str) -> int:
    return math.prod(_numbers(op, name) or (1,))


# One piece of scratch memory that an op allocates while it runs.


@dataclass(frozen=True, slots=True)
class Workspace:
    """Scratch memory that an op allocates and frees while it runs."""

    nbytes: int
    released_early: bool = False
    """True if it is freed before the op allocates anything else; False if it is held to the end."""
    before_bytes: int | None = None
    """The size of the op's result that is allocated next. None when it comes after all."""
