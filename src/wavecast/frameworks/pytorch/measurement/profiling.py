"""A few iterations under torch.profiler, and what it saw of each recorded op."""

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
from wavecast.frameworks.pytorch.recorder import LABEL
from wavecast.traces import overlap
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
class Look:
    """What the profiler saw of one iteration."""

    kernels: dict[int, tuple[Kernel, ...]]
    """By the position of the recorded op that launched them."""
    strays: tuple[Kernel, ...]
    """Launched outside of any recorded op: compiled code, CUDA graphs, extensions."""
    host_s: dict[int, float]
    """The host's time inside each recorded op, waiting not counted."""
    span_s: float
    """From the first op to the end of the last kernel."""

    @property
    def all_kernels(self) -> list[Kernel]:
        """Everything that ran on the GPU."""
        return [*(k for run in self.kernels.values() for k in run), *self.strays]


@dataclass(frozen=True)
class Untouched:
    """The GPU's side of iterations that ran as they always do."""

    busy_s: float
    """Of one iteration."""
    names: Counter[str]
    """The kernels of one iteration, by how often each ran."""


_looks: list[int] = []


@contextmanager
def watching(*activities: ProfilerActivity, record_shapes: bool = False) -> Iterator[profile]:
    """torch.profiler over what runs inside, without its warning about cycles, of which it has
    one."""
    if ProfilerActivity.CUDA in activities:
        _looks.append(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events")
        with profile(activities=activities, record_shapes=record_shapes) as profiler:
            yield profiler


def has_looked() -> bool:
    """Whether this process has looked at the GPU before.

    Once CUPTI was loaded, launches take longer ever after: on the hosts of our H200, steps that
    wait for the host by a quarter (docs/adr/0018). It cannot be unloaded: TEARDOWN_CUPTI blinds the
    next look.
    """
    return bool(_looks)


def untouched(step: Callable[[], Any], iterations: int) -> Untouched:
    """Run iterations with nothing but the GPU's own clock looking on."""
    with watching(ProfilerActivity.CUDA) as profiler:
        for _ in range(iterations):
            step()
        torch.cuda.synchronize()
    kernels = [kernel_of(e, 0.0) for e in events_of(profiler) if e.get("cat") in GPU_CATEGORIES]
    names = Counter(kernel.name for kernel in kernels)
    each = Counter({name: round(times / iterations) for name, times in names.items()})
    return Untouched(overlap.busy_s(kernels) / iterations, each)


def profiled(step: Callable[[], Any]) -> Trace:
    """One iteration as torch.profiler sees it by itself."""
    with watching(ProfilerActivity.CPU, ProfilerActivity.CUDA, record_shapes=True) as profiler:
        step()
        torch.cuda.synchronize()
    with _exported(profiler) as path:
        return read_kineto(path)


@dataclass(frozen=True)
class HostTimes:
    """The host's side of an iteration that ran as it always does."""

    blocked_s: float
    """How long it stood still: waiting, or because the GPU's queue was full."""
    compiled: bool
    """Whether it ran code that torch.compile made."""


def watch_host(step: Callable[[], Any]) -> HostTimes:
    """Run an iteration on an idle GPU, and see what the host does."""
    torch.cuda.synchronize()
    with watching(ProfilerActivity.CPU, ProfilerActivity.CUDA) as profiler:
        with torch.profiler.record_function(_STEP):
            step()
        torch.cuda.synchronize()
    events = list(events_of(profiler))
    # The profiler waits too, when it stops.
    end_us = max((e["ts"] + e["dur"] for e in events if _is_step(e)), default=float("inf"))
    launches = [e for e in events if e.get("cat") in RUNTIME_CATEGORIES and e["ts"] < end_us]
    compiled = any(str(e.get("name", "")).startswith(_COMPILED) for e in events)
    return HostTimes(_standing_us(launches) / 1e6, compiled)


def _standing_us(calls: Sequence[dict[str, Any]]) -> float:
    """The time in calls of the driver that wait."""
    waits = sum(float(e["dur"]) for e in calls if _is_wait(e["name"]))
    launches = sorted(float(e["dur"]) for e in calls if "Launch" in e["name"])
    if not launches:
        return waits
    usual = launches[len(launches) // 2]
    # A launch takes microseconds; one that takes many times the usual waits for a free place.
    return waits + sum(each - usual for each in launches if each > _STUCK * usual)


@contextmanager
def looking() -> Iterator[Callable[[], Look]]:
    """Look at the iteration that runs inside, under a RecordingMode.

    Gives a function that tells, once the block has ended, what each op launched.
    """
    with watching(ProfilerActivity.CPU, ProfilerActivity.CUDA) as profiler:
        with torch.profiler.record_function(_STEP):
            yield lambda: _sorted_out(list(events_of(profiler)))
        torch.cuda.synchronize()


@contextmanager
def _exported(profiler: Any) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profiler.export_chrome_trace(str(path))
        yield path


def events_of(profiler: Any) -> Iterator[dict[str, Any]]:
    """What a profiler recorded, event by event."""
    with _exported(profiler) as path:
        yield from read_events(path)


def _is_step(event: dict[str, Any]) -> bool:
    return event.get("name") == _STEP and event.get("cat") == _RANGE


def _is_wait(name: str) -> bool:
    return any(part in name for part in _WAITS)


def _sorted_out(events: Sequence[dict[str, Any]]) -> Look:
    ranges = _ranges(events)
    begins = [e["ts"] for e in events if _is_step(e)]  # before its first op it may wait for data
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
    found = {position: tuple(run) for position, run in kernels.items()}
    ends = [(k.start_s or 0.0) + k.seconds for run in (*found.values(), strays) for k in run]
    host_s = {position: max(0.0, us * 1e-6) for position, us in host_us.items()}
    return Look(found, tuple(strays), host_s, max(ends, default=0.0))


@dataclass(frozen=True, order=True)
class _Range:
    begin_us: float
    end_us: float
    position: int


def _ranges(events: Sequence[dict[str, Any]]) -> dict[int, list[_Range]]:
    """The ranges around recorded ops, by thread and in order."""
    found: dict[int, list[_Range]] = {}
    for event in events:
        if event.get("cat") == _RANGE and event["name"].startswith(LABEL):
            position = int(event["name"].removeprefix(LABEL))
            span = _Range(event["ts"], event["ts"] + event["dur"], position)
            found.setdefault(event["tid"], []).append(span)
    for own in found.values():
        own.sort()
    return found


def _position(ranges: Sequence[_Range], time_us: float) -> int | None:
    """The recorded op that was running on the host at a time."""
    index = bisect.bisect_right(ranges, time_us, key=lambda each: each.begin_us) - 1
    if index < 0 or time_us > ranges[index].end_us:
        return None
    return ranges[index].position
