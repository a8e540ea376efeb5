"""The cost of pooling and resampling."""

from __future__ import annotations

import math

from wavecast.ops.registry import Cost, Kind, aten, cost, integers, read, stored, streaming, written
from wavecast.traces.step import Op

_WINDOWED = """
    max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d fractional_max_pool2d
    fractional_max_pool3d
"""
_SUMS_BACK = "avg_pool2d_backward avg_pool3d_backward"


def window(op: Op) -> int:
    """The number of points under one window, at most those of the image.

    A single side length counts for all dimensions.
    """
    sides = integers(op, "kernel_size")
    spatial = 3 if "3d" in op.base else 2
    if len(sides) == 1:
        sides = sides * spatial
    image = max(op.inputs[:2], key=lambda t: t.numel)
    return min(math.prod(sides), math.prod(image.shape[-spatial:]))


@cost(*aten(_WINDOWED), kind=Kind.POOLING)
def _pool(op: Op) -> Cost:
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
