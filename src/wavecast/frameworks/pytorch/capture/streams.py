"""CUDA streams and events for tracing: a stream is a number, and waits are recorded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from wavecast.frameworks.pytorch.capture.places import GPU
from wavecast.frameworks.pytorch.recording.recorder import OpRecorder


def stream_class(recorder: OpRecorder) -> type:
    """The class that replaces `torch.cuda.Stream`."""

    class Stream:
        """A CUDA stream: a number that is recorded with each op."""

        cuda_stream = 0

        def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
            recorder.streams += 1
            self.stream_id = recorder.streams
            self.device = GPU
            self.priority = priority

        def synchronize(self) -> None:
            recorder.mark("cuda.stream_synchronize")

        def wait_stream(self, stream: Any) -> None:
            recorder.mark("cuda.stream_wait", self.stream_id, stream=stream.stream_id)

        def wait_event(self, event: Any) -> None:
            event.wait(self)

        def record_event(self, event: Any = None) -> Any:
            event = torch.cuda.Event() if event is None else event
            event.record(self)
            return event

        def query(self) -> bool:
            return True

        def is_capturing(self) -> bool:
            return False

    return Stream


def event_class(recorder: OpRecorder) -> type:
    """The class that replaces `torch.cuda.Event`."""

    class Event:
        """A CUDA event. It has no real time, because nothing runs."""

        def __init__(self, enable_timing: bool = False, **_: Any) -> None:
            self.enable_timing = enable_timing
            self.number: int | None = None

        def record(self, stream: Any = None) -> None:
            self.number = recorder.count_event()
            recorder.mark("cuda.event_record", _number_of(stream), event=self.number)

        def wait(self, stream: Any = None) -> None:
            if self.number is not None:  # CUDA does not wait for an event that was never recorded
                recorder.mark("cuda.stream_wait", _number_of(stream), event=self.number)

        def synchronize(self) -> None:
            recorder.mark("cuda.event_synchronize")

        def query(self) -> bool:
            return True

        def elapsed_time(self, end_event: Any) -> float:
            return 1.0

    return Event


def _number_of(stream: Any) -> int | None:
    return None if stream is None else int(stream.stream_id)


class _CurrentStream(threading.local):
    """The stream that the present thread has chosen. None for the default stream."""

    stream: Any = None


class Streams:
    """The current stream of each thread, and the functions that change it."""

    def __init__(self, recorder: OpRecorder, stream_type: type) -> None:
        self._recorder = recorder
        self._default = stream_type()
        self._default.stream_id = 0
        recorder.streams = 0
        self._here = _CurrentStream()

    def default(self, device: Any = None) -> Any:
        """`torch.cuda.default_stream`."""
        return self._default

    def current(self, device: Any = None) -> Any:
        """`torch.cuda.current_stream`."""
        return self._here.stream or self._default

    def set(self, stream: Any) -> None:
        """`torch.cuda.set_stream`."""
        if stream is not None:
            self._here.stream = stream
            self._recorder.stream = stream.stream_id

    @contextmanager
    def use(self, stream: Any) -> Iterator[None]:
        """`torch.cuda.stream`."""
        previous = self.current()
        self.set(stream)
        try:
            yield
        finally:
            self.set(previous)
