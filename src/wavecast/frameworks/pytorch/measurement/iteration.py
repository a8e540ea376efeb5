"""One training iteration measured on a real GPU: total time, ops, kernels and memory.

The protocol follows Habitat, section 5.1 (warm up, then repeat), but takes the median where
Habitat takes the mean, unless `setup` asks for Habitat's own protocol:

1. `warm_up` iterations run and are not counted.
2. `repeats` iterations run back to back, without any recording, between CUDA events. Their median
   is `seconds`.
3. `repeats` iterations are issued to an idle GPU. The host's time for one, less the time that the
   host waited in a profiled iteration, is `host_s`.
4. A few iterations run while only the GPU's activity is recorded. They give `gpu_s` and the names
   of the kernels.
5. `recordings` iterations are recorded op by op and kernel by kernel. The one with the median
   kernel time becomes the trace. Recording slows the host down, so only two things are taken from
   it: the kernels' times, and how the host's time divides among the ops.
6. One more iteration is recorded with the allocator's counters: its memory, including what
   libraries allocate inside ops.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.measurement import profiling, reruns
from wavecast.frameworks.pytorch.measurement.machine_load import processor_s
from wavecast.frameworks.pytorch.measurement.memory import record_memory
from wavecast.frameworks.pytorch.measurement.profiling import GpuActivity, IterationProfile
from wavecast.frameworks.pytorch.recording.recorded import Recording
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.recording_modes import RecordingMode
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.predictors.published import published_setup
from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace

_BUSY_ITERATIONS = 3
_BUSY = 0.9
"""If the GPU is busy for at least this share of an iteration, the host's speed does not matter."""
_SLOWED = (
    "a profiler has already run in this process: since then the host takes about a quarter longer "
    "to issue work, and this step waits for the host; measure each step in a new process"
)
_SAME = 0.9
"""The share of kernels that two iterations must have in common to count as equal. It is below 1
because sequence lengths and the choice of algorithms may vary a little."""


def measure(
    step: Callable[[], Any],
    *,
    warm_up: int | None = None,
    repeats: int | None = None,
    recordings: int = 3,
    samples: int | None = None,
    unit: str = "samples",
    setup: str | None = None,
) -> Trace:
    """The trace of a step that runs on this machine's GPU, with its kernels and times.

    Example:
        ```python
        trace = wavecast.measure(step, samples=64)
        trace.measurement.seconds                       # one iteration on this GPU
        wavecast.predict(trace, "h100-sxm-80gb").seconds  # the same iteration on another GPU
        ```

    Args:
        step: runs one training iteration on the current CUDA device.
        warm_up: iterations to run first, which are not counted; 3 by default.
        repeats: how many iterations to time; 10 by default. The result is their median.
        recordings: how many iterations to record op by op.
        samples: how many samples (or other `unit`) one iteration consumes, for throughput.
        unit: what `samples` counts.
        setup: "habitat" to measure as published: 3 iterations to warm up, the mean of 3, and each
            op's time from runs of this op alone, again 3 after 3 (not for compiled code).

    Raises:
        CaptureError: torch sees no GPU here, or the step runs nothing on it.
    """
    paper = None if setup is None else published_setup(setup)
    warm_up = (paper.warm_up if paper else 3) if warm_up is None else warm_up
    repeats = (paper.repeats if paper else 10) if repeats is None else repeats
    _check(step, warm_up=warm_up, repeats=repeats, recordings=recordings)
    slowed = profiling.has_profiled_gpu()  # before this measurement profiles
    for _ in range(warm_up):
        step()
    average = statistics.fmean if paper else statistics.median
    seconds, cpu_s = _steady_s(step, repeats, average)
    issue_s = _issue_s(step, repeats)
    host = profiling.host_times(step)
    activity = profiling.gpu_activity(step, _BUSY_ITERATIONS)
    measurement = Measurement(
        gpu=torch.cuda.get_device_name(),
        seconds=seconds,
        gpu_s=activity.busy_s,
        host_s=max(0.0, issue_s - host.blocked_s),
        repeats=repeats,
        software=software(),
        cpu_s=cpu_s,
        cores=os.cpu_count(),
    )
    trace = _recorded_trace(step, measurement, activity, host.compiled, recordings, samples, unit)
    if paper and not host.compiled:  # compiled code must not run under a dispatch mode
        trace = reruns.timed_alone(trace, step, reruns.timer(paper.warm_up, paper.repeats))
    if slowed and activity.busy_s < _BUSY * seconds:
        trace = replace(trace, notes=(_SLOWED, *trace.notes))
    return trace


