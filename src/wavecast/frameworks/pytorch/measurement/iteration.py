"""Measure one training iteration on a real GPU: its ops, their kernels, and the untouched whole.

Protocol (Habitat, section 5.1: warm up, then repeat; we take the median where it takes the mean):

1. `warm_up` iterations are run and forgotten.
2. `repeats` iterations run untouched, one after the other, between CUDA events: `seconds`.
3. `repeats` iterations are issued to an idle GPU: the host's time, `host_s`, less what one
   profiled iteration spent waiting.
4. A few run with only the GPU's activity recorded: `gpu_s`, and which kernels run.
5. `recordings` iterations are taken apart, op by op and kernel by kernel; the one whose kernels
   took the median time is the trace. This recording slows the host, so of it only the kernels'
   times count, and how the host's time is shared among the ops.
6. One more is looked at by the allocator's own count: memory, with what libraries take.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.pytorch.measurement import profiling
from wavecast.frameworks.pytorch.measurement.memory import look_at_memory
from wavecast.frameworks.pytorch.measurement.profiling import Look, Untouched
from wavecast.frameworks.pytorch.recorder import OpRecorder, Recording, RecordingMode
from wavecast.frameworks.pytorch.structure import Structure
from wavecast.traces.step import Call, Kernel, Measurement, Op, Phase, Trace

_BUSY_ITERATIONS = 3
_BUSY = 0.9
"""Share of an iteration in which the GPU is busy, from which on the host does not matter."""
_SLOWED = (
    "a profiler has looked at the GPU in this process before: since then the host takes about a "
    "quarter longer to issue work, and this step waits for it; measure each step in a process of "
    "its own"
)
_SAME = 0.9
"""Kernels that two iterations must have in common: lengths and algorithms may differ a little."""


def measure(
    step: Callable[[], Any],
    *,
    warm_up: int = 3,
    repeats: int = 10,
    recordings: int = 3,
    samples: int | None = None,
    unit: str = "samples",
) -> Trace:
    """The trace of a step that really runs on this machine's GPU, with kernels and times.

    Args:
        step: runs one training iteration on the current CUDA device.
        warm_up: iterations to run first and forget.
        repeats: iterations of which the untouched times are the median.
        recordings: iterations to take apart.
        samples: how many samples (or other `unit`) one iteration consumes, for throughput.
        unit: what `samples` counts.
    """
    _check(step, warm_up=warm_up, repeats=repeats, recordings=recordings)
    slowed = profiling.has_looked()
    for _ in range(warm_up):
        step()
    seconds, cpu_s = _steady_s(step, repeats)
    issue_s = _issue_s(step, repeats)
    host = profiling.watch_host(step)
    untouched = profiling.untouched(step, _BUSY_ITERATIONS)
    measurement = Measurement(
        gpu=torch.cuda.get_device_name(),
        seconds=seconds,
        gpu_s=untouched.busy_s,
        host_s=max(0.0, issue_s - host.blocked_s),
        repeats=repeats,
        software=software(),
        cpu_s=cpu_s,
        cores=os.cpu_count(),
    )
    trace = _parts(step, measurement, untouched, host.compiled, recordings, samples, unit)
    if slowed and untouched.busy_s < _BUSY * seconds:
        trace = replace(trace, notes=(_SLOWED, *trace.notes))
    return trace


def _parts(
    step: Callable[[], Any],
    measurement: Measurement,
    untouched: Untouched,
    compiled: bool,
    recordings: int,
    samples: int | None,
    unit: str,
) -> Trace:
    """The step taken apart, op by op where that can be done."""
    # Compiled code must not meet a dispatch mode: torch would run it uncompiled ever after.
    if not compiled:
        take = _median_take(step, recordings)
        if _ran_the_same(take, untouched):
            whole = replace(measurement, recorded_s=take.look.span_s)
            return with_memory(trace_of(take, whole, samples, unit), look_at_memory(step))
    return _as_profiled(step, measurement, samples, unit)


def _as_profiled(
    step: Callable[[], Any], measurement: Measurement, samples: int | None, unit: str
) -> Trace:
    """A step that cannot be taken apart op by op, as torch.profiler sees it by itself."""
    seen = profiling.profiled(step)
    note = (
        "ops are as torch.profiler names them: this step runs compiled code, or runs other kernels "
        "when it is taken apart op by op"
    )
    return replace(
        seen,
        calls=_with_host(seen.calls, measurement.host_s),
        framework=_framework(),
        samples=samples,
        unit=unit,
        notes=(note, *seen.notes),
        measurement=measurement,
    )


def has_gpu() -> bool:
    """Whether torch sees a GPU."""
    return bool(torch.cuda.is_available())


def require_gpu() -> None:
    """Refuse to measure where there is nothing to measure on."""
    if not has_gpu():
        raise CaptureError(
            "measuring needs a GPU, and torch sees none here; wavecast.trace(make_step) predicts "
            "without one"
        )


def run_profiled(step: Callable[[], Any], warm_up: int) -> None:
    """Run one iteration between cudaProfilerStart and Stop, for a tool that looks on."""
    require_gpu()
    for _ in range(warm_up):
        step()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    step()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def software() -> str:
    """Versions that decide which kernels run."""
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    found = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"
    driver = _driver()
    return f"{found}, driver {driver}" if driver else found


def _driver() -> str | None:
    """The driver's version, which torch does not know."""
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(answer.stdout.split()), None)


