"""Convolutions: what physics says of kernels that libraries lack."""

from __future__ import annotations

import pytest

from wavecast.hardware.devices import device
from wavecast.predictors.learned.gpus import gpu_of
from wavecast.predictors.learned.physics.columns import ConvolutionRow, columns_of
from wavecast.predictors.learned.physics.depthwise import (
    DEPTHWISE_PARAMETERS,
    depthwise_limits,
)
from wavecast.predictors.learned.physics.parts import parts_of
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
