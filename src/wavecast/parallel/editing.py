"""Changes to a trace: calls inserted, ops replaced, calls left out, memory added or changed."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from wavecast.parallel.compiled_graphs import graph_numbers, recounted
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace

COMPUTE, GATHERS, REDUCTIONS, TRANSFERS = range(4)
"""The streams of a rank: kernels, gathers of weights, reductions of gradients, and sends."""


class Edit:
    """A trace that is being changed. Positions are those of the trace as it was."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._before: dict[int, list[Call]] = defaultdict(list)
        self._ops: dict[int, Op] = {}
        self._left_out: set[int] = set()
        self._allocations = list(trace.allocations)
        self._added: list[tuple[int, int, Role, str, int | None, int | None]] = []

    def insert(self, position: int, calls: Iterable[Call]) -> None:
        """Insert calls before a position. What is inserted first comes first."""
        self._before[position].extend(calls)

    def replace_op(self, position: int, op: Op) -> None:
        """Let another op run at a position."""
        self._ops[position] = op

    def leave_out(self, positions: Iterable[int]) -> None:
        """Drop the calls at these positions."""
        self._left_out.update(positions)

    def change_memory(self, change: Callable[[Allocation], Allocation | None]) -> None:
        """Change each allocation; None removes it."""
        changed = (change(allocation) for allocation in self._allocations)
        self._allocations = [allocation for allocation in changed if allocation is not None]

    def allocate(
        self, nbytes: int, role: Role, born: int | None = None, freed: int | None = None
    ) -> None:
        """Add memory that lives from before one position until before another."""
        if nbytes > 0:
            self._allocations.append(Allocation(nbytes, born, freed, role))

    def made(self) -> Trace:
        """The changed trace."""
        calls: list[Call] = []
        kept = []
        graphs = graph_numbers(self.trace.calls)
        numbers: list[int] = []
        for position, call in enumerate(self.trace.calls):
            calls.extend(self._before.get(position, ()))
            kept.append(len(calls))
            if graphs:  # what is inserted between two calls of a graph belongs to it
                inside = position > 0 and graphs[position - 1] == graphs[position]
                numbers += [graphs[position] if inside else -1] * (len(calls) - len(numbers))
                numbers += [graphs[position]] * (position not in self._left_out)
            if position in self._left_out:
                continue
            op = self._ops.get(position)
            calls.append(call if op is None or op is call.op else _with_op(call, op))
        kept.append(len(calls))
        calls.extend(self._before.get(len(self.trace.calls), ()))
        if graphs:
            calls = recounted(calls, [*numbers, *[-1] * (len(calls) - len(numbers))])
        allocations = tuple(_moved(a, kept, len(calls)) for a in self._allocations)
        return replace(self.trace, calls=tuple(calls), allocations=allocations)


def _with_op(call: Call, op: Op) -> Call:
    # Several times as fast as dataclasses.replace, which a search would call millions of times.
    return Call(
        op, call.phase, call.module, call.stream, call.syncs, call.kernels, call.host_s, call.line
    )


def _living(allocation: Allocation, born: int | None, freed: int | None) -> Allocation:
    """An allocation with another lifetime."""
    if born == allocation.born and freed == allocation.freed:
        return allocation
    return Allocation(allocation.nbytes, born, freed, allocation.role, allocation.module)


def _moved(allocation: Allocation, kept: Sequence[int], end: int) -> Allocation:
    born, freed = allocation.born, allocation.freed
    return _living(
        allocation,
        None if born is None else min(kept[min(born, len(kept) - 1)], max(end - 1, 0)),
        None if freed is None else kept[min(freed, len(kept) - 1)],
    )


def cut(trace: Trace, positions: Sequence[int], memory: Sequence[Allocation] = ()) -> Trace:
    """The trace of some of the calls, in order, with the memory that is given.

    The lifetimes of that memory count calls of the whole trace.
    """
    index = list(positions)
    allocations = []
    for allocation in memory:
        born, freed = allocation.born, allocation.freed
        allocations.append(
            _living(
                allocation,
                None if born is None else min(bisect_left(index, born), len(index) - 1),
                None if freed is None else bisect_left(index, freed),
            )
        )
    calls = [trace.calls[position] for position in index]
    graphs = graph_numbers(trace.calls)
    if graphs:
        calls = recounted(calls, [graphs[position] for position in index])
    return replace(trace, calls=tuple(calls), allocations=tuple(allocations))


def flat(nbytes: int, dtype: str = "bfloat16") -> TensorSpec:
    """A flat tensor of so many bytes."""
    size = {"float32": 4, "bfloat16": 2, "float16": 2}.get(dtype, 1)
    return TensorSpec((-(-nbytes // size),), dtype)


def wait(stream: int, on: int, phase: Phase, module: str = "") -> Call:
    """A call with which one stream waits for what was issued to another."""
    op = Op("cuda.stream_wait", (), (), (("stream", on),))
    return Call(op, phase, module, stream)


def kernel(name: str, source: TensorSpec, result: TensorSpec, phase: Phase, module: str) -> Call:
    """A kernel on the compute stream that reads one tensor and writes another."""
    return Call(Op(name, (source,), (result,)), phase, module)
