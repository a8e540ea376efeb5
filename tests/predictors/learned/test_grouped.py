"""Grouped products, as in mixtures of experts: their parts and their predicted times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made import tensor

from lab.fit.grouped import fit, in_one_kernel, measured_s, op_of, read, said
from wavecast import ops
from wavecast.hardware.devices import Device, Fact, device
from wavecast.ops import matmul
from wavecast.predictors.base import Spread
from wavecast.predictors.learned.batch import parts_of
from wavecast.predictors.learned.columns import (
    EQUAL,
    OF_K,
    OF_M,
    OF_N,
    ProductRow,
)
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op, TensorSpec

LEARNED = Learned.shipped()
HOPPER, AMPERE = device("h100-sxm-80gb"), device("a100-sxm-80gb")


def grouped(a: TensorSpec, b: TensorSpec, *out: int, dtype: str = "bfloat16") -> Op:
    offsets = (TensorSpec((8,), "int32"),)
    return Op("aten._grouped_mm", (a, b, *offsets), (tensor(*out, dtype=dtype),))


def rows_split(rows: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> Op:
    """The forward product of a layer of experts."""
    a, b = tensor(rows, k, dtype=dtype), tensor(groups, k, n, dtype=dtype)
    return grouped(a, b, rows, n, dtype=dtype)


def batched(groups: int, m: int, k: int, n: int, dtype: str = "bfloat16") -> Op:
    a, b = tensor(groups, m, k, dtype=dtype), tensor(groups, k, n, dtype=dtype)
    return Op("aten.bmm", (a, b), (tensor(groups, m, n, dtype=dtype),))


def half(*shape: int) -> TensorSpec:
    return tensor(*shape, dtype="bfloat16")


FORMS = {
    "rows": (grouped(half(640, 32), half(8, 32, 16), 640, 16), (8, 80, 16, 32), OF_M),
    "columns": (grouped(half(8, 32, 16), half(16, 640), 32, 640), (8, 32, 80, 16), OF_N),
    "terms": (grouped(half(32, 640), half(640, 16), 8, 32, 16), (8, 32, 16, 80), OF_K),
    "batch": (grouped(half(8, 80, 32), half(8, 32, 16), 8, 80, 16), (8, 80, 16, 32), EQUAL),
}


@pytest.mark.parametrize("form", FORMS)
def test_groups_have_equal_sizes(form: str) -> None:
    op, sizes, ragged = FORMS[form]
    assert matmul.groups(op) == sizes
    (part,) = parts_of(op)
    assert isinstance(part.row, ProductRow)
    assert (part.row.batch, part.row.m, part.row.n, part.row.k) == sizes
    assert part.row.ragged == ragged
    cost = ops.cost_of(op)
    assert cost is not None
    assert cost.flops == 2 * 8 * 80 * 32 * 16


def seconds(op: Op, gpu: Device, learned: Learned = LEARNED) -> float:
    answer = learned.predict(op, gpu)
    assert answer is not None
    return answer.seconds


def test_a_gpu_without_a_kernel_for_groups_takes_one_after_the_other() -> None:
    op, single = rows_split(8192, 128, 2048, 1536), batched(1, 64, 2048, 1536)
    assert seconds(op, AMPERE) == pytest.approx(128 * seconds(single, AMPERE), rel=1e-6)
    assert seconds(op, HOPPER) < 0.5 * 128 * seconds(single, HOPPER)


def test_types_without_a_kernel_for_groups_loop_everywhere() -> None:
    op = rows_split(8192, 128, 2048, 1536, "float16")
    single = batched(1, 64, 2048, 1536, "float16")
    for gpu in (AMPERE, HOPPER):
        assert seconds(op, gpu) == pytest.approx(128 * seconds(single, gpu), rel=1e-6)


def test_groups_of_whole_matrices_are_a_batch() -> None:
    op, same = grouped(half(8, 512, 256), half(8, 256, 768), 8, 512, 768), batched(8, 512, 256, 768)
    assert seconds(op, HOPPER) == pytest.approx(seconds(same, HOPPER), rel=1e-4)


def test_without_a_model_of_the_kernel_groups_count_as_a_batch() -> None:
    others = {name: model for name, model in LEARNED.models.items() if name != "grouped"}
    plain = replace(LEARNED, models=others)
    op, same = rows_split(8192, 8, 4096, 4096), batched(8, 1024, 4096, 4096)
    assert seconds(op, HOPPER, plain) == pytest.approx(seconds(same, HOPPER, plain), rel=1e-6)


def test_an_expert_with_few_tokens_takes_a_whole_tile() -> None:
    few, full = (rows_split(128 * rows, 128, 4096, 4096) for rows in (8, 128))
    assert seconds(few, HOPPER) > 0.8 * seconds(full, HOPPER)


def test_the_range_is_that_of_the_model_that_answers() -> None:
    op = rows_split(65536, 64, 2048, 2816)
    for gpu, group in ((HOPPER, "grouped/tensor"), (AMPERE, "product/tensor")):
        answer = LEARNED.predict(op, gpu)
        assert answer is not None
        assert answer.source == "learned"
        assert answer.high_s == pytest.approx(answer.seconds * LEARNED.spreads[group].high)


def test_groups_in_fp8_are_marked_as_unseen() -> None:
    a, b = tensor(8192, 2048, dtype="float8_e4m3fn"), tensor(64, 2048, 1024, dtype="float8_e4m3fn")
    scales = tensor(8192), tensor(64, 1024), TensorSpec((64,), "int32")
    answer = LEARNED.predict(
        Op("aten._scaled_grouped_mm", (a, b, *scales), (half(8192, 1024),)), HOPPER
    )
    assert answer is not None
    assert answer.source == "learned, op unseen"
    usual: Spread = LEARNED.spreads["product/tensor"]
    assert answer.high_s > 1.2 * usual.high * answer.seconds


def test_slower_products_on_this_very_gpu_slow_the_kernel_for_groups() -> None:
    op = rows_split(65536, 16, 4096, 4096)
    our = device("h200-sxm")
    rate = our.measured["bf16_tensor_flops"]
    slower = {**our.measured, "bf16_tensor_flops": Fact(0.8 * rate.value, "made up")}
    times = [seconds(op, gpu) for gpu in (our, replace(our, measured=slower))]
    assert times[1] == pytest.approx(times[0] / 0.8, rel=0.05)
    nominal = replace(our, measured={})
    assert seconds(op, nominal) == pytest.approx(times[0], rel=0.02)


def test_the_shipped_constants_come_from_the_measurements() -> None:
    rows = in_one_kernel(read())
    assert len(rows) == 600
    theta = LEARNED.models["grouped"].theta
    assert fit(rows) == pytest.approx(dict(theta), rel=1e-3)
    off = np.abs(said(rows, theta) / np.array([measured_s(row) for row in rows]) - 1)
    assert off.mean() < 0.1


def test_an_op_without_outputs_gets_attainable_shares() -> None:
    op = replace(FORMS["terms"][0], outputs=())
    answer = LEARNED.predict(op, HOPPER)
    assert answer is not None
    assert answer.source == "attainable"


def test_measured_rows_are_the_ops_that_a_trace_has() -> None:
    for row in read()[:20]:
        op = op_of(row)
        assert ops.cost_of(op) is not None
        assert parts_of(op)
