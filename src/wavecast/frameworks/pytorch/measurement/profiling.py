"""A few iterations under torch.profiler: the kernels and the host's time of each recorded op."""

from __future__ import annotations

import bisect
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from wavecast.frameworks.kineto import read_kineto
from wavecast.frameworks.kineto.events import (
    GPU_CATEGORIES,
    RUNTIME_CATEGORIES,
    kernel_of,
    read_events,
)
from wavecast.frameworks.pytorch.recording.recorder import LABEL
from wavecast.traces import file
from wavecast.traces.step import Kernel, Trace

_WAITS = (
    "Synchronize",  # cudaStreamSynchronize, cudaDeviceSynchronize, cudaEventSynchronize, hip...
    "cudaStreamWaitValue",
)


_RANGE = "user_annotation"
_STEP = "wavecast step"
_STUCK = 20
_COMPILED = ("Torch-Compiled Region", "TorchDynamo Cache Lookup", "triton_")


@dataclass(frozen=True)
class IterationProfile:
    """The kernels and the host's times of one iteration, assigned to its recorded ops."""

    kernels: dict[int, tuple[Kernel, ...]]
    """The kernels of each recorded op, keyed by the op's position."""
    strays: tuple[Kernel, ...]
    """Kernels launched outside any recorded op: by compiled code, CUDA graphs or extensions."""
    host_s: dict[int, float]
    """The host's time inside each recorded op, without waiting, keyed by the op's position."""
    span_s: float
    """The time from the start of the iteration to the end of the last kernel."""

    @property
    def all_kernels(self) -> list[Kernel]:
        """All kernels of the iteration."""
        return [*(k for run in self.kernels.values() for k in run), *self.strays]


@dataclass(frozen=True)
class GpuActivity:
    """What the GPU does in iterations whose ops are not recorded."""

    busy_s: float
    """The time that the GPU is busy in one iteration."""
    names: Counter[str]
    """How often each kernel runs in one iteration, by its name."""


_gpu_profiles: list[int] = []
"""One entry for each time this process has profiled the GPU."""


