"""Functions of torch that are layers, such as `F.relu`, for the per-layer models."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from wavecast.frameworks.pytorch import layer_shapes as shapes
from wavecast.regression.complexities import LayerCategory, NetworkLayer, Shape

Arguments = Sequence[Any]
Options = Mapping[str, Any]
Build = Callable[[str, Arguments, Options, Any], NetworkLayer | None]


def _argument(
    arguments: Arguments, options: Options, position: int, name: str, default: Any = None
) -> Any:
    return arguments[position] if len(arguments) > position else options.get(name, default)


def _pointwise(kind: LayerCategory) -> Build:
    def build(
        path: str, arguments: Arguments, options: Options, written: Any
    ) -> NetworkLayer | None:
        if not isinstance(written, Tensor) or written.dim() < 2:
            return None
        shape = shapes.sample_shape(written)
        overwrites = arguments and written is arguments[0]
        in_place = kind is LayerCategory.DROPOUT or overwrites or bool(options.get("inplace"))
        return NetworkLayer(path, kind, shape, shape, in_place=bool(in_place))

    return build


def _dropout(
    path: str, arguments: Arguments, options: Options, written: Any
) -> NetworkLayer | None:
    rate = _argument(arguments, options, 1, "p", 0.5)
    training = _argument(arguments, options, 2, "training", True)
    if not training or rate == 0:
        return None
    return _pointwise(LayerCategory.DROPOUT)(path, arguments, options, written)


def _sum(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer | None:
    tensors = [value for value in arguments[:2] if isinstance(value, Tensor)]
    if len(tensors) < 2:
        return None
    return _pointwise(LayerCategory.SUM)(path, arguments, options, written)


def _concat(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
    shape = shapes.sample_shape(written)
    return NetworkLayer(path, LayerCategory.CONCAT, shape, shape)


def _pool(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
    kernel = _argument(arguments, options, 1, "kernel_size")
    stride = _argument(arguments, options, 2, "stride")
    if isinstance(written, tuple):  # the indices of the largest values come as well
        written = written[0]
    return shapes.pool(path, arguments[0], written, kernel, stride or kernel)


def _adaptive_pool(
    path: str, arguments: Arguments, options: Options, written: Any
) -> NetworkLayer | None:
    inputs, outputs = shapes.sample_shape(arguments[0]), shapes.sample_shape(written)
    return shapes.adaptive_pool(path, inputs, outputs)


def _mean(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer | None:
    """A global average pool, written as the mean over height and width."""
    read, dims = arguments[0], _argument(arguments, options, 1, "dim")
    if read.dim() != 4 or not isinstance(dims, Sequence) or {n % 4 for n in dims} != {2, 3}:
        return None
    channels, height, width = shapes.image_shape(read)
    outputs = (channels, 1, 1)
    return NetworkLayer(
        path, LayerCategory.POOL, (channels, height, width), outputs, (height, width)
    )


def _linear(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
    bias = _argument(arguments, options, 2, "bias")
    return shapes.linear(path, arguments[0], written, bias is not None)


def _convolution(kind: LayerCategory) -> Build:
    def build(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
        read, weight = arguments[0], _argument(arguments, options, 1, "weight")
        groups = _argument(arguments, options, 6, "groups", 1)
        stride = _argument(arguments, options, 3, "stride", 1)
        return NetworkLayer(
            path,
            kind,
            shapes.image_shape(read),
            shapes.image_shape(written),
            tuple(weight.shape[2:]),
            min(shapes.sizes(stride, read.dim() - 2)),
            groups=groups,
            bias=_argument(arguments, options, 2, "bias") is not None,
        )

    return build


def _batch_norm(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
    shape = shapes.image_shape(written)
    weight = _argument(arguments, options, 3, "weight")
    bias = _argument(arguments, options, 4, "bias")
    return _normalization(path, LayerCategory.BATCH_NORM, shape, weight, bias)


def _layer_norm(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
    shape = shapes.normalized_shape(written, _argument(arguments, options, 1, "normalized_shape"))
    weight = _argument(arguments, options, 2, "weight")
    bias = _argument(arguments, options, 3, "bias")
    return _normalization(
        path, LayerCategory.LAYER_NORM, shape, weight, bias if isinstance(bias, Tensor) else None
    )


def _group_norm(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
    shape = shapes.image_shape(written)
    weight = _argument(arguments, options, 2, "weight")
    bias = _argument(arguments, options, 3, "bias")
    return _normalization(path, LayerCategory.LAYER_NORM, shape, weight, bias)


def _normalization(
    path: str, kind: LayerCategory, shape: Shape, weight: Any, bias: Any
) -> NetworkLayer:
    return NetworkLayer(
        path, kind, shape, shape, bias=bias is not None, weighted=weight is not None
    )


def _attention(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
    query, key, _ = (_argument(arguments, options, n, x) for n, x in enumerate(_QUERY_KEY_VALUE))
    heads, length, keys = query.shape[1:-2].numel(), query.shape[-2], key.shape[-2]
    if _argument(arguments, options, 5, "is_causal", False) and length == keys:
        keys = -(-(keys + 1) // 2)  # on average, a query meets half of the keys and its own
    return NetworkLayer(
        path,
        LayerCategory.ATTENTION,
        (heads * query.shape[-1], length, 1),
        (heads * written.shape[-1], length, 1),
        (keys,),
    )


_QUERY_KEY_VALUE = ("query", "key", "value")


def _embedding(path: str, arguments: Arguments, options: Options, written: Any) -> NetworkLayer:
    return shapes.embedding(path, _argument(arguments, options, 1, "weight").shape[0], written)


_MADE: Mapping[Build, tuple[Any, ...]] = {
    _pointwise(LayerCategory.RELU): (
        *(functional.relu, functional.relu_, torch.relu, torch.relu_, Tensor.relu, Tensor.relu_),
    ),
    _pointwise(LayerCategory.ACTIVATION): (
        *(
            functional.gelu,
            functional.silu,
            functional.mish,
            functional.elu,
            functional.leaky_relu,
            functional.relu6,
            functional.hardtanh,
            functional.hardswish,
        ),
        *(
            functional.hardsigmoid,
            functional.softplus,
            functional.glu,
            functional.tanh,
            functional.sigmoid,
            torch.tanh,
            torch.sigmoid,
        ),
        *(Tensor.tanh, Tensor.sigmoid, Tensor.tanh_, Tensor.sigmoid_),
    ),
    _dropout: (
        functional.dropout,
        functional.dropout1d,
        functional.dropout2d,
        functional.dropout3d,
        torch.dropout,
    ),
    _sum: (torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__iadd__),
    _concat: (torch.cat, torch.concat, torch.concatenate),
    _pool: (
        *(
            torch.max_pool1d,
            torch.max_pool2d,
            torch.max_pool3d,
            functional.max_pool2d,
            functional.max_pool3d,
        ),
        *(functional.max_pool2d_with_indices, functional.max_pool3d_with_indices),
        *(functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d),
    ),
    _adaptive_pool: (functional.adaptive_avg_pool2d, functional.adaptive_max_pool2d),
    _mean: (torch.mean, Tensor.mean),
    _linear: (functional.linear,),
    _convolution(LayerCategory.CONV): (
        *(
            torch.conv1d,
            torch.conv2d,
            torch.conv3d,
            functional.conv1d,
            functional.conv2d,
            functional.conv3d,
        ),
    ),
    _convolution(LayerCategory.TRANSPOSED): (
        *(functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d),
    ),
    _batch_norm: (functional.batch_norm,),
    _layer_norm: (functional.layer_norm, functional.rms_norm),
    _group_norm: (functional.group_norm,),
    _attention: (functional.scaled_dot_product_attention,),
    _embedding: (functional.embedding,),
}
FUNCTIONS: Mapping[Any, Build] = {
    function: build for build, functions in _MADE.items() for function in functions
}
"""How a function of torch becomes a layer."""
