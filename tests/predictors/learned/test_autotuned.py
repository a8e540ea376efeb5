"""Library calls that XLA tuned fall into classes, by what its kernels are good and bad at."""

from __future__ import annotations

import pytest

from wavecast.hardware.devices import device
from wavecast.ops.matmul import XLA_UNALIGNED
from wavecast.predictors.learned.autotuned import CHOSEN, MARK, class_of, in_triton, term_of
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op, Scalar, TensorSpec

TUNED: tuple[tuple[str, Scalar], ...] = ((MARK, True),)


def _matmul(a: TensorSpec, b: TensorSpec) -> Op:
    out = TensorSpec((*a.shape[:-1], b.shape[-1]), a.dtype)
    return Op(XLA_UNALIGNED, (a, b), (out,), TUNED)


def _t(*shape: int, turned: bool = False) -> TensorSpec:
    return TensorSpec(shape, "bfloat16", (1, shape[0]) if turned else None)


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (_matmul(_t(8192, 50264), _t(50264, 768)), "long summed unaligned/bfloat16"),
        (_matmul(_t(50264, 8192, turned=True), _t(8192, 768)), "long unaligned/bfloat16"),
        (_matmul(_t(32768, 200), _t(200, 392)), "unaligned/bfloat16"),
        (_matmul(_t(64, 200, 64), _t(64, 64, 200)), "batched unaligned/bfloat16"),
    ],
)
def test_matmuls_with_odd_rows_are_told_apart_by_their_rows(op: Op, name: str) -> None:
    assert class_of(op) == name


def _convolution(weight: tuple[int, ...], groups: int) -> Op:
    space = len(weight) - 2
    image = TensorSpec((8, weight[1] * groups, *[256] * space), "bfloat16")
    attrs: dict[str, Scalar] = {
        "stride": (1,) * space,
        "padding": (0,) * space,
        "dilation": (1,) * space,
        "transposed": False,
        "output_padding": (0,) * space,
        "groups": groups,
        "benchmark": True,
        MARK: True,
    }
    out = TensorSpec((8, weight[0], *[256] * space), "bfloat16")
    inputs = (image, TensorSpec(weight, "bfloat16"))
    return Op("aten.convolution", inputs, (out,), tuple(attrs.items()))


@pytest.mark.parametrize(
    ("weight", "groups", "name"),
    [
        ((64, 32, 3, 3), 1, "convolution/bfloat16"),
        ((64, 32, 65), 1, "convolution_long_window/bfloat16"),
        ((64, 1, 7, 7), 64, "depthwise_2d/bfloat16"),
        ((64, 1, 9, 9), 64, "depthwise_2d_large_window/bfloat16"),
        ((64, 1, 4), 64, "depthwise_1d/bfloat16"),
    ],
)
def test_convolutions_are_told_apart_by_what_cudnn_has_kernels_for(
    weight: tuple[int, ...], groups: int, name: str
) -> None:
    assert class_of(_convolution(weight, groups)) == name


def test_a_class_moves_the_time_of_its_calls() -> None:
    op = _matmul(_t(8192, 50264), _t(50264, 768))
    assert term_of(op) > 1
    plain = Op(op.name, op.inputs, op.outputs)
    tuned, other = Learned.shipped().predict_all([op, plain], device("h200-sxm"))
    assert tuned is not None
    assert other is not None
    assert tuned.seconds > 2.5 * other.seconds


def test_depthwise_convolutions_without_a_kernel_of_cudnn_take_several_times_as_long() -> None:
    ops = [_convolution((64, 1, size, size), 64) for size in (5, 7, 9)]
    small, large, none = Learned.shipped().predict_all(ops, device("h200-sxm"))
    assert small is not None
    assert large is not None
    assert none is not None
    assert small.seconds < large.seconds < none.seconds / 3


def _plain(rows: int, inner: int, columns: int, *chosen: tuple[str, Scalar]) -> Op:
    out = (_t(rows, columns),)
    return Op("aten.mm", (_t(rows, inner), _t(inner, columns)), out, (*TUNED, *chosen))


def test_what_the_tuner_chose_counts_and_else_it_is_learned_from_shapes() -> None:
    assert in_triton(_plain(4096, 4096, 4096, (CHOSEN, True)))
    assert not in_triton(_plain(16384, 512, 512, (CHOSEN, False)))
    assert class_of(_plain(4096, 4096, 4096)) == "matmul/bfloat16"
    assert class_of(_plain(16384, 512, 512)) == "triton/bfloat16"
