"""The gradients of a step, when they are ready, and the collectives by which they are exchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wavecast.ops.registry import integer
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.traces.editing import Edit
from wavecast.traces.graphs import CALL, GUARDS, MARKS, CompiledGraph, graphs_of, has_graphs
from wavecast.traces.recomputed import block_finder
from wavecast.traces.step import DTYPE_BYTES, Allocation, Call, Op, Phase, Role, TensorSpec, Trace

_LIST_OPS = ("aten._foreach_", "aten._fused_")


@dataclass(frozen=True)
class Gradient:
    """A gradient that the backward pass computes."""

    nbytes: int
    ready: int
    """The position of the call after which it is final."""
    module: str
    dtype: str = "float32"
    parameter: str = ""
    """The parameter; empty if the trace has no values."""
    in_place: bool = False
    """Whether it is a sum that a framework with wider copies of weights keeps from step to step
    (Megatron's `main_grad`). It lies in the buffer that is reduced."""


def parameters(trace: Trace) -> list[Allocation]:
    """The memory of the weights, in the order in which they were made."""
    return [a for a in trace.allocations if a.role is Role.PARAMETER]


def trained(trace: Trace) -> set[int]:
    """The memory of the weights that have gradients, by number. Those of adapters are few."""
    names = {gradient.parameter for gradient in gradients(trace)}
    kept = {n for n, memory in enumerate(trace.allocations) if memory.role is Role.PARAMETER}
    if "" in names:
        return kept
    places = (value.allocation for value in trace.values if value.parameter in names)
    return {place for place in places if place in kept}


def gradients(trace: Trace, *, inside_graphs: bool = False) -> list[Gradient]:
    """The gradients of a step in the order in which they become ready.

    Those that a compiled graph makes are handed over when it ends. `inside_graphs` says when they
    are computed instead.

    Values say which call writes a gradient last: the sum of both uses of a tied weight, a cast, or
    the sum in memory that is kept from step to step (Megatron's `main_grad`). Copies that the
    optimizer makes, in float32 for master weights, are not exchanged.
    """
    ready = _written(trace) or _by_module(trace)
    if not inside_graphs and (ends := ends_of_graphs(trace)):
        ready.sort(key=lambda gradient: gradient.ready)
        ready = [replace(g, ready=ends.get(g.ready, g.ready)) for g in ready]
    return sorted(ready, key=lambda gradient: gradient.ready)


def _written(trace: Trace) -> list[Gradient]:
    """The gradients in memory that the backward pass writes."""
    last: dict[int, tuple[int, int]] = {}
    for position, call in enumerate(trace):
        if call.phase is Phase.BACKWARD:
            for value in call.writes:
                known = trace.values[value]
                if known.gradient_of and known.allocation is not None:
                    last[known.allocation] = position, value
    wide = widened(trace)
    written = []
    for number, memory in enumerate(trace.allocations):
        if memory.role is not Role.GRADIENT:
            continue
        if number in last:
            ready, value = last[number]
            dtype, name = trace.values[value].spec.dtype, trace.values[value].gradient_of
            module, own = trace.calls[ready].module, _is_kept(memory) and name in wide
            written.append(Gradient(memory.nbytes, ready, module, dtype, name, own))
        elif memory.born is not None and memory.born < len(trace):
            maker = trace.calls[memory.born]
            if maker.phase is Phase.BACKWARD:  # a compiled kernel, of which no values are known
                dtype = maker.op.outputs[0].dtype if maker.op.outputs else "float32"
                written.append(Gradient(memory.nbytes, memory.born, maker.module, dtype))
    return written


def widened(trace: Trace) -> dict[str, TensorSpec]:
    """The parameters with states or gradients that are kept in a wider type than their own.

    A framework that keeps them so adds gradients up in a buffer of its own (`main_grad`).
    """
    memory = trace.allocations
    kept = [v for v in trace.values if v.allocation is not None and _is_kept(memory[v.allocation])]
    stored = {v.parameter: v.spec for v in kept if memory[v.allocation or 0].role is Role.PARAMETER}
    names = {
        v.parameter or v.gradient_of
        for v in kept
        if (own := stored.get(v.parameter or v.gradient_of)) is not None
        and DTYPE_BYTES[v.spec.dtype] > DTYPE_BYTES[own.dtype]
        and v.spec.numel == own.numel
    }
    return {name: stored[name] for name in names}


def _is_kept(memory: Allocation) -> bool:
    return memory.born is None and memory.freed is None


def _by_module(trace: Trace) -> list[Gradient]:
    """Gradients in memory that is kept, where no values are known: ready as their module ends."""
    last: dict[str, int] = {}
    for position, call in enumerate(trace):
        if call.phase is Phase.BACKWARD:
            last[call.module] = position
    end = max(last.values(), default=len(trace) - 1)
    kept = [a for a in trace.allocations if a.role is Role.GRADIENT and a.module]
    memories = kept or parameters(trace)
    return [Gradient(a.nbytes, last.get(a.module, end), a.module) for a in memories]


def updated_parameters(trace: Trace) -> list[str]:
    """The parameter whose weights, gradient or update each value holds; "" if that is unknown.

    The optimizer's ops write a tensor for each one that they read first.
    """
    owners = [value.parameter or value.gradient_of for value in trace.values]
    for call in trace:
        if call.phase is Phase.OPTIMIZER or clips(call):
            for written, read in zip(call.writes, call.reads, strict=False):
                owners[written] = owners[written] or owners[read]
    return owners


def clips(call: Call) -> bool:
    """Whether a call between backward pass and optimizer works on all gradients at once."""
    return call.phase is Phase.OTHER and call.op.name.startswith(_LIST_OPS)


FIRST_BUCKET_BYTES = 1 << 20
"""The size of the bucket that DDP reduces first (`dist._DEFAULT_FIRST_BUCKET_BYTES`)."""
_DDP_BUCKET_BYTES = 25 << 20
"""`bucket_cap_mb` of DistributedDataParallel."""
_DEEPSPEED_BUCKET = 500_000_000
"""The elements of a bucket of DeepSpeed (`reduce_bucket_size`)."""
_MEGATRON_BUCKET, _MEGATRON_BUCKET_OF_A_RANK = 40_000_000, 1_000_000
"""The elements of a bucket of Megatron-Core: the larger of both, the second times the data ranks
(`DistributedDataParallel`)."""


def reduced_as(members: Sequence[Gradient], strategy: Parallel) -> TensorSpec:
    """The flat tensor in which gradients are reduced."""
    elements = sum(gradient.nbytes // DTYPE_BYTES[gradient.dtype] for gradient in members)
    if strategy.reduce_in_16_bits:
        return TensorSpec((elements,), "bfloat16")
    half = {"bfloat16", "float16"}.issuperset(gradient.dtype for gradient in members)
    dtype = members[0].dtype if members and half else "float32"
    return flat(sum(gradient.nbytes for gradient in members), dtype)


def framework_buckets(ready: Sequence[Gradient], strategy: Parallel) -> list[list[Gradient]]:
    """Gradients in buckets of the strategy's size, or else of the framework's default size.

    The framework follows from the strategy. It is DDP without sharding, DeepSpeed with stage 1 or
    2, and Megatron where sums of gradients are kept in place, except with stage 2.
    """
    if not ready:
        return []
    element_bytes = max(DTYPE_BYTES[gradient.dtype] for gradient in ready)
    in_place = any(gradient.in_place for gradient in ready)
    if strategy.shard == 0 and not in_place:
        return buckets(ready, strategy.bucket_bytes or _DDP_BUCKET_BYTES)
    elements = _DEEPSPEED_BUCKET
    if in_place and strategy.shard < 2:
        ranks = strategy.axes["data"].size
        elements = max(_MEGATRON_BUCKET, _MEGATRON_BUCKET_OF_A_RANK * ranks)
    limit = strategy.bucket_bytes or elements * element_bytes
    return buckets(ready, limit, first_bytes=limit)


def buckets(
    ready: Sequence[Gradient], bucket_bytes: int, first_bytes: int = FIRST_BUCKET_BYTES
) -> list[list[Gradient]]:
    """The buckets in which DDP reduces gradients: filled in order of readiness.

    A bucket is closed as soon as it has reached its size, as
    `torch.distributed._compute_bucket_assignment_by_size` does.
    """
    filled: list[list[Gradient]] = []
    current: list[Gradient] = []
    for gradient in ready:
        current.append(gradient)
        limit = first_bytes if not filled else bucket_bytes
        if sum(g.nbytes for g in current) >= limit:
            filled.append(current)
            current = []
    return [*filled, current] if current else filled


# Where torch cuts compiled graphs when several GPUs train.
#
# What a graph computes leaves it when it ends: autograd hands the gradients of its weights over
# then, all at once. So torch compiles smaller graphs where gradients or weights are exchanged:
#
# - DistributedDataParallel: Dynamo's DDPOptimizer cuts the graph so that each bucket of gradients
#   comes out of a graph of its own (`torch/_dynamo/backends/distributed.py`).
# - FSDP: its hooks run outside of compiled code, so each unit, a repeated block, is a graph.
# - Pipelines: each stage is compiled by itself. It is taken to be one graph for each block.
# - ZeRO stages 1 and 2 leave graphs whole, and their reductions wait for the end of a graph.


def ends_of_graphs(trace: Trace) -> dict[int, int]:
    """The last position of the graph that a call belongs to, for each call of a graph."""
    return {
        position: graph.end - 1
        for graph in graphs_of(trace)
        for position in range(graph.begin, graph.end)
    }


def cut_at_blocks(trace: Trace) -> Trace:
    """The step with a compiled graph for each repeated block.

    Blocks follow each other. A kernel of a block that was there before, such as one that computes
    what all blocks read, belongs to the graph in which it runs.
    """
    if not has_graphs(trace):
        return trace
    block_of = block_finder(trace)
    cuts = []
    for graph in graphs_of(trace):
        seen = {""}
        for position in range(graph.begin, graph.end):
            block = block_of(trace.calls[position].module)
            if block not in seen and len(seen) > 1:
                cuts.append(position)
            seen.add(block)
    return cut_graphs(trace, cuts)


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


# Collectives as calls of a trace.


def exchange(
    name: str,
    source: TensorSpec,
    result: TensorSpec,
    axis: RankAxis,
    stream: int,
    phase: Phase,
    module: str = "",
) -> Call:
    """A collective among the ranks of an axis: `exchange("all_reduce", ...)`."""
    attrs = (("ranks", axis.size), ("stride", axis.stride))
    return Call(Op(f"nccl.{name}", (source,), (result,), attrs), phase, module, stream)


def all_reduce(
    tensor: TensorSpec, axis: RankAxis, stream: int, phase: Phase, module: str = ""
) -> Call:
    """The sum of a tensor over all ranks."""
    return exchange("all_reduce", tensor, tensor, axis, stream, phase, module)


def all_gather(
    shard: TensorSpec, axis: RankAxis, stream: int, phase: Phase, module: str = ""
) -> Call:
    """The shards of all ranks, joined."""
    return exchange("all_gather", shard, scaled(shard, axis.size), axis, stream, phase, module)


def reduce_scatter(
    whole: TensorSpec, axis: RankAxis, stream: int, phase: Phase, module: str = ""
) -> Call:
    """One shard of the sum of a tensor over all ranks."""
    return exchange("reduce_scatter", whole, shard_of(whole, axis), axis, stream, phase, module)


def scaled(tensor: TensorSpec, times: int) -> TensorSpec:
    """A flat tensor of so many times the elements."""
    return TensorSpec((tensor.numel * times,), tensor.dtype)


def shard_of(tensor: TensorSpec, axis: RankAxis) -> TensorSpec:
    """A flat tensor of one rank's share of the elements, rounded up."""
    return TensorSpec((-(-tensor.numel // axis.size),), tensor.dtype)


# The streams of a rank, and the calls that parallel steps insert.


COMPUTE, GATHERS, REDUCTIONS, TRANSFERS, OFFLOAD = range(5)
"""The streams of a rank: kernels, gathers of weights, reductions of gradients, sends, and what is
copied to the host and done there."""


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
