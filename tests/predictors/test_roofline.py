"""The physical bound, compared with values computed by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from made import copy_to_gpu, mm, relu, tensor

from wavecast.hardware.devices import Device, available, device
from wavecast.ops import Kind, Unit
from wavecast.predictors import attainable
from wavecast.predictors.attainable import Roofline, bound, limits
from wavecast.traces.step import Op

GPU = Device(
    id="round",
    name="Round numbers",
    vendor="us",
    architecture="none",
    memory_bytes=1 << 30,
    memory_bytes_per_s=1e9,
    fp32_flops=1e12,
    fp16_flops=2e12,
    bf16_tensor_flops=1e13,
    pcie_bytes_per_s=1e8,
)


def test_a_large_product_takes_its_flops_over_the_rate() -> None:
    least = bound(mm(10_000, 10_000, 10_000), GPU)
    assert least == attainable.Bound(2e12 / 1e12, Kind.MATMUL, Unit.FP32)


def test_bf16_runs_on_tensor_cores_which_memory_may_not_keep_busy() -> None:
    memory, compute = limits(mm(10_000, 10_000, 10_000, "bfloat16"), GPU)
    assert (compute.unit, compute.seconds) == (Unit.BF16_TENSOR, 2e12 / 1e13)
    assert memory.seconds == pytest.approx(600e6 / 1e9)
    assert bound(mm(10_000, 10_000, 10_000, "bfloat16"), GPU) == memory


def test_an_elementwise_op_takes_its_bytes_over_the_bandwidth() -> None:
    assert bound(relu(1_000_000), GPU) == attainable.Bound(8e6 / 1e9, Kind.ELEMENTWISE, None)


def test_limits_are_memory_then_arithmetic() -> None:
    memory, compute = limits(mm(1000, 1000, 1000), GPU)
    assert (memory.unit, compute.unit) == (None, Unit.FP32)
    assert memory.seconds == pytest.approx(12e6 / 1e9)
    assert compute.seconds == pytest.approx(2e9 / 1e12)


def test_a_copy_from_the_host_takes_its_bytes_over_the_link() -> None:
    assert bound(copy_to_gpu(1000, 1000), GPU) == attainable.Bound(4e6 / 1e8, Kind.COPY, None)


def test_a_copy_into_a_tensor_of_the_gpu_crosses_the_link_too() -> None:
    here, there = tensor(1000), tensor(1000, device="cpu")
    into = Op("aten.copy_", (here, there), (here,))
    within = Op("aten.copy_", (here, here), (here,))
    crossing, inside = bound(into, GPU), bound(within, GPU)
    assert crossing is not None
    assert inside is not None
    assert crossing.seconds == 4000 / 1e8
    assert inside.seconds == 8000 / 1e9


@pytest.mark.parametrize(
    ("unit", "lost", "used"),
    [
        (Unit.BF16_TENSOR, (), Unit.BF16_TENSOR),
        (Unit.BF16_TENSOR, ("bf16_tensor_flops",), Unit.FP32),
        (Unit.FP16_TENSOR, (), Unit.FP16),
        (Unit.FP16_TENSOR, ("fp16_flops",), Unit.FP32),
        (Unit.TF32_TENSOR, (), Unit.FP32),
        (Unit.FP8_TENSOR, (), None),
        (Unit.INT8_TENSOR, (), None),
        (Unit.FP64, (), None),
    ],
)
def test_a_missing_unit_is_replaced_by_what_the_gpu_would_use(
    unit: Unit, lost: tuple[str, ...], used: Unit | None
) -> None:
    unknown_there: dict[str, Any] = dict.fromkeys(lost)
    assert available(unit, dataclasses.replace(GPU, **unknown_there)) == used


def test_the_roofline_answers_with_the_bound_and_an_open_range() -> None:
    answer = Roofline(worst=0.25).predict(relu(1_000_000), GPU)
    assert answer is not None
    assert (answer.seconds, answer.low_s) == (8e-3, 8e-3)
    assert answer.high_s == pytest.approx(32e-3)
    assert answer.source == "roofline"


def test_a_tensor_core_makes_half_precision_faster_on_a_real_gpu() -> None:
    h100 = device("h100-sxm-80gb")
    full, half = (bound(mm(8192, 8192, 8192, t), h100) for t in ("float32", "bfloat16"))
    assert full is not None
    assert half is not None
    assert 10 < full.seconds / half.seconds < 20
