"""The layers of an `nn.Module`, for the per-layer models; found without computing anything.

Modules of `torch.nn` become layers. So do the functions that other modules call, such as `F.relu`:
they have the path of the module whose `forward` calls them, which is "" for the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from wavecast.errors import CaptureError, InvalidInput
from wavecast.runs.regression.complexities import LayerCategory, Network, NetworkLayer, Shape

_NO_WORK = (nn.Flatten, nn.Unflatten, nn.Identity)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
_ADAPTIVE_POOLS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_LAYER_NORMS = (nn.LayerNorm, nn.RMSNorm)
_ACTIVATIONS = (
    *(nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.LeakyReLU, nn.ReLU6, nn.Hardtanh, nn.Hardswish),
    *(nn.Hardsigmoid, nn.Tanh, nn.Sigmoid, nn.Softplus, nn.GLU),
)


def network_of(
    model: nn.Module,
    inputs: Shape | Tensor,
    *,
    name: str | None = None,
    run: Callable[[nn.Module, Tensor], Any] | None = None,
) -> Network:
    """The layers that a model runs, in order, in its present mode (training or evaluation).

    Modules without a formula are listed in `Network.unknown`. Dropout counts as no new memory, as
    in Caffe.

    Example:
        ```python
        network = wavecast.network_of(torchvision.models.alexnet(), (3, 224, 224))
        ```

    Args:
        model: a model made of convolutions, fully connected layers, poolings, normalizations,
            activation functions, dropout, attention and embeddings.
        inputs: the shape of one sample, such as (3, 224, 224); or a batch of samples, which may be
            token numbers.
        name: the name of the network. None for that of the model's class.
        run: runs the model on its input. None for `model(input)`.

    Raises:
        CaptureError: the model does not run on such an input.
    """
    shape, dtype = _sample(inputs)
    finder = _LayerFinder()
    with finder.watching(model):
        _run_fake(model, shape, dtype, run, finder)
    return Network(
        name or type(model).__name__,
        shape if len(shape) == 3 else (1, math.prod(shape), 1),
        tuple(finder.layers),
        unknown=tuple(finder.unknown),
    )


def _sample(inputs: Shape | Tensor) -> tuple[tuple[int, ...], torch.dtype | None]:
    """The shape of one sample, and its data type if it is that of a batch of token numbers."""
    if isinstance(inputs, Tensor) and not inputs.dtype.is_floating_point:
        return tuple(inputs.shape[1:]), inputs.dtype
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else tuple(inputs)
    if len(shape) != 3 or min(shape) < 1:
        raise InvalidInput(
            f"the sample's shape is {shape}; it must be (channels, height, width), such as "
            "(3, 224, 224), or a tensor of token numbers"
        )
    return shape, None


class _LayerFinder(TorchFunctionMode):
    """Notes the layers that run: modules by their hooks, functions as a mode of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[NetworkLayer] = []
        self.unknown: list[str] = []
        self._paths: list[tuple[str, bool]] = []
        """The modules that run now, the innermost last, and whether each is a layer as a whole."""

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        handles = []
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(self._entering(path)))
            handles.append(
                module.register_forward_hook(
                    self._leaving(path), with_kwargs=True, always_call=True
                )
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _entering(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, read: Sequence[Any]) -> None:
            self._paths.append((path, _is_layer(module)))

        return hook

    def _leaving(self, path: str) -> Callable[..., None]:
        def hook(
            module: nn.Module, read: Sequence[Any], options: Mapping[str, Any], written: Any
        ) -> None:
            self._paths.pop()
            if not _is_layer(module) or any(whole for _, whole in self._paths):
                return
            layers = _layers(path, module, [*read, *options.values()], written)
            self.layers += layers
            if not layers and not isinstance(module, _NO_WORK) and not _skipped(module):
                self.unknown.append(f"{path} ({type(module).__name__})")

        return hook

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function, and note the layer that it is."""
        named = dict(options or {})
        written = function(*arguments, **named)
        build = None if any(whole for _, whole in self._paths) else FUNCTIONS.get(function)
        if build is not None:
            path = self._paths[-1][0] if self._paths else ""
            layer = build(FunctionCall(path, arguments, named, written))
            self.layers += [] if layer is None else [layer]
        return written


def _is_layer(module: nn.Module) -> bool:
    """Whether a module is a layer as a whole: one of torch's own without modules in it."""
    if isinstance(module, nn.MultiheadAttention):  # it does not run the module in it
        return True
    return type(module).__module__.startswith("torch.nn.") and not any(
        True for _ in module.children()
    )


def _run_fake(
    model: nn.Module,
    shape: Sequence[int],
    dtype: torch.dtype | None,
    run: Callable[[nn.Module, Tensor], Any] | None,
    finder: _LayerFinder,
) -> None:
    parameter = next(model.parameters(), torch.empty(0))
    options = {"device": parameter.device, "dtype": dtype or parameter.dtype}
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            # Two samples, because some layers (batch norm) refuse to train with one.
            sample = torch.zeros(2, *shape, **options)
            with finder:
                model(sample) if run is None else run(model, sample)
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} does not run on a sample of shape {tuple(shape)}: {error}"
        ) from error


