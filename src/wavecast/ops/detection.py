"""The cost of torchvision's ops, which detectors use."""

from __future__ import annotations

import math

from wavecast.ops.registry import Cost, Kind, cost, integer, item_bytes, read, stored, written
from wavecast.traces.step import Op

_BILINEAR_FLOPS = 10
"""The weighted sum of four neighbours of a point, and their weights."""
_OVERLAP_FLOPS = 15
"""The overlap of two boxes, divided by the area of both together."""
_FLAG_BITS = 64
"""Flags of pairs of boxes are kept in words of this many bits."""


def _points(op: Op) -> int:
    """The points of the image under one point of the result. 0 or -1 means as many as fit."""
    ratio = integer(op, "sampling_ratio")
    return ratio**2 if ratio > 0 else 4


@cost("torchvision.roi_align", "torchvision.ps_roi_align", kind=Kind.RESAMPLING)
def _align(op: Op) -> Cost:
    """Regions read four neighbours of each point; a small image is read once and then cached."""
    image, *rest = op.inputs
    points = op.outputs[0].numel * _points(op)
    touched = min(4 * points * item_bytes(image), stored(image))
    return Cost(_BILINEAR_FLOPS * points, touched + read(rest), written(op.outputs))


@cost("torchvision._roi_align_backward", "torchvision._ps_roi_align_backward", kind=Kind.RESAMPLING)
def _align_backward(op: Op) -> Cost:
    """The gradient of the image is zeroed, then read, added to and written at the points."""
    points, image = op.inputs[0].numel * _points(op), op.outputs[0]
    touched = min(4 * points * item_bytes(image), stored(image))
    return Cost(2 * _BILINEAR_FLOPS * points, read(op.inputs) + touched, stored(image) + touched)


@cost("torchvision.roi_pool", "torchvision.ps_roi_pool", kind=Kind.POOLING)
def _pool(op: Op) -> Cost:
    """Maxima or means of regions. How large these are depends on data; each point counts once."""
    return Cost(op.inputs[0].numel, read(op.inputs), written(op.outputs))


@cost("torchvision._roi_pool_backward", "torchvision._ps_roi_pool_backward", kind=Kind.POOLING)
def _pool_backward(op: Op) -> Cost:
    gradient, image = op.inputs[0], op.outputs[0]
    return Cost(gradient.numel, read(op.inputs) + stored(gradient), 2 * stored(image))


@cost("torchvision.nms", kind=Kind.INDEXING)
def _suppress(op: Op) -> Cost:
    """Boxes are sorted by score; then each pair is compared, and the flags are read once more."""
    boxes = op.inputs[0].shape[0]
    pairs = boxes * (boxes - 1) // 2
    flags = boxes * math.ceil(boxes / _FLAG_BITS) * _FLAG_BITS // 8
    sorting = boxes * max(boxes - 1, 1).bit_length()
    flops = _OVERLAP_FLOPS * pairs + sorting
    return Cost(flops, read(op.inputs) + flags, written(op.outputs) + flags)


@cost("torchvision.deform_conv2d", kind=Kind.RESAMPLING)
def _deformed(op: Op) -> Cost:
    """The points under each kernel are gathered into columns, then multiplied by the weights."""
    image, weight, out = op.inputs[0], op.inputs[1], op.outputs[0]
    points = out.numel // max(weight.shape[0], 1) * math.prod(weight.shape[2:]) * image.shape[1]
    columns = points * item_bytes(image)
    product = 2 * out.numel * math.prod(weight.shape[1:])
    flops = _BILINEAR_FLOPS * points + product
    return Cost(flops, read(op.inputs) + columns, written(op.outputs) + columns)


@cost("torchvision._deform_conv2d_backward", kind=Kind.RESAMPLING)
def _deformed_backward(op: Op) -> Cost:
    """Two matmuls and two passes over the columns, for the image and for the weights."""
    gradient, image, weight = op.inputs[:3]
    points = (
        gradient.numel // max(weight.shape[0], 1) * math.prod(weight.shape[2:]) * image.shape[1]
    )
    columns = points * item_bytes(image)
    product = 2 * gradient.numel * math.prod(weight.shape[1:])
    flops = 3 * _BILINEAR_FLOPS * points + 2 * product
    return Cost(flops, read(op.inputs) + 2 * columns, written(op.outputs) + 2 * columns)
