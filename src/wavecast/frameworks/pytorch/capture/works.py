"""The handles of collectives that a traced step has issued: what it waits for, and how."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._distributed_c10d import FakeWork

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder


@dataclass(frozen=True)
class Sent:
    """A collective that was issued, and how to wait for it."""

    recorder: OpRecorder
    stream: int
    event: int | None
    """The event that was recorded after it. None if it runs on the stream that issued it."""
    results: tuple[weakref.ref[Any], ...] = ()
    """The tensors that it writes. They are not kept: their memory is followed."""

    def wait(self) -> None:
        """Let the present stream wait for the result."""
        if self.event is not None:
            self.recorder.mark("cuda.stream_wait", event=self.event)


class Works:
    """The handles of the collectives of one trace: `work.wait()`, `work.get_future()`.

    They are torch's own, which cannot be derived from safely, with methods that look up here what
    they stand for.
    """

    def __init__(self) -> None:
        self._sent: dict[int, tuple[Any, Sent]] = {}

    def work(self, sent: Sent | None) -> Any:
        """The handle of a collective, as torch's dispatcher wants it."""
        work = FakeWork()
        if sent is not None:
            # The handle is kept: Python's object for it is found again only while it lives.
            self._sent[id(work)] = (work, sent)
        return work.boxed()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let the handles answer for the collectives of this trace, inside the block."""

        def sent_of(work: Any) -> Sent | None:
            return self._sent.get(id(work), (None, None))[1]

        def wait(work: Any, timeout: Any = None) -> bool:
            sent = sent_of(work)
            if sent is not None:
                sent.wait()
            return True

        def result(work: Any) -> list[Any]:
            sent = sent_of(work)
            return [] if sent is None else [tensor() for tensor in sent.results]

        def get_future(work: Any) -> Any:
            return SentFuture(sent_of(work), result(work))

        methods = {
            "wait": wait,
            "synchronize": lambda work: wait(work) and None,
            "block_current_stream": lambda work: wait(work) and None,
            "is_completed": lambda work: True,
            "is_success": lambda work: True,
            "result": result,
            "get_future": get_future,
        }
        with ExitStack() as stack:
            for name, method in methods.items():
                own = vars(FakeWork).get(name)
                if own is None:
                    stack.callback(delattr, FakeWork, name)
                else:
                    stack.callback(setattr, FakeWork, name, own)
                setattr(FakeWork, name, method)
            stack.callback(self._sent.clear)
            yield


class SentFuture(torch.futures.Future[Any]):
    """The future of a collective. Its callbacks run on the stream of the collective."""

    def __init__(self, sent: Sent | None, value: Any) -> None:
        super().__init__()
        self._sent = sent
        self.set_result(value)

    def wait(self) -> Any:
        """The value. The present stream waits for it."""
        if self._sent is not None:
            self._sent.wait()
        return self.value()

    def then(self, callback: Any) -> Any:
        """The future of what a callback makes of this one."""
        if self._sent is None:
            return SentFuture(None, callback(self))
        recorder, before = self._sent.recorder, len(self._sent.recorder)
        event = self._sent.event
        with recorder.on_stream(self._sent.stream):
            value = callback(_ReachedFuture(self.value()))
            if event is not None and len(recorder) > before:  # it has issued further work
                event = recorder.count_event()
                recorder.mark("cuda.event_record", event=event)
        return SentFuture(Sent(recorder, self._sent.stream, event), value)


class _ReachedFuture:
    """What a callback of a future sees: one whose result is there."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def value(self) -> Any:
        return self._value

    wait = value

    def done(self) -> bool:
        return True
