"""Mixed precision: Daydream's rule, and ratios of predictions where shapes are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from made import mm, relu, tensor, unknown

from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device, device
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.predictors.habitat import (
    CONTRACTION_SPEEDUP,
    ELEMENTWISE_SHARE,
    OTHER_SPEEDUP,
    MixedPrecision,
)
from wavecast.traces.step import Call, Kernel, Op, Phase

P100, T4, V100, A100 = (
    device(n) for n in ("p100-pcie-16gb", "t4", "v100-sxm-16gb", "a100-sxm-80gb")
)
GEMM, RELU = "ampere_sgemm_128x64_nn", "void at::native::vectorized_elementwise_kernel<4, X>(int)"
LAYER_NORM = Op("aten.native_layer_norm", (tensor(8, 64),), (tensor(8, 64),))
ALL_REDUCE = Op("_c10d_functional.all_reduce", (tensor(8),), (tensor(8),))


@dataclass(frozen=True)
class Base(Scaler):
    """A scaler for which all GPUs are equal; it has no answer for all-reduce."""

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        if call.op == ALL_REDUCE:
            return None
        seconds = sum(kernel.seconds for kernel in call.kernels)
        return Estimate(seconds, seconds / 2, seconds * 2, "base")


@dataclass(frozen=True)
class ByBytes(Predictor):
    """A predictor whose time is the number of input bytes; tf32 takes no time."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        seconds = float(sum(t.nbytes for t in op.inputs))
        if op.attr("precision") == "tf32":
            seconds /= 8
        return Estimate(seconds, seconds, seconds, "bytes")


