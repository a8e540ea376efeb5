"""Dispatch modes that record the ops that run on a real GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wavecast.frameworks.pytorch.recording.recorder import OpRecorder
from wavecast.frameworks.pytorch.recording.signature import is_composite, signature_of, tensors_of

LABEL = "wavecast#"
"""The prefix of the profiler range around each recorded op. The op's position follows it."""


class RecordingMode(TorchDispatchMode):
    """Records the ops that run on a real GPU, each inside a profiler range."""

    def __init__(self, recorder: OpRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the op, then record it."""
        kwargs = kwargs or {}
        if signature_of(func) is None:
            return func(*args, **kwargs)
        if is_composite(func):
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        self.recorder.meet(tensors_of((args, tuple(kwargs.values()))) or [])
        out = self._run(func, args, kwargs)
        self.recorder.write_down(func, args, kwargs, out)
        return out

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        with torch.profiler.record_function(f"{LABEL}{len(self.recorder)}"):
            return func(*args, **kwargs)


class MemoryMode(RecordingMode):
    """Also records the workspace of each op: memory that it allocates and frees while it runs.

    It asks the allocator before and after each op, which takes the host longer than the op.
    """

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        before = held_bytes()["current"]
        torch.cuda.reset_peak_memory_stats()
        out = func(*args, **kwargs)
        after = held_bytes()
        self.recorder.take_inside(after["peak"] - max(before, after["current"]))
        return out


def held_bytes() -> dict[str, int]:
    """The allocated bytes: "current", and the "peak" since it was last reset."""
    statistics: dict[str, int] = torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
    return statistics
