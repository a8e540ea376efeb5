"""Measurements on the GPU of this machine: pytest -m gpu."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import wavecast as wc
from wavecast import suite
from wavecast.analysis.profile import profile_measured
from wavecast.footprint.memory import peak_bytes
from wavecast.frameworks.pytorch.measurement import calibration
from wavecast.frameworks.pytorch.measurement.calibration import calibrate
from wavecast.hardware.kept_hosts import reference_times
from wavecast.traces import file
from wavecast.traces.step import Phase, Role, Trace

pytestmark = pytest.mark.gpu


def step_of(model: nn.Module, *shape: int) -> Callable[[], Any]:
    model = model.cuda()
    inputs = torch.randn(*shape, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def own_gpu() -> wc.Device:
    return wc.device(torch.cuda.get_device_name())


def busy_s(trace: Trace) -> float:
    return file.busy_s(kernel for call in trace for kernel in call.kernels)


@pytest.mark.parametrize("name", ["resnet50", "dcgan", "gnmt"])
def test_the_whole_is_the_sum_of_its_parts(name: str) -> None:
    trace = wc.measure(suite.benchmark(name).make_step(16, "fp32"))
    assert trace.measurement is not None
    assert busy_s(trace) == pytest.approx(trace.measurement.gpu_s, rel=0.03)
    assert wc.predict(trace, own_gpu()).seconds == pytest.approx(trace.measurement.seconds)


def test_a_measured_trace_has_modules_phases_and_launches() -> None:
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    trace = wc.measure(step_of(net, 64, 256), samples=64)
    assert {call.phase for call in trace} >= {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER}
    backward = [c for c in trace if c.phase is Phase.BACKWARD and c.op.base == "aten.mm"]
    assert {call.module for call in backward} == {"Sequential.0", "Sequential.2"}
    for call in backward:
        for kernel in call.kernels:
            assert kernel.seconds > 0
            assert kernel.blocks
            assert kernel.threads
            assert kernel.registers
            assert kernel.start_s is not None
    assert all(call.host_s is not None and call.host_s > 0 for call in trace)


def test_habitats_listing_runs_unchanged() -> None:
    step = step_of(nn.Conv2d(16, 32, 3), 8, 16, 32, 32)
    step()
    tracker = wc.OperationTracker(origin_device=own_gpu())
    with tracker.track():
        step()
    trace = tracker.get_tracked_trace()
    assert trace.to_device(wc.Device.V100).run_time_ms > 0


def test_each_op_is_timed_alone_as_habitat_does() -> None:
    net = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    step = step_of(net, 512, 1024)
    trace = wc.measure(step, samples=512, setup="habitat")
    plain = wc.measure(step, samples=512)
    assert trace.measurement is not None
    assert trace.measurement.repeats == 3
    assert not any("iterations differ" in note for note in trace.notes)
    products = [c for c in trace if c.op.base in ("aten.mm", "aten.addmm")]
    assert products
    assert all(kernel.start_s is None for call in products for kernel in call.kernels)
    alone_s, inside_s = (sum(k.seconds for c in t for k in c.kernels) for t in (trace, plain))
    assert 0.5 * inside_s < alone_s < 3 * inside_s


def test_another_origin_than_this_gpu_is_refused() -> None:
    other = wc.Device.T4 if own_gpu() != wc.Device.T4 else wc.Device.V100
    with (
        pytest.raises(wc.InvalidInput, match="origin_device"),
        wc.OperationTracker(origin_device=other).track(),
    ):
        pass


@pytest.mark.filterwarnings("ignore")  # of torch's own imports
def test_compiled_code_keeps_its_own_kernels() -> None:
    net = torch.compile(nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)))
    trace = wc.measure(step_of(net, 256, 512))
    assert any("compiled" in note for note in trace.notes)
    assert any("triton" in kernel.name for call in trace for kernel in call.kernels)
    assert trace.measurement is not None
    assert busy_s(trace) == pytest.approx(trace.measurement.gpu_s, rel=0.1)


def graphed(step: Callable[[], Any]) -> Callable[[], Any]:
    """The replay of a step as a CUDA graph; it keeps the step, on whose memory it works."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return lambda: (graph.replay(), step)[0]


