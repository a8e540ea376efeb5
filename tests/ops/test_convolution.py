"""Which library runs a depthwise convolution."""

from __future__ import annotations

import pytest
from made import tensor

from wavecast.ops import convolution
from wavecast.traces.step import Op, TensorSpec


def depthwise(
    images: int, channels: int, side: int, taps: int, dtype: str, stride: int = 1,
    dilation: int = 1, last: bool = False,
) -> Op:  # fmt: skip
    strides = (channels * side * side, 1, channels * side, channels) if last else None
    image = TensorSpec((images, channels, side, side), dtype, strides)
    attrs = (
        *(("groups", channels), ("stride", (stride, stride))),
        ("dilation", (dilation, dilation)),
    )
    weight = tensor(channels, 1, taps, taps, dtype=dtype)
    return Op("aten.convolution", (image, weight), (image,), attrs)


@pytest.mark.parametrize(
    ("op", "by_torch"),
    [
        (depthwise(8, 64, 14, 3, "float32"), True),
        (depthwise(8, 64, 14, 3, "bfloat16"), True),
        (depthwise(8, 64, 14, 3, "bfloat16", last=True), False),
        (depthwise(8, 64, 14, 3, "float16"), False),
        (depthwise(8, 64, 14, 7, "float16"), True),
        (depthwise(8, 64, 6, 3, "float16"), True),
        (depthwise(8, 24, 14, 3, "float16"), True),
        (depthwise(8, 64, 14, 3, "float16", dilation=2), True),
        (depthwise(8, 64, 14, 3, "float16", stride=2), True),
        (depthwise(8, 512, 14, 3, "float16", stride=2), False),
        (depthwise(8, 256, 28, 3, "float16", stride=2), False),
        (depthwise(1, 64, 14, 3, "float16", stride=2), False),
    ],
)
def test_torch_runs_depthwise_filters_unless_cudnn_is_faster(op: Op, by_torch: bool) -> None:
    """These were read off 500 depthwise convolutions on our H200, all of which the rule meets."""
    assert convolution.by_torch(op) is by_torch


def test_a_sequence_in_float16_is_for_cudnn() -> None:
    image, weight = tensor(8, 512, 499, dtype="float16"), tensor(512, 1, 31, dtype="float16")
    attrs = (("groups", 512), ("stride", (1,)), ("dilation", (1,)))
    assert not convolution.by_torch(Op("aten.convolution", (image, weight), (image,), attrs))


def test_torch_has_kernels_of_its_own_for_depthwise_filters_only() -> None:
    image, weight = tensor(8, 64, 14, 14), tensor(64, 2, 3, 3)
    op = Op("aten.convolution", (image, weight), (image,), (("groups", 32),))
    assert not convolution.by_torch(op)