def _layers(
    path: str, module: nn.Module, read: Sequence[Any], written: Any
) -> Sequence[NetworkLayer]:
    """The layers that a module of torch is: one, or none if there is no formula for it."""
    if isinstance(module, nn.MultiheadAttention):
        return _multihead(path, module, read)
    layer = _layer(path, module, read, written)
    return [] if layer is None else [layer]


def _multihead(
    path: str, module: nn.MultiheadAttention, read: Sequence[Any]
) -> Sequence[NetworkLayer]:
    """The projections of query, key and value, the attention, and the projection of its output."""
    query, key, value = read[:3]
    length = 1 if module.batch_first else 0
    queries, keys, width = query.shape[length], key.shape[length], module.embed_dim
    bias = module.in_proj_bias is not None
    projections = [
        NetworkLayer(
            path,
            LayerCategory.CONV,
            (tensor.shape[-1], tensor.shape[length], 1),
            (width, tensor.shape[length], 1),
            bias=bias,
        )
        for tensor in (query, key, value)
    ]
    shape = (width, queries, 1)
    return [
        *projections,
        NetworkLayer(path, LayerCategory.ATTENTION, shape, shape, (keys,)),
        NetworkLayer(path, LayerCategory.CONV, shape, shape, bias=bias),
    ]


def _layer(path: str, module: nn.Module, read: Sequence[Any], written: Any) -> NetworkLayer | None:
    """The layer that a module of torch is. None if there is no formula for it."""
    if not (read and isinstance(read[0], Tensor) and isinstance(written, Tensor)):
        return None
    if isinstance(module, _CONVOLUTIONS + _TRANSPOSED):
        return _convolution(path, module, read[0], written)
    if isinstance(module, nn.Linear):
        return linear(path, read[0], written, module.bias is not None)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return embedding(path, module.num_embeddings, written)
    if isinstance(module, nn.LocalResponseNorm):
        shape = sample_shape(written)
        return NetworkLayer(path, LayerCategory.NORM, shape, shape, local_size=module.size)
    if isinstance(module, (*_BATCH_NORMS, nn.GroupNorm, nn.InstanceNorm2d, *_LAYER_NORMS)):
        return _normalization(path, module, written)
    if isinstance(module, _POOLS):
        stride = module.stride if module.stride is not None else module.kernel_size
        return pool(path, read[0], written, module.kernel_size, stride)
    if isinstance(module, _ADAPTIVE_POOLS):
        return adaptive_pool(path, sample_shape(read[0]), sample_shape(written))
    if isinstance(module, (nn.ReLU, *_ACTIVATIONS)) or (
        isinstance(module, _DROPOUTS) and not _skipped(module)
    ):
        return _pointwise(path, module, written)
    return None


