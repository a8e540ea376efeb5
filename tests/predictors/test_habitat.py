"""Habitat: waves where kernels are the same on all GPUs, ratios of predictions where they vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import mm, relu, tensor, unknown

from wavecast.hardware.devices import Device, device
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.predictors.habitat import Habitat
from wavecast.traces.step import Call, Kernel, Op, Phase

T4, V100, A100, L4 = map(device, ("t4", "v100-sxm-16gb", "a100-sxm-80gb", "l4"))
IMAGE = tensor(8, 16, 32, 32)
CONVOLUTION = Op("aten.convolution", (IMAGE, tensor(16, 16, 3, 3)), (IMAGE,), (("groups", 1),))
HEADS = tensor(2, 4, 64, 32, dtype="float16")
ATTENTION = Op(
    "aten._scaled_dot_product_flash_attention",
    (HEADS,) * 3,
    (HEADS, tensor(2, 4, 64)),
    (("dropout_p", 0.0), ("is_causal", True)),
)
SOFTMAX = Op("aten._softmax", (tensor(64, 64),), (tensor(64, 64),))


@dataclass(frozen=True)
class Rated(Predictor):
    """A predictor with one time for each GPU, whatever the op, multiplied by an error."""

    seconds: tuple[tuple[str, float], ...]
    off: float = 1.0

    def predict(self, op: Op, device: Device) -> Estimate | None:
        seconds = dict(self.seconds).get(device.id)
        if seconds is None:
            return None
        return Estimate(seconds * self.off, seconds / 9, seconds * 9, "rated")


@dataclass(frozen=True)
class Waves(Scaler):
    """A replacement for wave scaling: everything takes ten times as long."""

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        seconds = 10 * sum(kernel.seconds for kernel in call.kernels)
        return Estimate(seconds, seconds, seconds, "waves")


RATED = Rated((("t4", 4.0), ("l4", 1.0)))


def ran(op: Op, *seconds: float, **launch: Any) -> Call:
    kernels = tuple(Kernel("k", time_s, **launch) for time_s in seconds)
    return Call(op, Phase.FORWARD, kernels=kernels)


def habitat(learned: Any = RATED, **options: Any) -> Habitat:
    return Habitat(learned, **({"wave": Waves()} | options))


def seconds(call: Call, learned: Any = RATED, target: Device = L4) -> float | None:
    answer = habitat(learned).scale_call(call, T4, target)
    return None if answer is None else answer.seconds


@pytest.mark.parametrize("op", [mm(), CONVOLUTION, ATTENTION], ids=lambda op: op.base)
def test_where_kernels_vary_the_time_follows_the_ratio_of_two_predictions(op: Op) -> None:
    answer = habitat(spread=0.25).scale_call(ran(op, 3.0, 5.0), T4, L4)
    assert answer == Estimate(2.0, 2.0 / 1.25, 2.0 * 1.25, "ratio of rated")


@pytest.mark.parametrize("op", [relu(8), SOFTMAX, unknown()], ids=lambda op: op.base)
def test_where_kernels_are_the_same_their_waves_are_scaled(op: Op) -> None:
    answer = habitat().scale_call(ran(op, 3.0, 5.0), T4, L4)
    assert answer == Estimate(80, 80, 80, "waves")


@given(st.floats(0.01, 100))
def test_an_error_that_is_the_same_on_both_gpus_cancels(off: float) -> None:
    wrong = Rated(RATED.seconds, off)
    assert seconds(ran(mm(), 8.0), wrong) == pytest.approx(2.0)


def test_ops_that_the_predictor_does_not_know_are_scaled_by_waves() -> None:
    assert seconds(ran(mm(), 1.0), target=A100) == 10
    assert seconds(ran(mm(), 1.0), Rated((("l4", 1.0),))) == 10


def test_ops_without_shapes_are_scaled_by_waves() -> None:
    assert seconds(ran(Op("aten.mm", (), ()), 1.0)) == 10


def test_collectives_are_scaled_by_the_links_of_the_usual_machines() -> None:
    a100, h100 = device("a100-sxm-80gb"), device("h100-sxm-80gb")
    message = tensor(2**26)
    large = Op("nccl.all_reduce", (message,), (message,), (("ranks", 8),))
    for op in (Op("nccl.all_reduce", (), ()), large):
        answer = habitat().scale_call(ran(op, 1.0), a100, h100)
        assert answer is not None
        assert 0.5 < answer.seconds < 0.8  # 600 and 900 GB/s
        assert answer.source == "ratio of links"


@pytest.mark.parametrize("target", [T4, L4], ids=["same", "other"])
def test_a_call_without_kernels_or_time_has_no_answer(target: Device) -> None:
    assert seconds(ran(mm()), target=target) is None
    assert seconds(ran(mm(), 0.0), target=target) is None


LAUNCH: dict[str, Any] = {"grid": (4096, 1, 1), "block": (256, 1, 1), "registers": 32}
GPUS = (T4, V100, A100, L4)


@given(st.sampled_from([mm(512, 512, 512), CONVOLUTION]), st.sampled_from(GPUS), st.floats(1e-6, 1))
def test_scaling_there_and_back_gives_the_measured_time(
    op: Op, target: Device, took: float
) -> None:
    shipped = Habitat.shipped()
    there = shipped.scale_call(ran(op, took, **LAUNCH), T4, target)
    assert there is not None
    back = shipped.scale_call(ran(op, there.seconds, **LAUNCH), target, T4)
    assert back is not None
    assert back.seconds == pytest.approx(took)


def test_a_large_product_scales_with_the_rates_of_the_gpus() -> None:
    product = ran(mm(8192, 8192, 8192), 1.0, **LAUNCH)
    answer = Habitat.shipped().scale_call(product, V100, A100)
    assert answer is not None
    assert answer.source == "ratio of learned"
    assert 1 / answer.seconds == pytest.approx(A100.fp32_flops / V100.fp32_flops, rel=0.3)
    # The 70 W of a T4 are too little for the rate of its data sheet.
    from_t4 = Habitat.shipped().scale_call(product, T4, A100)
    assert from_t4 is not None
    assert 1 / from_t4.seconds > 1.3 * A100.fp32_flops / T4.fp32_flops


@dataclass(frozen=True)
class NoWaves(Scaler):
    """Wave scaling that never has an answer, as for a GPU of unknown clock."""

    def scale_call(self, call: Call, origin: Device, target: Device) -> Estimate | None:
        return None


def test_the_ratio_of_predictions_is_used_where_waves_have_no_answer() -> None:
    answer = habitat(wave=NoWaves()).scale_call(ran(relu(8), 1.0), T4, L4)
    assert answer is not None
    assert answer.source.startswith("ratio of")


def test_without_waves_and_ratio_there_is_no_answer() -> None:
    assert habitat(wave=NoWaves()).scale_call(ran(Op("aten.mm", (), ()), 1.0), T4, L4) is None
