"""Profiler files that others recorded. They are not ours to publish, so they may be missing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wavecast.errors import InvalidInput
from wavecast.frameworks.kineto import read_kineto
from wavecast.frameworks.kineto.events import GPU_CATEGORIES, read_events
from wavecast.traces.step import Phase, Trace, load_trace

SHARED = Path(os.environ.get("WAVECAST_SHARED", Path(__file__).parents[4] / "shared"))
FOLDER = SHARED / "data" / "kineto"

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the shared files are not here")


def file(beginning: str) -> Path:
    [path] = FOLDER.glob(f"{beginning}*")
    return path


def kernel_s(trace: Trace) -> float:
    return sum(kernel.seconds for call in trace for kernel in call.kernels)


def test_resnet_has_its_kernels_and_its_steady_step() -> None:
    trace = read_kineto(file("resnet50"))
    measurement = trace.measurement
    assert measurement is not None
    assert measurement.seconds == pytest.approx(95.7e-3, rel=2e-3)
    assert measurement.gpu == "Tesla V100-SXM2-32GB"
    assert measurement.repeats == 4
    assert measurement.gpu_s == pytest.approx(94.46e-3, rel=1e-3)
    # The host runs ahead: the first step, before the queue is full, takes it 35 ms.
    assert measurement.host_s == pytest.approx(31e-3, rel=0.1)
    assert sum(call.host_s or 0.0 for call in trace) == pytest.approx(measurement.host_s)
    copies = ("Memcpy", "Memset")
    kernels = [k for call in trace for k in call.kernels if not k.name.startswith(copies)]
    assert len(kernels) == 870
    convolutions = [call for call in trace if call.op.name.startswith("aten.convolution")]
    assert [c.op.name for c in convolutions].count("aten.convolution") == 53
    assert {c.phase for c in convolutions} == {Phase.FORWARD, Phase.BACKWARD}
    assert trace.capability == (7, 0)


def test_the_steps_of_resnet_are_all_that_the_gpu_ran() -> None:
    path = file("resnet50")
    steps = [kernel_s(read_kineto(path, step=number)) for number in range(101, 106)]
    events = (event for event in read_events(path) if event.get("cat") in GPU_CATEGORIES)
    assert sum(steps) == pytest.approx(sum(event["dur"] for event in events) / 1e6)


def test_recommendation_has_collectives_graphs_and_shapes(tmp_path: Path) -> None:
    trace = read_kineto(file("recsys"))
    assert "rank 1 of 2" in trace.notes
    names = {call.op.name for call in trace}
    assert {"nccl.all_to_all", "nccl.all_reduce", "kernel.cudaGraphLaunch"} <= names
    assert sum(len(call.kernels) for call in trace) == 2503
    assert any(call.op.inputs for call in trace)
    trace.save(tmp_path / "trace.gz")
    assert load_trace(tmp_path / "trace.gz") == trace


def test_a_whole_program_without_steps_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"it marks none, and the GPU works for 0.0661 of its"):
        read_kineto(file("alexnet"))


def test_a_triton_kernel_is_read() -> None:
    triton = read_kineto(file("triton"))
    fused = triton.calls[0].op
    assert fused.name == "inductor.pointwise"
    assert fused.attr("kernel") == "triton_poi_fused_add_cos_sin_0"
    assert fused.attr("points") == 100
    assert [t.shape for t in (*fused.inputs, *fused.outputs)] == [(10, 10)] * 3
    assert triton.measurement is not None
    assert triton.measurement.software == "CUDA runtime 12.0, CUDA driver 12.0, CUPTI 18"


def test_a_loop_on_amd_is_read() -> None:
    trace = read_kineto(file("toy_train_mi250"))
    assert trace.measurement is not None
    assert trace.measurement.gpu == "AMD Radeon Graphics"
    assert trace.capability is None
    phases = {call.phase for call in trace}
    assert phases == {Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    assert all(call.op.outputs for call in trace)


def test_a_recording_of_the_cpu_is_refused() -> None:
    with pytest.raises(InvalidInput, match="events of the CPU only"):
        read_kineto(file("cpu_only"))