@dataclass(frozen=True)
class KnowsNothing(Predictor):
    """A predictor without an answer."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        return None


def ran(op: Op, *kernels: tuple[str, float], phase: Phase = Phase.FORWARD) -> Call:
    return Call(op, phase, kernels=tuple(Kernel(name, seconds) for name, seconds in kernels))


def scaled(
    call: Call, precision: str = "bf16", direct: Any = None, target: Device = A100
) -> Estimate:
    answer = MixedPrecision(Base(), precision, direct).scale_call(call, A100, target)
    assert answer is not None
    return answer


# Daydream's rule.


@pytest.mark.parametrize(
    "name",
    [
        GEMM,
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>(T1::Params)",
        "nvjet_sm90_sss_128x128",
        "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckcrs_nchw",
        "void cudnn::winograd_nonfused::winogradForwardFilter4x4<float>",
        "void conv2d_grouped_direct_kernel<float>",
        "cudnn_infer_ampere_scudnn_128x64_relu_conv",
    ],
)
def test_products_and_convolutions_run_three_times_as_fast(name: str) -> None:
    assert CONTRACTION_SPEEDUP == 3
    assert scaled(ran(mm(), (name, 6.0))).seconds == pytest.approx(2)


@pytest.mark.parametrize(
    "name", [RELU, "Memcpy DtoD (Device -> Device)", "void cudnn::ops::convertTensor_kernel<float>"]
)
def test_kernels_that_move_bytes_run_twice_as_fast(name: str) -> None:
    assert OTHER_SPEEDUP == 2
    assert scaled(ran(relu(8), (name, 6.0))).seconds == pytest.approx(3)


def test_each_kernel_of_a_call_is_sped_up_by_its_own_name() -> None:
    answer = scaled(ran(mm(), (GEMM, 6.0), (RELU, 2.0)))
    assert answer.seconds == pytest.approx(2 + 1)
    assert answer.source == "bf16 by Daydream's rule"


def test_the_range_is_that_of_the_scaling_and_wider() -> None:
    answer = scaled(ran(mm(), (GEMM, 6.0)))
    assert answer.low_s == pytest.approx(2 / 2 / 1.3)
    assert answer.high_s == pytest.approx(2 * 2 * 1.3)


@pytest.mark.parametrize(
    ("gpu", "precision", "seconds"),
    [(T4, "fp16", 2), (V100, "bf16", 6), (P100, "fp16", 6), (A100, "bf16", 2)],
    ids=lambda value: str(value),
)
def test_without_tensor_cores_for_it_a_product_gains_nothing(
    gpu: Device, precision: str, seconds: float
) -> None:
    call = ran(mm(), (GEMM, 6.0))
    assert scaled(call, precision, target=gpu).seconds == pytest.approx(seconds)


def test_weight_updates_stay_in_float32() -> None:
    update = ran(relu(8), (RELU, 6.0), phase=Phase.OPTIMIZER)
    for direct in (None, ByBytes()):
        assert scaled(update, direct=direct) == Estimate(6, 3, 12, "base")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int64", "float64"])
def test_ops_in_other_types_keep_their_time(dtype: str) -> None:
    assert scaled(ran(relu(8, dtype=dtype), (RELU, 6.0))) == Estimate(6, 3, 12, "base")


def test_a_call_that_cannot_be_scaled_has_no_time_in_half_precision_either() -> None:
    call = ran(ALL_REDUCE, ("nccl", 1.0))
    assert MixedPrecision(Base(), "bf16").scale_call(call, A100, T4) is None


# Where shapes are known.


def test_a_product_is_scaled_by_the_ratio_of_two_predictions() -> None:
    answer = scaled(ran(mm(), (GEMM, 6.0)), direct=ByBytes())
    assert answer.seconds == pytest.approx(3)
    assert answer.source == "bf16 by its op"


def test_only_its_float32_operands_become_half() -> None:
    mixed = Op("aten.mm", (tensor(8, 8), tensor(8, 16, dtype="int32")), (tensor(8, 16),))
    answer = scaled(ran(mixed, (GEMM, 6.0)), direct=ByBytes())
    assert answer.seconds == pytest.approx(6 * (128 + 512) / (256 + 512))


def test_elementwise_ops_have_some_operands_in_half_and_some_not() -> None:
    answer = scaled(ran(relu(8), (RELU, 6.0)), direct=ByBytes())
    assert answer.seconds == pytest.approx(6 * ELEMENTWISE_SHARE)


def test_autocast_leaves_norms_in_float32() -> None:
    assert scaled(ran(LAYER_NORM, (RELU, 6.0)), direct=ByBytes()).seconds == pytest.approx(6)


def test_daydreams_rule_is_used_without_a_prediction_of_the_op() -> None:
    answer = scaled(ran(mm(), (GEMM, 6.0)), direct=KnowsNothing())
    assert answer.seconds == pytest.approx(2)
    assert answer.source == "bf16 by Daydream's rule"


def test_daydreams_rule_is_used_for_an_unknown_op() -> None:
    assert scaled(ran(unknown(), (RELU, 6.0)), direct=ByBytes()).seconds == pytest.approx(3)


# The shipped scaler.


@pytest.mark.parametrize("precision", ["fp64", "fp8", ""])
def test_a_measurement_becomes_no_other_precision(precision: str) -> None:
    with pytest.raises(InvalidInput, match=f"bf16, fp16, fp32, tf32, not to '{precision}'"):
        MixedPrecision.shipped(precision)


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_daydreams_rule_is_for_half_precision_only(precision: str) -> None:
    with pytest.raises(InvalidInput, match="to bf16 or fp16"):
        MixedPrecision.daydream(precision)


def test_a_large_product_is_faster_on_tensor_cores_but_not_beyond_their_rate() -> None:
    call = ran(mm(8192, 8192, 8192), (GEMM, 6.0))
    answer = MixedPrecision.shipped("bf16").scale_call(call, A100, A100)
    assert answer is not None
    assert A100.bf16_tensor_flops is not None
    assert 1.5 < 6 / answer.seconds < 1.5 * A100.bf16_tensor_flops / A100.fp32_flops


# To float32 and TF32.


def test_in_tf32_only_products_differ_from_float32() -> None:
    assert scaled(ran(mm(), (GEMM, 8.0)), "tf32", ByBytes()).seconds == pytest.approx(1)
    assert scaled(ran(relu(8), (RELU, 6.0)), "tf32", ByBytes()) == Estimate(6, 3, 12, "base")
    assert scaled(ran(mm(precision="tf32"), (GEMM, 1.0)), "fp32", ByBytes()).seconds == 8


def test_ops_in_half_precision_move_more_bytes_in_float32() -> None:
    half = relu(8, dtype="bfloat16")
    assert scaled(ran(half, (RELU, 6.0)), "fp32", ByBytes()).seconds == pytest.approx(12)
    product = Op("aten.mm", (tensor(8, 8, dtype="float16"),) * 2, (tensor(8, 8, dtype="float16"),))
    assert scaled(ran(product, (GEMM, 6.0)), "fp32", ByBytes()).seconds == pytest.approx(12)


def test_casts_of_autocast_are_gone_in_float32() -> None:
    cast = Op("aten._to_copy", (tensor(8),), (tensor(8, dtype="bfloat16"),))
    assert scaled(ran(cast, (RELU, 6.0)), "bf16").seconds == pytest.approx(3)
    back = Op("aten._to_copy", (tensor(8, dtype="bfloat16"),), (tensor(8),))
    assert scaled(ran(back, (RELU, 6.0)), "fp32", ByBytes()).seconds < 1e-4


def test_without_shapes_products_gain_the_root_of_the_rates_in_tf32() -> None:
    bare = Op("aten.mm", (), ())
    assert A100.tf32_tensor_flops is not None
    gain = (A100.tf32_tensor_flops / A100.fp32_flops) ** 0.5
    assert scaled(ran(bare, (GEMM, 6.0)), "tf32").seconds == pytest.approx(6 / gain)
    assert scaled(ran(bare, (GEMM, 6.0)), "tf32").source == "tf32 by its kernels"
    assert scaled(ran(bare, (GEMM, 6.0)), "tf32", target=V100).seconds == 6
    assert scaled(ran(bare, ("ampere_tf32_s1688gemm_128x128", 6.0)), "tf32").seconds == 6
    assert scaled(ran(bare, (RELU, 6.0)), "tf32").seconds == 6