def _recorded_trace(
    step: Callable[[], Any],
    measurement: Measurement,
    activity: GpuActivity,
    compiled: bool,
    recordings: int,
    samples: int | None,
    unit: str,
) -> Trace:
    """The trace of a step, recorded op by op if possible."""
    # Compiled code must not run under a dispatch mode: torch would never run it compiled again.
    if not compiled:
        recorded = _median_recording(step, recordings)
        if _ran_the_same(recorded, activity):
            whole = replace(measurement, recorded_s=recorded.profile.span_s)
            return with_memory(trace_of(recorded, whole, samples, unit), record_memory(step))
    return _as_profiled(step, measurement, samples, unit)


def _as_profiled(
    step: Callable[[], Any], measurement: Measurement, samples: int | None, unit: str
) -> Trace:
    """The trace of a step that cannot be recorded op by op, from torch.profiler alone."""
    profiled = profiling.profiled_trace(step)
    note = (
        "ops are named as torch.profiler names them, because this step runs compiled code, or runs "
        "other kernels when it is recorded op by op"
    )
    return replace(
        profiled,
        calls=_with_host(profiled.calls, measurement.host_s),
        framework=_framework(),
        samples=samples,
        unit=unit,
        notes=(note, *profiled.notes),
        measurement=measurement,
    )


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    return bool(torch.cuda.is_available())


def require_gpu() -> None:
    """Raise CaptureError if torch sees no GPU."""
    if not has_gpu():
        raise CaptureError(
            "measuring needs a GPU, and torch sees none here; wavecast.trace(make_step) needs none"
        )


def run_profiled(step: Callable[[], Any], warm_up: int) -> None:
    """Run one iteration between cudaProfilerStart and cudaProfilerStop, for an outside profiler."""
    require_gpu()
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    step()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def software() -> str:
    """The versions of the software that decides which kernels run."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    versions = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    driver = _driver()
    return f"{versions}, driver {driver}" if driver else versions


def _driver() -> str | None:
    """The driver's version, from nvidia-smi because torch does not know it. None if unknown."""
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(answer.stdout.split()), None)


@dataclass(frozen=True)
class RecordedIteration:
    """One iteration recorded op by op: the ops from the dispatcher, the times from the profiler."""

    recording: Recording
    profile: IterationProfile


@contextmanager
def recording_iteration(recorder: OpRecorder) -> Iterator[Callable[[], RecordedIteration]]:
    """Record the iteration that runs inside the block, under this recorder's RecordingMode.

    Yields a function that returns the recorded iteration. Call it after the block.
    """
    with profiling.profiling_ops() as finished_profile, recorder.step():
        yield lambda: _recorded(recorder, finished_profile())


def _recorded(recorder: OpRecorder, profile: IterationProfile) -> RecordedIteration:
    return RecordedIteration(recorder.recording(profile.kernels, profile.host_s), profile)


def trace_of(
    recorded: RecordedIteration,
    measurement: Measurement,
    samples: int | None = None,
    unit: str = "samples",
) -> Trace:
    """The measured trace of a recorded iteration."""
    strays = recorded.profile.strays
    notes: tuple[str, ...] = ()
    if strays:
        share = sum(k.seconds for k in strays) / sum(
            k.seconds for k in recorded.profile.all_kernels
        )
        notes = (
            f"{len(strays)} kernels ({share:.0%} of the GPU's time) were launched outside "
            "PyTorch's ops (by compiled code, CUDA graphs or extensions)",
        )
    calls = (*recorded.recording.calls, *map(_stray, strays))
    if not any(call.kernels for call in calls):
        raise CaptureError(
            "the step ran nothing on the GPU; move the model and its inputs there (model.cuda(), "
            'device="cuda"), as for training'
        )
    return Trace(
        calls=_with_host(calls, measurement.host_s),
        allocations=recorded.recording.allocations,
        values=recorded.recording.values,
        framework=_framework(),
        capability=torch.cuda.get_device_capability(),
        samples=samples,
        unit=unit,
        notes=notes,
        measurement=measurement,
    )


