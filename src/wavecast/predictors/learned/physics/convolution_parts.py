"""A convolution as parts: one for each of its passes, and what torch does before and after them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wavecast import ops
from wavecast.ops import convolution
from wavecast.ops.registry import integer, integers, item_bytes, stored
from wavecast.predictors.learned.autotuned import MARK
from wavecast.predictors.learned.gpus import CODES
from wavecast.predictors.learned.physics import passes
from wavecast.predictors.learned.physics.columns import (
    FORWARD,
    OF_IMAGE,
    OF_WEIGHT,
    ConvolutionRow,
    ProductRow,
)
from wavecast.predictors.learned.physics.part import Part, alone, copied
from wavecast.traces.step import Op, TensorSpec


def parts_of(op: Op) -> tuple[Part, ...]:
    """The forward pass or, for a backward op, one part for each requested gradient.

    The forward pass of a transposed convolution is the image gradient of a plain one.
    """
    return (*_passes_of_convolution(op), *map(_reordered, _unlike(op)))


def _unlike(op: Op) -> Iterator[TensorSpec]:
    """The images that are first copied to channels-last, because another operand is in it.

    torch does so if the image or the weight is in channels-last (cudnn_conv_suggest_memory_format).
    """
    operands = op.inputs[: 3 if "backward" in op.base else 2]
    if any(t.channels_last for t in operands):
        for t in operands:
            images = len(t.shape) == 4 and t is not operands[-1]
            if images and t.strides is None and min(t.shape[1], math.prod(t.shape[2:])) > 1:
                yield t


def _reordered(image: TensorSpec) -> Part:
    """The copy of an image to channels-last."""
    _, c, h, w = image.shape
    return copied(image, (c * h * w, 1, c * w, c))


def _passes_of_convolution(op: Op) -> tuple[Part, ...]:
    transposed = bool(op.attr("transposed", False)) or "transpose" in op.base
    if "backward" not in op.base:
        image, weight, out = op.inputs[0], op.inputs[1], op.outputs[0]
        biased = len(op.inputs) > 2 and len(op.inputs[2].shape) == 1
        bias = (Part("stream", passes.row_over(out, stored(out), row_width=1)),) if biased else ()
        if transposed:
            image, out = out, image
        return (_convolution(op, OF_IMAGE if transposed else FORWARD, image, weight, out), *bias)
    out, image, weight = op.inputs[:3]
    wants = integers(op, "output_mask") or (1, 1, 1)
    if transposed:
        image, out = out, image
    parts = []
    if wants[0]:
        parts.append(_convolution(op, FORWARD if transposed else OF_IMAGE, image, weight, out))
    if wants[1]:
        parts.append(_convolution(op, OF_WEIGHT, image, weight, out))
    if len(wants) > 2 and wants[2]:
        parts.append(_sum_by_channel(op.inputs[0]))
    return tuple(parts)


def _sum_by_channel(gradient: TensorSpec) -> Part:
    """The gradient of the bias, for which torch sums over images and points."""
    over = tuple(axis for axis in range(len(gradient.shape)) if axis != 1)
    bias = TensorSpec(gradient.shape[1:2], gradient.dtype)
    return alone(Op("aten.sum.dim_IntList", (gradient,), (bias,), (("dim", over),)))


def _convolution(
    op: Op, computes: float, image: TensorSpec, weight: TensorSpec, out: TensorSpec
) -> Part:
    """One pass of a convolution of `image` to `out`."""
    if _is_matmul(op, image, weight, out):
        return Part("product", _point_product(op, computes, image, out))
    groups = max(integer(op, "groups", 1), 1)
    images, channels, filters = image.shape[0], image.shape[1], out.shape[1]
    taps = math.prod(weight.shape[2:])
    image_points, out_points = math.prod(image.shape[2:]), math.prod(out.shape[2:])
    flops = 2.0 * images * out_points * filters * channels / groups * taps
    m: float
    if computes == FORWARD:
        m, n = images * out_points, filters / groups
    elif computes == OF_IMAGE:
        m, n = images * image_points, channels / groups
    else:
        m, n = filters / groups, channels / groups * taps
    channels_last = any(t.channels_last for t in op.inputs[:3])
    pointwise = taps == 1 and image_points == out_points
    row = ConvolutionRow(
        computes=computes,
        groups=groups,
        m=m,
        n=n,
        k=flops / (2.0 * groups * m * n) if m * n else 0.0,
        item_bytes=item_bytes(image),
        unit=CODES[ops.unit(op)],
        converted=not (channels_last or pointwise),
        image_bytes=stored(image),
        out_bytes=stored(out),
        weight_bytes=stored(weight),
        taps=taps,
        stride_area=max(image_points / max(out_points, 1), 1.0),
        channels=channels / groups,
        filters=filters / groups,
        out_points=out_points,
        dilated=any(d > 1 for d in integers(op, "dilation")),
        of_sequences=len(image.shape) == 3,
        images=images,
        channels_last=channels_last,
        benchmarked=bool(op.attr("benchmark", False)),
        by_torch=convolution.by_torch(op),
        bfloat16=image.dtype == "bfloat16",
        tf32=op.attr("precision") == "tf32",
        alignment=math.gcd(image_points, 8) if pointwise and not channels_last else 8,
    )
    return Part(_model_of_convolution(op, weight), row)


def _is_matmul(op: Op, image: TensorSpec, weight: TensorSpec, out: TensorSpec) -> bool:
    """Whether cuDNN computes a convolution by cuBLAS's matmuls, as it is in memory.

    It does so in 16 bits for filters of one point without a stride, in channels-last; and for
    images as torch stores them, if their rows begin at multiples of 16 bytes. XLA chooses itself.
    """
    points = math.prod(image.shape[2:])
    plain = len(image.shape) < 5 and max(weight.shape[2:], default=0) == 1
    plain = plain and image.shape[2:] == out.shape[2:] and item_bytes(image) == 2
    if not plain or integer(op, "groups", 1) > 1 or op.attr(MARK, False):
        return False
    aligned = math.gcd(points, image.shape[1], out.shape[1], 8) == 8
    return any(t.channels_last for t in op.inputs[:3]) or aligned


def _point_product(op: Op, computes: float, image: TensorSpec, out: TensorSpec) -> ProductRow:
    """The matmul of a pass of a convolution with filters of one point, for all images or each."""
    images, channels, filters = image.shape[0], image.shape[1], out.shape[1]
    last, points = any(t.channels_last for t in op.inputs[:3]), math.prod(image.shape[2:])
    of_weight, forward = computes == OF_WEIGHT, computes == FORWARD
    wide, deep = (filters, channels) if forward else (channels, filters)
    batch, m, n, k = (1, images * points, wide, deep) if last else (images, wide, points, deep)
    if of_weight:
        batch, m, n, k = 1, filters, channels, images * points
    return ProductRow(
        batch=batch,
        m=m,
        n=n,
        k=k,
        item_bytes=item_bytes(image),
        moved_bytes=stored(image) + stored(out) + item_bytes(image) * channels * filters,
        unit=CODES[ops.unit(op)],
        alignment=math.gcd(channels, filters, 16 if last else math.gcd(points, 16)),
        a_by_columns=last and of_weight,
        b_by_columns=of_weight != last and (of_weight or forward),
    )


def _model_of_convolution(op: Op, weight: TensorSpec) -> str:
    """The model of a convolution; XLA takes other depthwise kernels of cuDNN than torch does."""
    if not convolution.depthwise(op):
        return "convolution"
    return "xla_depthwise" if op.attr(MARK, False) and len(weight.shape) == 4 else "depthwise"
