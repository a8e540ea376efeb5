"""Where torch cuts compiled graphs when several GPUs train.

What a graph computes leaves it when it ends: autograd hands the gradients of its weights over then,
all at once. So torch compiles smaller graphs where gradients or weights are exchanged:

- DistributedDataParallel: Dynamo's DDPOptimizer cuts the graph so that each bucket of gradients
  comes out of a graph of its own (`torch/_dynamo/backends/distributed.py`).
- FSDP: its hooks run outside of compiled code, so each unit, a repeated block, is a graph.
- Pipelines: each stage is compiled by itself. It is taken to be one graph for each block.
- ZeRO stages 1 and 2 leave graphs whole, and their reductions wait for the end of a graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from wavecast.ops.registry import integer
from wavecast.traces.editing import Edit
from wavecast.traces.graphs import CALL, GUARDS, MARKS, CompiledGraph, graphs_of, has_graphs
from wavecast.traces.step import Call, Op, Phase, Trace


def ends_of_graphs(trace: Trace) -> dict[int, int]:
    """The last position of the graph that a call belongs to, for each call of a graph."""
    return {
        position: graph.end - 1
        for graph in graphs_of(trace)
        for position in range(graph.begin, graph.end)
    }


def cuts_at_blocks(trace: Trace, block_of: Callable[[str], str]) -> list[int]:
    """The positions inside graphs at which another block begins.

    Blocks follow each other. A kernel of a block that was there before, such as one that computes
    what all blocks read, belongs to the graph in which it runs.
    """
    cuts = []
    for graph in graphs_of(trace):
        seen = {""}
        for position in range(graph.begin, graph.end):
            block = block_of(trace.calls[position].module)
            if block not in seen and len(seen) > 1:
                cuts.append(position)
            seen.add(block)
    return cuts


def cut_graphs(trace: Trace, positions: Iterable[int]) -> Trace:
    """The step with another graph from each position on that lies inside of a graph."""
    edit = Edit(trace)
    number = max((call.graph for call in trace if call.graph is not None), default=-1)
    cuts = sorted(set(positions))
    for graph in graphs_of(trace):
        begins = [graph.begin, *(p for p in cuts if graph.begin < p < graph.end)]
        for begin, end in zip(begins, [*begins[1:], graph.end], strict=True):
            part = [p for p in graph.members if begin <= p < end]
            marks = [_of_part(trace.calls[mark], len(part), graph) for mark in graph.marks]
            if begin == graph.begin:
                for position, mark in zip(graph.marks, marks, strict=True):
                    edit.replace(position, mark)
                continue
            number += 1
            here = trace.calls[begin]
            if here.phase is Phase.FORWARD:  # autograd calls a backward graph unguarded
                edit.insert(begin, [Call(Op(GUARDS, (), ()), here.phase, here.module)])
            edit.insert(
                begin,
                [replace(m, phase=here.phase, module=here.module, graph=number) for m in marks],
            )
            for position in part:
                edit.replace(position, replace(trace.calls[position], graph=number))
    return edit.trace()


def with_parts_of_graphs(part: Trace, whole: Trace) -> Trace:
    """A part of a step, whose graphs have a part of the calls and inputs that they had."""
    if not has_graphs(part):
        return part
    graphs = {graph.number: graph for graph in graphs_of(whole)}
    left = Counter(c.graph for c in part if c.op.name not in (*MARKS, GUARDS))
    edit = Edit(part)
    for position, call in enumerate(part):
        if call.op.name in MARKS and call.graph in graphs:
            edit.replace(position, _of_part(call, left[call.graph], graphs[call.graph]))
    return edit.trace()


def _of_part(mark: Call, count: int, whole: CompiledGraph) -> Call:
    """The mark of a part of a graph, with so many of its calls. It has a part of the inputs."""
    if mark.op.name != CALL or whole.is_replayed or count >= len(whole.members):
        return mark
    inputs = -(-integer(mark.op, "inputs") * count // len(whole.members))
    attrs = tuple((name, inputs if name == "inputs" else v) for name, v in mark.op.attrs)
    return replace(mark, op=Op(mark.op.name, (), (), attrs))
