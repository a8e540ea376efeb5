"""Measuring an iteration: arguments, refusals, and how recordings become a trace; without a GPU."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from made import mm, relu

import wavecast
from wavecast import OperationTracker
from wavecast.errors import CaptureError, InvalidInput, UnknownName
from wavecast.frameworks.pytorch.measurement import (
    iteration,
    profiling,
    sampling,
)
from wavecast.frameworks.pytorch.measurement.calibration import calibrate
from wavecast.frameworks.pytorch.measurement.iteration import (
    RecordedIteration,
    _with_host,
    measure,
    run_profiled,
    trace_of,
)
from wavecast.frameworks.pytorch.measurement.profiling import (
    GpuActivity,
    HostTimes,
    IterationProfile,
)
from wavecast.frameworks.pytorch.recording import recorder as recording_modes
from wavecast.frameworks.pytorch.recording.recorder import MemoryMode, OpRecorder, Recording
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.hardware.devices import device
from wavecast.traces.step import Allocation, Call, Kernel, Measurement, Phase, Role, Trace


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def a_t4(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says it has a T4; nothing can run on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))


def call(host_s: float | None = None, *kernels: Kernel) -> Call:
    return Call(mm(), Phase.FORWARD, kernels=kernels, host_s=host_s)


# Without a GPU.


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda: wavecast.measure(lambda: None), id="measure"),
        pytest.param(lambda: OperationTracker().track().__enter__(), id="track"),
        pytest.param(lambda: run_profiled(lambda: None, 1), id="run_profiled"),
        pytest.param(calibrate, id="calibrate"),
    ],
)
@pytest.mark.usefixtures("no_gpu")
def test_measuring_needs_a_gpu_and_says_what_does_not(ask: Callable[[], Any]) -> None:
    with pytest.raises(CaptureError, match=r"torch sees none here; wavecast\.trace"):
        ask()


@pytest.mark.usefixtures("no_gpu")
def test_the_step_does_not_run_where_it_cannot_be_measured() -> None:
    ran = []
    with pytest.raises(CaptureError):
        measure(lambda: ran.append(1))
    assert not ran


# What is refused.


@pytest.mark.parametrize("step", [None, 3, "resnet50", torch.nn])
@pytest.mark.usefixtures("a_t4")
def test_a_step_is_a_function(step: Any) -> None:
    with pytest.raises(InvalidInput, match=f"one iteration, not a {type(step).__name__}"):
        measure(step)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"warm_up": -1}, "warm_up is -1; .* at least 0"),
        ({"repeats": 0}, "repeats is 0; .* at least 1"),
        ({"recordings": 0}, "recordings is 0; .* at least 1"),
        ({"repeats": 2.5}, r"repeats is 2\.5; "),
        ({"warm_up": "3"}, "warm_up is '3'; "),
    ],
)
@pytest.mark.usefixtures("a_t4")
def test_counts_are_whole_numbers_of_iterations(counts: dict[str, Any], said: str) -> None:
    ran: list[int] = []
    with pytest.raises(InvalidInput, match=said):
        measure(lambda: ran.append(1), **counts)
    assert not ran


# The host's time.

times = st.one_of(st.none(), st.floats(0, 1e-3))


@given(st.lists(times, min_size=1, max_size=20), st.floats(0, 1))
def test_the_hosts_shares_sum_to_its_time(inside: list[float | None], host_s: float) -> None:
    shared = _with_host(tuple(map(call, inside)), host_s)
    assert sum(call.host_s or 0.0 for call in shared) == pytest.approx(host_s)
    assert all(call.host_s is not None and call.host_s >= 0 for call in shared)


def test_what_lies_between_ops_is_shared_equally() -> None:
    shared = _with_host((call(3.0), call(1.0), call(None), call(0.0)), 12.0)
    assert [call.host_s for call in shared] == [5, 3, 2, 2]


def test_a_recording_that_slowed_the_host_is_scaled_down() -> None:
    assert [call.host_s for call in _with_host((call(3.0), call(1.0)), 2.0)] == [1.5, 0.5]


def test_without_the_hosts_time_calls_have_none() -> None:
    assert [call.host_s for call in _with_host((call(3.0), call(None)), None)] == [None, None]


# Parts become a trace.

A, B, C = (Kernel(name, 1e-3) for name in "abc")


def recorded(*calls: Call, strays: tuple[Kernel, ...] = ()) -> RecordedIteration:
    kernels = {i: call.kernels for i, call in enumerate(calls) if call.kernels}
    profile = IterationProfile(kernels, strays, {}, span_s=0.25)
    return RecordedIteration(Recording(calls, ()), profile)


@pytest.mark.usefixtures("a_t4")
def test_a_recorded_iteration_becomes_a_measured_trace() -> None:
    measured = Measurement("Tesla T4", 0.02, host_s=0.01)
    trace = trace_of(recorded(call(1e-3, A), call(1e-3, B)), measured, samples=8, unit="images")
    assert [call.kernels for call in trace] == [(A,), (B,)]
    assert sum(call.host_s or 0.0 for call in trace) == pytest.approx(0.01)
    assert (trace.measurement, trace.capability) == (measured, (7, 5))
    assert (trace.samples, trace.unit, trace.notes) == (8, "images", ())
    assert trace.framework == f"torch {torch.__version__.split('+')[0]}"


@pytest.mark.usefixtures("a_t4")
def test_kernels_outside_of_ops_are_calls_of_their_own_and_are_told_of() -> None:
    trace = trace_of(recorded(call(1e-3, A, B, C), strays=(A,)), Measurement("Tesla T4"))
    stray = trace.calls[-1]
    assert (stray.op.name, stray.phase, stray.kernels) == ("kernel.a", Phase.OTHER, (A,))
    assert trace.notes[0].startswith("1 kernels (25% of the GPU's time) were launched outside")


@pytest.mark.usefixtures("a_t4")
def test_a_step_that_ran_nothing_on_the_gpu_is_refused() -> None:
    with pytest.raises(
        CaptureError, match=r"ran nothing on the GPU; move the model and its inputs"
    ):
        trace_of(recorded(call(1e-3), call(1e-3)), Measurement("Tesla T4"))


def test_the_recording_with_the_median_kernel_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    iterations = [recorded(call(0.0, Kernel("k", seconds))) for seconds in (5.0, 1.0, 9.0, 4.0)]

    def median(recordings: int) -> float:
        given_ = iter(iterations)
        monkeypatch.setattr(
            iteration, "recording_iteration", lambda _: nullcontext(lambda: next(given_))
        )
        return iteration._median_recording(lambda: None, recordings).profile.kernels[0][0].seconds

    assert [median(recordings) for recordings in (1, 2, 3, 4)] == [5, 1, 5, 4]


def ran_the_same(names: str, alone: str) -> bool:
    seen = recorded(call(0.0, *(Kernel(name, 1.0) for name in names)))
    return iteration._ran_the_same(seen, GpuActivity(1.0, Counter(alone)))


def test_a_recording_may_differ_a_little_from_an_untouched_iteration() -> None:
    assert ran_the_same("aaaaabbbbb", "aaaaabbbbb")
    assert ran_the_same("aaaaabbbbb", "aaaaabbbbc")
    assert not ran_the_same("aaaaabbbbb", "aaaaabbbcc")


def test_a_recording_of_more_or_other_kernels_is_another_step() -> None:
    assert not ran_the_same("aaaaabbbbb", "aaaaa")
    assert not ran_the_same("aaaaa", "aaaaabbbbb")
    assert not ran_the_same("aaa", "ccc")


@pytest.fixture
def steps_run(a_t4: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine whose clocks always say the same. Returns the iterations that were warm-up."""
    monkeypatch.setattr(iteration, "_steady_s", lambda step, repeats, average: (0.5, 0.25))
    monkeypatch.setattr(iteration, "_issue_s", lambda step, repeats: 0.375)
    monkeypatch.setattr(profiling, "host_times", lambda step: HostTimes(0.125, compiled=False))
    monkeypatch.setattr(profiling, "gpu_activity", lambda step, n: GpuActivity(0.4, Counter("ab")))
    monkeypatch.setattr(iteration, "software", lambda: "CUDA 0")
    monkeypatch.setattr(
        iteration, "_median_recording", lambda step, n: recorded(call(0.05, A), call(0.05, B))
    )
    seen = Recording((call(), call()), (Allocation(512, 0, 1, Role.WORKSPACE),))
    monkeypatch.setattr(iteration, "record_memory", lambda step: seen)
    return []


