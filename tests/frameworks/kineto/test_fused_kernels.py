"""Kernels of torch.compile, read from the arguments that the profiler recorded."""

from __future__ import annotations

from typing import Any

import pytest

from wavecast.frameworks.kineto.calls import fused_op
from wavecast.hardware.devices import device
from wavecast.predictors.habitat import Habitat
from wavecast.traces.step import Call, Kernel, Phase


def recorded(shapes: list[list[int]], numbers: list[int], dtype: str = "float") -> dict[str, Any]:
    return {
        "Input Dims": [*shapes, *([] for _ in numbers)],
        "Input type": [*[dtype] * len(shapes), *["Scalar"] * len(numbers)],
        "Concrete Inputs": [*[""] * len(shapes), *map(str, numbers)],
    }


def test_points_and_bytes_of_a_pointwise_kernel() -> None:
    op = fused_op("triton_poi_fused_add_gelu_3", recorded([[64, 32], [32], [64, 32]], [2048]))
    assert op.name == "inductor.pointwise"
    assert (op.attr("points"), op.attr("reduction")) == (2048, 1)
    assert (op.attr("read_bytes"), op.attr("write_bytes")) == (4 * 2048 + 4 * 32, 4 * 2048)


def test_two_numbers_of_points_are_multiplied() -> None:
    op = fused_op("triton_poi_fused_clone_1", recorded([[64, 32], [32, 64]], [64, 32]))
    assert op.attr("points") == 2048


@pytest.mark.parametrize(
    ("letters", "name"),
    [("red", "inductor.reduction"), ("per", "inductor.persistent_reduction")],
)
def test_reductions_have_rows_and_terms(letters: str, name: str) -> None:
    op = fused_op(f"triton_{letters}_fused_sum_0", recorded([[64, 32], [64]], [64, 32]))
    assert op.name == name
    assert (op.attr("points"), op.attr("reduction")) == (64, 32)


def test_without_shapes_only_the_name_is_known() -> None:
    assert fused_op("triton_poi_fused_add_0", {}).name == "triton.triton_poi_fused_add_0"
    own = fused_op("triton_my_kernel", recorded([[64, 32], [64, 32]], [2048]))
    assert own.name == "triton.triton_my_kernel"


def test_a_large_kernel_scales_with_the_bandwidth() -> None:
    shape = [8192, 8192]
    op = fused_op("triton_poi_fused_add_0", recorded([shape, shape, shape], [1 << 26]))
    kernel = Kernel("triton_poi_fused_add_0", 200e-6, (65536, 1, 1), (128, 1, 1), 32, 0)
    call = Call(op, Phase.FORWARD, kernels=(kernel,))
    h200, a100 = device("h200-sxm"), device("a100-sxm-80gb")
    scaled = Habitat.shipped().scale_call(call, h200, a100)
    assert scaled is not None
    bandwidths = h200.memory_bytes_per_s / a100.memory_bytes_per_s
    assert scaled.seconds / 200e-6 == pytest.approx(bandwidths, rel=0.15)
