"""Costs of torchvision's ops, and of sums of three factors, compared with hand-computed numbers."""

from __future__ import annotations

import pytest

from wavecast.ops import Cost, cost_of
from wavecast.traces.step import Op, Scalar, TensorSpec

BOXES = 100


def f32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, "float32")


def _op(name: str, inputs: list[TensorSpec], outputs: list[TensorSpec], **attrs: Scalar) -> Op:
    return Op(name, tuple(inputs), tuple(outputs), tuple(attrs.items()))


def _align(boxes: int, side: int = 200) -> Op:
    image, rois, out = f32(2, 256, side, side), f32(boxes, 5), f32(boxes, 256, 7, 7)
    return _op("torchvision.roi_align", [image, rois], [out], sampling_ratio=2)


def test_regions_read_four_neighbours_of_each_of_their_points() -> None:
    points = 10 * 256 * 7 * 7 * 4
    assert cost_of(_align(10)) == Cost(10 * points, 4 * points * 4 + 10 * 5 * 4, points)


def test_many_regions_read_the_image_once() -> None:
    image = 2 * 256 * 50 * 50 * 4
    cost = cost_of(_align(1000, side=50))
    assert cost is not None
    assert cost.read_bytes == image + 1000 * 5 * 4


def test_the_gradient_of_regions_fills_and_adds() -> None:
    gradient, rois, image = f32(10, 256, 7, 7), f32(10, 5), f32(2, 256, 200, 200)
    op = _op("torchvision._roi_align_backward", [gradient, rois], [image], sampling_ratio=2)
    touched = 4 * 10 * 256 * 49 * 4 * 4
    cost = cost_of(op)
    assert cost is not None
    assert cost.written_bytes == 2 * 256 * 200 * 200 * 4 + touched


def test_suppression_compares_each_pair_of_boxes() -> None:
    kept = TensorSpec((BOXES,), "int64")
    op = _op("torchvision.nms", [f32(BOXES, 4), f32(BOXES)], [kept])
    flags = BOXES * 2 * 8  # two words of 64 flags for each box
    compared = 15 * BOXES * (BOXES - 1) // 2
    assert cost_of(op) == Cost(compared + BOXES * 7, BOXES * 20 + flags, BOXES * 8 + flags)


def test_a_deformed_convolution_has_the_flops_of_a_plain_one_and_of_its_columns() -> None:
    image, weight, offsets = f32(1, 8, 10, 10), f32(16, 8, 3, 3), f32(1, 18, 8, 8)
    out = f32(1, 16, 8, 8)
    cost = cost_of(_op("torchvision.deform_conv2d", [image, weight, offsets], [out]))
    columns = 8 * 8 * 9 * 8
    assert cost is not None
    assert cost.flops == 2 * 16 * 64 * 8 * 9 + 10 * columns


@pytest.mark.parametrize(("expand", "flops"), [(((1, 3), (0,), (1, 2)), 2 * 4 * 5 * 8 * 6)])
def test_a_sum_of_three_factors_multiplies_every_combination(
    expand: tuple[tuple[int, ...], ...], flops: int
) -> None:
    attrs: dict[str, Scalar] = {f"expand{n}": dims for n, dims in enumerate(expand, start=1)}
    op = _op("aten._trilinear", [f32(4, 8), f32(5, 8, 6), f32(4, 6)], [f32(4, 5)], **attrs)
    cost = cost_of(op)
    assert cost is not None
    assert cost.flops == flops
