"""The numbers of a GPU in the op models: clocks, matrix cores, and rates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from wavecast.hardware.devices import device
from wavecast.ops import Unit
from wavecast.predictors.learned.gpus import CODES, LATER_BOOST, gpu_of
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.learned.tiles import sustained
from wavecast.traces.step import Op, TensorSpec

FP32 = CODES[Unit.FP32]


def test_a_gpu_without_a_number_of_sms_has_no_model() -> None:
    assert gpu_of(replace(device("t4"), sm_count=None)) is None


@pytest.mark.parametrize(("later", "earlier"), [("b300-sxm", "b200"), ("gb300", "gb200")])
def test_blackwell_ultra_multiplies_as_fast_as_blackwell(later: str, earlier: str) -> None:
    # Steps that were published for both take equally long.
    left, right = TensorSpec((4096, 8192), "bfloat16"), TensorSpec((8192, 28_672), "bfloat16")
    op = Op("aten.mm", (left, right), (TensorSpec((4096, 28_672), "bfloat16"),))
    first, second = (Learned.shipped().predict(op, device(gpu)) for gpu in (later, earlier))
    assert first is not None
    assert second is not None
    assert 0.95 < first.seconds / second.seconds < 1.01


def test_cards_for_consumers_run_above_their_boost_clock() -> None:
    for name in ("rtx-2080-ti", "gtx-1080-ti", "rtx-3090"):
        facts = gpu_of(device(name))
        assert facts is not None
        assert facts.clock_hz >= LATER_BOOST * (device(name).boost_clock_hz or 0)
    server = gpu_of(device("t4"))
    assert server is not None
    assert server.clock_hz == device("t4").boost_clock_hz


def test_amds_matrix_cores_take_float32_and_pairs_of_instructions_do_not_count() -> None:
    mi100, rdna3, rdna2 = (gpu_of(device(name)) for name in ("mi100", "rx-7700s", "rx-6800"))
    assert mi100 is not None
    assert rdna3 is not None
    assert rdna2 is not None
    assert mi100.rates[FP32] == device("mi100").fp32_tensor_flops
    assert mi100.fp32 == device("mi100").fp32_flops  # other ops than products run on plain cores
    assert rdna3.rates[FP32] == device("rx-7700s").fp32_flops / 2
    assert rdna2.rates[FP32] == device("rx-6800").fp32_flops
    for facts in (mi100, rdna3, rdna2):  # TF32 is NVIDIA's
        assert facts.rates[CODES[Unit.TF32_TENSOR]] == facts.rates[FP32]


def test_tensor_cores_draw_as_much_in_each_precision() -> None:
    facts = gpu_of(device("h100-sxm-80gb"))
    assert facts is not None
    half, tf32, fp8 = (
        facts.flop_energy[CODES[unit]]
        for unit in (Unit.BF16_TENSOR, Unit.TF32_TENSOR, Unit.FP8_TENSOR)
    )
    assert tf32 == 2 * half == 4 * fp8
    assert facts.flop_energy[FP32] == 1.0


def test_larger_tensor_cores_draw_less() -> None:
    energy = {}
    for name in ("quadro-rtx-8000", "a100-sxm-80gb", "l40s", "h100-sxm-80gb", "b200-sxm", "mi300x"):
        facts = gpu_of(device(name))
        assert facts is not None
        energy[name] = facts.flop_energy[CODES[Unit.FP16_TENSOR]]
    assert energy["quadro-rtx-8000"] == 1.0  # the smallest cores, before the newest process
    assert energy["a100-sxm-80gb"] < energy["quadro-rtx-8000"]
    assert energy["b200-sxm"] < energy["h100-sxm-80gb"] < energy["mi300x"] < energy["l40s"]


def test_a_board_with_little_power_does_not_keep_its_clock_in_matmuls() -> None:
    """The L4 has the tensor cores of the L40S and 72 W."""
    slowed = {}
    for name in ("l4", "l40s", "h100-sxm-80gb"):
        facts = gpu_of(device(name))
        assert facts is not None
        unit = np.array([CODES[Unit.BF16_TENSOR]])
        slowed[name] = float((facts.rate(unit) / sustained(unit, facts, 2.8))[0])
    assert 1.5 < slowed["l4"] < 1.8
    assert 1.2 < slowed["l40s"] < 1.5
    assert slowed["h100-sxm-80gb"] < 1.05
