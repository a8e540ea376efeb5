"""Convolutions: what physics says of kernels that libraries lack."""

from __future__ import annotations

import pytest

from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import parts_of
from wavecast.predictors.learned.columns import ConvolutionRow, ProductRow, columns_of
from wavecast.predictors.learned.convolutions import (
    DEPTHWISE_PARAMETERS,
    depthwise_limits,
)
from wavecast.predictors.learned.gpus import gpu_of
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op, Scalar, TensorSpec


def seconds(size: int, taps: int, dilation: int = 1, *, channels_last: bool = True) -> float:
    """The time of the forward pass over 16 images of 1,024 channels in bfloat16."""
    strides = (1024 * size * size, 1, 1024 * size, 1024) if channels_last else None
    image = TensorSpec((16, 1024, size, size), "bfloat16", strides)
    weight = TensorSpec((1024, 1, taps, taps), "bfloat16")
    attrs: tuple[tuple[str, Scalar], ...] = (("groups", 1024), ("dilation", (dilation, dilation)))
    (part,) = (
        part
        for part in parts_of(Op("aten.convolution", (image, weight), (image,), attrs))
        if isinstance(part.row, ConvolutionRow)
    )
    theta = {name: start for name, (start, _, _) in DEPTHWISE_PARAMETERS.items()}
    facts = gpu_of(device("h200-sxm"))
    assert part.model == "depthwise"
    assert facts is not None
    return float(depthwise_limits(columns_of([part.row]), facts, theta).seconds()[0])


def test_dilated_depthwise_filters_have_a_slow_kernel_in_channels_last() -> None:
    """3 x 3 with dilation 6 took 803 us on our H200, ten times as long as without dilation."""
    assert seconds(32, 3, dilation=6) == pytest.approx(803e-6, rel=0.15)
    assert seconds(32, 3) < 0.2 * seconds(32, 3, dilation=6)
    assert seconds(32, 3, 6, channels_last=False) == seconds(32, 3, 1, channels_last=False)


@pytest.mark.parametrize("taps", [2, 4, 9])
def test_so_have_filters_of_even_or_long_sides(taps: int) -> None:
    assert seconds(32, taps) > 2 * seconds(32, 3)


LEARNED = Learned.shipped()
H200 = device("h200-sxm")


def convolved(
    image: tuple[int, ...], weight: tuple[int, ...], dtype: str, *, last: bool, stride: int = 1
) -> Op:
    """The forward pass of a convolution whose groups follow from its channels."""
    batch, channels, side, _ = image
    out = (batch, weight[0], side // stride, side // stride)

    def laid_out(shape: tuple[int, ...]) -> TensorSpec:
        _, c, h, w = shape
        return TensorSpec(shape, dtype, (c * h * w, 1, c * w, c) if last else None)

    attrs: tuple[tuple[str, Scalar], ...] = (
        *(("stride", (stride, stride)), ("padding", (weight[2] // 2,) * 2)),
        ("groups", channels // weight[1]),
    )
    return Op("aten.convolution", (laid_out(image), TensorSpec(weight, dtype)),
              (laid_out(out),), attrs)  # fmt: skip


def backward(op: Op, wants: tuple[bool, bool, bool] = (True, True, False)) -> Op:
    image, weight = op.inputs
    attrs = (*op.attrs, ("output_mask", wants))
    return Op("aten.convolution_backward", (op.outputs[0], image, weight), (image, weight), attrs)


MEASURED = {
    # microseconds of cuDNN 9.19 on our H200; none of these rows is in a fit
    "7 x 7 with two filters for each channel": (
        convolved((64, 64, 64, 64), (128, 1, 7, 7), "bfloat16", last=True, stride=2), 1368),
    "the same of smaller images": (
        convolved((64, 256, 16, 16), (512, 1, 7, 7), "bfloat16", last=True, stride=2), 1358),
    "depthwise in float16": (
        backward(convolved((48, 1024, 7, 7), (1024, 1, 5, 5), "float16", last=False)), 52),
    "depthwise of torch": (
        backward(convolved((64, 256, 56, 56), (256, 1, 3, 3), "bfloat16", last=False)), 1566),
    "56 channels in a group": (
        backward(convolved((64, 896, 14, 14), (896, 56, 3, 3), "bfloat16", last=True)), 495),
    "four channels in a group": (
        backward(convolved((64, 128, 56, 56), (128, 4, 3, 3), "float16", last=True)), 893),
    "one point": (convolved((8, 256, 64, 64), (1024, 256, 1, 1), "bfloat16", last=False), 33),
    "one point in channels-last": (
        backward(convolved((64, 256, 7, 7), (1536, 256, 1, 1), "float16", last=True)), 15),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURED)
def test_what_cudnn_does_is_met_roughly(name: str) -> None:
    op, measured_us = MEASURED[name]
    answer = LEARNED.predict(op, H200)
    assert answer is not None
    assert 0.6 < answer.seconds * 1e6 / measured_us < 1.6


def test_aligned_filters_of_one_point_are_matmuls_in_16_bits() -> None:
    def models(side: int, dtype: str, *, last: bool) -> list[str]:
        op = convolved((4, 64, side, side), (128, 64, 1, 1), dtype, last=last)
        return [part.model for part in parts_of(op)]

    assert models(8, "bfloat16", last=False) == ["product"]
    assert models(7, "bfloat16", last=False) == ["convolution"], "49 points are not aligned"
    assert models(7, "bfloat16", last=True) == ["product"]
    assert models(8, "float32", last=True) == ["convolution"]


@pytest.mark.parametrize("last", [False, True])
def test_such_a_matmul_has_the_flops_of_the_convolution(last: bool) -> None:
    op = convolved((4, 64, 8, 8), (128, 64, 1, 1), "bfloat16", last=last)
    for both in (op, backward(op)):
        rows = [part.row for part in parts_of(both) if isinstance(part.row, ProductRow)]
        assert len(rows) == (1 if both is op else 2)
        flops = sum(2 * row.batch * row.m * row.n * row.k for row in rows)
        assert flops == 2 * 4 * 64 * 64 * 128 * len(rows)


def test_the_gradient_of_a_bias_is_a_sum() -> None:
    op = convolved((4, 64, 8, 8), (128, 64, 3, 3), "bfloat16", last=True)
    *_, bias = parts_of(backward(op, (True, True, True)))
    gradient = op.outputs[0]
    summed = Op("aten.sum.dim_IntList", (gradient,), (TensorSpec((128,), "bfloat16"),),
                (("dim", (0, 2, 3)),))  # fmt: skip
    assert (bias,) == parts_of(summed)
