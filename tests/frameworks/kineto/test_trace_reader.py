"""Profiler files made by hand, read as measured traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kineto_file import AUTOGRAD, File

import wavecast.ops.pointwise  # noqa: F401  (until wavecast.ops imports it)
from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto import read_kineto
from wavecast.ops import Kind
from wavecast.traces.step import Call, Phase, Trace, load_trace

BACKWARD = "autograd::engine::evaluate_function: "


def forward(file: File) -> None:
    """A convolution four ops deep, a linear layer with a view, and an unknown op."""
    with (
        file.inside("aten::conv2d"),
        file.inside("aten::convolution", **{"Sequence number": 5}),
        file.inside("aten::_convolution"),
    ):
        file.op("aten::cudnn_convolution", "conv_kernel", "conv_reduce")
    with file.inside("aten::linear"):
        with file.inside("aten::t"):
            file.op("aten::transpose")
        file.op("aten::addmm", "gemm", us=20.0)
    with file.inside("mine::secret"):
        file.op("aten::empty")
        file.launch("secret_kernel")


def backward(file: File) -> None:
    with (
        file.on(AUTOGRAD),
        file.inside(BACKWARD + "ConvolutionBackward0", **{"Sequence number": 5}),
        file.inside("ConvolutionBackward0", **{"Sequence number": 5}),
    ):
        file.op("aten::convolution_backward", "dgrad", "wgrad", us=15.0)


def update(file: File) -> None:
    with file.annotation("Optimizer.step#SGD.step"):
        file.op("aten::_foreach_add_", "multi_tensor_apply_kernel")


def training(steps: int = 1, first: int = 3, **fields: Any) -> File:
    file = File(**fields)
    for number in range(first, first + steps):
        with file.annotation(f"ProfilerStep#{number}"):
            forward(file)
            backward(file)
            update(file)
    return file


def read(file: File, folder: Path, step: int | None = None) -> Trace:
    return read_kineto(file.write(folder), step=step)


def names(trace: Trace) -> list[str]:
    return [call.op.name for call in trace]


def kernel_s(trace: Trace) -> float:
    return sum(kernel.seconds for call in trace for kernel in call.kernels)


def named(trace: Trace, name: str) -> Call:
    [call] = [call for call in trace if call.op.name == name]
    return call


def test_each_kernel_belongs_to_the_op_that_our_own_trace_would_have(tmp_path: Path) -> None:
    trace = read(training(), tmp_path)
    assert names(trace) == [
        "aten.convolution",
        "aten.t",
        "aten.addmm",
        "mine.secret",
        "aten.convolution_backward",
        "aten._foreach_add_",
    ]
    convolution = named(trace, "aten.convolution")
    assert [kernel.name for kernel in convolution.kernels] == ["conv_kernel", "conv_reduce"]
    assert named(trace, "aten.t").kernels == ()


def test_phases_come_from_autograd_and_the_optimizer(tmp_path: Path) -> None:
    phases = {call.op.name: call.phase for call in read(training(), tmp_path)}
    assert phases["aten.convolution"] is Phase.FORWARD
    assert phases["aten.convolution_backward"] is Phase.BACKWARD
    assert phases["aten._foreach_add_"] is Phase.OPTIMIZER


def test_what_follows_backward_is_not_forward_and_autograds_thread_is_backward(
    tmp_path: Path,
) -> None:
    file = File()
    file.op("aten::mm", "gemm")
    backward(file)
    with file.on(AUTOGRAD):
        file.op("aten::copy_", "bucket")
    file.op("aten::clamp_", "clip")
    file.op("aten::_to_copy", "Memcpy HtoD (Pinned -> Device)")
    phases = {call.op.name: call.phase for call in read(file, tmp_path)}
    assert phases["aten.mm"] is Phase.FORWARD
    assert phases["aten.copy_"] is Phase.BACKWARD
    assert phases["aten.clamp_"] is Phase.OTHER
    assert phases["aten._to_copy"] is Phase.OTHER


def test_nothing_that_ran_on_the_gpu_is_lost(tmp_path: Path) -> None:
    file = training()
    with file.annotation("ProfilerStep#9"):
        file.wait()
        file.launch("no_op_around")
        file.launch("before_the_recording", shown=False)
        file.launch("a", "b", "c", call="cudaGraphLaunch")
        file.op("aten::mm", "gemm")
    total_s = file.gpu_s
    third = read(file, tmp_path, step=3)
    ninth = read(file, tmp_path, step=9)
    assert kernel_s(third) + kernel_s(ninth) == pytest.approx(total_s)
    assert kernel_s(ninth) == pytest.approx(60e-6)


def test_kernels_without_an_op_are_named_after_themselves_and_noted(tmp_path: Path) -> None:
    file = File()
    file.launch("void at::native::(anonymous namespace)::fused<float>(int)")
    file.launch("triton_poi_fused_add_0", call="cuLaunchKernel")
    file.launch("a", "b", call="cudaGraphLaunch")
    file.launch("earlier", shown=False)
    with file.inside("Torch-Compiled Region: 0/0"), file.inside("CompiledFunction"):
        file.launch("triton_red_fused_1")
        file.op("triton_poi_fused_2", "triton_poi_fused_2")
    trace = read(file, tmp_path)
    assert names(trace) == [
        "kernel.at::native::fused",
        "triton.triton_poi_fused_add_0",
        "kernel.cudaGraphLaunch",
        "triton.triton_red_fused_1",
        "triton.triton_poi_fused_2",
        "kernel.earlier",  # by the GPU's time, there is no other
    ]
    assert len(named(trace, "kernel.cudaGraphLaunch").kernels) == 2
    assert "4 kernels (0.04 ms) outside any known op" in trace.notes
    assert "1 kernel (0.01 ms) whose launch is not in the file" in trace.notes


def test_a_view_that_only_sometimes_copies_is_the_copy(tmp_path: Path) -> None:
    file = File()
    with file.inside("aten::reshape"), file.inside("aten::clone"):
        file.op("aten::copy_", "copy")
    with file.inside("aten::reshape"):
        file.op("aten::view")
    with file.inside("aten::to"), file.inside("aten::_to_copy"):
        file.op("aten::empty_strided")
        file.op("aten::copy_", "cast")
    file.op("aten::to")
    with file.inside("aten::detach"):
        file.op("detach")
    assert names(read(file, tmp_path)) == ["aten.clone", "aten.view", "aten._to_copy"]


def test_the_most_typical_step_is_taken(tmp_path: Path) -> None:
    file = File()
    for number, us in enumerate([500.0, 30.0, 20.0, 40.0], start=1):
        with file.annotation(f"ProfilerStep#{number}"):
            file.op("aten::mm", "gemm", us=us)
            if number == 4:
                file.op("aten::mm", "one more")
    with file.annotation("ProfilerStep#5"):
        pass
    trace = read(file, tmp_path)
    # Not the first, which warms up; not the fourth, which does more; not the fifth, still empty.
    assert kernel_s(trace) == pytest.approx(20e-6)
    assert trace.notes[0] == "step 3 of the steps 1 to 4"
    assert kernel_s(read(file, tmp_path, step=4)) == pytest.approx(50e-6)


def test_a_step_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no step 7 .* it has the steps 3 to 5"):
        read(training(3), tmp_path, step=7)
    file = File()
    forward(file)
    with pytest.raises(InvalidInput, match="it marks no steps; leave out the step number"):
        read(file, tmp_path, step=1)


def test_steps_on_the_gpu_are_not_steps_of_the_host(tmp_path: Path) -> None:
    file = training(2)
    file.add("gpu_user_annotation", "ProfilerStep#3", 0.0, 1e9)
    file.add("gpu_user_annotation", "ProfilerStep#77", 0.0, 1e9)
    assert read(file, tmp_path).notes[0] == "step 4 of the steps 3 to 4"


def test_the_steady_step_is_that_of_the_gpu(tmp_path: Path) -> None:
    file = File()
    for number in range(6):  # the host issues each in microseconds, the GPU needs a millisecond
        with file.annotation(f"ProfilerStep#{number}"):
            file.op("aten::mm", "gemm", us=1000.0)
    measurement = read(file, tmp_path).measurement
    assert measurement is not None
    assert measurement.seconds == pytest.approx(1e-3)
    assert measurement.repeats == 5
    assert measurement.gpu_s == pytest.approx(1e-3)
    assert measurement.host_s is not None
    assert measurement.host_s < 20e-6


def test_a_single_step_lasts_from_its_first_activity_to_its_last(tmp_path: Path) -> None:
    file = File()
    with file.annotation("ProfilerStep#1"):
        file.now += 500.0
        file.op("aten::mm", "gemm", us=100.0)
        file.now += 500.0
    measurement = read(file, tmp_path).measurement
    assert measurement is not None
    assert measurement.seconds == pytest.approx(105e-6)  # op, launch, kernel
    assert measurement.host_s == pytest.approx(6e-6)
    assert measurement.repeats == 1


def test_a_file_without_steps_is_one_iteration(tmp_path: Path) -> None:
    file = File()
    forward(file)
    trace = read(file, tmp_path)
    assert kernel_s(trace) == pytest.approx(file.gpu_s)
    assert trace.notes[0] == "the file marks no steps, so all of it is taken as one iteration"


def test_gpu_time_is_counted_once_where_streams_overlap(tmp_path: Path) -> None:
    file = File()
    file.op("aten::mm", "gemm", us=100.0)
    file.gpu_free = 0.0
    with file.inside("aten::mul"):
        file.launch("mul", us=50.0, stream=20)
    trace = read(file, tmp_path)
    assert trace.measurement is not None
    assert trace.measurement.gpu_s == pytest.approx(100e-6)
    assert kernel_s(trace) == pytest.approx(150e-6)
    assert [(call.stream, call.kernels[0].stream) for call in trace] == [(0, 7), (1, 20)]
    assert trace.calls[1].kernels[0].start_s is not None


def test_host_times_are_shares_of_the_step_without_waiting(tmp_path: Path) -> None:
    file = training(2)
    with file.annotation("ProfilerStep#5"):
        begin = file.now - 1.0
        file.op("aten::mm", "gemm", us=5000.0)
        file.now += 100.0
        with file.inside("aten::item"), file.inside("aten::_local_scalar_dense"):
            file.launch("Memcpy DtoH (Device -> Pageable)", call="cudaMemcpyAsync")
            before = file.now
            file.wait("cudaStreamSynchronize")
            waited = file.now - before
        file.op("aten::mul", "mul")
    trace = read(file, tmp_path, step=5)
    measurement = trace.measurement
    assert measurement is not None
    assert measurement.host_s == pytest.approx((file.now - begin - waited) / 1e6)
    assert sum(call.host_s or 0.0 for call in trace) == pytest.approx(measurement.host_s)
    mm, scalar, mul = trace
    assert mm.host_s == pytest.approx(108e-6)  # 1 before it, 6 in it, 101 until the next
    assert [mm.syncs, scalar.syncs, mul.syncs] == [False, True, False]


def test_a_synchronisation_outside_of_all_ops_is_a_call(tmp_path: Path) -> None:
    file = File()
    file.op("aten::mm", "gemm", us=300.0)
    file.wait()
    file.wait("hipStreamSynchronize")
    mm, device, stream = read(file, tmp_path)
    assert [device.op.name, stream.op.name] == ["cuda.synchronize", "cuda.stream_synchronize"]
    assert device.syncs
    assert not mm.syncs
    assert ops.kind(device.op) is Kind.SYNC
    assert device.host_s == pytest.approx(0.0, abs=1e-9)


def test_waiting_for_room_in_the_queue_is_not_the_hosts_work(tmp_path: Path) -> None:
    file = File()
    for number in range(20):
        with file.inside("aten::mm"):
            file.launch("gemm", us=400.0, takes=4.0 if number < 10 else 300.0)
    measurement = read(file, tmp_path).measurement
    assert measurement is not None
    assert measurement.host_s == pytest.approx(20 * 6e-6)


def test_a_launch_that_is_slow_by_itself_is_the_hosts_work(tmp_path: Path) -> None:
    file = File()
    for number in range(20):
        with file.inside("aten::mm"):
            file.launch("gemm", us=3.0, takes=300.0 if number == 5 else 4.0)
    measurement = read(file, tmp_path).measurement
    assert measurement is not None
    assert measurement.host_s == pytest.approx(20 * 6e-6 + 296e-6)


def test_collectives_are_told_from_computing(tmp_path: Path) -> None:
    record: dict[str, Any] = {
        "Collective name": "allreduce",
        "In msg nelems": 1000,
        "Out msg nelems": 1000,
    }
    record |= {"dtype": "Float", "Group size": 2}
    file = File(distributedInfo={"backend": "nccl", "rank": 1, "world_size": 2})
    file.op("aten::mm", "gemm")
    with (
        file.inside("c10d::allreduce_"),
        file.inside("record_param_comms", **record),
        file.annotation("nccl:all_reduce"),
    ):
        file.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", us=40.0, stream=20)
    with file.inside("record_param_comms"), file.annotation("nccl:_all_gather_base"):
        file.launch("ncclKernel_AllGather_RING_LL", us=10.0, stream=20)
    file.launch("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", us=10.0, stream=20)
    with file.inside("record_param_comms"):  # a wait for one, which sends nothing
        pass
    trace = read(file, tmp_path)
    assert names(trace)[1:] == ["nccl.all_reduce", "nccl.all_gather", "nccl.send_recv"]
    reduced = trace.calls[1].op
    assert [tensor.shape for tensor in (*reduced.inputs, *reduced.outputs)] == [(1000,), (1000,)]
    assert reduced.attr("group_size") == 2
    assert {ops.kind(call.op) for call in trace.calls[1:]} == {Kind.COLLECTIVE}
    costs = ops.cost_of(reduced)
    assert costs is not None
    assert costs.bytes == 8000
    assert "rank 1 of 2" in trace.notes
    assert "3 communication kernels (0.06 ms) between GPUs" in trace.notes


def test_an_exchange_with_nobody_is_kept_though_it_runs_nothing(tmp_path: Path) -> None:
    file = File()
    file.op("aten::mm", "gemm")
    with (
        file.inside("c10d::allreduce_"),
        file.inside("record_param_comms"),
        file.annotation("nccl:all_reduce"),
    ):
        pass
    assert names(read(file, tmp_path)) == ["aten.mm", "nccl.all_reduce"]


def test_modules_come_from_their_forwards_and_reach_backward(tmp_path: Path) -> None:
    file = File()
    with (
        file.inside("nn.Module: Net_0", "python_function"),
        file.inside("torch/nn/modules/conv.py(1): forward", "python_function"),
        file.inside("nn.Module: Conv2d_0", "python_function"),
    ):
        forward(file)
    backward(file)
    trace = read(file, tmp_path)
    assert named(trace, "aten.convolution").module == "Net_0.Conv2d_0"
    assert named(trace, "aten.convolution_backward").module == "Net_0.Conv2d_0"


def test_modules_come_from_their_hierarchy_too(tmp_path: Path) -> None:
    file = File()
    path: dict[str, Any] = {"Module Hierarchy": "TOP(Net).layer1(Sequential).0(Block)"}
    file.op("aten::mm", "gemm", **path)
    assert read(file, tmp_path).calls[0].module == "layer1.0"


def test_the_gpu_is_the_one_that_ran_the_kernels(tmp_path: Path) -> None:
    gpus = [
        {"id": 0, "name": "Tesla V100", "computeMajor": 7, "computeMinor": 0},
        {"id": 1, "name": "NVIDIA A100", "computeMajor": 8, "computeMinor": 0},
    ]
    versions = {"cuda_runtime_version": 12040, "cupti_version": 18}
    file = File(deviceProperties=gpus, distributedInfo={"nccl_version": "2.17.1"}, **versions)
    with file.inside("aten::mm"):
        file.launch("gemm", device=1)
    trace = read(file, tmp_path)
    assert trace.measurement is not None
    assert trace.measurement.gpu == "NVIDIA A100"
    assert trace.capability == (8, 0)
    assert trace.measurement.software == "CUDA runtime 12.4, CUPTI 18, NCCL 2.17.1"


def test_amd_files_are_read(tmp_path: Path) -> None:
    gpu = {"id": 0, "name": "AMD Radeon Graphics", "computeMajor": 9, "computeMinor": 0}
    file = File(deviceProperties=[gpu | {"warpSize": 64}])
    with file.inside("aten::to"), file.inside("aten::_to_copy"), file.inside("aten::copy_"):
        file.launch("Memcpy HtoD (Host -> Device)", call="hipMemcpyWithStream", stream="0x0")
    with file.inside("aten::mm"):
        file.launch("Cijk_Alik", call="hipExtModuleLaunchKernel", stream=0)
    copy, mm = trace = read(file, tmp_path)
    assert copy.op.name == "aten._to_copy"
    assert copy.syncs
    assert mm.kernels[0].grid is None
    assert trace.capability is None


def test_files_of_before_2022_are_read(tmp_path: Path) -> None:
    file = training(2)
    old = {"cpu_op": "Operator", "user_annotation": "Operator", "kernel": "Kernel"}
    old["cuda_runtime"] = "Runtime"
    total_s = file.gpu_s
    for event in file.events:
        event["cat"] = old[event["cat"]]
    trace = read(file, tmp_path)
    assert trace.notes[0] == "step 4 of the steps 3 to 4"
    assert kernel_s(trace) == pytest.approx(total_s / 2)


def test_a_file_without_a_gpu_is_refused_with_what_to_do(tmp_path: Path) -> None:
    file = File()
    file.op("aten::mm")
    with pytest.raises(InvalidInput, match=r"has events of the CPU only, .*ProfilerActivity\.CUDA"):
        read(file, tmp_path)
    with pytest.raises(InvalidInput, match="no events of PyTorch's profiler"):
        read(File(), tmp_path)


def test_steps_that_give_the_gpu_nothing_are_refused(tmp_path: Path) -> None:
    file = File()
    file.op("aten::mm", "gemm")
    with file.annotation("ProfilerStep#1"):
        file.op("aten::view")
    with pytest.raises(InvalidInput, match=r"no step in .* launched any GPU work"):
        read(file, tmp_path)


def test_a_file_that_says_less_is_read(tmp_path: Path) -> None:
    file = File(deviceProperties=None, distributedInfo="none")
    file.launch("gemm", device=None, stream=None)
    file.events[0]["args"] = {}
    trace = read(file, tmp_path)
    assert names(trace) == ["kernel.gemm"]
    assert "the file does not name the GPU" in trace.notes


def test_a_trace_of_a_file_can_be_saved(tmp_path: Path) -> None:
    trace = read(training(3, distributedInfo={"rank": 0, "world_size": 4}), tmp_path)
    trace.save(tmp_path / "trace.gz")
    assert load_trace(tmp_path / "trace.gz") == trace


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(
    "broken",
    [{"ts": 0}, {"ts": float("nan")}, {"dur": 1.8e19}, {"dur": -5.0}, {"dur": float("inf")}],
    ids=str,
)
def test_a_kernel_whose_time_cannot_be_is_left_out(
    tmp_path: Path, broken: dict[str, float], steps: int
) -> None:
    file = training(steps)
    for event in file.events:
        event["ts"] += 1.7e15  # microseconds since 1970, as the profiler writes them
    whole = read_kineto(file.write(tmp_path, "whole.json"))
    kernel = [event for event in file.events if event["cat"] == "kernel"][-1]
    kernel.update(broken)
    trace = read_kineto(file.write(tmp_path))
    assert any(note.startswith("1 GPU event left out") for note in trace.notes)
    assert whole.measurement
    assert trace.measurement
    assert trace.measurement.seconds == pytest.approx(whole.measurement.seconds, rel=0.5)


def test_a_file_without_a_possible_kernel_is_refused(tmp_path: Path) -> None:
    file = training()
    for event in file.events:
        if event["cat"] == "kernel":
            event["dur"] = -1.0
    with pytest.raises(InvalidInput, match=r"no GPU event in .* has a possible time"):
        read_kineto(file.write(tmp_path))
