"""Habitat's way to record an iteration (Yu et al., ATC 2021, listing 1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from wavecast.errors import InvalidInput, UnknownName
from wavecast.frameworks.pytorch.measurement.iteration import (
    require_gpu,
    software,
    taking_apart,
    trace_of,
)
from wavecast.frameworks.pytorch.recorder import OpRecorder, RecordingMode
from wavecast.frameworks.pytorch.structure import Structure
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.traces import overlap
from wavecast.traces.step import Measurement, Trace


class OperationTracker:
    """Records the iteration that runs inside `track()`.

    One iteration, taken apart as it runs, has no untouched whole: its trace holds the kernels'
    times, and predictions take the host's part from the reference host. `wavecast.measure` knows
    more. Run an iteration before, or the first one's cold start is tracked.
    """

    def __init__(self, origin_device: Device | str | None = None) -> None:
        self._origin = device(origin_device) if isinstance(origin_device, str) else origin_device
        self._tracked: Trace | None = None

    @contextmanager
    def track(self) -> Iterator[None]:
        """Track one training iteration."""
        require_gpu()
        gpu = self._gpu()
        recorder = OpRecorder(Structure())
        with RecordingMode(recorder), taking_apart(recorder) as take:
            yield
        recorder.structure.forget()
        found = take()
        # No untouched iteration was timed: what is known is how long its kernels took.
        measured = Measurement(
            gpu=gpu,
            gpu_s=overlap.busy_s(found.look.all_kernels),
            recorded_s=found.look.span_s,
            software=software(),
        )
        self._tracked = trace_of(found, measured)

    def get_tracked_trace(self) -> Trace:
        """The trace of the iteration that was tracked last."""
        if self._tracked is None:
            raise InvalidInput(
                "nothing was tracked: run one iteration inside `with tracker.track():` first"
            )
        return self._tracked

    def _gpu(self) -> str:
        """The name of this machine's GPU, or the given one where that says too little.

        What is measured here must not pass for a measurement of another GPU.
        """
        name, asked = str(torch.cuda.get_device_name()), self._origin
        try:
            here = device(name)
        except UnknownName:
            return name if asked is None else asked.id
        if asked is not None and asked.compute_capability != here.compute_capability:
            raise InvalidInput(
                f"the tracker's origin_device is {asked.name}, but this machine has a {name}: "
                f'write origin_device=wavecast.device("{here.id}")'
            )
        return name