def _convolution(path: str, module: Any, read: Tensor, written: Tensor) -> NetworkLayer:
    kind = LayerCategory.TRANSPOSED if isinstance(module, _TRANSPOSED) else LayerCategory.CONV
    more = {"groups": module.groups, "bias": module.bias is not None}
    return convolution(path, kind, read, written, module.kernel_size, module.stride, **more)


def _normalization(path: str, module: Any, written: Tensor) -> NetworkLayer:
    kind, shape = LayerCategory.LAYER_NORM, sample_shape(written)
    if isinstance(module, _BATCH_NORMS):
        kind, shape = LayerCategory.BATCH_NORM, image_shape(written)
    elif isinstance(module, _LAYER_NORMS):
        shape = normalized_shape(written, module.normalized_shape)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    return normalization(path, kind, shape, weight, bias)


def _pointwise(path: str, module: nn.Module, written: Tensor) -> NetworkLayer:
    kind = LayerCategory.ACTIVATION
    if isinstance(module, nn.ReLU):
        kind = LayerCategory.RELU
    elif isinstance(module, _DROPOUTS):
        kind = LayerCategory.DROPOUT
    return pointwise(path, kind, written, getattr(module, "inplace", False))


def _skipped(module: nn.Module) -> bool:
    """Whether a module is a dropout that does nothing: in evaluation mode, or with a rate of 0."""
    return isinstance(module, _DROPOUTS) and (not module.training or module.p == 0)


# Functions of torch that are layers, such as `F.relu`, for the per-layer models.


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


def _pointwise_function(kind: LayerCategory) -> Build:
    def build(call: FunctionCall) -> NetworkLayer | None:
        written = call.written
        if not isinstance(written, Tensor) or written.dim() < 2:
            return None
        overwrites = call.arguments and written is call.arguments[0]
        in_place = overwrites or call.options.get("inplace")
        return pointwise(call.path, kind, written, in_place)

    return build


def _dropout(call: FunctionCall) -> NetworkLayer | None:
    if not call.argument(2, "training", True) or call.argument(1, "p", 0.5) == 0:
        return None
    return _pointwise_function(LayerCategory.DROPOUT)(call)


def _sum(call: FunctionCall) -> NetworkLayer | None:
    tensors = [value for value in call.arguments[:2] if isinstance(value, Tensor)]
    return None if len(tensors) < 2 else _pointwise_function(LayerCategory.SUM)(call)


def _concat(call: FunctionCall) -> NetworkLayer:
    shape = sample_shape(call.written)
    return NetworkLayer(call.path, LayerCategory.CONCAT, shape, shape)


def _pool(call: FunctionCall) -> NetworkLayer:
    kernel, stride = call.argument(1, "kernel_size"), call.argument(2, "stride")
    written = call.written
    if isinstance(written, tuple):  # the indices of the largest values come as well
        written = written[0]
    return pool(call.path, call.arguments[0], written, kernel, stride or kernel)


def _adaptive_pool(call: FunctionCall) -> NetworkLayer | None:
    inputs, outputs = sample_shape(call.arguments[0]), sample_shape(call.written)
    return adaptive_pool(call.path, inputs, outputs)


def _mean(call: FunctionCall) -> NetworkLayer | None:
    """A global average pool, written as the mean over height and width."""
    read, dims = call.arguments[0], call.argument(1, "dim")
    if read.dim() != 4 or not isinstance(dims, Sequence) or {n % 4 for n in dims} != {2, 3}:
        return None
    inputs = image_shape(read)
    return NetworkLayer(call.path, LayerCategory.POOL, inputs, (inputs[0], 1, 1), inputs[1:])


def _linear(call: FunctionCall) -> NetworkLayer:
    bias = call.argument(2, "bias")
    return linear(call.path, call.arguments[0], call.written, bias is not None)


