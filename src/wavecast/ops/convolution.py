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
