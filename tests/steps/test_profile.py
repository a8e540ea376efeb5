"""Profiles of hand-made steps: utilisation, idle time and memory as TBD defines them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made import mm, relu, tensor

from wavecast.analysis.profile import (
    CAUSES,
    Profile,
    ProfiledWork,
    profile_measured,
    profile_predicted,
)
from wavecast.hardware.devices import Device, device
from wavecast.ops import Unit
from wavecast.report.results.profiles import findings
from wavecast.steps.request import predict
from wavecast.traces.step import Allocation, Call, Kernel, Measurement, Op, Phase, Role, Trace

V100 = device("v100-sxm-16gb")


def ran(op: Op, *spans: tuple[float, float], **options: Any) -> Call:
    """A call whose kernels ran during these times."""
    name = options.pop("name", op.base)
    kernels = tuple(Kernel(name, end - begin, start_s=begin) for begin, end in spans)
    return Call(op, options.pop("phase", Phase.FORWARD), kernels=kernels, **options)


def profile(*calls: Call, seconds: float, **whole: Any) -> Profile:
    trace = Trace(calls, measurement=Measurement("V100", seconds=seconds, **whole), samples=8)
    return profile_measured("step", trace, V100)


def test_overlapping_kernels_count_once() -> None:
    """TBD-2: [0, 6] and [4, 8] in 10 are 80 %, not 100 %."""
    assert profile(ran(relu(8), (0, 6)), ran(relu(8), (4, 8)), seconds=10).gpu_utilisation == 0.8


def test_fp32_utilisation_is_over_the_time_the_gpu_is_active() -> None:
    """TBD eq. 2: a product at half the peak, on a GPU that idles half of the time."""
    op = mm(4096, 4096, 4096)
    flops = 2 * 4096**3
    busy_s = flops / (0.5 * V100.fp32_flops)
    profiled = profile(ran(op, (0, busy_s)), seconds=2 * busy_s)
    assert profiled.gpu_utilisation == pytest.approx(0.5)
    assert profiled.utilisation["fp32"] == pytest.approx(0.5)
    assert profiled.utilisation["tensor"] == 0


def test_half_precision_products_use_the_tensor_cores_that_a_gpu_has() -> None:
    half = mm(1024, 1024, 1024, dtype="float16")
    seconds = 2 * 1024**3 / 125e12
    assert profile(ran(half, (0, seconds)), seconds=1).utilisation == pytest.approx(
        {"fp32": 0, "tensor": 1}
    )


def test_counters_of_the_hardware_come_first() -> None:
    kernel = Kernel("k", 1.0, start_s=0.0, flops=0.25 * V100.fp32_flops, dram_bytes=1e9)
    call = Call(relu(8), Phase.FORWARD, kernels=(kernel,))
    profiled = profile(call, seconds=1.0)
    assert profiled.counted_share == 1
    assert profiled.utilisation["fp32"] == pytest.approx(0.25)


def test_processor_time_is_of_all_cores() -> None:
    """TBD eq. 3."""
    profiled = profile(ran(relu(8), (0, 1)), seconds=2.0, cpu_s=3.0, cores=4)
    assert profiled.cpu_utilisation == pytest.approx(3 / 8)
    assert profile(ran(relu(8), (0, 1)), seconds=2.0).cpu_utilisation is None


def test_work_that_was_measured_as_longer_than_the_step_is_said() -> None:
    """The step is timed without a profiler, and the kernels with one."""
    profiled = profile(ran(relu(8), (0, 10.5)), seconds=10)
    assert profiled.gpu_utilisation == 1
    assert any("measured as 105% and is shown as 100%" in note for note in profiled.notes)
    assert not profile(ran(relu(8), (0, 10.02)), seconds=10).notes


def test_kernels_of_one_call_may_begin_and_end_together() -> None:
    """As those of a CUDA graph on two streams do."""
    together = Call(
        relu(8),
        Phase.FORWARD,
        kernels=(Kernel("a", 2.0, start_s=1.0), Kernel("b", 2.0, start_s=1.0, stream=1)),
    )
    profiled = profile(together, ran(relu(8), (5, 6)), seconds=10)
    assert profiled.gpu_utilisation == 0.3
    assert profiled.idle_s["host"] == pytest.approx(7.0)


def test_idle_time_is_shared_out_by_what_came_before_and_after() -> None:
    copy = Op("aten.copy_", (tensor(8), tensor(8)), (tensor(8),))
    calls = (
        ran(relu(8), (0, 1)),
        ran(relu(8), (2, 3)),  # 1 s because of the host
        ran(relu(8), (3, 4), syncs=True),
        ran(relu(8), (6, 7)),  # 2 s after a wait
        ran(copy, (10, 11), name="Memcpy HtoD (Pageable -> Device)"),  # 3 s before a copy of data
        ran(Op("nccl.all_reduce", (), ()), (15, 16), name="ncclKernel"),  # 4 s before a collective
    )
    profiled = profile(*calls, seconds=16.0)
    assert profiled.idle_s == pytest.approx(
        {"host": 1, "synchronisation": 2, "input": 3, "communication": 4}
    )
    assert set(profiled.idle_s) == set(CAUSES)
    assert sum(profiled.idle_s.values()) == pytest.approx(profiled.seconds - profiled.gpu_s)


def test_long_kernels_below_the_average_are_named() -> None:
    peak = V100.fp32_flops
    works = (
        ProfiledWork("good", 6.0, 0.8 * peak * 6, 1.0, Unit.FP32),
        ProfiledWork("bad", 3.0, 0.1 * peak * 3, 1.0, Unit.FP32),
        ProfiledWork("worse", 1.0, 0.0, 1.0, Unit.FP32),
        ProfiledWork("unknown", 9.0, None, None, None),
    )
    profiled = replace(profile(ran(relu(8), (0, 1)), seconds=20), works=works, gpu_s=19.0)
    assert [kernel.name for kernel in profiled.wasteful()] == ["bad", "worse"]
    assert [kernel.name for kernel in profiled.wasteful(1)] == ["bad"]
    assert profiled.kernels[0].utilisation is None
    assert profiled.known_share == pytest.approx(10 / 19)


def test_a_kernel_has_its_place_under_the_roofline() -> None:
    op = relu(1 << 20)
    least_s = 2 * 4 * (1 << 20) / V100.memory_bytes_per_s
    [kernel] = profile(ran(op, (0, 2 * least_s)), seconds=1).kernels
    assert kernel.bound_by == "memory"
    assert kernel.attained == pytest.approx(0.5)


def test_the_work_of_a_call_is_shared_among_the_kernels_that_do_it() -> None:
    """A convolution's backward pass runs two products and some conversions."""
    op = mm(4096, 4096, 4096)
    whole_s = 2 * 4096**3 / V100.fp32_flops
    kernels = (
        Kernel("nchwToNhwcKernel", whole_s, start_s=0.0),
        Kernel("sm80_xmma_dgrad_implicit_gemm", whole_s, start_s=whole_s),
        Kernel("cutlass_wgrad", 3 * whole_s, start_s=2 * whole_s),
        Kernel("splitKreduce_kernel", whole_s, start_s=5 * whole_s),
    )
    profiled = profile(Call(op, Phase.BACKWARD, kernels=kernels), seconds=1.0)
    shares = {kernel.name: kernel.utilisation for kernel in profiled.kernels}
    assert shares == pytest.approx(
        {
            "nchwToNhwcKernel": 0,
            "sm80_xmma_dgrad_implicit_gemm": 0.25,
            "cutlass_wgrad": 0.25,
            "splitKreduce_kernel": 0,
        }
    )
    plain = Call(relu(1 << 20), Phase.FORWARD, kernels=(Kernel("a", 1.0), Kernel("b", 3.0)))
    assert [w.nbytes for w in profile(plain, seconds=4.0).works] == [2 << 20, 6 << 20]


