"""Evaluation that repeats itself, which is not run again.

A script may evaluate its model on hundreds of batches before it trains. All but the first of these
forward passes add nothing new, so they are not run: their results are made from the shapes of an
earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder

_RUNS = 3
"""How many equal forward passes run before the next ones are left out."""
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)


@dataclass
class Evaluation:
    """One forward pass without gradients of a module in evaluation mode, and its repetitions."""

    module: str
    begin: int
    """The position of its first op in the recording."""
    end: int
    skipped: int = 0
    """How many equal ones were not run."""


@dataclass(frozen=True)
class _Blank:
    """What is needed to make a tensor like one that a module returned."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any


@dataclass
class _Seen:
    """Equal forward passes since the last training step."""

    runs: int = 0
    last: Evaluation | None = None
    result: tuple[list[Any], Any] | None = None
    """How to make the result again."""


class ModuleCalls:
    """Watches the outermost calls of modules while a script runs."""

    def __init__(self, recorder: OpRecorder, notify: Callable[[], None]) -> None:
        self.skipping = True
        """Whether repeated evaluation may be left out."""
        self.evaluations: list[Evaluation] = []
        self.skips: list[int] = []
        """The positions in the recording where a call was left out."""
        self.first_trained: int | None = None
        """The position in the recording of the first forward pass with gradients."""
        self._recorder = recorder
        self._notify = notify
        """Called before a forward pass with gradients."""
        self._inside = False
        self._seen: dict[Any, _Seen] = {}
        """By module and shapes of the inputs."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the calls inside the block."""
        original = torch.nn.Module.__call__

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(module, *args, **kwargs)
            self._inside = True
            try:
                return self._outermost(original, module, args, kwargs)
            finally:
                self._inside = False

        torch.nn.Module.__call__ = call
        try:
            yield
        finally:
            torch.nn.Module.__call__ = original

    def _outermost(self, original: Callable[..., Any], module: Any, args: Any, kwargs: Any) -> Any:
        position = len(self._recorder)
        if torch.is_grad_enabled():
            self._notify()
            self._seen.clear()
            if self.first_trained is None and module.training:
                self.first_trained = position
            return original(module, *args, **kwargs)
        if module.training:
            return original(module, *args, **kwargs)
        key = _signature(module, args, kwargs)
        seen = _Seen() if key is None else self._seen.setdefault(key, _Seen())
        if self.skipping and seen.result is not None and seen.last is not None:
            seen.last.skipped += 1
            self.skips.append(position)
            return self._made_again(*seen.result)
        result = original(module, *args, **kwargs)
        seen.runs += 1
        seen.last = Evaluation(type(module).__name__, position, len(self._recorder))
        seen.result = _blanks_of(result) if seen.runs >= _RUNS else None
        self.evaluations.append(seen.last)
        return result

    def _made_again(self, leaves: list[Any], spec: Any) -> Any:
        with self._recorder.silence():
            made = [
                torch.empty_strided(leaf.shape, leaf.strides, dtype=leaf.dtype, device="cuda")
                if isinstance(leaf, _Blank)
                else leaf
                for leaf in leaves
            ]
        return pytree.tree_unflatten(made, spec)


def _signature(module: Any, args: Any, kwargs: Any) -> Any:
    """What decides which ops a forward pass runs; None if not only shapes and plain values do."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            described.append((tuple(leaf.shape), leaf.dtype, leaf.device))
        elif isinstance(leaf, _PLAIN):
            described.append((type(leaf), leaf))
        else:
            return None
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return id(module), tuple(described), str(spec), autocast


def _blanks_of(result: Any) -> tuple[list[Any], Any] | None:
    """How to make a result again; None if a tensor in it is on the host, where values count."""
    leaves, spec = pytree.tree_flatten(result)
    made: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            made.append(leaf)
        elif leaf.device.type == "cuda":
            made.append(_Blank(tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype))
        else:
            return None
    return made, spec
