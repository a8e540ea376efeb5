"""Wave scaling: Habitat's equations by hand, and what is made of them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import mm, relu, unknown

from wavecast.hardware.devices import Device, Fact
from wavecast.hardware.occupancy import LIMITS, blocks_per_sm
from wavecast.ops import Kind, Unit
from wavecast.predictors.wave import (
    CONTRACTION_GAMMA,
    CONTRACTION_SPREAD,
    ONE_WAVE_SPREAD,
    STREAMING_SPREAD,
    Scaled,
    Waves,
    WaveScaling,
    gamma,
    kernels_that_matter,
    mixed_ratio,
    scale,
    wave_ratio,
    wave_size,
    work_of,
)
from wavecast.traces.step import Call, Kernel, Op, Phase

# Capability, SMs, GB/s, MHz of Habitat's GPUs: its table 2 and published configuration file.
HABITAT = {
    "P4000": ((6, 1), 14, 195, 1227),
    "P100": ((6, 0), 56, 501, 1126),
    "V100": ((7, 0), 80, 739, 1312),
    "2080Ti": ((7, 5), 68, 524, 1350),
    "T4": ((7, 5), 40, 239, 585),
}


def waves(gpu: str) -> Waves:
    """Of a kernel of 256 threads with 32 registers and no shared memory."""
    capability, sms, gb_per_s, mhz = HABITAT[gpu]
    size = wave_size(blocks_per_sm(LIMITS[capability], 256, 32, 0), sms)
    return Waves(size, gb_per_s * 1e9, mhz * 1e6)


def gpu(**facts: Any) -> Device:
    """A GPU of round numbers: 4 blocks of 256 threads per SM, 10 SMs, 100 FLOPs per byte."""
    usual: dict[str, Any] = {
        "id": "round", "name": "Round", "vendor": "NVIDIA", "architecture": "Turing",
        "memory_bytes": 1 << 30, "memory_bytes_per_s": 1e11, "fp32_flops": 1e13,
        "compute_capability": (7, 5), "sm_count": 10, "boost_clock_hz": 1e9,
        "pcie_bytes_per_s": 1e10,
    }  # fmt: skip
    return Device(**{**usual, **facts})


ORIGIN = gpu()
TARGET = gpu(
    id="better", memory_bytes_per_s=4e11, sm_count=20, boost_clock_hz=2e9, pcie_bytes_per_s=4e10
)
LARGE = Kernel("k", 1e-3, (10_000, 1, 1), (256, 1, 1), 32, 0)


def scaled(kernel: Kernel = LARGE, **options: Any) -> Scaled:
    answer = scale(kernel, options.pop("origin", ORIGIN), options.pop("target", TARGET), **options)
    assert answer is not None
    return answer


# The equations.

SIZES = st.builds(Waves, st.integers(1, 5000), st.floats(1e10, 1e13), st.floats(5e8, 3e9))
GAMMAS = st.floats(0, 1)


@pytest.mark.parametrize(
    ("origin", "target", "expected"),
    [  # Habitat's Eq. 2 at gamma 0, 1/2 and 1
        ("P4000", "V100", (0.16366, 0.20781, 0.26387)),
        ("T4", "P100", (0.18555, 0.29752, 0.47705)),
        ("2080Ti", "V100", (0.43731, 0.55685, 0.70907)),
    ],
)
def test_equation_2(origin: str, target: str, expected: tuple[float, ...]) -> None:
    ratios = [wave_ratio(waves(origin), waves(target), g) for g in (0, 0.5, 1)]
    assert ratios == pytest.approx(expected, abs=5e-6)


def whole_waves_ratio(blocks: int, origin: Waves, target: Waves, gamma: float) -> float:
    """Td / To by whole waves (Habitat, Eq. 1), of which Eq. 2 is the limit for many waves."""
    waves = math.ceil(blocks / target.size) / math.ceil(blocks / origin.size)
    memory = origin.bytes_per_s / target.bytes_per_s * (target.size / origin.size)
    clock = origin.clock_hz / target.clock_hz
    return mixed_ratio(memory, clock, gamma) * waves


def test_equation_1_makes_kernels_below_one_wave_slower_on_bigger_gpus() -> None:
    ratio = whole_waves_ratio(100, waves("P4000"), waves("V100"), 0.5)
    assert ratio == pytest.approx(1.187, abs=5e-4)  # Eq. 1: why it is not used


def test_equation_3() -> None:
    points = (0, 0.25, 0.5, 1, 2, 4, 100)  # Eq. 3, x / R
    expected = (1, 0.875, 0.75, 0.5, 0.25, 0.125, 0.005)
    assert [gamma(x * 31.046, 31.046) for x in points] == pytest.approx(expected, rel=1e-12)
    assert gamma(math.inf, 10) == 0


@given(st.floats(0, 1e6), st.floats(1e-3, 1e4))
def test_gamma_is_a_share_that_falls_with_intensity(x: float, ridge: float) -> None:
    assert 0 <= gamma(x + 1, ridge) <= gamma(x, ridge) <= 1


def equations_are_within_a_wave(blocks: int, origin: Waves, target: Waves, g: float) -> bool:
    """Papers.md HB-1: 1 / (1 + Wo/B) <= Eq. 1 / Eq. 2 <= 1 + Wd/B."""
    quotient = whole_waves_ratio(blocks, origin, target, g) / wave_ratio(origin, target, g)
    low, high = 1 / (1 + origin.size / blocks), 1 + target.size / blocks
    return low * (1 - 1e-9) <= quotient <= high * (1 + 1e-9)


@given(st.integers(1, 10**6), SIZES, SIZES, GAMMAS)
def test_equation_2_is_within_a_wave_of_equation_1(b: int, o: Waves, t: Waves, g: float) -> None:
    assert equations_are_within_a_wave(b, o, t, g)


def test_equation_2_is_within_a_wave_of_equation_1_on_20000_draws() -> None:
    draw = random.Random(1)
    for _ in range(20_000):
        origin, target = (
            Waves(draw.randint(1, 5000), draw.uniform(1e11, 5e12), draw.uniform(5e8, 2e9))
            for _ in range(2)
        )
        assert equations_are_within_a_wave(draw.randint(1, 10**6), origin, target, draw.random())


@given(st.integers(1, 50), SIZES, SIZES, GAMMAS)
def test_the_equations_agree_on_whole_waves(n: int, origin: Waves, target: Waves, g: float) -> None:
    blocks = n * int(origin.size) * int(target.size)
    expected = wave_ratio(origin, target, g)
    assert whole_waves_ratio(blocks, origin, target, g) == pytest.approx(expected)


@given(SIZES, SIZES, GAMMAS)
def test_there_and_back_is_no_change(origin: Waves, target: Waves, g: float) -> None:
    there, back = wave_ratio(origin, target, g), wave_ratio(target, origin, g)
    assert there > 0
    assert there * back == pytest.approx(1)
    assert wave_ratio(origin, origin, g) == pytest.approx(1)


@given(SIZES, SIZES, GAMMAS, st.floats(1, 10))
def test_a_better_gpu_is_never_slower(o: Waves, t: Waves, g: float, times: float) -> None:
    better = (
        replace(t, size=t.size * times),
        replace(t, bytes_per_s=t.bytes_per_s * times),
        replace(t, clock_hz=t.clock_hz * times),
    )
    for gpu in better:
        assert wave_ratio(o, gpu, g) <= wave_ratio(o, t, g) * (1 + 1e-12)


# One kernel.


def test_the_same_device_takes_exactly_as_long() -> None:
    expected = Scaled(1.0, 1.0, 1.0, None, "same device")
    assert scaled(target=gpu()) == expected
    assert scaled(Kernel("Memset (Device)", 1e-6), target=ORIGIN) == expected


def test_the_intensity_of_the_op_gives_gamma_at_the_ridge_of_the_target() -> None:
    answer = scaled(intensity=25.0)  # 1e13 / 4e11
    assert (answer.gamma, answer.source) == (0.5, "op")
    assert answer.ratio == pytest.approx((1 / 4) ** 0.5 * (1 / 2 / 2) ** 0.5)


def test_tensor_cores_have_a_ridge_of_their_own() -> None:
    target = replace(TARGET, fp16_tensor_flops=1e14)
    assert scaled(target=target, intensity=250.0, unit=Unit.FP16_TENSOR).gamma == 0.5
    assert scaled(intensity=25.0, unit=Unit.BF16_TENSOR).gamma == 0.5


@pytest.mark.parametrize(
    ("flops", "dram_bytes", "expected"),
    [(25e6, 1e6, 0.5), (0.0, 1e6, 1.0), (0.0, 0.0, 1.0), (1e6, 0.0, 0.0)],
)
def test_counters_come_before_the_op(flops: float, dram_bytes: float, expected: float) -> None:
    answer = scaled(replace(LARGE, flops=flops, dram_bytes=dram_bytes), intensity=3.0)
    assert (answer.gamma, answer.source) == (expected, "counters")


def test_a_contraction_of_unknown_shape_has_a_wide_range() -> None:
    answer = scaled(kind=Kind.MATMUL, target=replace(TARGET, sm_count=10))
    assert (answer.gamma, answer.source) == (CONTRACTION_GAMMA, "assumed")
    assert answer.low == pytest.approx(1 / 4 / CONTRACTION_SPREAD)
    assert answer.high == pytest.approx(1 / 2 * CONTRACTION_SPREAD)


def test_measured_bandwidths_are_used_when_both_are_known_and_never_mixed() -> None:
    measured = {"memory_bytes_per_s": Fact(0.5e11, "us")}
    origin = replace(ORIGIN, measured=measured)
    assert scaled(origin=origin).ratio == 0.25
    target = replace(TARGET, measured={"memory_bytes_per_s": Fact(1e11, "us")})
    assert scaled(origin=origin, target=target).ratio == 0.5
    assert scaled(origin=origin, target=target, intensity=100.0).gamma == 0.5  # 1e13 / 1e11
    fact = {"memory_bytes_per_s": Fact(1e11, "us"), "fp32_flops": Fact(0.8e13, "us")}
    assert scaled(origin=origin, target=replace(TARGET, measured=fact), intensity=80.0).gamma == 0.5


def test_clocks_are_both_boost_or_both_base() -> None:
    origin = replace(ORIGIN, base_clock_hz=1e9)
    target = replace(TARGET, base_clock_hz=4e9, boost_clock_hz=None)
    assert scaled(origin=origin, target=target, intensity=math.inf).ratio == 1 / 2 / 4
    assert scale(LARGE, ORIGIN, target, None) is None


def test_without_sm_counts_there_is_no_answer() -> None:
    assert scale(LARGE, ORIGIN, replace(TARGET, sm_count=None), None) is None


@pytest.mark.parametrize(
    "kernel",
    [
        replace(LARGE, registers=None),
        replace(LARGE, block=None),
        replace(LARGE, shared_bytes=60_000),  # does not fit on the target
    ],
)
def test_sm_counts_replace_waves_where_occupancy_is_not_known(kernel: Kernel) -> None:
    target = replace(TARGET, compute_capability=(6, 1))
    assert scaled(target=target, intensity=math.inf).ratio == 1 / 4 / 2  # 8 blocks fit, not 4
    assert scaled(kernel, target=target, intensity=math.inf).ratio == 1 / 2 / 2
    other = replace(TARGET, vendor="AMD", compute_capability=None)
    assert scaled(target=other, intensity=math.inf).ratio == 1 / 2 / 2


@pytest.mark.parametrize(("blocks", "source"), [(1, "one wave"), (40, "one wave"), (41, "op")])
def test_kernels_below_one_wave_on_both_gpus_keep_their_time(blocks: int, source: str) -> None:
    answer = scaled(replace(LARGE, grid=(blocks, 1, 1)), intensity=1.0)
    assert answer.source == source
    if source == "one wave":
        assert (answer.low, answer.ratio, answer.high) == (1 / ONE_WAVE_SPREAD, 1, ONE_WAVE_SPREAD)


@pytest.mark.parametrize(
    ("name", "ratio", "source"),
    [  # as Kineto names them
        ("Memset (Device)", 1 / 4, "memory"),
        ("Memcpy DtoD (Device -> Device)", 1 / 4, "memory"),
        ("Memcpy HtoD (Pinned -> Device)", 1 / 4, "link"),
        ("Memcpy DtoH (Device -> Pageable)", 1.0, "host"),
    ],
)
def test_copies_scale_with_memory_link_or_host(name: str, ratio: float, source: str) -> None:
    answer = scaled(Kernel(name, 1e-6))
    assert (answer.ratio, answer.gamma, answer.source) == (ratio, None, source)
    assert answer.high == STREAMING_SPREAD


def test_a_copy_over_an_unknown_link_keeps_its_time() -> None:
    answer = scaled(Kernel("Memcpy HtoD", 1e-6), target=replace(TARGET, pcie_bytes_per_s=None))
    assert (answer.ratio, answer.source) == (1.0, "host")


def test_collectives_are_not_scaled() -> None:
    assert scale(replace(LARGE, name="ncclDevKernel_AllReduce"), ORIGIN, TARGET, None) is None


KERNELS = st.builds(
    Kernel,
    st.just("k"),
    st.floats(0, 1),
    st.tuples(st.integers(1, 10**5), st.integers(1, 4), st.just(1)) | st.none(),
    st.tuples(st.integers(1, 512), st.integers(1, 2), st.just(1)) | st.none(),
    st.integers(0, 256) | st.none(),
    st.integers(0, 10**5) | st.none(),
)


# One call.


def call(op: Op, *kernels: Kernel, phase: Phase = Phase.FORWARD) -> Call:
    return Call(op, phase, kernels=kernels)


def test_a_call_is_the_sum_of_its_kernels() -> None:
    copy = Kernel("Memcpy DtoD (Device -> Device)", 2e-3)
    answer = WaveScaling().scale_call(call(unknown(), LARGE, copy), ORIGIN, TARGET)
    assert answer is not None
    assert answer.seconds == pytest.approx(3e-3 / 4)
    assert answer.low_s < answer.seconds < answer.high_s
    assert answer.source == "wave scaling"


def test_the_ops_shapes_give_its_intensity() -> None:
    product = WaveScaling().scale_call(call(mm(4096, 4096, 4096), LARGE), ORIGIN, TARGET)
    expected = scaled(intensity=2 * 4096**3 / (3 * 4 * 4096**2), kind=Kind.MATMUL)
    assert product is not None
    assert product.seconds == pytest.approx(expected.ratio * 1e-3)
    assert work_of(relu(1000)).intensity == 1 / 8


@pytest.mark.parametrize("name", ["aten.mm", "aten.convolution", "aten.native_layer_norm"])
def test_an_op_that_a_profiler_only_names_has_no_intensity(name: str) -> None:
    bare = work_of(Op(name, (), ()))
    assert bare.intensity is None
    assert bare.contraction == (name != "aten.native_layer_norm")
    assert WaveScaling().scale_call(call(Op(name, (), ()), LARGE), ORIGIN, TARGET) is not None


def test_without_kernels_or_with_one_that_has_no_answer_there_is_none() -> None:
    scaling = WaveScaling()
    assert scaling.scale_call(call(relu(8)), ORIGIN, TARGET) is None
    both = call(relu(8), LARGE, Kernel("ncclDevKernel_AllReduce", 1e-3))
    assert scaling.scale_call(both, ORIGIN, TARGET) is None


def test_kernels_without_a_measured_time_are_not_scaled() -> None:
    nothing = call(relu(8), replace(LARGE, seconds=0.0))
    assert WaveScaling().scale_call(nothing, ORIGIN, TARGET) is None


# Counters.


def test_the_longest_calls_of_each_phase_deserve_counters() -> None:
    forward = [call(relu(n), replace(LARGE, seconds=n * 1e-6)) for n in range(1, 1001)]
    product = call(mm(), replace(LARGE, seconds=1.0))
    backward = call(relu(8), replace(LARGE, seconds=1e-9), phase=Phase.BACKWARD)
    chosen = kernels_that_matter([backward, product, call(relu(8)), *forward])
    assert chosen == (backward, *forward[-5:])
    assert kernels_that_matter([product, *forward], apart=frozenset())[0] == product


def test_nothing_measured_deserves_no_counters() -> None:
    assert kernels_that_matter([]) == kernels_that_matter([call(relu(8))]) == ()