@contextmanager
def torch_profiler(*activities: ProfilerActivity, record_shapes: bool = False) -> Iterator[profile]:
    """Run torch.profiler over the block, without its warning about profiling cycles."""
    if ProfilerActivity.CUDA in activities:
        _gpu_profiles.append(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        with profile(activities=activities, record_shapes=record_shapes) as profiler:
            yield profiler


def has_profiled_gpu() -> bool:
    """Whether this process has profiled the GPU before.

    Once CUPTI is loaded, every later launch takes longer. On the hosts of our H200, steps that
    wait for the host became a quarter slower (lab/notes). CUPTI cannot be unloaded: with
    TEARDOWN_CUPTI the next profile is empty.
    """
    return bool(_gpu_profiles)


def gpu_activity(step: Callable[[], Any], iterations: int) -> GpuActivity:
    """Run iterations while only the GPU's activity is recorded, which does not slow the host."""
    with torch_profiler(ProfilerActivity.CUDA) as profiler:
        for _ in range(iterations):
            step()
        torch.cuda.synchronize()
    kernels = [kernel_of(e, 0.0) for e in events_of(profiler) if e.get("cat") in GPU_CATEGORIES]
    names = Counter(kernel.name for kernel in kernels)
    of_one = Counter({name: round(times / iterations) for name, times in names.items()})
    return GpuActivity(file.busy_s(kernels) / iterations, of_one)


def profiled_trace(step: Callable[[], Any]) -> Trace:
    """The trace of one iteration as torch.profiler records it, without our own recording."""
    with torch_profiler(
        ProfilerActivity.CPU, ProfilerActivity.CUDA, record_shapes=True
    ) as profiler:
        step()
        torch.cuda.synchronize()
    with _exported(profiler) as path:
        return read_kineto(path)


@dataclass(frozen=True)
class HostTimes:
    """What the host does in an iteration whose ops are not recorded."""

    blocked_s: float
    """How long the host was blocked: waiting for the GPU, or for room in the GPU's queue."""
    compiled: bool
    """Whether the iteration ran code that torch.compile made."""


def host_times(step: Callable[[], Any]) -> HostTimes:
    """Profile the host in one iteration that starts on an idle GPU."""
    torch.cuda.synchronize()
    with torch_profiler(ProfilerActivity.CPU, ProfilerActivity.CUDA) as profiler:
        with torch.profiler.record_function(_STEP):
            step()
        torch.cuda.synchronize()
    events = list(events_of(profiler))
    # The profiler itself waits for the GPU when it stops, after the step.
    end_us = max((e["ts"] + e["dur"] for e in events if _is_step(e)), default=float("inf"))
    launches = [e for e in events if e.get("cat") in RUNTIME_CATEGORIES and e["ts"] < end_us]
    compiled = any(str(e.get("name", "")).startswith(_COMPILED) for e in events)
    return HostTimes(_blocked_us(launches) / 1e6, compiled)


def _blocked_us(calls: Sequence[dict[str, Any]]) -> float:
    """The time that the host is blocked in calls of the CUDA runtime."""
    waits = sum(float(e["dur"]) for e in calls if _is_wait(e["name"]))
    launches = sorted(float(e["dur"]) for e in calls if "Launch" in e["name"])
    if not launches:
        return waits
    usual = launches[len(launches) // 2]
    # A launch takes microseconds. One that takes many times as long waits for room in the queue.
    return waits + sum(duration - usual for duration in launches if duration > _STUCK * usual)


@contextmanager
def profiling_ops() -> Iterator[Callable[[], IterationProfile]]:
    """Profile the iteration that runs inside the block, under a RecordingMode.

    Yields a function that returns the profile, assigned to the recorded ops. Call it after the
    block.
    """
    with torch_profiler(ProfilerActivity.CPU, ProfilerActivity.CUDA) as profiler:
        with torch.profiler.record_function(_STEP):
            yield lambda: _iteration_profile(list(events_of(profiler)))
        torch.cuda.synchronize()


@contextmanager
def _exported(profiler: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profiler.export_chrome_trace(str(path))
        yield path


def events_of(profiler: Any) -> Iterator[dict[str, Any]]:
    """The events that a profiler recorded."""
    with _exported(profiler) as path:
        yield from read_events(path)


def _is_step(event: dict[str, Any]) -> bool:
    return event.get("name") == _STEP and event.get("cat") == _RANGE


def _is_wait(name: str) -> bool:
    return any(part in name for part in _WAITS)


def _iteration_profile(events: Sequence[dict[str, Any]]) -> IterationProfile:
    ranges = _ranges(events)
    # The range of the step counts, too, because a step may wait for data before its first op.
    begins = [e["ts"] for e in events if _is_step(e)]
    begin_us = min((*begins, *(r.begin_us for own in ranges.values() for r in own)), default=0.0)
    launches: dict[int, tuple[int, float]] = {}
    host_us = {r.position: r.end_us - r.begin_us for own in ranges.values() for r in own}
    for event in events:
        if event.get("cat") in RUNTIME_CATEGORIES:
            launches[event["args"]["correlation"]] = event["tid"], event["ts"]
            inside = _position(ranges.get(event["tid"], ()), event["ts"])
            if inside is not None and _is_wait(event["name"]):
                host_us[inside] -= event["dur"]
    kernels: dict[int, list[Kernel]] = {}
    strays: list[Kernel] = []
    for event in events:
        if event.get("cat") in GPU_CATEGORIES:
            thread, issued = launches.get(event["args"]["correlation"], (0, 0.0))
            inside = _position(ranges.get(thread, ()), issued)
            run = strays if inside is None else kernels.setdefault(inside, [])
            run.append(kernel_of(event, begin_us))
    by_op = {position: tuple(run) for position, run in kernels.items()}
    ends = [(k.start_s or 0.0) + k.seconds for run in (*by_op.values(), strays) for k in run]
    host_s = {position: max(0.0, us * 1e-6) for position, us in host_us.items()}
    return IterationProfile(by_op, tuple(strays), host_s, max(ends, default=0.0))


@dataclass(frozen=True, order=True)
class _Range:
    begin_us: float
    end_us: float
    position: int


def _ranges(events: Sequence[dict[str, Any]]) -> dict[int, list[_Range]]:
    """The profiler ranges around recorded ops, by thread, in order of time."""
    by_thread: dict[int, list[_Range]] = {}
    for event in events:
        if event.get("cat") == _RANGE and event["name"].startswith(LABEL):
            position = int(event["name"].removeprefix(LABEL))
            span = _Range(event["ts"], event["ts"] + event["dur"], position)
            by_thread.setdefault(event["tid"], []).append(span)
    for ranges in by_thread.values():
        ranges.sort()
    return by_thread


def _position(ranges: Sequence[_Range], time_us: float) -> int | None:
    """The position of the recorded op that the host was running at a time. None if it ran none."""
    index = bisect.bisect_right(ranges, time_us, key=lambda span: span.begin_us) - 1
    if index < 0 or time_us > ranges[index].end_us:
        return None
    return ranges[index].position
