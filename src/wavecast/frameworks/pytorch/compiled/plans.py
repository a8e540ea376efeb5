"""What one compiled graph does when it runs: its kernels in order, and the memory around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wavecast.frameworks.pytorch.compiled.node_accesses import PlannedOp
from wavecast.traces.step import TensorSpec


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """Memory that a step of a graph allocates."""

    name: str
    spec: TensorSpec
    source: str | None = None
    """The buffer whose memory it gets. None for new memory."""
    is_shared: bool = False
    """Whether the source lives on, as this is a part of it."""


@dataclass(frozen=True, slots=True)
class PlanStep:
    """One scheduled node: what it allocates, its kernels, and what is freed after it."""

    buffers: tuple[PlannedBuffer, ...]
    ops: tuple[PlannedOp, ...]
    """Its kernels and library calls. Empty if it only allocates."""
    frees: tuple[str, ...]
    """The buffers and inputs that nothing needs any more."""
    module: str
    """The path of the module whose code it runs, from the root of the compiled code."""
    line: str
    """The innermost line of that code, as "file.py:12"."""
    source: str = ""
    """The innermost line outside of torch, as the trace shows it."""


@dataclass(frozen=True, slots=True)
class PlannedResult:
    """One result of a graph: a buffer or an input, maybe seen with another shape."""

    name: str | None
    """The buffer or input. None for a result that is no tensor."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    offset: int = 0
    constant: Any = None


@dataclass(frozen=True)
class GraphPlan:
    """All that a compiled graph does when it runs."""

    inputs: tuple[str, ...]
    steps: tuple[PlanStep, ...]
    results: tuple[PlannedResult, ...]
    aliases: dict[str, str]
    """Buffers without memory of their own, and the buffer that they are part of."""
    constants: dict[str, TensorSpec]
    """Tensors that are part of the compiled code."""
