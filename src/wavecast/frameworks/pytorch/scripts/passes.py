"""Backward passes of a script, and weights that it changes by hand, without an optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.structure import key_of, local_part
from wavecast.frameworks.pytorch.recording.user_lines import user_line


class BackwardPasses:
    """Notices each backward pass.

    Args:
        recorder: the recording, for their positions.
        notify: called before each.
    """

    def __init__(self, recorder: OpRecorder, notify: Callable[[], None]) -> None:
        self._recorder = recorder
        self._notify = notify
        self._seen: list[tuple[int, str]] = []
        """Where each began: its position in the recording, and its line."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the backward passes inside the block."""
        original = torch.autograd.backward

        def backward(*args: Any, **kwargs: Any) -> None:
            self._notify()
            self._seen.append((len(self._recorder), user_line()))
            original(*args, **kwargs)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original

    def count(self, begin: int, end: int) -> int:
        """How many began between two positions of the recording."""
        return sum(begin <= position < end for position, _ in self._seen)

    @property
    def last_line(self) -> str | None:
        """The line of the last one; None if there was none."""
        return self._seen[-1][1] if self._seen else None


class WeightUpdates:
    """Notices ops that write to parameters after a backward pass.

    Args:
        recorder: the recording.
        notify: called with the line of each such op.
        wanted: whether to look for them now.
    """

    def __init__(
        self, recorder: OpRecorder, notify: Callable[[str], None], wanted: Callable[[], bool]
    ) -> None:
        self._recorder = recorder
        self._notify = notify
        self._wanted = wanted

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the ops inside the block."""
        watch = self._recorder.on_op

        def seen(func: Any, args: tuple[Any, ...], returned: list[Any]) -> None:
            if watch is not None:
                watch(func, args, returned)
            if func is None or not args or not func._schema.is_mutable or not self._wanted():
                return
            if self._writes(args[0]):
                self._notify(user_line())

        self._recorder.on_op = seen
        try:
            yield
        finally:
            self._recorder.on_op = watch

    def _writes(self, written: Any) -> bool:
        """Whether what an op writes is a parameter that has a gradient, outside of autograd."""
        if torch._C._current_autograd_node() is not None:
            return False
        tensors = written if isinstance(written, list | tuple) else (written,)
        keys = {key_of(local_part(t)) for t in tensors if isinstance(t, torch.Tensor)}
        return not keys.isdisjoint(self._weights())

    def _weights(self) -> set[int]:
        return {
            key_of(local_part(parameter))
            for root in self._recorder.structure.roots()
            for parameter in root.parameters()
            if parameter.grad is not None
        }
