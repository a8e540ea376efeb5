"""Layers of networks and their numbers of operations, as Gianniti et al. count them.

The formulas of the published categories are from the slides of Gianniti, Zhang and Ardagna (CLOSER
2019, "Layer Computational Complexity"). They are for one output position, and are multiplied by
height and width of the output and by the batch. One multiply-add counts as one operation here,
unlike everywhere else in wavecast. The other categories are ours, counted in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from wavecast.errors import InvalidInput

Shape = tuple[int, int, int]
"""Channels, height and width of one sample."""


class LayerCategory(StrEnum):
    """The type of a layer."""

    CONV = "Conv"
    FC = "FC"
    LOSS = "Loss"
    NORM = "Norm"
    """Local response normalization across channels."""
    POOL = "Pool"
    RELU = "ReLU"
    DROPOUT = "Drop"
    CONCAT = "Concat"
    TRANSPOSED = "Transposed conv"
    BATCH_NORM = "Batch norm"
    LAYER_NORM = "Layer norm"
    """Layer, group and root-mean-square normalization."""
    ATTENTION = "Attention"
    """Scaled dot products with a softmax; the projections around it are layers of their own."""
    EMBEDDING = "Embedding"
    ACTIVATION = "Activation"
    """Activation functions other than ReLU: GELU, SiLU, tanh and others."""
    SUM = "Sum"
    """The sum of two tensors, as at the end of a residual block."""


class Category(StrEnum):
    """Groups of layers that share one linear model of time.

    The first five are those of the slides ("Per Layer Models"); the others are ours.
    """

    CONV_FC = "Conv/FC"
    NORM = "Norm"
    POOL_DENSE = "Pool S=1"
    POOL_STRIDED = "Pool S>1"
    RELU_DROP = "ReLU/Drop"
    DEPTHWISE = "Depthwise conv"
    TRANSPOSED = "Transposed conv"
    BATCH_NORM = "Batch norm"
    LAYER_NORM = "Layer norm"
    ATTENTION = "Attention"
    EMBEDDING = "Embedding"
    ACTIVATION = "Activation"
    SUM = "Sum"


class Pass(StrEnum):
    """The forward or backward pass of a layer."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class NetworkLayer:
    """One layer of a network, for one sample."""

    name: str
    kind: LayerCategory
    inputs: Shape
    """The shape of its input; for a concatenation, of all inputs together. An embedding has as many
    input channels as it has rows, and attention those of its queries."""
    outputs: Shape
    kernel: tuple[int, ...] = (1, 1)
    """The window of an output position; for attention, the keys that a query meets."""
    stride: int = 1
    """The smaller stride, if those of height and width differ."""
    groups: int = 1
    local_size: int = 5
    """Channels over which a local response normalization sums."""
    bias: bool = True
    in_place: bool = False
    """Whether it overwrites its input (Caffe's ReLU and Dropout)."""
    weighted: bool = True
    """Whether a normalization has weights."""

    @property
    def category(self) -> Category | None:
        """The category of the layer; None if the paper has no coefficients for such layers."""
        if self.kind is LayerCategory.CONV and 1 < self.groups == self.inputs[0]:
            return Category.DEPTHWISE
        if self.kind is LayerCategory.POOL:
            return Category.POOL_DENSE if self.stride == 1 else Category.POOL_STRIDED
        return _CATEGORIES.get(self.kind)

    @property
    def weights(self) -> int:
        """The number of weights, biases included."""
        channels = self.outputs[0]
        bias = channels if self.bias else 0
        match self.kind:
            case LayerCategory.CONV:
                return math.prod(self.kernel) * self.inputs[0] // self.groups * channels + bias
            case LayerCategory.TRANSPOSED:
                return math.prod(self.kernel) * self.inputs[0] * channels // self.groups + bias
            case LayerCategory.FC:
                return math.prod(self.inputs) * channels + bias
            case LayerCategory.EMBEDDING:
                return self.inputs[0] * channels
            case LayerCategory.BATCH_NORM | LayerCategory.LAYER_NORM if self.weighted:
                return channels + bias
        return 0

    @property
    def activations(self) -> int:
        """The number of values that it writes to new memory, for one sample."""
        return 0 if self.in_place or self.kind is LayerCategory.LOSS else math.prod(self.outputs)

    def ops(self, which: Pass, batch: int = 1) -> int:
        """The operations of one pass over a batch."""
        forward, backward = _PER_POSITION[self.kind](self)
        positions = self.outputs[1] * self.outputs[2] if self.kind in _SPATIAL else 1
        count = batch * positions * (forward if Pass(which) is Pass.FORWARD else backward)
        if self.kind is LayerCategory.EMBEDDING and Pass(which) is Pass.BACKWARD:
            # The gradient of the whole table is set to 0 first, however few rows were read.
            count += self.weights
        return count


def _conv(layer: NetworkLayer) -> tuple[int, int]:
    products = math.prod(layer.kernel) * layer.inputs[0] // layer.groups
    channels = layer.outputs[0]
    return products * channels, (2 * products + 1) * channels


def _fully_connected(layer: NetworkLayer) -> tuple[int, int]:
    products = math.prod(layer.inputs) * layer.outputs[0]
    return products, 2 * products


def _loss(layer: NetworkLayer) -> tuple[int, int]:
    classes = layer.inputs[0]
    return 4 * classes - 1, classes + 1


