"""The layers of an `nn.Module`, for the per-layer models; found without computing anything.

Modules of `torch.nn` become layers. So do the functions that other modules call, such as `F.relu`:
they have the path of the module whose `forward` calls them, which is "" for the model itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.layers import layer_shapes as shapes
from wavecast.frameworks.pytorch.layers.layer_functions import FUNCTIONS, FunctionCall
from wavecast.regression.layers.complexities import LayerCategory, Network, NetworkLayer, Shape

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
        return shapes.linear(path, read[0], written, module.bias is not None)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return shapes.embedding(path, module.num_embeddings, written)
    if isinstance(module, nn.LocalResponseNorm):
        shape = shapes.sample_shape(written)
        return NetworkLayer(path, LayerCategory.NORM, shape, shape, local_size=module.size)
    if isinstance(module, (*_BATCH_NORMS, nn.GroupNorm, nn.InstanceNorm2d, *_LAYER_NORMS)):
        return _normalization(path, module, written)
    if isinstance(module, _POOLS):
        stride = module.stride if module.stride is not None else module.kernel_size
        return shapes.pool(path, read[0], written, module.kernel_size, stride)
    if isinstance(module, _ADAPTIVE_POOLS):
        return shapes.adaptive_pool(
            path, shapes.sample_shape(read[0]), shapes.sample_shape(written)
        )
    if isinstance(module, (nn.ReLU, *_ACTIVATIONS)) or (
        isinstance(module, _DROPOUTS) and not _skipped(module)
    ):
        return _pointwise(path, module, written)
    return None


def _convolution(path: str, module: Any, read: Tensor, written: Tensor) -> NetworkLayer:
    kind = LayerCategory.TRANSPOSED if isinstance(module, _TRANSPOSED) else LayerCategory.CONV
    more = {"groups": module.groups, "bias": module.bias is not None}
    return shapes.convolution(path, kind, read, written, module.kernel_size, module.stride, **more)


def _normalization(path: str, module: Any, written: Tensor) -> NetworkLayer:
    kind, shape = LayerCategory.LAYER_NORM, shapes.sample_shape(written)
    if isinstance(module, _BATCH_NORMS):
        kind, shape = LayerCategory.BATCH_NORM, shapes.image_shape(written)
    elif isinstance(module, _LAYER_NORMS):
        shape = shapes.normalized_shape(written, module.normalized_shape)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    return shapes.normalization(path, kind, shape, weight, bias)


def _pointwise(path: str, module: nn.Module, written: Tensor) -> NetworkLayer:
    kind = LayerCategory.ACTIVATION
    if isinstance(module, nn.ReLU):
        kind = LayerCategory.RELU
    elif isinstance(module, _DROPOUTS):
        kind = LayerCategory.DROPOUT
    return shapes.pointwise(path, kind, written, getattr(module, "inplace", False))


def _skipped(module: nn.Module) -> bool:
    """Whether a module is a dropout that does nothing: in evaluation mode, or with a rate of 0."""
    return isinstance(module, _DROPOUTS) and (not module.training or module.p == 0)
