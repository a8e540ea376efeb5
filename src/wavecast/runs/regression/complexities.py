"""Layers of networks and their numbers of operations, as Gianniti et al. count them.

The formulas of the published categories are from their slides (CLOSER 2019, "Layer Computational
Complexity"), for one output position; they are multiplied by height and width of the output and by
the batch. One multiply-add counts as one operation here, unlike everywhere else in wavecast. The
other categories are ours, counted in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from wavecast.errors import InvalidInput, UnknownName
from wavecast.ops import cost_of
from wavecast.ops.attention import attended, problem
from wavecast.ops.registry import ERRORS
from wavecast.traces.step import Call, Op, Phase, Scalar, Trace

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


# AlexNet, GoogLeNet and VGG-16, layer by layer, with the names of Caffe's files, so that the log of
# `caffe time` matches. They reproduce tables 2 and 3 of Gianniti et al. 2019 with these
# conventions: AlexNet in one group and in the order of `bvlc_alexnet` (normalize, then pool), pools
# that round up, and both auxiliary heads of GoogLeNet.


class _Builder:
    """Adds layers one after the other; `shape` is the input of the next layer."""

    def __init__(self, inputs: Shape) -> None:
        self.inputs = self.shape = inputs
        self.layers: list[NetworkLayer] = []

    def _add(self, name: str, kind: LayerCategory, outputs: Shape, **options: object) -> None:
        self.layers.append(NetworkLayer(name, kind, self.shape, outputs, **options))  # type: ignore[arg-type]
        self.shape = outputs

    def conv(
        self, name: str, filters: int, kernel: int, stride: int = 1, pad: int = 0, relu: str = ""
    ) -> None:
        height, width = (convolved_side(side, kernel, stride, pad) for side in self.shape[1:])
        options = {"kernel": (kernel, kernel), "stride": stride}
        self._add(name, LayerCategory.CONV, (filters, height, width), **options)
        self._add(relu, LayerCategory.RELU, self.shape, in_place=True)

    def pool(self, name: str, kernel: int, stride: int, pad: int = 0) -> None:
        height, width = (pooled_side(side, kernel, stride, pad) for side in self.shape[1:])
        options = {"kernel": (kernel, kernel), "stride": stride}
        self._add(name, LayerCategory.POOL, (self.shape[0], height, width), **options)

    def norm(self, name: str) -> None:
        self._add(name, LayerCategory.NORM, self.shape)

    def hidden(self, name: str, units: int, relu: str, dropout: str) -> None:
        self._add(name, LayerCategory.FC, (units, 1, 1))
        self._add(relu, LayerCategory.RELU, self.shape, in_place=True)
        self.dropout(dropout)

    def dropout(self, name: str) -> None:
        self._add(name, LayerCategory.DROPOUT, self.shape, in_place=True)

    def classify(self, name: str, loss: str, classes: int = 1000) -> None:
        self._add(name, LayerCategory.FC, (classes, 1, 1))
        self._add(loss, LayerCategory.LOSS, (1, 1, 1))


def alexnet() -> Network:
    """AlexNet: `bvlc_alexnet` without groups."""
    net = _Builder((3, 227, 227))
    net.conv("conv1", 96, 11, stride=4, relu="relu1")
    net.norm("norm1")
    net.pool("pool1", 3, 2)
    net.conv("conv2", 256, 5, pad=2, relu="relu2")
    net.norm("norm2")
    net.pool("pool2", 3, 2)
    net.conv("conv3", 384, 3, pad=1, relu="relu3")
    net.conv("conv4", 384, 3, pad=1, relu="relu4")
    net.conv("conv5", 256, 3, pad=1, relu="relu5")
    net.pool("pool5", 3, 2)
    net.hidden("fc6", 4096, "relu6", "drop6")
    net.hidden("fc7", 4096, "relu7", "drop7")
    net.classify("fc8", "loss")
    return Network("AlexNet", net.inputs, tuple(net.layers), depth=8)


def vgg16() -> Network:
    """VGG-16, configuration D."""
    net = _Builder((3, 224, 224))
    for stage, (filters, convolutions) in enumerate(
        ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), start=1
    ):
        for number in range(1, convolutions + 1):
            name = f"{stage}_{number}"
            net.conv(f"conv{name}", filters, 3, pad=1, relu=f"relu{name}")
        net.pool(f"pool{stage}", 2, 2)
    net.hidden("fc6", 4096, "relu6", "drop6")
    net.hidden("fc7", 4096, "relu7", "drop7")
    net.classify("fc8", "loss")
    return Network("VGG-16", net.inputs, tuple(net.layers), depth=16)


# Numbers of filters: 1x1; reduction for 3x3, 3x3; reduction for 5x5, 5x5; after the pool.
_INCEPTIONS = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet() -> Network:
    """GoogLeNet: `bvlc_googlenet` with both auxiliary heads."""
    net = _Builder((3, 224, 224))
    net.conv("conv1/7x7_s2", 64, 7, stride=2, pad=3, relu="conv1/relu_7x7")
    net.pool("pool1/3x3_s2", 3, 2)
    net.norm("pool1/norm1")
    net.conv("conv2/3x3_reduce", 64, 1, relu="conv2/relu_3x3_reduce")
    net.conv("conv2/3x3", 192, 3, pad=1, relu="conv2/relu_3x3")
    net.norm("conv2/norm2")
    net.pool("pool2/3x3_s2", 3, 2)
    for name in _INCEPTIONS:
        _inception(net, name)
        if name in ("3b", "4e"):
            stage = int(name[0])
            net.pool(f"pool{stage}/3x3_s2", 3, 2)
        elif name == "4a":
            _head(net, "loss1")
        elif name == "4d":
            _head(net, "loss2")
    net.pool("pool5/7x7_s1", 7, 1)
    net.dropout("pool5/drop_7x7_s1")
    net.classify("loss3/classifier", "loss3/loss3")
    return Network("GoogLeNet", net.inputs, tuple(net.layers), depth=22)


def _inception(net: _Builder, module: str) -> None:
    single, before_three, three, before_five, five, last = _INCEPTIONS[module]
    before, name = net.shape, f"inception_{module}"

    def conv(part: str, filters: int, kernel: int) -> None:
        net.conv(f"{name}/{part}", filters, kernel, pad=kernel // 2, relu=f"{name}/relu_{part}")

    outputs = []
    conv("1x1", single, 1)
    outputs.append(net.shape)
    for part, reduced, filters, kernel in (
        ("3x3", before_three, three, 3),
        ("5x5", before_five, five, 5),
    ):
        net.shape = before
        conv(f"{part}_reduce", reduced, 1)
        conv(part, filters, kernel)
        outputs.append(net.shape)
    net.shape = before
    net.pool(f"{name}/pool", 3, 1, pad=1)
    conv("pool_proj", last, 1)
    outputs.append(net.shape)
    net.shape = joined(outputs)
    net._add(f"{name}/output", LayerCategory.CONCAT, net.shape)


def _head(net: _Builder, name: str) -> None:
    """Adds an auxiliary classifier; the main path continues from the same input."""
    before = net.shape
    net.pool(f"{name}/ave_pool", 5, 3)
    net.conv(f"{name}/conv", 128, 1, relu=f"{name}/relu_conv")
    net.hidden(f"{name}/fc", 1024, f"{name}/relu_fc", f"{name}/drop_fc")
    net.classify(f"{name}/classifier", f"{name}/loss")
    net.shape = before


NETWORKS: dict[str, Callable[[], Network]] = {
    "alexnet": alexnet,
    "googlenet": googlenet,
    "vgg16": vgg16,
}


def caffe_net(name: str) -> Network:
    """The network with a name: "alexnet", "googlenet" or "vgg16".

    Raises:
        UnknownName: There is no such network.
    """
    plain = name.strip().lower().replace("-", "").replace("_", "")
    if plain not in NETWORKS:
        raise UnknownName(f'no reference network is named "{name}"; known: {", ".join(NETWORKS)}')
    return NETWORKS[plain]()


# The layers of a step, read from its ops without model code. Each op is one layer, under the path
# of the module that called it; so are functions such as `F.relu`.


_SAMPLES = ("samples", "images")
"""The units in which a trace counts samples."""

Builder = Callable[[str, Op, int], NetworkLayer | None]


def network_of_trace(trace: Trace, *, batch: int | None = None, name: str = "") -> Network:
    """The layers of a step in the order in which its forward pass runs them.

    Args:
        trace: a step, traced without a GPU or measured.
        batch: the samples of the step; by default those of the trace.
        name: the name of the network.

    Raises:
        InvalidInput: the batch is unknown, or the step has no layer with a formula.
    """
    size = samples_of(trace, batch)
    layers: list[NetworkLayer] = []
    others: list[Call] = []
    for call in trace:
        if call.phase is Phase.FORWARD:
            layer = _layer(call, size)
            if layer is not None:
                layers.append(layer)
            else:
                others.append(call)
    if not layers:
        raise InvalidInput(
            f"none of the {len(trace)} calls of this trace is a layer with a formula in its "
            "forward pass"
        )
    return Network(
        name, _first_inputs(layers), tuple(layers), unknown=_unknown(others, layers, size)
    )


def samples_of(trace: Trace, batch: int | None = None) -> int:
    """The samples of a step: those given, or those of its trace."""
    size = batch if batch is not None else trace.samples
    if size is None or size < 1:
        raise InvalidInput("this trace does not say its batch: pass batch=... (--batch)")
    if batch is None and not counts_samples(trace):
        raise InvalidInput(
            f"this trace counts {trace.unit}, which do not say its batch: pass batch=... (--batch)"
        )
    return size


def counts_samples(trace: Trace) -> bool:
    """Whether a trace counts its step in samples, and not in tokens or seconds of audio."""
    return trace.samples is not None and trace.unit in _SAMPLES


def family_of(op: Op) -> LayerCategory | None:
    """The kind of layer that runs an op, forward or backward. None if several kinds might.

    Fully connected layers and convolutions are one family, `LayerCategory.CONV`.
    """
    if op.attr("transposed"):
        return LayerCategory.TRANSPOSED
    return _FAMILIES.get(op.base.removesuffix("_backward").removesuffix("_"))


def _layer(call: Call, batch: int) -> NetworkLayer | None:
    build = _BUILDERS.get(call.op.base.removesuffix("_"))
    if build is None:
        return None
    try:
        layer = build(call.module, call.op, batch)
    except ERRORS:  # its tensors are not those of such a layer, or no whole number for a sample
        return None
    if layer is None or any(layer.ops(which) < 0 for which in Pass):
        return None  # an op that cannot be, such as a pool over -1 values
    return layer


def _unknown(calls: Iterable[Call], layers: Sequence[NetworkLayer], batch: int) -> tuple[str, ...]:
    """Ops without a formula, but for those within a module that is a layer, such as counters."""
    paths = {layer.name for layer in layers}
    names: dict[str, None] = {}
    for call in calls:
        cost = cost_of(call.op)
        free = cost is not None and not any(cost.amounts)
        small = max((spec.numel for spec in call.op.outputs), default=0) < batch
        if call.module and call.module not in paths and not free and not small:
            names[f"{call.module} ({call.op.base})"] = None
    return tuple(names)


def _first_inputs(layers: Sequence[NetworkLayer]) -> Shape:
    first = layers[0]
    return first.inputs if first.kind is not LayerCategory.EMBEDDING else (1, *first.inputs[1:])


def _whole(count: int, batch: int) -> int:
    if count % batch:
        raise ValueError(f"{count} values are no whole number for each of {batch} samples")
    return count // batch


def _channels_second(sizes: Sequence[int], batch: int) -> Shape:
    """One sample of (batch, channels, ...)."""
    if sizes[0] == batch and len(sizes) > 2:
        return sizes[1], sizes[2], math.prod(sizes[3:])
    return sizes[1], _whole(math.prod(sizes) // sizes[1], batch), 1


def _channels_last(sizes: Sequence[int], batch: int) -> Shape:
    """One sample of (batch, ..., channels)."""
    return sizes[-1], _whole(math.prod(sizes[:-1]), batch), 1


def _values(sizes: Sequence[int], batch: int) -> Shape:
    return (_channels_second if len(sizes) >= 4 else _channels_last)(sizes, batch)


def _numbers(value: Scalar | None, default: tuple[int, ...]) -> tuple[int, ...]:
    if value is None or value == ():
        return default
    return tuple(int(n) for n in value) if isinstance(value, tuple) else (int(value),)


def _convolution(path: str, op: Op, batch: int) -> NetworkLayer:
    image, weight = op.inputs[0].shape, op.inputs[1].shape
    transposed = bool(op.attr("transposed"))
    return NetworkLayer(
        path,
        LayerCategory.TRANSPOSED if transposed else LayerCategory.CONV,
        _channels_second(image, batch),
        _channels_second(op.outputs[0].shape, batch),
        weight[2:],
        min(_numbers(op.attr("stride"), (1,))),
        groups=_numbers(op.attr("groups"), (1,))[0],
        bias=len(op.inputs) > 2,
    )


def _product(path: str, op: Op, batch: int) -> NetworkLayer:
    bias = op.base != "aten.mm" and (op.base != "aten.linear" or len(op.inputs) > 2)
    rows = op.inputs[1 if op.base in ("aten.addmm", "aten._addmm_activation") else 0].shape
    inputs, outputs = _channels_last(rows, batch), _channels_last(op.outputs[0].shape, batch)
    layer_kind = LayerCategory.FC if outputs[1] == 1 else LayerCategory.CONV
    return NetworkLayer(path, layer_kind, inputs, outputs, bias=bias)


def _traced_pool(path: str, op: Op, batch: int) -> NetworkLayer | None:
    image, written = op.inputs[0].shape, op.outputs[0].shape
    kernel = _numbers(op.attr("kernel_size"), ())
    if op.base == "aten.avg_pool3d" and image[1] == 1 and kernel[1:] == (1, 1):
        # torch sums over neighbouring channels in this way for a local response normalization.
        shape = (written[2], written[3], written[4])
        return NetworkLayer(path, LayerCategory.NORM, shape, shape, local_size=kernel[0])
    if op.base == "aten._adaptive_avg_pool2d":
        if any(before % after for before, after in zip(image[2:], written[2:], strict=True)):
            return None
        kernel = tuple(n // m for n, m in zip(image[2:], written[2:], strict=True))
        stride = 1 if set(written[2:]) == {1} else min(kernel)
    else:
        stride = min(_numbers(op.attr("stride"), kernel))
    inputs, outputs = _channels_second(image, batch), _channels_second(written, batch)
    return NetworkLayer(path, LayerCategory.POOL, inputs, outputs, kernel, stride)


def _mean(path: str, op: Op, batch: int) -> NetworkLayer | None:
    """A global average pool, written as the mean over height and width."""
    image = op.inputs[0].shape
    dims = {n % len(image) for n in _numbers(op.attr("dim"), ())}
    if len(image) != 4 or dims != {2, 3}:
        return None
    channels, height, width = _channels_second(image, batch)
    return NetworkLayer(
        path, LayerCategory.POOL, (channels, height, width), (channels, 1, 1), (height, width)
    )


def _pointwise(layer_kind: LayerCategory) -> Builder:
    def build(path: str, op: Op, batch: int) -> NetworkLayer:
        shape = _values(op.outputs[0].shape, batch)
        # As in Caffe, dropout counts as no new memory; torch keeps its output and a mask.
        in_place = layer_kind is LayerCategory.DROPOUT or op.base.endswith("_")
        return NetworkLayer(path, layer_kind, shape, shape, in_place=in_place)

    return build


def _dropout(path: str, op: Op, batch: int) -> NetworkLayer | None:
    if op.attr("train") is False or op.attr("p") == 0:
        return None
    return _pointwise(LayerCategory.DROPOUT)(path, op, batch)


def _sum(path: str, op: Op, batch: int) -> NetworkLayer | None:
    if len(op.inputs) < 2 or len(op.outputs[0].shape) < 2:
        return None
    return _pointwise(LayerCategory.SUM)(path, op, batch)


def _concat(path: str, op: Op, batch: int) -> NetworkLayer:
    shape = _values(op.outputs[0].shape, batch)
    return NetworkLayer(path, LayerCategory.CONCAT, shape, shape)


def _batch_norm(path: str, op: Op, batch: int) -> NetworkLayer:
    shape = _channels_second(op.inputs[0].shape, batch)
    return _normalization(path, LayerCategory.BATCH_NORM, shape, len(op.inputs) - 2)


def _group_norm(path: str, op: Op, batch: int) -> NetworkLayer:
    shape = _channels_second(op.inputs[0].shape, batch)
    return _normalization(path, LayerCategory.LAYER_NORM, shape, len(op.inputs))


def _layer_norm(path: str, op: Op, batch: int) -> NetworkLayer:
    channels = math.prod(_numbers(op.attr("normalized_shape"), op.inputs[0].shape[-1:]))
    shape = (channels, _whole(op.inputs[0].numel // channels, batch), 1)
    return _normalization(path, LayerCategory.LAYER_NORM, shape, len(op.inputs))


def _normalization(
    path: str, layer_kind: LayerCategory, shape: Shape, tensors: int
) -> NetworkLayer:
    return NetworkLayer(path, layer_kind, shape, shape, bias=tensors > 2, weighted=tensors > 1)


def _attention(path: str, op: Op, batch: int) -> NetworkLayer:
    shapes = problem(op, as_torch=False)
    heads = op.inputs[0].shape[2 if "_attention_forward" in op.base else 1]
    positions = _whole(shapes.sequences // heads * shapes.q_len, batch)
    keys = -(-attended(op, shapes.q_len, shapes.k_len) // shapes.q_len)
    return NetworkLayer(
        path,
        LayerCategory.ATTENTION,
        (heads * shapes.d, positions, 1),
        (heads * shapes.d_v, positions, 1),
        (keys,),
    )


def _embedding(path: str, op: Op, batch: int) -> NetworkLayer:
    rows, channels = op.inputs[0].shape
    positions = _whole(math.prod(op.outputs[0].shape[:-1]), batch)
    return NetworkLayer(
        path, LayerCategory.EMBEDDING, (rows, positions, 1), (channels, positions, 1)
    )


_KINDS: dict[LayerCategory, tuple[Builder, tuple[str, ...]]] = {
    LayerCategory.CONV: (_product, ("mm", "addmm", "linear", "_addmm_activation")),
    LayerCategory.POOL: (
        _traced_pool,
        (
            *("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d"),
            *("max_pool2d", "_adaptive_avg_pool2d"),
        ),
    ),
    LayerCategory.RELU: (_pointwise(LayerCategory.RELU), ("relu",)),
    LayerCategory.DROPOUT: (_dropout, ("native_dropout",)),
    LayerCategory.ACTIVATION: (
        _pointwise(LayerCategory.ACTIVATION),
        (
            *("gelu", "silu", "mish", "elu", "leaky_relu", "hardtanh", "hardswish", "hardsigmoid"),
            *("tanh", "sigmoid", "softplus", "glu"),
        ),
    ),
    LayerCategory.SUM: (_sum, ("add",)),
    LayerCategory.CONCAT: (_concat, ("cat",)),
    LayerCategory.BATCH_NORM: (
        _batch_norm,
        ("cudnn_batch_norm", "native_batch_norm", "_native_batch_norm_legit", "batch_norm"),
    ),
    LayerCategory.LAYER_NORM: (_layer_norm, ("native_layer_norm", "_fused_rms_norm")),
    LayerCategory.EMBEDDING: (_embedding, ("embedding", "_embedding_bag")),
    LayerCategory.ATTENTION: (
        _attention,
        (
            *("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"),
            *("_scaled_dot_product_cudnn_attention", "_flash_attention_forward"),
            "_efficient_attention_forward",
        ),
    ),
}
_BUILDERS: dict[str, Builder] = {
    "aten.convolution": _convolution,
    "aten.mean": _mean,
    "aten.native_group_norm": _group_norm,
    **{f"aten.{op}": build for build, ops in _KINDS.values() for op in ops},
}
_FAMILIES: dict[str, LayerCategory] = {
    **{f"aten.{op}": layer_kind for layer_kind, (_, ops) in _KINDS.items() for op in ops},
    "aten.convolution": LayerCategory.CONV,
    "aten.threshold": LayerCategory.RELU,
    "aten.native_group_norm": LayerCategory.LAYER_NORM,
    "aten.mean": LayerCategory.POOL,
    "aten.embedding_dense": LayerCategory.EMBEDDING,
    "aten._flash_attention": LayerCategory.ATTENTION,
    "aten._efficient_attention": LayerCategory.ATTENTION,
}