def test_a_measurement_has_the_untouched_whole_and_the_recorded_parts(
    steps_run: list[int],
) -> None:
    trace = measure(lambda: steps_run.append(1), warm_up=4, repeats=7, samples=16)
    assert len(steps_run) == 4
    assert trace.measurement == Measurement(
        gpu="Tesla T4",
        seconds=0.5,
        gpu_s=0.4,
        host_s=0.25,
        recorded_s=0.25,
        repeats=7,
        software="CUDA 0",
        cpu_s=0.25,
        cores=os.cpu_count(),
    )
    assert trace.samples == 16
    assert sum(call.host_s or 0.0 for call in trace) == pytest.approx(0.25)
    assert trace.allocations == (Allocation(512, 0, 1, Role.WORKSPACE),)


@pytest.mark.parametrize(("busy_s", "noted"), [(0.4, True), (0.48, False)])
def test_a_step_that_waits_for_a_slowed_host_is_noted(
    steps_run: list[int], monkeypatch: pytest.MonkeyPatch, busy_s: float, noted: bool
) -> None:
    activity = GpuActivity(busy_s, Counter("ab"))
    monkeypatch.setattr(profiling, "gpu_activity", lambda step, n: activity)
    monkeypatch.setattr(profiling, "_gpu_profiles", [])
    assert measure(lambda: steps_run.append(1)).notes == ()
    monkeypatch.setattr(profiling, "_gpu_profiles", [1])
    notes = measure(lambda: steps_run.append(1)).notes
    assert any("measure each step in a new process" in note for note in notes) is noted