def _norm(layer: NetworkLayer) -> tuple[int, int]:
    channels, local = layer.outputs[0], layer.local_size
    return 5 * channels + local - 2, 8 * channels + local - 1


def _pool(layer: NetworkLayer) -> tuple[int, int]:
    window, channels = math.prod(layer.kernel), layer.outputs[0]
    return window * channels, (window + 1) * channels


def _rectify(layer: NetworkLayer) -> tuple[int, int]:
    # No source has a formula for dropout. With that of ReLU, 20 of the 22 published
    # shares are reproduced.
    return 3 * layer.outputs[0], 4 * layer.outputs[0]


def _transposed(layer: NetworkLayer) -> tuple[int, int]:
    # Every position of the input is multiplied by the whole filter.
    products = math.prod(layer.kernel) * math.prod(layer.inputs) * layer.outputs[0] // layer.groups
    return products, 2 * products + math.prod(layer.outputs)


def _normalize(layer: NetworkLayer) -> tuple[int, int]:
    # Forward: mean 1, variance 2, standardise 2, scale and shift 2. Backward: standardise again 2,
    # two sums 3, and the gradient of the input 5.
    return 7 * layer.outputs[0], 10 * layer.outputs[0]


def _attend(layer: NetworkLayer) -> tuple[int, int]:
    # The products of queries with keys and of weights with values; two products each backward.
    products = layer.kernel[0] * (layer.inputs[0] + layer.outputs[0])
    return products, 2 * products


def _copy(layer: NetworkLayer) -> tuple[int, int]:
    return layer.outputs[0], layer.outputs[0]


def _add(layer: NetworkLayer) -> tuple[int, int]:
    # Backward, both inputs get the gradient as it is.
    return layer.outputs[0], 0


def _nothing(layer: NetworkLayer) -> tuple[int, int]:
    return 0, 0


_CATEGORIES = {
    **{
        kind: Category(str(kind)) for kind in LayerCategory if str(kind) in list(map(str, Category))
    },
    **dict.fromkeys((LayerCategory.CONV, LayerCategory.FC), Category.CONV_FC),
    **dict.fromkeys((LayerCategory.RELU, LayerCategory.DROPOUT), Category.RELU_DROP),
}

_PER_POSITION: dict[LayerCategory, Callable[[NetworkLayer], tuple[int, int]]] = {
    LayerCategory.CONV: _conv,
    LayerCategory.FC: _fully_connected,
    LayerCategory.LOSS: _loss,
    LayerCategory.NORM: _norm,
    LayerCategory.POOL: _pool,
    LayerCategory.RELU: _rectify,
    LayerCategory.DROPOUT: _rectify,
    LayerCategory.CONCAT: _nothing,
    LayerCategory.TRANSPOSED: _transposed,
    LayerCategory.BATCH_NORM: _normalize,
    LayerCategory.LAYER_NORM: _normalize,
    LayerCategory.ATTENTION: _attend,
    LayerCategory.EMBEDDING: _copy,
    LayerCategory.ACTIVATION: _rectify,
    LayerCategory.SUM: _add,
}
_SPATIAL = set(LayerCategory) - {LayerCategory.FC, LayerCategory.LOSS, LayerCategory.TRANSPOSED}


@dataclass(frozen=True)
class Network:
    """The layers of a network in the order in which they run.

    `wavecast.network_of` finds those of a PyTorch module, `wavecast.caffe_net` has those of three
    of Caffe's reference files.
    """

    name: str
    inputs: Shape
    layers: tuple[NetworkLayer, ...]
    depth: int | None = None
    """Layers with weights on the main path; None if not known."""
    unknown: tuple[str, ...] = ()
    """Layers without a formula, as "name (kind)"; they are not part of any prediction."""

    @property
    def weights(self) -> int:
        """The number of weights, which does not depend on the batch."""
        return sum(layer.weights for layer in self.layers)

    def activations(self, batch: int = 1) -> int:
        """The number of values in memory: the input, and the outputs that are not in place."""
        return batch * (math.prod(self.inputs) + sum(layer.activations for layer in self.layers))

    def ops(self, which: Pass | None = None, batch: int = 1) -> int:
        """The operations of one pass over a batch, or of both passes."""
        passes = Pass if which is None else (which,)
        return sum(layer.ops(one_pass, batch) for layer in self.layers for one_pass in passes)


def pooled_side(side: int, kernel: int, stride: int, pad: int = 0) -> int:
    """The side of a pool's output, rounded up; no window begins in the padding (Caffe)."""
    if side + 2 * pad < kernel:
        raise InvalidInput(f"a pool of {kernel} does not fit a side of {side}")
    pooled = -(-(side + 2 * pad - kernel) // stride) + 1
    return pooled - 1 if pad and (pooled - 1) * stride >= side + pad else pooled


def convolved_side(side: int, kernel: int, stride: int, pad: int = 0) -> int:
    """The side of a convolution's output, rounded down."""
    if side + 2 * pad < kernel:
        raise InvalidInput(f"a filter of {kernel} does not fit a side of {side}")
    return (side + 2 * pad - kernel) // stride + 1


def joined(shapes: Iterable[Shape]) -> Shape:
    """The shape of a concatenation along channels."""
    parts = list(shapes)
    if len({shape[1:] for shape in parts}) != 1:
        raise InvalidInput(f"shapes of different height or width cannot be concatenated: {parts}")
    return sum(shape[0] for shape in parts), *parts[0][1:]
