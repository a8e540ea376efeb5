"""Functions of torch that are layers, such as `F.relu`, for the per-layer models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from wavecast.frameworks.pytorch.layers import layer_shapes as shapes
from wavecast.regression.layers.complexities import LayerCategory, NetworkLayer


class FunctionCall(NamedTuple):
    """A call of a function of torch, and its result."""

    path: str
    """The module whose `forward` called it."""
    arguments: Sequence[Any]
    options: Mapping[str, Any]
    written: Any

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """The value of a parameter, given by position or by name."""
        if len(self.arguments) > position:
            return self.arguments[position]
        return self.options.get(name, default)


Build = Callable[[FunctionCall], NetworkLayer | None]


def _pointwise(kind: LayerCategory) -> Build:
    def build(call: FunctionCall) -> NetworkLayer | None:
        written = call.written
        if not isinstance(written, Tensor) or written.dim() < 2:
            return None
        overwrites = call.arguments and written is call.arguments[0]
        in_place = overwrites or call.options.get("inplace")
        return shapes.pointwise(call.path, kind, written, in_place)

    return build


def _dropout(call: FunctionCall) -> NetworkLayer | None:
    if not call.argument(2, "training", True) or call.argument(1, "p", 0.5) == 0:
        return None
    return _pointwise(LayerCategory.DROPOUT)(call)


def _sum(call: FunctionCall) -> NetworkLayer | None:
    tensors = [value for value in call.arguments[:2] if isinstance(value, Tensor)]
    return None if len(tensors) < 2 else _pointwise(LayerCategory.SUM)(call)


def _concat(call: FunctionCall) -> NetworkLayer:
    shape = shapes.sample_shape(call.written)
    return NetworkLayer(call.path, LayerCategory.CONCAT, shape, shape)


def _pool(call: FunctionCall) -> NetworkLayer:
    kernel, stride = call.argument(1, "kernel_size"), call.argument(2, "stride")
    written = call.written
    if isinstance(written, tuple):  # the indices of the largest values come as well
        written = written[0]
    return shapes.pool(call.path, call.arguments[0], written, kernel, stride or kernel)


def _adaptive_pool(call: FunctionCall) -> NetworkLayer | None:
    inputs, outputs = shapes.sample_shape(call.arguments[0]), shapes.sample_shape(call.written)
    return shapes.adaptive_pool(call.path, inputs, outputs)


def _mean(call: FunctionCall) -> NetworkLayer | None:
    """A global average pool, written as the mean over height and width."""
    read, dims = call.arguments[0], call.argument(1, "dim")
    if read.dim() != 4 or not isinstance(dims, Sequence) or {n % 4 for n in dims} != {2, 3}:
        return None
    inputs = shapes.image_shape(read)
    return NetworkLayer(call.path, LayerCategory.POOL, inputs, (inputs[0], 1, 1), inputs[1:])


def _linear(call: FunctionCall) -> NetworkLayer:
    bias = call.argument(2, "bias")
    return shapes.linear(call.path, call.arguments[0], call.written, bias is not None)


def _convolution(kind: LayerCategory) -> Build:
    def build(call: FunctionCall) -> NetworkLayer:
        kernel, stride = call.argument(1, "weight").shape[2:], call.argument(3, "stride", 1)
        bias = call.argument(2, "bias") is not None
        more = {"groups": call.argument(6, "groups", 1), "bias": bias}
        read, written = call.arguments[0], call.written
        return shapes.convolution(call.path, kind, read, written, kernel, stride, **more)

    return build


def _batch_norm(call: FunctionCall) -> NetworkLayer:
    shape, kind = shapes.image_shape(call.written), LayerCategory.BATCH_NORM
    weight, bias = call.argument(3, "weight"), call.argument(4, "bias")
    return shapes.normalization(call.path, kind, shape, weight, bias)


def _layer_norm(call: FunctionCall) -> NetworkLayer:
    shape = shapes.normalized_shape(call.written, call.argument(1, "normalized_shape"))
    weight, bias = call.argument(2, "weight"), call.argument(3, "bias")
    bias = bias if isinstance(bias, Tensor) else None  # in rms_norm, this is epsilon
    return shapes.normalization(call.path, LayerCategory.LAYER_NORM, shape, weight, bias)


def _group_norm(call: FunctionCall) -> NetworkLayer:
    shape, kind = shapes.image_shape(call.written), LayerCategory.LAYER_NORM
    weight, bias = call.argument(2, "weight"), call.argument(3, "bias")
    return shapes.normalization(call.path, kind, shape, weight, bias)


def _attention(call: FunctionCall) -> NetworkLayer:
    query, key = call.argument(0, "query"), call.argument(1, "key")
    heads, length, keys = query.shape[1:-2].numel(), query.shape[-2], key.shape[-2]
    if call.argument(5, "is_causal", False) and length == keys:
        keys = -(-(keys + 1) // 2)  # on average, a query meets half of the keys and its own
    inputs = (heads * query.shape[-1], length, 1)
    outputs = (heads * call.written.shape[-1], length, 1)
    return NetworkLayer(call.path, LayerCategory.ATTENTION, inputs, outputs, (keys,))


def _embedding(call: FunctionCall) -> NetworkLayer:
    return shapes.embedding(call.path, call.argument(1, "weight").shape[0], call.written)


def _named(place: Any, names: str) -> list[Any]:
    return [getattr(place, name) for name in names.split()]


_ACTIVATIONS = """
    gelu silu mish elu leaky_relu relu6 hardtanh hardswish hardsigmoid softplus glu tanh sigmoid
"""
_POOLS = """
    max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d
    avg_pool3d
"""
_FUNCTIONS: Mapping[Build, Sequence[Any]] = {
    _pointwise(LayerCategory.RELU): [
        f for place in (functional, torch, Tensor) for f in _named(place, "relu relu_")
    ],
    _pointwise(LayerCategory.ACTIVATION): [
        *_named(functional, _ACTIVATIONS),
        *_named(torch, "tanh sigmoid"),
        *_named(Tensor, "tanh sigmoid tanh_ sigmoid_"),
    ],
    _dropout: [*_named(functional, "dropout dropout1d dropout2d dropout3d"), torch.dropout],
    _sum: [torch.add, *_named(Tensor, "add add_ __add__ __iadd__")],
    _concat: _named(torch, "cat concat concatenate"),
    _pool: [*_named(torch, "max_pool1d max_pool2d max_pool3d"), *_named(functional, _POOLS)],
    _adaptive_pool: _named(functional, "adaptive_avg_pool2d adaptive_max_pool2d"),
    _mean: [torch.mean, Tensor.mean],
    _linear: [functional.linear],
    _convolution(LayerCategory.CONV): [
        f for place in (torch, functional) for f in _named(place, "conv1d conv2d conv3d")
    ],
    _convolution(LayerCategory.TRANSPOSED): _named(
        functional, "conv_transpose1d conv_transpose2d conv_transpose3d"
    ),
    _batch_norm: [functional.batch_norm],
    _layer_norm: [functional.layer_norm, functional.rms_norm],
    _group_norm: [functional.group_norm],
    _attention: [functional.scaled_dot_product_attention],
    _embedding: [functional.embedding],
}
FUNCTIONS: Mapping[Any, Build] = {
    function: build for build, functions in _FUNCTIONS.items() for function in functions
}
"""How a call of a function of torch becomes a layer."""