def test_profiling_the_host_alone_slows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "_gpu_profiles", [])
    with profiling.torch_profiler(torch.profiler.ProfilerActivity.CPU):
        pass
    assert not profiling.has_profiled_gpu()


@pytest.mark.usefixtures("a_t4")
def test_the_memory_of_an_iteration_with_other_ops_is_not_taken() -> None:
    trace = trace_of(recorded(call(0.1, A), call(0.1, B)), Measurement("Tesla T4"))
    held = (Allocation(512, 0, 1, Role.WORKSPACE),)
    same = iteration.with_memory(trace, Recording((call(), call()), held))
    assert same.allocations == held
    other = Call(relu(8), Phase.FORWARD)
    kept = iteration.with_memory(trace, Recording((call(), other), held))
    assert kept.allocations == trace.allocations
    assert "iterations differ" in kept.notes[-1]
    longer = iteration.with_memory(trace, Recording((call(),) * 3, held))
    assert longer.allocations == trace.allocations


def test_ops_and_libraries_take_memory_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A made-up allocator gives the counts before, inside and after each op of a step."""
    counts = iter([(100, 100), (150, 400), (150, 150), (150, 150)])
    monkeypatch.setattr(
        recording_modes,
        "held_bytes",
        lambda: dict(zip(("current", "peak"), next(counts), strict=True)),
    )
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    recorder = OpRecorder(Structure())
    x = torch.ones(4)
    with MemoryMode(recorder), recorder.step():
        torch.relu(x)  # from 100 to 150 bytes, with 400 in between
        torch.neg(x)
    recorder.keep(32)
    allocations = recorder.recording().allocations
    assert {
        (piece.nbytes, piece.born) for piece in allocations if piece.role is Role.WORKSPACE
    } == {
        (250, 0),
        (32, None),
    }


def test_a_host_that_only_waits_needs_no_time(
    steps_run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling, "host_times", lambda step: HostTimes(9.0, compiled=False))
    trace = measure(lambda: None)
    assert trace.measurement is not None
    assert trace.measurement.host_s == 0


def test_compiled_code_is_taken_as_the_profiler_names_it(
    steps_run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = Call(relu(8), Phase.FORWARD, kernels=(C,), host_s=0.1)
    seen = Trace((compiled,), framework="torch (profiler file)", notes=("one step",))
    monkeypatch.setattr(profiling, "gpu_activity", lambda step, n: GpuActivity(0.4, Counter("c")))
    monkeypatch.setattr(profiling, "profiled_trace", lambda step: seen)
    trace = measure(lambda: None, samples=16, unit="images")
    assert [call.kernels for call in trace] == [(C,)]
    assert "compiled code" in trace.notes[0]
    assert trace.notes[1:] == ("one step",)
    assert trace.measurement is not None
    assert (trace.measurement.seconds, trace.measurement.recorded_s) == (0.5, None)
    assert (trace.samples, trace.unit) == (16, "images")
    assert trace.calls[0].host_s == pytest.approx(0.25)


def test_compiled_code_never_meets_the_recorder(
    steps_run: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch never runs compiled code again once it has run under a dispatch mode."""

    def refuse(step: Any, recordings: int) -> Any:
        raise AssertionError("the recorder was used")

    seen = Trace((Call(relu(8), Phase.FORWARD, kernels=(C,)),))
    monkeypatch.setattr(iteration, "_median_recording", refuse)
    monkeypatch.setattr(profiling, "host_times", lambda step: HostTimes(0.0, compiled=True))
    monkeypatch.setattr(profiling, "profiled_trace", lambda step: seen)
    assert [call.kernels for call in measure(lambda: None)] == [(C,)]


