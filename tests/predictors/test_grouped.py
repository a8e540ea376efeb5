"""Grouped products, as mixtures of experts have them: their parts, and what `learned` says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import tensor

from wavecast import ops
from wavecast.devices import device
from wavecast.op_costs import matmul
from wavecast.op_models.parts import PRODUCT, parts_of
from wavecast.predictors.learned import Learned
from wavecast.predictors.roofline import bound
from wavecast.trace import Op, TensorSpec

LEARNED = Learned.shipped()
HOPPER, AMPERE = device("h100-sxm-80gb"), device("a100-sxm-80gb")


def grouped(a: TensorSpec, b: TensorSpec, *out: int, dtype: str = "bfloat16") -> Op:
    offsets = (TensorSpec((8,), "int32"),)
    return Op("aten._grouped_mm", (a, b, *offsets), (tensor(*out, dtype=dtype),))


def rows_split(rows: int, groups: int, k: int, n: int, dtype: str = "bfloat16") -> Op:
    """As experts go forwards."""
    a, b = tensor(rows, k, dtype=dtype), tensor(groups, k, n, dtype=dtype)
    return grouped(a, b, rows, n, dtype=dtype)


def batched(groups: int, m: int, k: int, n: int, dtype: str = "bfloat16") -> Op:
    a, b = tensor(groups, m, k, dtype=dtype), tensor(groups, k, n, dtype=dtype)
    return Op("aten.bmm", (a, b), (tensor(groups, m, n, dtype=dtype),))


def half(*shape: int) -> TensorSpec:
    return tensor(*shape, dtype="bfloat16")


FORMS = {
    "rows": (grouped(half(640, 32), half(8, 32, 16), 640, 16), (8, 80, 16, 32)),
    "columns": (grouped(half(8, 32, 16), half(16, 640), 32, 640), (8, 32, 80, 16)),
    "terms": (grouped(half(32, 640), half(640, 16), 8, 32, 16), (8, 32, 16, 80)),
    "batch": (grouped(half(8, 80, 32), half(8, 32, 16), 8, 80, 16), (8, 80, 16, 32)),
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_is_split_is_split_evenly(form: str) -> None:
    op, sizes = FORMS[form]
    assert matmul.groups(op) == sizes
    (part,) = parts_of(op)
    found = dict(zip(PRODUCT, part.numbers, strict=True))
    assert tuple(found[name] for name in ("batch", "m", "n", "k")) == sizes
    cost = ops.cost_of(op)
    assert cost is not None
    assert cost.flops == 2 * 8 * 80 * 32 * 16


@given(
    st.integers(1, 100_000),
    st.sampled_from([1, 8, 60, 128]),
    st.sampled_from([64, 768, 2880]),
    st.sampled_from([64, 1536, 5760]),
    st.sampled_from(["float32", "float16", "bfloat16"]),
    st.sampled_from([HOPPER, AMPERE, device("t4"), device("b200-sxm")]),
)
def test_answers_lie_in_their_range_and_above_physics(
    rows: int, groups: int, k: int, n: int, dtype: str, gpu: object
) -> None:
    op = rows_split(rows, groups, k, n, dtype)
    answer, least = LEARNED.predict(op, gpu), bound(op, gpu)  # type: ignore[arg-type]
    assert answer is not None
    assert least is not None
    assert answer.source.startswith("learned")
    assert 0 < answer.low_s <= answer.seconds <= answer.high_s


def seconds(op: Op, gpu: object) -> float:
    answer = LEARNED.predict(op, gpu)  # type: ignore[arg-type]
    assert answer is not None
    return answer.seconds


def test_a_gpu_without_a_kernel_for_groups_takes_one_after_the_other() -> None:
    op, one = rows_split(8192, 128, 2048, 1536), batched(1, 64, 2048, 1536)
    assert seconds(op, AMPERE) == pytest.approx(128 * seconds(one, AMPERE), rel=1e-6)
    assert seconds(op, HOPPER) < 0.5 * 128 * seconds(one, HOPPER)


def test_types_without_a_kernel_for_groups_loop_everywhere() -> None:
    op, one = (
        rows_split(8192, 128, 2048, 1536, "float16"),
        batched(1, 64, 2048, 1536, "float16"),
    )
    for gpu in (AMPERE, HOPPER):
        assert seconds(op, gpu) == pytest.approx(128 * seconds(one, gpu), rel=1e-6)


def test_more_tokens_take_longer() -> None:
    times = [seconds(rows_split(rows, 64, 2048, 2816), HOPPER) for rows in (4096, 16384, 65536)]
    assert times == sorted(times)
    assert times[2] > 2 * times[0]
