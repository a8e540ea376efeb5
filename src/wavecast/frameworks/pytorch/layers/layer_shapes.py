"""Layers of the per-layer models, from the tensors that torch's layers read and write."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from wavecast.regression.layers.complexities import LayerCategory, NetworkLayer, Shape


def sample_shape(tensor: Tensor) -> Shape:
    """Channels, height and width of one sample. Without an image, height and width are 1."""
    return image_shape(tensor) if tensor.dim() >= 4 else row_shape(tensor)


def image_shape(tensor: Tensor) -> Shape:
    """One sample of (batch, channels, ...)."""
    height = tensor.shape[2] if tensor.dim() > 2 else 1
    return tensor.shape[1], height, math.prod(tensor.shape[3:])


def row_shape(tensor: Tensor) -> Shape:
    """One sample of (batch, ..., channels)."""
    return tensor.shape[-1], math.prod(tensor.shape[1:-1]), 1


def sizes(value: int | Sequence[int], length: int) -> tuple[int, ...]:
    """An argument such as a kernel size, with one number for each dimension."""
    if isinstance(value, int):
        return (value,) * length
    return tuple(value) if len(value) == length else tuple(value) * length


def linear(path: str, read: Tensor, written: Tensor, bias: bool) -> NetworkLayer:
    """A fully connected layer."""
    # Applied at several positions, it is the same as a convolution with filters of 1x1.
    inputs, outputs = row_shape(read), row_shape(written)
    kind = LayerCategory.FC if outputs[1:] == (1, 1) else LayerCategory.CONV
    return NetworkLayer(path, kind, inputs, outputs, bias=bias)


def embedding(path: str, rows: int, written: Tensor) -> NetworkLayer:
    """A table of which each position reads a row."""
    outputs = row_shape(written)
    return NetworkLayer(path, LayerCategory.EMBEDDING, (rows, *outputs[1:]), outputs)


def normalization(
    path: str, kind: LayerCategory, shape: Shape, weight: Any, bias: Any
) -> NetworkLayer:
    """A normalization, with weight and bias or without them (None)."""
    with_bias, weighted = bias is not None, weight is not None
    return NetworkLayer(path, kind, shape, shape, bias=with_bias, weighted=weighted)


def convolution(
    path: str,
    kind: LayerCategory,
    read: Tensor,
    written: Tensor,
    kernel: Any,
    stride: Any,
    **more: Any,
) -> NetworkLayer:
    """A convolution, plain or transposed; `more` are its groups and whether it has a bias."""
    inputs, outputs = image_shape(read), image_shape(written)
    step = min(sizes(stride, read.dim() - 2))
    return NetworkLayer(path, kind, inputs, outputs, tuple(kernel), step, **more)


def pointwise(path: str, kind: LayerCategory, written: Tensor, in_place: Any) -> NetworkLayer:
    """A function of each element. Dropout counts as in place, as in Caffe."""
    shape = sample_shape(written)
    overwrites = kind is LayerCategory.DROPOUT or bool(in_place)
    return NetworkLayer(path, kind, shape, shape, in_place=overwrites)


def normalized_shape(written: Tensor, normalized: Sequence[int]) -> Shape:
    """One sample of a layer norm, whose channels are the values normalized together."""
    channels = math.prod(normalized)
    return channels, max(1, written[0].numel() // channels), 1


def pool(path: str, read: Tensor, written: Tensor, kernel: Any, stride: Any) -> NetworkLayer:
    """A pool with the arguments of torch's pools."""
    inputs, outputs = image_shape(read), image_shape(written)
    places = read.dim() - 2
    window = sizes(kernel, places)
    return NetworkLayer(
        path, LayerCategory.POOL, inputs, outputs, window, min(sizes(stride, places))
    )


def adaptive_pool(path: str, inputs: Shape, outputs: Shape) -> NetworkLayer | None:
    """An adaptive pool as a plain pool. None if its input does not divide evenly."""
    if any(inside % outside for inside, outside in zip(inputs[1:], outputs[1:], strict=True)):
        return None
    height, width = inputs[1] // outputs[1], inputs[2] // outputs[2]
    stride = 1 if outputs[1:] == (1, 1) else min(height, width)
    return NetworkLayer(path, LayerCategory.POOL, inputs, outputs, (height, width), stride)
