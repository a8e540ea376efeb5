"""Habitat as published: its GPUs, its prices, its method, and the difference to the default."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import mm, relu, step

import wavecast
from wavecast.errors import InvalidInput, UnknownName
from wavecast.hardware.devices import Device, device
from wavecast.planning.prices import price, price_book
from wavecast.predictors.habitat import Habitat, MixedPrecision, published_setup
from wavecast.predictors.mlp import Mlp
from wavecast.predictors.wave import WaveScaling
from wavecast.traces.step import Call, Kernel, Measurement, Phase

HABITAT = published_setup("habitat")
LARGE = Kernel("k", 1e-3, (10_000, 1, 1), (256, 1, 1), 32, 0)
MEMORY_BOUND = replace(LARGE, flops=0.0, dram_bytes=1e6)
COMPUTE_BOUND = replace(LARGE, flops=1e30, dram_bytes=1.0)


def ratio(kernel: Kernel, origin: Device, target: Device) -> float:
    answer = HABITAT.scaler().scale_call(
        Call(relu(), Phase.FORWARD, kernels=(kernel,)), origin, target
    )
    assert answer is not None
    return answer.seconds / kernel.seconds


@pytest.mark.parametrize(
    ("origin", "target", "kernel", "expected"),
    [  # Habitat's Eq. 2 with the clocks and bandwidths of its configuration file
        (Device.T4, Device.P100, COMPUTE_BOUND, 0.18555),
        (Device.T4, Device.P100, MEMORY_BOUND, 0.47705),
        (Device.P4000, Device.V100, COMPUTE_BOUND, 0.16366),
        (Device.P4000, Device.V100, MEMORY_BOUND, 0.26387),
        (Device.RTX2080Ti, Device.V100, COMPUTE_BOUND, 0.43731),
        (Device.RTX2080Ti, Device.V100, MEMORY_BOUND, 0.70907),
    ],
)
def test_a_kernel_is_scaled_with_the_published_numbers(
    origin: Device, target: Device, kernel: Kernel, expected: float
) -> None:
    assert ratio(kernel, origin, target) == pytest.approx(expected, abs=5e-6)
    assert ratio(kernel, target, origin) == pytest.approx(1 / expected, rel=5e-5)


def test_the_default_takes_other_clocks() -> None:
    call = Call(relu(), Phase.FORWARD, kernels=(COMPUTE_BOUND,))
    default = Habitat.shipped().scale_call(call, Device.T4, Device.P100)
    assert default is not None
    assert default.seconds / LARGE.seconds != pytest.approx(0.18555, abs=0.05)


def test_a_kernel_without_counters_is_taken_as_bound_by_memory() -> None:
    products = Call(relu(), Phase.FORWARD, kernels=(LARGE,))
    scaled = WaveScaling(counters_only=True).scale_call(products, Device.T4, Device.P100)
    assert scaled is not None
    assert scaled.seconds / LARGE.seconds == pytest.approx(239 / 501)
    assert ratio(LARGE, Device.T4, Device.P100) == pytest.approx(239 / 501)


def test_another_gpu_keeps_its_numbers() -> None:
    assert HABITAT.gpu(device("l4")) is device("l4")
    assert HABITAT.gpu(Device.T4).boost_clock_hz is None


def test_the_prices_are_those_of_table_2_and_rank_the_t4_first() -> None:
    paper = {offer.device_id: offer for offer in price_book("habitat").offers}
    assert {gpu: offer.usd_per_hour for gpu, offer in paper.items()} == {
        "p100-pcie-16gb": 1.46,
        "v100-sxm-16gb": 2.48,
        "t4": 0.35,
    }
    assert price("t4", "habitat") != price("t4")
    assert price("l4", "habitat") is None
    # Case study 1: throughput as multiples of the P4000's, per dollar (papers.md HB-15).
    peaks = {"p100-pcie-16gb": 2.3, "v100-sxm-16gb": 4.0, "t4": 1.4}
    per_usd = {gpu: paper[gpu].per_usd(rate) / 3600 for gpu, rate in peaks.items()}
    assert list(per_usd.values()) == pytest.approx([1.575, 1.613, 4.000], abs=5e-4)


def test_measuring_is_as_in_section_5_1_and_networks_as_in_4_3() -> None:
    assert (HABITAT.warm_up, HABITAT.repeats) == (3, 3)
    assert (HABITAT.width, HABITAT.depth) == (1024, 8)


def test_the_networks_of_the_setup_have_the_published_size() -> None:
    models = HABITAT.networks().models
    sizes = {
        key: sum(matrix.size + bias.size for matrix, bias in model.network.weights)
        for key, model in models.items()
    }
    # The numbers of weights of papers.md, HB-6; convolutions have eight dimensions.
    assert sizes["linear", "forward"] == sizes["bmm", "forward"] == 8_407_041
    assert sizes["conv2d", "forward"] == sizes["conv2d", "backward"] == 8_411_137
    for key, model in Mlp.shipped().models.items():
        assert (models[key] is model) == (key[0] == "lstm")


def test_the_setup_scales_products_with_its_own_networks() -> None:
    product = mm(2048, 2048, 2048)
    call = Call(product, Phase.FORWARD, kernels=(LARGE,))
    scaled = HABITAT.scaler().scale_call(call, Device.T4, Device.V100)
    assert scaled is not None
    expected = HABITAT.networks().ratio(product, Device.T4, Device.V100)
    narrow = Mlp.shipped().ratio(product, Device.T4, Device.V100)
    assert scaled.seconds / LARGE.seconds == pytest.approx(expected)
    assert expected != pytest.approx(narrow, rel=1e-3)


def test_an_unknown_setup_is_refused() -> None:
    with pytest.raises(UnknownName, match='unknown setup "surfer"; it is "habitat"'):
        published_setup("surfer")


def test_a_step_is_predicted_with_the_setup() -> None:
    trace = replace(
        step(),
        calls=(Call(relu(), Phase.FORWARD, kernels=(MEMORY_BOUND,), host_s=1e-9),),
        measurement=Measurement(gpu="t4", seconds=1e-3, host_s=1e-9),
    )
    predicted = wavecast.predict(trace, Device.P100, predictor=HABITAT.scaler())
    assert predicted.gpu_s == pytest.approx(0.47705e-3, rel=1e-4)


def test_daydreams_rule_stands_alone() -> None:
    product = replace(LARGE, name="volta_sgemm_128x64_nn")
    call = Call(relu(), Phase.FORWARD, kernels=(product, LARGE))
    rule = MixedPrecision.daydream("fp16", HABITAT.scaler())
    full, half = (s.scale_call(call, Device.T4, Device.V100) for s in (rule.base, rule))
    assert full is not None
    assert half is not None
    # Half of the time is a product, three times as fast; the other half is twice as fast.
    assert half.seconds / full.seconds == pytest.approx((1 / 3 + 1 / 2) / 2)
    assert half.source == "fp16 by Daydream's rule"
    with pytest.raises(InvalidInput, match="bf16 or fp16"):
        MixedPrecision.daydream("int8")
