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
        finds_leaves: whether to find the tensors that get gradients.
    """

    def __init__(
        self, recorder: OpRecorder, notify: Callable[[], None], finds_leaves: Callable[[], bool]
    ) -> None:
        self._recorder = recorder
        self._notify = notify
        self._finds_leaves = finds_leaves
        self.leaves: set[int] = set()
        """The memory of the tensors that get gradients."""
        self._seen: list[tuple[int, str]] = []
        """Where each began: its position in the recording, and its line."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the backward passes inside the block."""
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            self._notify()
            self._seen.append((len(self._recorder), user_line()))
            if self._finds_leaves():
                self.leaves |= _leaves(tensors)
            original(tensors, *args, **kwargs)

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original

    def count(self, begin: int, end: int) -> int:
        """How many began between two positions of the recording."""
        return sum(begin <= position < end for position, _ in self._seen)

    def __len__(self) -> int:
        return len(self._seen)

    @property
    def last_line(self) -> str | None:
        """The line of the last one; None if there was none."""
        return self._seen[-1][1] if self._seen else None


def _leaves(tensors: Any) -> set[int]:
    """The memory of the leaves of a graph: the tensors that a backward pass gives gradients."""
    roots = tensors if isinstance(tensors, list | tuple) else (tensors,)
    waiting = [root.grad_fn for root in roots if isinstance(root, torch.Tensor)]
    seen, found = set(waiting), set()
    while waiting:
        node = waiting.pop()
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(key_of(local_part(variable)))
        for following, _ in () if node is None else node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


class WeightUpdates:
    """Notices ops that write to weights after a backward pass.

    Args:
        recorder: the recording.
        notify: called with the line of each such op.
        weights: the memory of the weights; empty while nobody wants to know.
    """

    def __init__(
        self, recorder: OpRecorder, notify: Callable[[str], None], weights: Callable[[], set[int]]
    ) -> None:
        self._recorder = recorder
        self._notify = notify
        self._weights = weights

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the ops inside the block."""
        watch = self._recorder.on_op

        def seen(func: Any, args: tuple[Any, ...], returned: list[Any]) -> None:
            if watch is not None:
                watch(func, args, returned)
            if func is None or not args or not func._schema.is_mutable:
                return
            if (weights := self._weights()) and _writes(args[0], weights):
                self._notify(user_line())

        self._recorder.on_op = seen
        try:
            yield
        finally:
            self._recorder.on_op = watch


def _writes(written: Any, weights: set[int]) -> bool:
    """Whether an op outside of autograd writes to one of the weights."""
    if torch._C._current_autograd_node() is not None:
        return False
    tensors = written if isinstance(written, list | tuple) else (written,)
    keys = {key_of(local_part(t)) for t in tensors if isinstance(t, torch.Tensor)}
    return not keys.isdisjoint(weights)
