"""What every predictor promises, for any op on any GPU. Add yours to PREDICTORS."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from made import copy_to_gpu, mm, relu, tensor, unknown, view

from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.predictors.attainable import Attainable
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.learned.batch import batch_of
from wavecast.predictors.learned.gpus import gpu_of
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.roofline import Roofline, bound
from wavecast.traces.step import Op

PREDICTORS: dict[str, Predictor] = {
    "roofline": Roofline(),
    "attainable": Attainable.shipped(),
    "learned": Learned.shipped(),
}
GPUS = [device(name) for name in ("k80", "v100-sxm-32gb", "t4", "a100-sxm-80gb", "h200-sxm")]
GPUS += [device(name) for name in ("rtx-4090", "mi300x", "b200-sxm")]
FASTER_WITH_A_LARGER_BATCH = {"roofline": 1.0, "attainable": 1.0, "learned": 2.5}
"""By how much a predictor may be: trees are steps, and real libraries change their algorithm."""

every_predictor = pytest.mark.parametrize("predictor", PREDICTORS.values(), ids=PREDICTORS)

Maker = Callable[[int, int, int, str], Op]


def _conv(b: int, c: int, n: int, dtype: str, groups: int = 1) -> Op:
    weight = tensor(c, max(c // groups, 1), 3, 3, dtype=dtype)
    image = tensor(b, c, n, n, dtype=dtype)
    return Op("aten.convolution", (image, weight), (image,), (("groups", groups),))


def _conv_backward(b: int, c: int, n: int, dtype: str) -> Op:
    image, weight = tensor(b, c, n, n, dtype=dtype), tensor(c, c, 3, 3, dtype=dtype)
    attrs = (("groups", 1), ("output_mask", (True, True, False)))
    return Op("aten.convolution_backward", (image, image, weight), (image, weight), attrs)


def _attention(b: int, c: int, n: int, dtype: str) -> Op:
    heads = tensor(b, 4, n, c, dtype=dtype)
    lse = tensor(b, 4, n)
    attrs = (("dropout_p", 0.0), ("is_causal", True))
    name = "aten._scaled_dot_product_flash_attention"
    return Op(name, (heads, heads, heads), (heads, lse), attrs)


def _lstm(b: int, c: int, n: int, dtype: str) -> Op:
    states = tensor(1, b, c, dtype=dtype), tensor(1, b, c, dtype=dtype)
    weights = tuple(tensor(4 * c, c, dtype=dtype) for _ in range(2))
    attrs = (("mode", 2), ("hidden_size", c), ("num_layers", 1), ("bidirectional", False))
    sequence = tensor(n, b, c, dtype=dtype)
    return Op("aten._cudnn_rnn", (sequence, *weights, *states), (sequence, *states), attrs)


def _foreach(b: int, c: int, n: int, dtype: str) -> Op:
    many = tuple(tensor(b, c, dtype=dtype) for _ in range(n))
    return Op("aten._foreach_add_", many * 2, many)


def _adam(b: int, c: int, n: int, dtype: str) -> Op:
    many = tuple(tensor(b, c, dtype=dtype) for _ in range(n))
    return Op("aten._fused_adamw_", many * 4, many * 3)


def _bmm(b: int, c: int, n: int, dtype: str) -> Op:
    square = tensor(b, n, n, dtype=dtype)
    return Op("aten.bmm", (tensor(b, n, c, dtype=dtype), tensor(b, c, n, dtype=dtype)), (square,))


def _addmm(b: int, c: int, n: int, dtype: str) -> Op:
    operands = tensor(n, dtype=dtype), tensor(b, c, dtype=dtype), tensor(c, n, dtype=dtype)
    return Op("aten.addmm", operands, (tensor(b, n, dtype=dtype),))


def _norm(b: int, c: int, n: int, dtype: str) -> Op:
    image, channel = tensor(b, c, n, dtype=dtype), tensor(c)
    inputs = image, channel, channel
    return Op("aten.native_layer_norm", inputs, (image, tensor(b), tensor(b)))


def _same(name: str) -> Maker:
    def make(b: int, c: int, n: int, dtype: str) -> Op:
        whole = tensor(b, c, n, dtype=dtype)
        return Op(name, (whole,), (whole,))

    return make


def _embedding(b: int, c: int, n: int, dtype: str) -> Op:
    table, rows = tensor(1000, c, dtype=dtype), tensor(b, n, dtype="int64")
    return Op("aten.embedding", (table, rows), (tensor(b, n, c, dtype=dtype),))


def _add(b: int, c: int, n: int, dtype: str) -> Op:
    whole = tensor(b, c, n, dtype=dtype)
    return Op("aten.add.Tensor", (whole, whole), (whole,))


MAKERS: dict[str, Maker] = {
    "mm": lambda b, c, n, dtype: mm(b, c, n, dtype),
    "mm in tf32": lambda b, c, n, _: mm(b, c, n, precision="tf32"),
    "addmm": _addmm,
    "bmm": _bmm,
    "convolution": _conv,
    "depthwise": lambda b, c, n, dtype: _conv(b, c, n, dtype, groups=c),
    "convolution backward": _conv_backward,
    "attention": _attention,
    "lstm": _lstm,
    "relu": _same("aten.relu"),
    "add": _add,
    "softmax": _same("aten._softmax"),
    "layer norm": _norm,
    "sum": _same("aten.sum"),
    "embedding": _embedding,
    "clone": _same("aten.clone"),
    "fill": _same("aten.zero_"),
    "dropout": _same("aten.native_dropout"),
    "foreach": _foreach,
    "fused adam": _adam,
    "copy to the GPU": lambda b, c, n, _: copy_to_gpu(b, c, n),
}

sizes = st.integers(1, 4096)
small = st.integers(1, 64)
dtypes = st.sampled_from(["float32", "float16", "bfloat16", "float64", "float8_e4m3fn", "int8"])
gpus = st.sampled_from(GPUS)


@st.composite
def ops(draw: Any, batch: int | None = None) -> Op:
    maker = MAKERS[draw(st.sampled_from(sorted(MAKERS)))]
    return maker(batch or draw(sizes), draw(small), draw(small), draw(dtypes))


NUMBERS = [
    field.name for field in dataclasses.fields(Device) if field.name.endswith(("_flops", "_per_s"))
]
OPTIONAL = [name for name in NUMBERS if name not in ("memory_bytes_per_s", "fp32_flops")]
changes = st.dictionaries(st.sampled_from(NUMBERS), st.floats(0.1, 10), max_size=4)
losses = st.sets(st.sampled_from(OPTIONAL), max_size=2)


def changed(gpu: Device, factors: dict[str, float]) -> Device:
    """The GPU with some of the numbers that it has multiplied."""
    moved = {name: getattr(gpu, name) for name in factors if getattr(gpu, name) is not None}
    return dataclasses.replace(gpu, **{name: moved[name] * factors[name] for name in moved})


@st.composite
def devices(draw: Any) -> Device:
    """A shipped GPU with some of its numbers moved, and some unknown."""
    gpu = changed(draw(gpus), draw(changes))
    lost: dict[str, Any] = dict.fromkeys(draw(losses))
    return dataclasses.replace(gpu, **lost)


@every_predictor
@given(ops(), devices())
def test_an_answer_is_none_or_positive_finite_and_within_its_range(
    predictor: Predictor, op: Op, gpu: Device
) -> None:
    answer = predictor.predict(op, gpu)
    if answer is not None:
        assert isinstance(answer, Estimate)
        assert 0 < answer.low_s <= answer.seconds <= answer.high_s < math.inf
        assert answer.source


@every_predictor
@given(ops(), devices())
def test_no_answer_is_faster_than_physics_allows(predictor: Predictor, op: Op, gpu: Device) -> None:
    answer, least = predictor.predict(op, gpu), bound(op, gpu)
    if least is None:
        assert answer is None
    elif answer is not None:
        assert answer.low_s >= least_s(predictor, op, gpu) * (1 - 1e-12)


def least_s(predictor: Predictor, op: Op, gpu: Device) -> float:
    """The roofline; for learned times less what Winograd saves, and what L2 may hold already."""
    least, facts = bound(op, gpu), gpu_of(gpu)
    assert least is not None
    if isinstance(predictor, Learned) and facts is not None and "_to_copy" not in op.name:
        return float(batch_of([op], {}).least_s(facts)[0])
    return least.seconds


@every_predictor
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_common_ops_are_answered_on_a_common_gpu(predictor: Predictor, name: str) -> None:
    op = MAKERS[name](8, 16, 32, "float16")
    assert predictor.predict(op, device("a100-sxm-80gb")) is not None


@every_predictor
@given(ops(), devices())
def test_the_same_question_gets_the_same_answer(predictor: Predictor, op: Op, gpu: Device) -> None:
    again = dataclasses.replace(op), dataclasses.replace(gpu)
    assert predictor.predict(op, gpu) == predictor.predict(*again)


@every_predictor
@given(ops(), devices())
def test_asking_changes_nothing(predictor: Predictor, op: Op, gpu: Device) -> None:
    before = repr(op), repr(gpu)
    predictor.predict(op, gpu)
    assert (repr(op), repr(gpu)) == before


gains = st.dictionaries(st.sampled_from(NUMBERS), st.floats(1, 20), min_size=1)


@every_predictor
@given(ops(), devices(), gains)
def test_a_gpu_better_in_every_number_is_never_slower(
    predictor: Predictor, op: Op, gpu: Device, gain: dict[str, float]
) -> None:
    base, improved = predictor.predict(op, gpu), predictor.predict(op, changed(gpu, gain))
    assert (base is None) == (improved is None)
    if base is not None and improved is not None:
        assert improved.seconds <= base.seconds * (1 + 1e-12)


@every_predictor
@given(st.sampled_from(sorted(MAKERS)), sizes, sizes, small, small, dtypes, devices())
def test_a_larger_batch_is_never_faster(
    predictor: Predictor, name: str, b1: int, b2: int, c: int, n: int, dtype: str, gpu: Device
) -> None:
    low, high = sorted((b1, b2))
    assume(low < high)
    less, more = (MAKERS[name](b, c, n, dtype) for b in (low, high))
    slack = FASTER_WITH_A_LARGER_BATCH[type(predictor).__name__.lower()]
    few, many = predictor.predict(less, gpu), predictor.predict(more, gpu)
    assert (few is None) == (many is None)
    if few is not None and many is not None:
        assert few.seconds <= many.seconds * slack * (1 + 1e-12)


@every_predictor
@given(devices())
def test_an_unknown_op_is_not_guessed(predictor: Predictor, gpu: Device) -> None:
    assert predictor.predict(unknown(), gpu) is None


@every_predictor
def test_a_known_op_without_a_formula_is_not_guessed(predictor: Predictor) -> None:
    matrix = tensor(8, 8)
    assert predictor.predict(Op("aten.linalg_qr", (matrix,), (matrix, matrix)), GPUS[0]) is None


@every_predictor
@pytest.mark.parametrize("op", [view(4, 4), relu(0, 8)], ids=["view", "no elements"])
def test_nothing_to_run_takes_no_invented_time(predictor: Predictor, op: Op) -> None:
    assert predictor.predict(op, device("l4")) is None


@every_predictor
def test_a_gpu_without_bf16_units_runs_bf16_in_fp32(predictor: Predictor) -> None:
    v100 = device("v100-sxm-32gb")
    assert v100.bf16_tensor_flops is None
    size = 4096
    half = predictor.predict(mm(size, size, size, "bfloat16"), v100)
    assert half is not None
    assert half.seconds >= 2 * size**3 / v100.fp32_flops


@every_predictor
def test_fp8_on_a_gpu_without_it_is_not_predicted(predictor: Predictor) -> None:
    eights = tensor(64, 64, dtype="float8_e4m3fn")
    op = Op("aten._scaled_mm", (eights, eights), (tensor(64, 64, dtype="bfloat16"),))
    assert predictor.predict(op, device("a100-sxm-80gb")) is None
    assert predictor.predict(op, device("h100-sxm-80gb")) is not None


@every_predictor
def test_int8_products_are_not_predicted_while_no_rate_is_known(predictor: Predictor) -> None:
    eights = tensor(64, 64, dtype="int8")
    op = Op("aten._int_mm", (eights, eights), (tensor(64, 64, dtype="int32"),))
    assert [predictor.predict(op, gpu) for gpu in GPUS] == [None] * len(GPUS)


@every_predictor
def test_a_copy_to_the_gpu_is_no_faster_than_its_link(predictor: Predictor) -> None:
    gpu = device("h100-sxm-80gb")
    answer = predictor.predict(copy_to_gpu(1 << 24), gpu)
    assert answer is not None
    assert gpu.pcie_bytes_per_s is not None
    assert answer.seconds >= (4 << 24) / gpu.pcie_bytes_per_s


@every_predictor
def test_a_copy_over_a_link_of_unknown_speed_is_not_predicted(predictor: Predictor) -> None:
    gpu = dataclasses.replace(device("h100-sxm-80gb"), pcie_bytes_per_s=None)
    assert predictor.predict(copy_to_gpu(1 << 24), gpu) is None
    assert predictor.predict(relu(1 << 24), gpu) is not None
