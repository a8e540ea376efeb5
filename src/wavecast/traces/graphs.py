"""The compiled graphs of a step.

`Call.graph` says which graph a call belongs to. The first calls of a graph are marks of the host's
work: the call of the compiled code and, if its kernels are replayed, the launch of a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wavecast.traces.step import Call, Op, Trace

GUARDS, CALL, GRAPH_LAUNCH = "dynamo.guards", "inductor.call", "cuda.graph_launch"
"""The host's work: checking whether compiled code may run, calling it, launching a CUDA graph. The
attribute `inputs` of a call says how many tensors it is given."""
XLA_CALL = "xla.call"
"""The host's work to run a compiled JAX step. Its attribute `gpu` is the GPU that the step was
compiled for, and `inputs` the number of arguments."""
MARKS = (CALL, GRAPH_LAUNCH, XLA_CALL)
NOT_COMPILED = "the step was not compiled"
"""How the note begins of a step that is eager code as a whole, although it is to be compiled."""
NOT_FOLLOWED = "torch.compile could not be followed at"
"""How the note begins of one part of a step that is."""
LEFT_EAGER = "torch.compile leaves"
"""How the note begins of a function that Dynamo leaves as it is, as eager code."""
_COUNT = "calls"
"""The attribute of a mark that gave the number of calls in files before version 3."""


@dataclass(frozen=True)
class CompiledGraph:
    """The calls of a compiled graph."""

    number: int
    marks: tuple[int, ...]
    """The positions of its marks."""
    members: tuple[int, ...]
    """The positions of its other calls: kernels, library calls, and what was inserted there."""
    is_replayed: bool
    """Whether its kernels are replayed as one CUDA graph."""

    @property
    def begin(self) -> int:
        """The position of its first call after the marks."""
        return self.members[0]

    @property
    def end(self) -> int:
        """The position after its last call."""
        return self.members[-1] + 1


def graphs_of(calls: Iterable[Call]) -> list[CompiledGraph]:
    """The compiled graphs of a step, in order; without those whose marks or calls are missing."""
    marks: dict[int, list[int]] = {}
    members: dict[int, list[int]] = {}
    replayed = set()
    for position, call in enumerate(calls):
        if call.graph is None or call.op.name == GUARDS:
            continue
        if call.op.name in MARKS:
            marks.setdefault(call.graph, []).append(position)
            replayed |= {call.graph} if call.op.name == GRAPH_LAUNCH else set()
        elif call.graph in marks:
            members.setdefault(call.graph, []).append(position)
    return [
        CompiledGraph(number, tuple(marks[number]), tuple(own), number in replayed)
        for number, own in members.items()
    ]


def has_graphs(trace: Trace) -> bool:
    """Whether any of a step's code runs as compiled graphs."""
    return any(call.graph is not None for call in trace)


def eager_code(trace: Trace) -> str:
    """What of a step is eager code although it is to be compiled, in a few words; or nothing."""
    if any(NOT_COMPILED in note for note in trace.notes):
        return "could not be compiled: see the notes"
    parts = sum(NOT_FOLLOWED in note or LEFT_EAGER in note for note in trace.notes)
    counted = "1 part" if parts == 1 else f"{parts} parts"
    return f"{counted} could not be compiled: see the notes" if parts else ""


def has_compiled_kernels(trace: Trace) -> bool:
    """Whether a step, traced or profiled, has kernels that a compiler wrote for one GPU."""
    return any(op.name.startswith(("inductor.", "xla.")) for op in trace.counts)


def compiled_gpu(trace: Trace) -> str | None:
    """The GPU, by its id, that XLA compiled a step for; None for other steps."""
    for call in trace.calls[:1]:
        if call.op.name == XLA_CALL:
            return str(call.op.attr("gpu", ""))
    return None


def numbered(calls: Sequence[Call]) -> tuple[Call, ...]:
    """Calls of a file before version 3, whose marks say how many of the next calls a graph has."""
    if not any(call.op.name in MARKS for call in calls):
        return tuple(calls)
    number, left, calls_numbered = -1, 0, []
    is_mark = False
    for call in calls:
        was_mark, is_mark = is_mark, call.op.name in MARKS
        if is_mark:
            number += call.op.name == CALL or not was_mark
            count = call.op.attr(_COUNT)
            left = count if isinstance(count, int) else 0
            attrs = tuple((name, value) for name, value in call.op.attrs if name != _COUNT)
            call = replace(call, op=Op(call.op.name, call.op.inputs, call.op.outputs, attrs))
        if is_mark or left > 0:
            call = replace(call, graph=number)
            left -= not is_mark and call.op.name != GUARDS
        calls_numbered.append(call)
    return tuple(calls_numbered)