def _convolution_function(kind: LayerCategory) -> Build:
    def build(call: FunctionCall) -> NetworkLayer:
        kernel, stride = call.argument(1, "weight").shape[2:], call.argument(3, "stride", 1)
        bias = call.argument(2, "bias") is not None
        more = {"groups": call.argument(6, "groups", 1), "bias": bias}
        read, written = call.arguments[0], call.written
        return convolution(call.path, kind, read, written, kernel, stride, **more)

    return build


def _batch_norm(call: FunctionCall) -> NetworkLayer:
    shape, kind = image_shape(call.written), LayerCategory.BATCH_NORM
    weight, bias = call.argument(3, "weight"), call.argument(4, "bias")
    return normalization(call.path, kind, shape, weight, bias)


def _layer_norm(call: FunctionCall) -> NetworkLayer:
    shape = normalized_shape(call.written, call.argument(1, "normalized_shape"))
    weight, bias = call.argument(2, "weight"), call.argument(3, "bias")
    bias = bias if isinstance(bias, Tensor) else None  # in rms_norm, this is epsilon
    return normalization(call.path, LayerCategory.LAYER_NORM, shape, weight, bias)


def _group_norm(call: FunctionCall) -> NetworkLayer:
    shape, kind = image_shape(call.written), LayerCategory.LAYER_NORM
    weight, bias = call.argument(2, "weight"), call.argument(3, "bias")
    return normalization(call.path, kind, shape, weight, bias)


def _attention(call: FunctionCall) -> NetworkLayer:
    query, key = call.argument(0, "query"), call.argument(1, "key")
    heads, length, keys = query.shape[1:-2].numel(), query.shape[-2], key.shape[-2]
    if call.argument(5, "is_causal", False) and length == keys:
        keys = -(-(keys + 1) // 2)  # on average, a query meets half of the keys and its own
    inputs = (heads * query.shape[-1], length, 1)
    outputs = (heads * call.written.shape[-1], length, 1)
    return NetworkLayer(call.path, LayerCategory.ATTENTION, inputs, outputs, (keys,))


def _embedding(call: FunctionCall) -> NetworkLayer:
    return embedding(call.path, call.argument(1, "weight").shape[0], call.written)


def _named(place: Any, names: str) -> list[Any]:
    return [getattr(place, name) for name in names.split()]


_ACTIVATION_FUNCTIONS = """
    gelu silu mish elu leaky_relu relu6 hardtanh hardswish hardsigmoid softplus glu tanh sigmoid
"""
_POOL_FUNCTIONS = """
    max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d
    avg_pool3d
"""
_FUNCTIONS: Mapping[Build, Sequence[Any]] = {
    _pointwise_function(LayerCategory.RELU): [
        f for place in (functional, torch, Tensor) for f in _named(place, "relu relu_")
    ],
    _pointwise_function(LayerCategory.ACTIVATION): [
        *_named(functional, _ACTIVATION_FUNCTIONS),
        *_named(torch, "tanh sigmoid"),
        *_named(Tensor, "tanh sigmoid tanh_ sigmoid_"),
    ],
    _dropout: [*_named(functional, "dropout dropout1d dropout2d dropout3d"), torch.dropout],
    _sum: [torch.add, *_named(Tensor, "add add_ __add__ __iadd__")],
    _concat: _named(torch, "cat concat concatenate"),
    _pool: [
        *_named(torch, "max_pool1d max_pool2d max_pool3d"),
        *_named(functional, _POOL_FUNCTIONS),
    ],
    _adaptive_pool: _named(functional, "adaptive_avg_pool2d adaptive_max_pool2d"),
    _mean: [torch.mean, Tensor.mean],
    _linear: [functional.linear],
    _convolution_function(LayerCategory.CONV): [
        f for place in (torch, functional) for f in _named(place, "conv1d conv2d conv3d")
    ],
    _convolution_function(LayerCategory.TRANSPOSED): _named(
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


# Layers of the per-layer models, from the tensors that torch's layers read and write.


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
