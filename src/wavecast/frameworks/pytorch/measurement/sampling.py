"""The iterations of a step timed one by one on this machine's GPU, and one of them recorded."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from wavecast.errors import InvalidInput, UnknownName
from wavecast.frameworks.pytorch.measurement.iteration import (
    measure,
    recording_iteration,
    require_gpu,
    software,
    trace_of,
)
from wavecast.frameworks.pytorch.measurement.whole_runs import between_s, mark
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder, RecordingMode
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.hardware.devices import Device, device
from wavecast.traces import file
from wavecast.traces.step import Measurement, Trace

MOST = 1000
"""The most iterations to run, unless more are asked for."""
_BETWEEN_CHECKS = 10
"""After this many iterations the host waits for the GPU and checks the time. If it ran further
ahead, the GPU would work on long after the limit."""
_REPEATS = 5


class OutOfMemory(Exception):
    """The step does not fit into the GPU's memory."""


@dataclass(frozen=True)
class Sample:
    """The measured iterations of a step."""

    seconds: tuple[float, ...]
    """The time of each iteration, from the first on."""
    peak_bytes: int
    reserved_bytes: int
    trace: Trace | None
    """The trace of one recorded iteration. None if none was asked for."""


def sample(
    make_step: Callable[[], Callable[[], Any]],
    enough: Callable[[Sequence[float]], bool],
    limit_s: float,
    *,
    least: int = 0,
    record: bool = True,
    samples: int | None = None,
    unit: str = "samples",
) -> Sample:
    """Time a step's iterations from the first on, then record one of them.

    Args:
        enough: says whether the sample may end, given the seconds of the iterations so far.
        limit_s: run for this many seconds; for longer if that is not `enough` yet, but for no
            more than `MOST` iterations.
        least: run at least this many iterations, however long they take.

    Raises:
        OutOfMemory: the step does not fit into the GPU's memory.
    """
    require_gpu()
    try:
        return _sample(make_step, enough, (limit_s, least), record, samples, unit)
    except torch.OutOfMemoryError:
        pass  # raised below, outside of this handler, because its traceback keeps tensors alive
    finally:
        gc.collect()  # no frame holds the step any more, so the next one starts with empty memory
        torch.cuda.empty_cache()
    raise OutOfMemory


def _sample(
    make_step: Callable[[], Callable[[], Any]],
    enough: Callable[[Sequence[float]], bool],
    limits: tuple[float, int],
    record: bool,
    samples: int | None,
    unit: str,
) -> Sample:
    torch.cuda.reset_peak_memory_stats()
    step = make_step()
    seconds = _iterations(step, enough, *limits)
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    trace = None
    if record:
        trace = measure(step, warm_up=0, repeats=_REPEATS, recordings=1, samples=samples, unit=unit)
    return Sample(seconds, peak, reserved, trace)


def _iterations(
    step: Callable[[], Any], enough: Callable[[Sequence[float]], bool], limit_s: float, least: int
) -> tuple[float, ...]:
    """The seconds of each iteration, from the first on."""
    marks = [mark(True)]
    until = time.perf_counter() + limit_s
    most = max(MOST, least)
    while True:
        for _ in range(_BETWEEN_CHECKS):
            step()
            marks.append(mark(True))
        torch.cuda.synchronize()
        late = time.perf_counter() > until and len(marks) > least
        if late or len(marks) > most:
            seconds = tuple(between_s(begin, end) for begin, end in pairwise(marks))
            if enough(seconds) or len(marks) > most:
                return seconds


# Habitat's interface for recording an iteration (Yu et al., ATC 2021, listing 1).


class OperationTracker:
    """Records the training iteration that runs inside `track()`.

    The iteration is recorded while it runs, so its undisturbed total time is not known. The trace
    holds the kernels' times, and predictions take the host's time from the reference host.
    `wavecast.measure` also measures both. Run one iteration before tracking; the first one is slow.

    Example:
        ```python
        tracker = wavecast.OperationTracker(origin_device="rtx2070")
        with tracker.track():
            run_my_training_iteration()
        tracker.get_tracked_trace().to_device(wavecast.Device.V100).run_time_ms
        ```

    Args:
        origin_device: this machine's GPU. None to ask the driver.
    """

    def __init__(self, origin_device: Device | str | None = None) -> None:
        self._origin = device(origin_device) if isinstance(origin_device, str) else origin_device
        self._tracked: Trace | None = None

    @contextmanager
    def track(self) -> Iterator[None]:
        """Record the training iteration that runs inside the block."""
        require_gpu()
        gpu = self._gpu()
        recorder = OpRecorder(Structure())
        with RecordingMode(recorder), recording_iteration(recorder) as finished:
            yield
        recorder.structure.forget()
        recorded = finished()
        # `seconds` stays unset: no iteration was timed without recording.
        measured = Measurement(
            gpu=gpu,
            gpu_s=file.busy_s(recorded.profile.all_kernels),
            recorded_s=recorded.profile.span_s,
            software=software(),
        )
        self._tracked = trace_of(recorded, measured)

    def get_tracked_trace(self) -> Trace:
        """The trace of the last iteration that was tracked."""
        if self._tracked is None:
            raise InvalidInput(
                "no iteration was tracked yet; run one inside `with tracker.track():` first"
            )
        return self._tracked

    def _gpu(self) -> str:
        """The name of this machine's GPU; the given device's id if that name is not known.

        A given device that this machine does not have is refused, so that a measurement made here
        is never taken for one of another GPU.
        """
        name, given = str(torch.cuda.get_device_name()), self._origin
        try:
            here = device(name)
        except UnknownName:
            return name if given is None else given.id
        if given is not None and given.compute_capability != here.compute_capability:
            raise InvalidInput(
                f"the tracker's origin_device is {given.name}, but this machine has a {name}; "
                f'use origin_device=wavecast.device("{here.id}")'
            )
        return name
