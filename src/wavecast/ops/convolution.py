"""The cost of convolutions. Traffic is that of the tensors, without im2col or filter transforms."""

from __future__ import annotations

import math

from wavecast.ops.registry import (
    Cost,
    Kind,
    aten,
    cost,
    executed,
    integer,
    integers,
    item_bytes,
    read,
    stored,
    streaming,
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


# Pooling and resampling.


_WINDOWED = """
    max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d fractional_max_pool2d
    fractional_max_pool3d
"""
_SUMS_BACK = "avg_pool2d_backward avg_pool3d_backward"


def window(op: Op) -> int:
    """The points under one window, at most those of the image; a single side is that of all."""
    sides = integers(op, "kernel_size")
    spatial = 3 if "3d" in op.base else 2
    if len(sides) == 1:
        sides = sides * spatial
    image = max(op.inputs[:2], key=lambda t: t.numel)
    return min(math.prod(sides), math.prod(image.shape[-spatial:]))


@cost(*aten(_WINDOWED), kind=Kind.POOLING)
def _pooled(op: Op) -> Cost:
    return Cost(op.outputs[0].numel * window(op), read(op.inputs), written(op.outputs))


@cost(*aten(_SUMS_BACK), kind=Kind.POOLING)
def _average_backward(op: Op) -> Cost:
    """Only the shape of the forward input is used."""
    return Cost(op.inputs[0].numel * window(op), read(op.inputs[:1]), written(op.outputs))


streaming(
    Kind.POOLING,
    """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d max_unpool2d
    max_unpool3d
    """,
    flops=1,
)
# The inputs are the gradient, the forward input (for its shape) and the positions of maxima.
streaming(
    Kind.POOLING,
    """
    _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_avg_pool3d_backward
    adaptive_max_pool2d_backward adaptive_max_pool3d_backward fractional_max_pool2d_backward
    fractional_max_pool3d_backward max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward
    """,
    flops=1,
    reads=slice(0, None, 2),
)

# FLOPs per output point: the weighted sum over its neighbours, and the weights.
_INTERPOLATION = {
    1: """
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
        _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_nearest1d_backward
        upsample_nearest2d_backward upsample_nearest3d_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward
    """,
    4: "upsample_linear1d",
    10: "upsample_bilinear2d _upsample_bilinear2d_aa affine_grid_generator",
    20: "upsample_trilinear3d grid_sampler_2d cudnn_grid_sampler",
    40: """
        upsample_bicubic2d _upsample_bicubic2d_aa _upsample_lanczos2d_aa grid_sampler_3d
    """,
}
for _flops, _names in _INTERPOLATION.items():
    streaming(Kind.RESAMPLING, _names, flops=_flops)


@cost(
    *aten("""
        upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward
        upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward
        _upsample_bicubic2d_aa_backward _upsample_lanczos2d_aa_backward grid_sampler_2d_backward
        grid_sampler_3d_backward cudnn_grid_sampler_backward
    """),
    kind=Kind.RESAMPLING,
)
def _spread(op: Op) -> Cost:
    """Points share neighbours, so the first gradient is zeroed, then read, added to and written."""
    shared = stored(op.outputs[0])
    return Cost(
        20 * op.inputs[0].numel,
        read(op.inputs) + shared,
        written(op.outputs) + shared,
    )


# torchvision's ops, which detectors use.


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