def test_a_step_that_replays_a_graph_is_measured_by_its_kernels() -> None:
    net = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
    inputs = torch.randn(512, 1024, device="cuda")
    optimizer = torch.optim.Adam(net.parameters(), capturable=True)

    def step() -> None:
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()

    eager, replayed = wc.measure(step), wc.measure(graphed(step))
    assert eager.measurement is not None
    assert eager.measurement.host_s is not None
    assert replayed.measurement is not None
    assert replayed.measurement.host_s is not None
    assert replayed.measurement.host_s < eager.measurement.host_s / 3
    assert busy_s(replayed) == pytest.approx(busy_s(eager), rel=0.3)
    said = wc.predict(replayed, own_gpu())
    assert said.seconds == pytest.approx(replayed.measurement.seconds)


def test_the_host_benchmark_runs_on_the_gpu() -> None:
    on_gpu, direct = calibration.time_host("cuda"), calibration.time_gpu()
    assert on_gpu.keys() == reference_times()["cuda"].keys()
    assert on_gpu["forward_s"] > calibration.time_host()["forward_s"] > 0
    assert direct.keys() == {"launch_s", "sync_s", "graph_s", "node_s"}
    assert all(0 <= seconds < 1e-3 for seconds in direct.values())


def test_a_calibration_is_below_the_nominal_numbers() -> None:
    name, facts = calibrate(0.2)
    gpu = wc.device(name)
    for field, fact in facts.items():
        nominal = getattr(gpu, field)
        if nominal is not None:
            assert 0.2 * nominal < fact.value <= 1.02 * nominal, field


def test_a_measured_trace_has_the_weights_that_were_made_before() -> None:
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    trace = wc.measure(step_of(net, 64, 256))
    weights = sum(a.nbytes for a in trace.allocations if a.role is Role.PARAMETER)
    assert weights == sum(p.numel() * p.element_size() for p in net.parameters())
    states = sum(a.nbytes for a in trace.allocations if a.role is Role.OPTIMIZER_STATE)
    assert states >= 2 * weights  # Adam's two moments


def test_memory_by_kind_adds_up_to_what_the_allocator_gave_out() -> None:
    step = suite.benchmark("resnet50").make_step(16, "fp32")
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    step()
    peak = torch.cuda.max_memory_allocated()
    trace = wc.measure(step)
    assert peak_bytes(trace.allocations) == pytest.approx(peak, rel=0.02)
    assert any(a.role is Role.WORKSPACE for a in trace.allocations)


def test_a_step_that_waits_for_its_data_idles_for_its_input() -> None:
    net = nn.Linear(512, 512).cuda()

    def step() -> None:
        time.sleep(0.02)  # a loader that is too slow
        batch = torch.ones(256, 512).cuda()
        net(batch).sum().backward()

    trace = wc.measure(step)
    profile = profile_measured("waiting", trace, own_gpu())
    assert profile.idle_s["input"] > 0.7 * sum(profile.idle_s.values())
    assert profile.gpu_utilisation < 0.2


@pytest.mark.parametrize(("name", "batch"), [("resnet50", 16), ("bert-base", 16)])
def test_predicted_memory_lies_beside_the_measured_one(name: str, batch: int) -> None:
    """In a new process, so that memory left by earlier tests does not count."""
    command = [sys.executable, "-m", "wavecast", "memory", name, "--batch", str(batch)]
    done = subprocess.run(
        [*command, "--precision", "bf16", "--measure", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    predicted, measured = json.loads(done.stdout)
    assert predicted["gpu"] == measured["gpu"] == own_gpu().id
    assert predicted["peak_bytes"] == pytest.approx(measured["peak_bytes"], rel=0.05)
    assert predicted["reserved_bytes"] == pytest.approx(measured["reserved_bytes"], rel=0.1)
    for kind in ("weights", "optimizer state", "activations"):
        assert predicted["by_kind"][kind] == pytest.approx(measured["by_kind"][kind], rel=0.02)