def test_the_drivers_version_is_asked_of_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert iteration._driver() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 580.159.04\necho 580.159.04\n")
    tool.chmod(0o755)
    assert iteration._driver() == "580.159.04"
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert iteration._driver() is None


# The tracker.


def test_a_tracker_without_an_iteration_says_so() -> None:
    with pytest.raises(InvalidInput, match=r"no iteration was tracked yet; .*tracker\.track\(\)"):
        OperationTracker().get_tracked_trace()


def test_an_unknown_origin_is_refused_at_once() -> None:
    with pytest.raises(UnknownName, match='unknown device "my own board"'):
        OperationTracker("my own board")


@pytest.mark.usefixtures("a_t4")
def test_an_origin_that_this_machine_has_not_is_refused() -> None:
    tracker = OperationTracker(device("v100-sxm-16gb"))
    with pytest.raises(InvalidInput, match=r"this machine has a Tesla T4; .*device\(\"t4\"\)"):
        tracker.track().__enter__()


@pytest.mark.parametrize("origin", [None, "t4", device("t4")])
@pytest.mark.usefixtures("a_t4")
def test_the_gpu_is_named_as_the_machine_names_it(origin: Any) -> None:
    assert OperationTracker(origin)._gpu() == "Tesla T4"


@pytest.mark.parametrize("name", ["NVIDIA Graphics Device 9", "NVIDIA H100"])
@pytest.mark.usefixtures("a_t4")
def test_the_origin_names_a_gpu_whose_name_says_too_little(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: name)
    assert OperationTracker("h100-sxm-80gb")._gpu() == "h100-sxm-80gb"
    assert OperationTracker()._gpu() == name


# Iterations that are timed one by one.


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    done: list[int] = []
    monkeypatch.setattr(sampling, "mark", lambda _: float(len(done)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    clock = "wavecast.frameworks.pytorch.measurement.sampling.time.perf_counter"
    monkeypatch.setattr(clock, lambda: float(len(done)))
    return done


def sampled(steps: list[int], limit_s: float, least: int, enough: int) -> int:
    def is_enough(seconds: Sequence[float]) -> bool:
        return len(seconds) >= enough

    seconds = sampling._iterations(lambda: steps.append(1), is_enough, limit_s, least)
    assert len(seconds) == len(steps)
    return len(seconds)


@pytest.mark.parametrize(
    ("limit_s", "least", "enough", "iterations"),
    [
        (25, 0, 0, 30),
        (25, 0, 200, 200),
        (25, 3000, 0, 3000),
        (25, 0, 10**9, sampling.MOST),
        (25, 3000, 10**9, 3000),
        (4500, 3000, 0, 3000),
    ],
    ids=["time", "enough", "thousands", "never enough", "thousands, never enough", "no more"],
)
def test_it_runs_for_its_time_and_for_as_many_iterations_as_asked(
    steps: list[int], limit_s: float, least: int, enough: int, iterations: int
) -> None:
    assert sampled(steps, limit_s, least, enough) == iterations
