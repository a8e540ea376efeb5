"""The layers of an `nn.Module`, for the per-layer models; found without computing anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from wavecast.errors import CaptureError, InvalidInput
from wavecast.regression.complexities import LayerCategory, Network, NetworkLayer, Shape

_NO_WORK = (nn.Flatten, nn.Unflatten, nn.Identity)
_POOLS = (nn.MaxPool2d, nn.AvgPool2d)
_ADAPTIVE_POOLS = (nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_DROPOUTS = (nn.Dropout, nn.Dropout2d)


def network_of(
    model: nn.Module,
    inputs: Shape | Tensor,
    *,
    name: str | None = None,
    run: Callable[[nn.Module, Tensor], Any] | None = None,
) -> Network:
    """The layers that a model runs, in order, in its present mode (training or evaluation).

    Only modules become layers; functions that a `forward` calls do not. Modules without a formula
    are listed in `Network.unknown`.

    Example:
        ```python
        network = wavecast.network_of(torchvision.models.alexnet(), (3, 224, 224))
        ```

    Args:
        model: a model made of convolutions, fully connected layers, poolings, local response
            normalizations, ReLU and dropout.
        inputs: the shape of one sample, such as (3, 224, 224); or a batch of samples.
        name: the name of the network. None for that of the model's class.
        run: runs the model on its input. None for `model(input)`.

    Raises:
        CaptureError: the model does not run on such an input.
    """
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else tuple(inputs)
    if len(shape) != 3 or min(shape) < 1:
        raise InvalidInput(
            f"the sample's shape is {shape}; it must be (channels, height, width), such as "
            "(3, 224, 224)"
        )
    layers: list[NetworkLayer] = []
    unknown: list[str] = []

    def hook_of(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, read: Sequence[Any], written: Any) -> None:
            layer = _layer(path, module, read, written)
            if layer is not None:
                layers.append(layer)
            elif not isinstance(module, _NO_WORK) and not _skipped(module):
                unknown.append(f"{path} ({type(module).__name__})")

        return hook

    handles = [
        module.register_forward_hook(hook_of(path))
        for path, module in model.named_modules()
        if not any(True for _ in module.children())
    ]
    try:
        _run_fake(model, shape, run)
    finally:
        for handle in handles:
            handle.remove()
    return Network(name or type(model).__name__, shape, tuple(layers), unknown=tuple(unknown))


def _run_fake(
    model: nn.Module,
    shape: Sequence[int],
    run: Callable[[nn.Module, Tensor], Any] | None,
) -> None:
    parameter = next(model.parameters(), torch.empty(0))
    options = {"device": parameter.device, "dtype": parameter.dtype}
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            # Two samples, because some layers (batch norm) refuse to train with one.
            sample = torch.empty(2, *shape, **options)
            model(sample) if run is None else run(model, sample)
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} does not run on a sample of shape {tuple(shape)}: {error}"
        ) from error


def _layer(path: str, module: nn.Module, read: Sequence[Any], written: Any) -> NetworkLayer | None:
    """The layer that ran. None if there is no formula for it."""
    if not (read and isinstance(read[0], Tensor) and isinstance(written, Tensor)):
        return None
    inputs, outputs = _shape(read[0]), _shape(written)
    in_place = bool(getattr(module, "inplace", False))
    if isinstance(module, nn.Conv2d):
        return NetworkLayer(
            *(path, LayerCategory.CONV, inputs, outputs, module.kernel_size, min(module.stride)),
            groups=module.groups,
            bias=module.bias is not None,
        )
    if isinstance(module, nn.Linear):
        # Applied at several positions, it is the same as a convolution with filters of 1x1.
        kind = LayerCategory.FC if outputs[1:] == (1, 1) else LayerCategory.CONV
        return NetworkLayer(path, kind, inputs, outputs, bias=module.bias is not None)
    if isinstance(module, nn.LocalResponseNorm):
        return NetworkLayer(path, LayerCategory.NORM, inputs, outputs, local_size=module.size)
    if isinstance(module, _POOLS):
        stride = module.stride if module.stride is not None else module.kernel_size
        return NetworkLayer(
            path, LayerCategory.POOL, inputs, outputs, _pair(module.kernel_size), min(_pair(stride))
        )
    if isinstance(module, _ADAPTIVE_POOLS):
        return _adaptive(path, inputs, outputs)
    if isinstance(module, nn.ReLU):
        return NetworkLayer(path, LayerCategory.RELU, inputs, outputs, in_place=in_place)
    if isinstance(module, _DROPOUTS) and not _skipped(module):
        return NetworkLayer(path, LayerCategory.DROPOUT, inputs, outputs, in_place=in_place)
    return None


def _adaptive(path: str, inputs: Shape, outputs: Shape) -> NetworkLayer | None:
    """An adaptive pool as a plain pool. None if its input does not divide evenly."""
    if any(inside % outside for inside, outside in zip(inputs[1:], outputs[1:], strict=True)):
        return None
    height, width = inputs[1] // outputs[1], inputs[2] // outputs[2]
    stride = 1 if outputs[1:] == (1, 1) else min(height, width)
    return NetworkLayer(path, LayerCategory.POOL, inputs, outputs, (height, width), stride)


def _skipped(module: nn.Module) -> bool:
    """Whether a module is a dropout that does nothing: in evaluation mode, or with a rate of 0."""
    return isinstance(module, _DROPOUTS) and (not module.training or module.p == 0)


def _shape(tensor: Tensor) -> Shape:
    """Channels, height and width of one sample. Without an image, height and width are 1."""
    if tensor.dim() == 4:
        return tuple(tensor.shape[1:])
    if tensor.dim() == 2:
        return (tensor.shape[1], 1, 1)
    return (tensor.shape[-1], int(tensor.shape[1:-1].numel()), 1)


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