def _check(step: Any, **counts: int) -> None:
    require_gpu()
    if not callable(step):
        raise InvalidInput(
            f"measure needs a function that runs one iteration, not a {type(step).__name__}"
        )
    for name, count in counts.items():
        least = 0 if name == "warm_up" else 1
        if not isinstance(count, int) or count < least:
            raise InvalidInput(
                f"{name} is {count!r}; it must be a whole number of at least {least}"
            )


def _steady_s(
    step: Callable[[], Any], repeats: int, average: Callable[[Iterable[float]], float]
) -> tuple[float, float]:
    """The time of one iteration when they run back to back, and the processor time it uses.

    The first is measured by CUDA events. The second includes worker processes.
    """
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    begin = processor_s()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    cpu_s = max(0.0, processor_s() - begin) / repeats
    between = (first.elapsed_time(second) for first, second in pairwise(events))
    return float(average(between)) * 1e-3, cpu_s


def _issue_s(step: Callable[[], Any], repeats: int) -> float:
    """The host's time for one iteration that starts with an empty GPU queue."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times)


def with_memory(trace: Trace, seen: Recording) -> Trace:
    """A measured trace with the memory that was recorded in another iteration of the same step.

    If the two iterations ran different ops (sequence lengths may vary), the workspaces cannot be
    assigned to the trace's ops, and a note says so.
    """
    if [call.op.name for call in seen.calls] == [c.op.name for c in trace][: len(seen.calls)]:
        calls = tuple(
            replace(call, reads=one.reads, writes=one.writes)
            for call, one in zip(trace, seen.calls, strict=False)
        )
        calls = (*calls, *trace.calls[len(calls) :])
        return replace(trace, calls=calls, allocations=seen.allocations, values=seen.values)
    note = (
        "iterations differ in their ops, so the memory that libraries use inside ops (workspaces) "
        "is not in the trace"
    )
    return replace(trace, notes=(*trace.notes, note))


def _median_recording(step: Callable[[], Any], recordings: int) -> RecordedIteration:
    recorder = OpRecorder(Structure())
    with RecordingMode(recorder):
        with recorder.structure.watch():
            step()  # to learn the names of the modules
        iterations = [_record(recorder, step) for _ in range(recordings)]
    recorder.structure.forget()
    iterations.sort(key=lambda one: sum(kernel.seconds for kernel in one.profile.all_kernels))
    return iterations[(len(iterations) - 1) // 2]


def _record(recorder: OpRecorder, step: Callable[[], Any]) -> RecordedIteration:
    with recording_iteration(recorder) as recorded:
        step()
    return recorded()


def _ran_the_same(recorded: RecordedIteration, activity: GpuActivity) -> bool:
    """Whether the recorded iteration ran the same kernels as an iteration that is not recorded."""
    names = Counter(kernel.name for kernel in recorded.profile.all_kernels)
    common = (names & activity.names).total()
    return common >= _SAME * max(names.total(), activity.names.total())


def _framework() -> str:
    return f"torch {torch.__version__.split('+')[0]}"


def _stray(kernel: Kernel) -> Call:
    return Call(Op(f"kernel.{kernel.name}", (), ()), Phase.OTHER, kernels=(kernel,))


def _with_host(calls: tuple[Call, ...], host_s: float | None) -> tuple[Call, ...]:
    """The calls, with the host's time of an iteration that was not recorded divided among them.

    Each call gets the host's time inside its op, and an equal part of the time between the ops,
    which goes to Python, autograd and the dispatcher.
    """
    if host_s is None:
        return tuple(replace(call, host_s=None) for call in calls)
    inside = sum(call.host_s or 0.0 for call in calls)
    factor = min(1.0, host_s / inside) if inside else 1.0
    between = max(0.0, host_s - inside) / len(calls)
    return tuple(replace(c, host_s=(c.host_s or 0.0) * factor + between) for c in calls)
