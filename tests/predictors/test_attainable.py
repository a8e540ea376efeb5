"""Attainable shares of the roofline: the formula, its fallbacks, and the shipped fit."""

from __future__ import annotations

import dataclasses

import pytest
from made import mm, relu, tensor

from wavecast.hardware.devices import device
from wavecast.predictors.attainable import Attainable, Attained, bound, group_of, limits
from wavecast.traces.step import Op

L4 = device("l4")


def attained(share: float, floor_s: float = 0.0, low: float = 0.5, high: float = 2) -> Attained:
    return Attained(share, floor_s, low, high, ops=1, gpus=1)


OTHER = attained(0.5)


def seconds(shares: dict[str, Attained], op: Op) -> float:
    answer = Attainable({"other": OTHER} | shares).predict(op, L4)
    assert answer is not None
    return answer.seconds


def least(op: Op) -> float:
    least = bound(op, L4)
    assert least is not None
    return least.seconds


def test_an_op_takes_its_floor_and_its_bound_over_the_share() -> None:
    shares = {"elementwise/memory": attained(0.25, 1e-3)}
    assert seconds(shares, relu(1 << 20)) == pytest.approx(1e-3 + least(relu(1 << 20)) / 0.25)


def test_the_slower_of_the_two_limits_counts() -> None:
    op = mm(64, 64, 64)
    memory, compute = limits(op, L4)
    assert memory.seconds > compute.seconds
    shares = {"matmul/memory": attained(1.0), "matmul/cores": attained(0.01)}
    assert seconds(shares, op) == pytest.approx(compute.seconds / 0.01)


def test_the_range_is_that_of_the_limit_that_counts_but_not_below_physics() -> None:
    op = relu(1 << 20)
    shares = {"other": OTHER, "elementwise/memory": attained(0.8, low=0.5, high=3)}
    answer = Attainable(shares).predict(op, L4)
    assert answer is not None
    assert answer.low_s == least(op)
    assert answer.high_s == pytest.approx(3 * answer.seconds)


@pytest.mark.parametrize(
    ("known", "share"),
    [
        (("matmul/tensor", "matmul/cores"), 0.1),
        (("matmul/cores", "matmul/memory"), 0.1),
        (("matmul/memory",), 0.1),
        ((), 0.5),
    ],
)
def test_a_group_that_was_not_measured_gets_the_nearest_share(
    known: tuple[str, ...], share: float
) -> None:
    op = mm(4096, 4096, 4096, "float16")
    shares = dict.fromkeys(known[:1], attained(0.1)) | dict.fromkeys(known[1:], attained(0.9))
    assert seconds(shares, op) == pytest.approx(least(op) / share)


def test_groups_are_named_by_kind_and_limit() -> None:
    image, filters = tensor(8, 64, 32, 32), tensor(64, 1, 3, 3)
    depthwise = Op("aten.convolution", (image, filters), (image,), (("groups", 64),))
    for op, group in (
        (mm(4096, 4096, 4096, "bfloat16"), "matmul/tensor"),
        (mm(4096, 4096, 4096), "matmul/cores"),
        (relu(8), "elementwise/memory"),
        (depthwise, "depthwise/memory"),
    ):
        least = bound(op, L4)
        assert least is not None
        assert group_of(op, least) == group


def test_more_bandwidth_does_not_help_an_op_that_is_far_from_memory_bound() -> None:
    wide = dataclasses.replace(L4, memory_bytes_per_s=2 * L4.memory_bytes_per_s)
    op = mm(8192, 8192, 8192)
    shipped = Attainable.shipped()
    assert shipped.predict(op, L4) == shipped.predict(op, wide)
