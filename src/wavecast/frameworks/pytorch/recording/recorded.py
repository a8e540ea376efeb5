"""The calls and the memory of a step while it is being recorded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType
from typing import Any

from wavecast.traces.step import Allocation, Call, Op, Phase, Role, Value

_OURS = "wavecast.frameworks.pytorch"


@dataclass(slots=True)
class OpEntry:
    """A recorded call. One that seems to run on the host may later turn out to run on the GPU."""

    op: Op
    phase: Phase
    module: str
    stream: int
    syncs: bool
    host: bool
    reads: tuple[int, ...] = ()
    """The positions of the entries that wrote its inputs, if it runs on the host."""
    line: str = ""
    """The line of source that a compiled kernel comes from, or that waits for the GPU."""
    inputs: tuple[int, ...] = ()
    """The numbers of the values that it reads."""
    outputs: tuple[int, ...] = ()
    """The numbers of the values that it writes."""
    graph: int | None = None


@dataclass(frozen=True, slots=True)
class EmittedKernel:
    """A kernel of compiled code that runs."""

    op: Op
    module: str
    line: str
    """The line of source that it comes from."""
    phase: Phase | None
    """The phase of the step. None for the present one."""
    reads: list[tuple[Any, int]]
    """The tensor behind each input, and where in its storage the input begins."""
    writes: list[tuple[Any, int]]


@dataclass(slots=True)
class LiveMemory:
    """A piece of GPU memory. Its times are positions of entries; -1 is before the step."""

    nbytes: int
    born: int
    freed: int | None = None
    role: Role = Role.INTERMEDIATE
    module: str = ""


@dataclass
class Recording:
    """The recorded calls and memory of one step."""

    calls: tuple[Call, ...]
    allocations: tuple[Allocation, ...]
    values: tuple[Value, ...] = ()


def called_by_autograd() -> bool:
    """Whether the present op was called by C++ code of a backward pass, not by Python code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        frame = frame.f_back
    # On a GPU, backward passes run in a separate thread without Python frames.
    return frame is None or frame.f_code.co_name == "_engine_run_backward"
