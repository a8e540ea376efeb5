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
from torch.utils._pytree import tree_map

from wavecast import ops
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.measurement import profiling
from wavecast.frameworks.pytorch.measurement.layers import timer_on
from wavecast.frameworks.pytorch.measurement.profiling import GpuActivity, IterationProfile
from wavecast.frameworks.pytorch.measurement.whole_runs import processor_s
from wavecast.frameworks.pytorch.recording.recorder import (
    MemoryMode,
    OpRecorder,
    Recording,
    RecordingMode,
    held_bytes,
)
from wavecast.frameworks.pytorch.recording.signature import tensors_of
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.ops import Kind
from wavecast.predictors.habitat import published_setup
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
        trace = timed_alone(trace, step, timer(paper.warm_up, paper.repeats))
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

    def recorded() -> RecordedIteration:
        profile = finished_profile()
        return RecordedIteration(recorder.recording(profile.kernels, profile.host_s), profile)

    with profiling.profiling_ops() as finished_profile, recorder.step():
        yield recorded


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
    stray_calls = (
        Call(Op(f"kernel.{kernel.name}", (), ()), Phase.OTHER, kernels=(kernel,))
        for kernel in strays
    )
    calls = (*recorded.recording.calls, *stray_calls)
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
            replace(call, reads=counted.reads, writes=counted.writes)
            for call, counted in zip(trace, seen.calls, strict=False)
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
        iterations = []
        for _ in range(recordings):
            with recording_iteration(recorder) as recorded:
                step()
            iterations.append(recorded())
    recorder.structure.forget()
    iterations.sort(
        key=lambda iteration: sum(kernel.seconds for kernel in iteration.profile.all_kernels)
    )
    return iterations[(len(iterations) - 1) // 2]


def _ran_the_same(recorded: RecordedIteration, activity: GpuActivity) -> bool:
    """Whether the recorded iteration ran the same kernels as an iteration that is not recorded."""
    names = Counter(kernel.name for kernel in recorded.profile.all_kernels)
    common = (names & activity.names).total()
    return common >= _SAME * max(names.total(), activity.names.total())


def _framework() -> str:
    return f"torch {torch.__version__.split('+')[0]}"


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


# Each op of a step, run again alone on its inputs (Habitat, section 5.1).
#
# In an iteration, kernels of several streams overlap and caches hold what the op before left.
# Habitat times each operation by itself: a few runs to warm up, then the mean of a few runs
# between CUDA events. The forward and the backward pass are ops of their own here, so they are
# timed apart.


Timer = Callable[[Callable[[], Any]], float]
"""Returns the mean seconds of a function that it runs several times."""


class RerunMode(RecordingMode):
    """Also times each op alone, on its own inputs, before it runs for the step."""

    def __init__(self, recorder: OpRecorder, timed: Timer) -> None:
        super().__init__(recorder)
        self.timed = timed
        self.alone_s: dict[int, float] = {}
        """The seconds of each op, by its position in the recording."""

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        # A collective waits for other processes, which do not run it again.
        if "c10d" not in func.namespace and tensors_of((args, tuple(kwargs.values()))):
            run = repeatable(func, args, kwargs)
            gpus = [torch.cuda.current_device()] if torch.cuda.is_available() else []
            with torch.random.fork_rng(devices=gpus):  # the step draws the same numbers
                self.alone_s[len(self.recorder)] = self.timed(run)
        return func(*args, **kwargs)


def repeatable(func: Any, args: tuple[Any, ...], kwargs: Any) -> Callable[[], Any]:
    """A function that runs an op and changes nothing: it writes to copies."""
    schema = func._schema.arguments
    written = {a.name for a in schema if a.alias_info is not None and a.alias_info.is_write}
    names = [argument.name for argument in schema]
    given = [
        tree_map(_copy, value) if name in written else value
        for name, value in zip(names, args, strict=False)
    ]
    named = {key: tree_map(_copy, v) if key in written else v for key, v in kwargs.items()}
    return lambda: func(*given, **named)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def timer(warm_up: int, repeats: int, device: str = "cuda") -> Timer:
    """A timer that runs a function `warm_up` times, then takes the mean of `repeats` runs."""

    def timed(run: Callable[[], Any]) -> float:
        issue_s = 0.0
        for _ in range(warm_up):
            began = time.perf_counter()
            run()
            issue_s = time.perf_counter() - began
        return timer_on(device)(run, repeats, issue_s)

    return timed


def times_alone(step: Callable[[], Any], timed: Timer) -> tuple[Call, ...]:
    """The ops of one iteration; each has one kernel, whose time is that of the op alone."""
    recorder = OpRecorder(Structure())
    mode = RerunMode(recorder, timed)
    with mode:
        with recorder.structure.watch():
            step()  # to learn the names of the modules
        mode.alone_s.clear()
        with recorder.step():
            step()
    recorder.structure.forget()
    kernels = {at: (Kernel("alone", seconds),) for at, seconds in mode.alone_s.items()}
    return recorder.recording(kernels).calls


def timed_alone(trace: Trace, step: Callable[[], Any], timed: Timer) -> Trace:
    """The trace of a step, with the time of each op alone (`with_times_alone`)."""
    return with_times_alone(trace, times_alone(step, timed))


def with_times_alone(trace: Trace, alone: tuple[Call, ...]) -> Trace:
    """A measured trace whose kernels take as long as their op does alone.

    The kernels of an op keep their shares of its time. If the two iterations ran different ops, the
    trace keeps its times, and a note says so.
    """
    if [call.op.name for call in alone] != [c.op.name for c in trace.calls][: len(alone)]:
        note = "iterations differ in their ops, so the times are not those of each op alone"
        return replace(trace, notes=(*trace.notes, note))
    timed = tuple(
        _as_alone(c, timed_call) for c, timed_call in zip(trace.calls, alone, strict=False)
    )
    return replace(trace, calls=(*timed, *trace.calls[len(alone) :]))


def _as_alone(call: Call, alone: Call) -> Call:
    inside_s = sum(kernel.seconds for kernel in call.kernels)
    if not inside_s or not alone.kernels or ops.kind(call.op) is Kind.COLLECTIVE:
        return call
    factor = alone.kernels[0].seconds / inside_s
    if not factor:
        return call
    # They have no start: an op that ran alone overlapped with nothing.
    kernels = tuple(replace(k, seconds=k.seconds * factor, start_s=None) for k in call.kernels)
    return replace(call, kernels=kernels)


# The GPU memory of a step on a real GPU, as torch's allocator counts it.


@dataclass(frozen=True)
class MeasuredMemory:
    """The GPU memory that a step needed."""

    peak_bytes: int
    """The most that was allocated at once (`torch.cuda.max_memory_allocated`)."""
    reserved_bytes: int
    """The most that the allocator held (`torch.cuda.max_memory_reserved`)."""
    device_bytes: int
    """The GPU memory in use after the step, by all processes with their contexts and libraries."""
    trace: Trace
    """The ops of the step, with the lifetimes of its memory and its workspaces; no kernels."""


def measure_memory(make_step: Callable[[], Callable[[], Any]], warm_up: int = 2) -> MeasuredMemory:
    """Run a step on this machine's GPU and measure its memory.

    Args:
        warm_up: how many steps to run first. The first one creates the optimizer's state.
    """
    if not torch.cuda.is_available():
        raise CaptureError(
            "measuring memory needs a GPU, and torch sees none here; leave out --measure to "
            "predict it"
        )
    if warm_up < 1:
        raise InvalidInput(
            f"warm_up is {warm_up!r}; it must be at least 1, because the first step creates the "
            "optimizer's state"
        )
    torch.cuda.reset_peak_memory_stats()
    step = make_step()
    for _ in range(warm_up + 1):
        step()
    torch.cuda.synchronize()
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    free, total = torch.cuda.mem_get_info()
    return MeasuredMemory(peak, reserved, total - free, traced_memory(step))


def traced_memory(step: Callable[[], Any]) -> Trace:
    """The trace of one iteration with its memory, but without kernels.

    The memory includes what libraries allocate inside ops, and what they keep between ops.
    """
    seen = record_memory(step)
    major, minor = torch.cuda.get_device_capability()
    return Trace(
        **vars(seen),
        framework=_framework(),
        capability=(major, minor),
        measurement=Measurement(torch.cuda.get_device_name()),
    )


def record_memory(step: Callable[[], Any]) -> Recording:
    """The ops of one iteration, the lifetimes of its tensors' memory, and its workspaces."""
    structure = Structure()
    recorder = OpRecorder(structure)
    with MemoryMode(recorder):
        with structure.watch():
            step()  # to learn the names of the modules
        with recorder.step():
            step()
    torch.cuda.synchronize()
    held = held_bytes()["current"]
    torch._C._cuda_clearCublasWorkspaces()
    recorder.keep(held - held_bytes()["current"])
    structure.forget()
    return recorder.recording()