@dataclass(frozen=True)
class Take:
    """One iteration taken apart: what the dispatcher and what the profiler saw of it."""

    recording: Recording
    look: Look


@contextmanager
def taking_apart(recorder: OpRecorder) -> Iterator[Callable[[], Take]]:
    """Take the iteration apart that runs inside, under the RecordingMode of this recorder.

    Gives a function that makes the Take once the block has ended.
    """
    with profiling.looking() as look, recorder.step():
        yield lambda: _take(recorder, look())


def _take(recorder: OpRecorder, look: Look) -> Take:
    return Take(recorder.recording(look.kernels, look.host_s), look)


def trace_of(
    take: Take, measurement: Measurement, samples: int | None = None, unit: str = "samples"
) -> Trace:
    """The measured trace of an iteration that was taken apart."""
    strays = take.look.strays
    notes: tuple[str, ...] = ()
    if strays:
        share = sum(k.seconds for k in strays) / sum(k.seconds for k in take.look.all_kernels)
        notes = (
            f"{len(strays)} kernels ({share:.0%} of the GPU's time) were launched outside of "
            "PyTorch's ops (compiled code, CUDA graphs, extensions)",
        )
    calls = (*take.recording.calls, *map(_stray, strays))
    if not any(call.kernels for call in calls):
        raise CaptureError(
            "the step ran nothing on the GPU; move model and inputs to it (model.cuda(), "
            'device="cuda") as you do for training'
        )
    return Trace(
        calls=_with_host(calls, measurement.host_s),
        allocations=take.recording.allocations,
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
            f"measure takes a function that runs one iteration, not {type(step).__name__}"
        )
    for name, count in counts.items():
        least = 0 if name == "warm_up" else 1
        if not isinstance(count, int) or count < least:
            raise InvalidInput(f"{name} is {count!r}; it is a number of iterations from {least} on")


def _steady_s(step: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """One iteration while they follow each other: by the GPU's clock, and processor time."""
    torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    begin = time.process_time()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    cpu_s = (time.process_time() - begin) / repeats
    between = (first.elapsed_time(second) for first, second in pairwise(events))
    return float(statistics.median(between)) * 1e-3, cpu_s


def _issue_s(step: Callable[[], Any], repeats: int) -> float:
    """The host's time for one iteration, with nothing in the GPU's queue before it."""
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    return statistics.median(times)


def with_memory(trace: Trace, seen: Recording) -> Trace:
    """A measured trace with the memory of another look at the same step.

    Lengths may vary from one iteration to the next: then workspaces have no place in the trace.
    """
    if [call.op.name for call in seen.calls] == [c.op.name for c in trace][: len(seen.calls)]:
        return replace(trace, allocations=seen.allocations)
    note = "iterations differ in their ops: what libraries take inside of them is not in the trace"
    return replace(trace, notes=(*trace.notes, note))


def _median_take(step: Callable[[], Any], recordings: int) -> Take:
    recorder = OpRecorder(Structure())
    with RecordingMode(recorder):
        with recorder.structure.watch():
            step()  # learns the modules' names
        takes = [_take_of(recorder, step) for _ in range(recordings)]
    recorder.structure.forget()
    takes.sort(key=lambda take: sum(kernel.seconds for kernel in take.look.all_kernels))
    return takes[(len(takes) - 1) // 2]


def _take_of(recorder: OpRecorder, step: Callable[[], Any]) -> Take:
    with taking_apart(recorder) as take:
        step()
    return take()


def _ran_the_same(take: Take, untouched: Untouched) -> bool:
    """Whether the recorded iteration ran the kernels that an untouched one runs."""
    recorded = Counter(kernel.name for kernel in take.look.all_kernels)
    common = (recorded & untouched.names).total()
    return common >= _SAME * max(recorded.total(), untouched.names.total())


def _framework() -> str:
    return f"torch {torch.__version__.split('+')[0]}"


def _stray(kernel: Kernel) -> Call:
    return Call(Op(f"kernel.{kernel.name}", (), ()), Phase.OTHER, kernels=(kernel,))


def _with_host(calls: tuple[Call, ...], host_s: float | None) -> tuple[Call, ...]:
    """Share the host's untouched time among the calls.

    Each gets what it took inside the op, and an equal part of what lies between the ops: Python,
    autograd, the dispatcher.
    """
    if host_s is None:
        return tuple(replace(call, host_s=None) for call in calls)
    inside = sum(call.host_s or 0.0 for call in calls)
    factor = min(1.0, host_s / inside) if inside else 1.0
    between = max(0.0, host_s - inside) / len(calls)
    return tuple(replace(c, host_s=(c.host_s or 0.0) * factor + between) for c in calls)