def test_what_lies_before_the_first_kernel_is_idle_where_the_gpu_began_idle() -> None:
    copied = ran(relu(8), (6.0, 7.0), name="Memcpy HtoD (Pageable -> Device)")
    calls = (copied, ran(relu(8), (9.0, 10.0)))
    taken = profile(*calls, seconds=10.0, gpu_s=2.0, recorded_s=10.0)
    assert taken.idle_s["input"] == pytest.approx(6.0)
    assert taken.idle_s["host"] == pytest.approx(2.0)
    of_many = profile(*calls, seconds=10.0, gpu_s=2.0)
    assert of_many.idle_s["host"] == pytest.approx(8.0)


def test_memory_is_counted_by_the_kinds_of_the_paper_as_maxima() -> None:
    calls = (
        Call(relu(8), Phase.FORWARD, kernels=(Kernel("relu", 0.5),)),
        Call(relu(8), Phase.BACKWARD),
        Call(relu(8), Phase.OPTIMIZER),
    )
    trace = Trace(
        calls,
        allocations=(
            Allocation(100, None, None, Role.PARAMETER),
            Allocation(10, None, None, Role.BUFFER),
            Allocation(90, 1, None, Role.GRADIENT),
            Allocation(50, 0, 2, Role.INTERMEDIATE),  # kept for the backward pass
            Allocation(7, 0, 1, Role.INTERMEDIATE),
            Allocation(200, None, None, Role.OPTIMIZER_STATE),
            Allocation(32, None, None, Role.WORKSPACE),
            Allocation(8, 0, 1, Role.WORKSPACE),
            Allocation(9, 1, 2, Role.WORKSPACE),
        ),
        measurement=Measurement("V100", seconds=1.0),
    )
    assert profile_measured("step", trace, V100).memory_bytes == {
        "weights": 110,
        "weight gradients": 90,
        "feature maps": 50,
        "workspace": 41,
        "dynamic": 207,
    }


