"""The cost of convolutions. Traffic is that of the tensors, without im2col or filter transforms."""

from __future__ import annotations

import math

from wavecast.ops.registry import (
    Cost,
    Kind,
    cost,
    executed,
    integer,
    integers,
    read,
    stored,
    written,
)
from wavecast.traces.step import Op, TensorSpec

_FORWARD = (
    "aten.convolution",
    "aten._convolution",
    "aten.convolution_overrideable",
    "aten.cudnn_convolution",
    "aten.cudnn_convolution_relu",
    "aten.cudnn_convolution_add_relu",
)


def depthwise(op: Op) -> bool:
    """Whether each channel is convolved separately, so that there is no matmul."""
    groups = integer(op, "groups", 1)
    weight = op.inputs[2 if "backward" in op.base else 1]
    return groups > 1 and weight.shape[1] == 1


def by_torch(op: Op) -> bool:
    """Whether torch runs a depthwise convolution in its own kernels, and not in cuDNN's.

    cuDNN's run for images in channels-last, and for float16 where torch found them faster
    (`use_cudnn_depthwise` in Convolution.cpp of torch 2.11).
    """
    if not depthwise(op) or bool(op.attr("transposed", False)) or "transpose" in op.base:
        return False
    backward = "backward" in op.base
    image, weight = op.inputs[1:3] if backward else op.inputs[:2]
    if any(t.channels_last for t in op.inputs[: 2 + backward]):
        return False
    strides, dilations = (integers(op, name) or (1,) for name in ("stride", "dilation"))
    channels, width, taps = image.shape[1], image.shape[-1], weight.shape[2:]
    plain = image.dtype == "float16" and len(image.shape) < 5 and max(dilations) == 1
    if not plain or channels < 32:
        return True
    if len(image.shape) == 3 and strides[0] == 1:
        return False
    if len(set(strides)) > 1 or len(taps) == 1 or len(set(taps)) > 1:
        return True
    if taps[0] not in (1, 3, 5) or width < 7 or strides[0] > 2:
        return True
    return strides[0] == 2 and not _fast_strided(image.shape[0], channels, width, taps[0])


def _fast_strided(images: int, channels: int, width: int, side: int) -> bool:
    """Whether torch takes cuDNN's kernels for depthwise filters of stride 2 in float16."""
    if side == 1:
        return width <= 28 if images == 1 else images <= 16 and channels >= 128 and width <= 7
    return images == 1 or channels >= 512 or (channels >= 256 and width >= 28)


def _products(small: TensorSpec, weight: TensorSpec) -> int:
    """The FLOPs of a convolution: for each point of `small`, a multiply-add per filter element.

    `small` is the output, or the input of a transposed convolution.
    """
    return 2 * small.shape[0] * math.prod(small.shape[2:]) * weight.numel


@cost(*_FORWARD, kind=Kind.CONVOLUTION)
def _convolution(op: Op) -> Cost:
    small = op.inputs[0] if op.attr("transposed", False) else op.outputs[0]
    return Cost(_products(small, op.inputs[1]), read(op.inputs), written(op.outputs))


@cost("aten.cudnn_convolution_transpose", kind=Kind.CONVOLUTION)
def _transposed(op: Op) -> Cost:
    return Cost(_products(op.inputs[0], op.inputs[1]), read(op.inputs), written(op.outputs))


def _backward_flops(op: Op) -> tuple[int, int]:
    """The FLOPs of the gradients of input and weight; 0 for one that is not computed."""
    grad, image, weight = op.inputs[:3]
    wants = integers(op, "output_mask") or (1, 1, 1)
    products = _products(image if op.attr("transposed", False) else grad, weight)
    return products * wants[0], products * wants[1]


@cost("aten.convolution_backward", kind=Kind.CONVOLUTION)
def _convolution_backward(op: Op) -> Cost:
    """One kernel for each gradient that is computed, each of which reads its operands.

    `flops` multiplies the weight gradient by the number of groups, as torch's counter does.
    """
    grad, image, weight = map(stored, op.inputs[:3])
    wants = integers(op, "output_mask") or (1, 1, 1)
    of_input, of_weight = _backward_flops(op)
    return Cost(
        of_input + of_weight * integer(op, "groups", 1),
        wants[0] * (grad + weight) + wants[1] * (grad + image) + wants[2] * grad,
        written(op.outputs),
    )


@executed("aten.convolution_backward")
def _executed_backward(op: Op) -> int:
    """The true FLOPs: in the weight gradient, too, each group has only its own channels."""
    return sum(_backward_flops(op))
