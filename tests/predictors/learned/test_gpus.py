"""The numbers of a GPU in the op models: clocks, matrix cores, and rates."""

from __future__ import annotations

from dataclasses import replace

from over_all import over

from wavecast.hardware.device import Device
from wavecast.hardware.devices import device, devices
from wavecast.ops import Unit
from wavecast.predictors.learned.gpus import CODES, LATER_BOOST, gpu_of

FP32 = CODES[Unit.FP32]


def test_a_gpu_without_a_number_of_sms_has_no_model() -> None:
    assert gpu_of(replace(device("t4"), sm_count=None)) is None


@over("gpu", devices(), called=lambda gpu: gpu.id)
def test_every_gpu_has_rates(gpu: Device) -> None:
    facts = gpu_of(gpu)
    if facts is not None:
        assert facts.fp32 > 0
        assert (facts.rates[facts.rates == facts.rates] > 0).all()


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