def test_memory_that_was_not_recorded_is_unknown() -> None:
    assert set(profile(ran(relu(8), (0, 1)), seconds=1).memory_bytes.values()) == {None}


@pytest.mark.parametrize("gpu", [V100, device("l4")], ids=lambda gpu: gpu.id)
def test_a_prediction_has_the_same_profile(gpu: Device) -> None:
    trace = Trace((Call(mm(4096, 4096, 4096), Phase.FORWARD), Call(relu(64), Phase.FORWARD)))
    predicted = predict(trace, gpu)
    profiled = profile_predicted("step", predicted)
    assert profiled.gpu_utilisation == pytest.approx(predicted.gpu_s / predicted.seconds)
    assert sum(profiled.idle_s.values()) == pytest.approx(predicted.seconds - predicted.gpu_s)
    assert 0 < profiled.utilisation["fp32"] <= 1
    assert profiled.kernels[0].name == "aten.mm"
    assert not profiled.measured


def test_findings_come_with_their_share_and_place() -> None:
    sentences = findings(
        profile(
            ran(relu(8), (0, 4)),
            ran(relu(8), (6, 7), module="Net.head"),  # 2 s for the host
            ran(Op("nccl.all_reduce", (), ()), (6, 9), name="ncclKernel_AllReduce"),
            seconds=10,
            recorded_s=10,
            gpu_s=7.0,
        )
    )
    assert sentences[0].startswith("aten.relu takes 62% of the GPU's time")
    assert (
        "the GPU idles 30% of the step waiting for the host, most at Net.head (100% of it)"
        in sentences
    )
    assert "20% of the step is exposed communication (NCCL)" in sentences


def test_collectives_and_copies_compute_nothing_and_that_is_known() -> None:
    profiled = profile(ran(Op("nccl.all_reduce", (), ()), (0, 1), name="ncclKernel"), seconds=1)
    assert profiled.known_share == 1
