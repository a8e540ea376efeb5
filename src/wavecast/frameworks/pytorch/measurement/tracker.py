"""Habitat's interface for recording an iteration (Yu et al., ATC 2021, listing 1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from wavecast.errors import InvalidInput, UnknownName
from wavecast.frameworks.pytorch.measurement.iteration import (
    recording_iteration,
    require_gpu,
    software,
    trace_of,
)
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.recording_modes import RecordingMode
from wavecast.frameworks.pytorch.recording.structure import Structure
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.traces import overlap
from wavecast.traces.step import Measurement, Trace


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
            gpu_s=overlap.busy_s(recorded.profile.all_kernels),
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
