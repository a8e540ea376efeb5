"""Compiled graphs of a step, and how torch divides them where several GPUs train.

A mark precedes the calls of a compiled graph and says how many there are. What a graph computes
leaves it when it ends: autograd hands the gradients of its weights over then, all at once. So torch
compiles smaller graphs where gradients or weights are exchanged:

- DistributedDataParallel: Dynamo's DDPOptimizer cuts the graph so that each bucket of gradients
  comes out of a graph of its own (`torch/_dynamo/backends/distributed.py`).
- FSDP: its hooks run outside of compiled code, so each unit, a repeated block, is a graph.
- Pipelines: each stage is compiled by itself. It is taken to be one graph for each block.
- ZeRO stages 1 and 2 leave graphs whole, and their reductions wait for the end of a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from wavecast.ops.fused import CALL, GRAPH_LAUNCH, GUARDS
from wavecast.ops.registry import integer
from wavecast.traces.step import Call, Op, Phase, Trace

_MARKS = (CALL, GRAPH_LAUNCH)


@dataclass(frozen=True)
class CompiledGraph:
    """The calls of a compiled graph."""

    marks: tuple[Call, ...]
    """The marks before it: the call of the graph, and the launch of a CUDA graph if it is one."""
    begin: int
    """The position of its first call, after the marks."""
    end: int
    """The position after its last call."""


def is_compiled(trace: Trace) -> bool:
    """Whether any of a step's code is compiled."""
    return any(call.op.name == CALL for call in trace)


def graphs_of(calls: Sequence[Call]) -> list[CompiledGraph]:
    """The compiled graphs of a step, in order."""
    graphs: list[CompiledGraph] = []
    marks: list[Call] = []
    for position, call in enumerate(calls):
        if call.op.name not in _MARKS:
            marks = []
            continue
        marks.append(call)
        left, end = integer(call.op, "calls"), position + 1
        while left and end < len(calls):
            left -= calls[end].op.name != GUARDS
            end += 1
        if end > position + 1:
            graphs.append(CompiledGraph(tuple(marks), position + 1, end))
    return graphs


def graph_numbers(calls: Sequence[Call]) -> list[int]:
    """For each call, the number of its graph; -1 outside. Empty if nothing is compiled."""
    if not any(call.op.name == CALL for call in calls):
        return []
    numbers = [-1] * len(calls)
    for number, graph in enumerate(graphs_of(calls)):
        first = graph.begin - len(graph.marks)
        numbers[first : graph.end] = [number] * (graph.end - first)
    return numbers


def recounted(calls: Sequence[Call], numbers: Sequence[int]) -> list[Call]:
    """Calls whose marks say again how many calls their graphs have, after some came or went.

    Args:
        calls: the changed calls.
        numbers: the number of each call's graph; -1 outside. Marks have that of their graph.
    """
    made = list(calls)
    for position, call in enumerate(calls):
        if call.op.name not in _MARKS:
            continue
        count, at = 0, position + 1
        while at < len(calls) and numbers[at] == numbers[position] >= 0:
            if calls[at].op.name in _MARKS:
                break
            count += calls[at].op.name != GUARDS
            at += 1
        if count != integer(call.op, "calls"):
            made[position] = replace(call, op=_counting(call.op, count))
    return made


def _counting(mark: Op, count: int) -> Op:
    """The mark of a graph with so many calls. A part of a graph has a part of its inputs."""
    before = max(integer(mark, "calls"), 1)
    inputs = -(-integer(mark, "inputs") * min(count, before) // before)
    changed = {"calls": count, "inputs": inputs}
    return Op(mark.name, (), (), tuple((n, changed.get(n, v)) for n, v in mark.attrs))


def ends_of_graphs(trace: Trace) -> dict[int, int]:
    """The last position of the graph that a call belongs to, for each call of a graph."""
    if not is_compiled(trace):
        return {}
    return {
        position: graph.end - 1
        for graph in graphs_of(trace.calls)
        for position in range(graph.begin, graph.end)
    }


def cuts_at_blocks(trace: Trace, block_of: Callable[[str], str]) -> list[int]:
    """The positions inside graphs at which another block begins.

    Blocks follow each other. A kernel of a block that was there before, such as one that computes
    what all blocks read, belongs to the graph in which it runs.
    """
    cuts = []
    for graph in graphs_of(trace.calls):
        seen = {""}
        for position in range(graph.begin, graph.end):
            block = block_of(trace.calls[position].module)
            if block not in seen and len(seen) > 1:
                cuts.append(position)
            seen.add(block)
    return cuts


def marks_at(trace: Trace, positions: Iterable[int]) -> dict[int, list[Call]]:
    """The marks that make a graph begin at each position that lies inside of another one."""
    graphs = graphs_of(trace.calls)
    made: dict[int, list[Call]] = {}
    for position in positions:
        for graph in graphs:
            if graph.begin < position < graph.end:
                here = trace.calls[position]
                guards = Call(Op(GUARDS, (), ()), here.phase, here.module)
                own = [replace(mark, phase=here.phase, module=here.module) for mark in graph.marks]
                forward = here.phase is Phase.FORWARD  # autograd calls a backward graph unguarded
                made[position] = [guards, *own] if forward else own
    return made
