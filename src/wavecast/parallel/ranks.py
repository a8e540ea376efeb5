"""What the ranks of a parallel step run: one group for all ranks that run the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from wavecast.ops.fused import HOST_CALLS
from wavecast.ops.matmul import GROUPED
from wavecast.parallel.experts import Holders
from wavecast.parallel.gradients import (
    COMPUTE,
    REDUCTIONS,
    Gradient,
    all_reduce,
    cut_graphs,
    flat,
    framework_buckets,
    gradients,
    kernel,
    reduced_as,
    wait,
)
from wavecast.parallel.habits import empty_gradients
from wavecast.parallel.pipeline import in_flight, order_of
from wavecast.parallel.strategy import Parallel, RankAxis
from wavecast.results import Brief
from wavecast.traces.editing import Edit
from wavecast.traces.graphs import XLA_CALL, has_graphs
from wavecast.traces.step import Allocation, Call, Phase, Role, TensorSpec, Trace


@dataclass(frozen=True, repr=False)
class ModelPart(Brief):
    """A part of the model on one rank: the whole model, or one chunk of a pipeline stage."""

    plain: Trace
    """One micro-batch whose gradients are only added up: forward and backward pass."""
    last: Trace
    """The last micro-batch: its backward pass also reduces gradients, and the optimizer follows."""
    end: int
    """The position in `last` where the backward pass ends."""


@dataclass(frozen=True, repr=False)
class RankGroup(Brief):
    """Ranks that run the same ops. Without a pipeline there is one group."""

    ranks: int
    """How many ranks are in the group."""
    stage: int
    """Their stage of the pipeline, from 0."""
    parts: tuple[ModelPart, ...]
    """The parts of the model that the stage has: one, unless `Parallel.virtual`."""


@dataclass(frozen=True, repr=False)
class ParallelStep(Brief):
    """One optimizer step of all ranks."""

    strategy: Parallel
    groups: tuple[RankGroup, ...]
    """The distinct groups, one for each pipeline stage, in order of the stages."""
    boundary: TensorSpec | None = None
    """The tensor that one stage sends to the next.

    None without a pipeline, or where the step's own code sends it."""
    notes: tuple[str, ...] = ()
    """What was assumed: how products were paired, where the model was cut, ..."""


# The memory of one rank: the trace that the allocator replays for it.


COMMUNICATOR_BYTES = 16 * 2 * (4 << 20)
"""NCCL's buffers for one group of ranks: 16 channels, each with 4 MiB to send and to receive
(`NCCL_BUFFSIZE`). The number of channels differs between machines; this one is usual."""


def memory_trace(step: ParallelStep, group: RankGroup) -> Trace:
    """The last micro-batch of a rank, with all memory that the rank holds during it.

    Gradients of the micro-batches before it stay. A pipeline stage also holds the activations of
    other micro-batches in flight, and the weights of its other parts.
    """
    strategy = step.strategy
    part = max(group.parts, key=lambda p: kept_bytes(p.last))
    trace = part.last
    if strategy.microbatches > 1:
        trace = replace(trace, allocations=tuple(_accumulated(trace)))
    extra: list[Allocation] = []
    for other in group.parts:
        if other is not part:
            staying = [a for a in other.last.allocations if a.freed is None]
            extra += [a for a in staying if a.born is None]
            extra += [
                replace(a, born=None)
                for a in staying
                if a.role is Role.GRADIENT and a.born is not None
            ]
    held = held_microbatches(strategy)[group.stage] - 1
    if held > 0:
        mean_bytes = sum(kept_bytes(p.last) for p in group.parts) // len(group.parts)
        extra.append(Allocation(held * mean_bytes, None, part.end, Role.INTERMEDIATE))
    if strategy.fused_accumulation:
        nbytes = empty_gradients(part.last for part in group.parts)
        extra.append(Allocation(nbytes, None, None, Role.INTERMEDIATE))
    return replace(trace, allocations=(*trace.allocations, *extra))


def held_microbatches(strategy: Parallel) -> tuple[int, ...]:
    """How many micro-batches' activations each stage holds at most, counted over its parts."""
    if strategy.pipeline == 1:
        return (1,)
    count, stages = strategy.microbatches, strategy.pipeline
    if strategy.schedule != "gpipe":
        count = min(count, _FILLING * stages)
    return _held(strategy.schedule, stages, stages * strategy.virtual, count)


_FILLING = 4
"""After so many micro-batches for each stage a pipeline is full: more of them hold no more, but
with "gpipe", which holds all of them."""


@lru_cache(maxsize=256)
def _held(schedule: str, stages: int, parts: int, microbatches: int) -> tuple[int, ...]:
    return in_flight(order_of(schedule, stages, parts, microbatches))


def communicator_bytes(strategy: Parallel) -> int:
    """The memory of NCCL on each rank: one communicator for each axis that is used."""
    axes = strategy.axes
    names = ["tensor", "context", "shard", "replica", "expert", "pipeline"]
    if strategy.expert > 1:
        names.append("expert_replica")
    return COMMUNICATOR_BYTES * sum(axes[name].size > 1 for name in names)


def kept_bytes(trace: Trace) -> int:
    """The activations that a micro-batch keeps from its forward to its backward pass."""
    turn = next((i for i, c in enumerate(trace.calls) if c.phase is Phase.BACKWARD), len(trace))
    return sum(
        a.nbytes
        for a in trace.allocations
        if a.role in (Role.INTERMEDIATE, Role.INPUT, Role.WEIGHT_COPY)
        and a.born is not None
        and a.born < turn
        and (a.freed is None or a.freed > turn)
    )


def _accumulated(trace: Trace) -> Iterator[Allocation]:
    """The allocations when the gradients of earlier micro-batches are there, to be added to."""
    for allocation in trace.allocations:
        if allocation.role is not Role.GRADIENT:
            yield allocation
        elif allocation.born is None and allocation.freed is not None:
            continue  # the gradients of the step before
        elif allocation.born is not None and allocation.freed is None:
            yield replace(allocation, born=None)
            yield replace(allocation, freed=allocation.born + 2, role=Role.INTERMEDIATE)
        else:
            yield allocation


# How a step's own parallel code is spread, read from the collectives of one of its ranks.


_REDUCE = frozenset({"nccl.all_reduce", "nccl.reduce_scatter", "nccl.reduce"})
_Group = tuple[int, int]
"""The ranks of a collective: how many, and how far apart."""


@dataclass(frozen=True)
class OwnRanks:
    """What the ranks of a step's own parallel code do."""

    strategy: Parallel
    notes: tuple[str, ...] = ()
    """What its collectives do not show."""


def own_strategy(trace: Trace, ranks: int) -> Parallel:
    """How many of the ranks of a step's own parallel code have samples of their own.

    The rest of the ranks shares each sample, and is counted as tensor-parallel. The arguments are
    those of `own_ranks`.
    """
    return own_ranks(trace, ranks).strategy


def own_ranks(trace: Trace, ranks: int) -> OwnRanks:
    """What the ranks of a step do, by what their collectives reduce.

    Ranks that reduce each other's gradients are data-parallel, also if they exchange other tensors
    in the forward pass, unless these gradients are few: tensor-parallel ranks reduce those of norms
    only. Ranks that reduce activations in the forward pass share the work of each sample. XLA moves
    tensors as it likes, so a JAX step says itself how its arguments are sharded.
    """
    if (sharded := _sharded_arguments(trace, ranks)) is not None:
        return OwnRanks(sharded)
    gradients = _GradientMemory(trace)
    reduced: dict[_Group, int] = defaultdict(int)
    groups: dict[str, set[_Group]] = {"scattered": set(), "reduce": set(), "all_to_all": set()}
    routed = any(op.base in GROUPED for op in trace.counts)  # tokens are sent to experts
    for call in trace:
        if not call.op.name.startswith("nccl.") or sum(t.numel for t in call.op.inputs) <= 1:
            continue
        if call.op.name in _REDUCE and gradients.are_moved_by(call):
            reduced[_group(call)] += sum(t.nbytes for t in call.op.inputs)
            if call.op.name == "nccl.reduce_scatter":
                groups["scattered"].add(_group(call))
        elif call.phase is Phase.FORWARD and call.op.name in _REDUCE:
            groups["reduce"].add(_group(call))
        elif call.op.name == "nccl.all_to_all" and not routed:
            groups["all_to_all"].add(_group(call))
    few = gradients.nbytes / 4  # they may be reduced in 16 bits
    data = {g for g, nbytes in reduced.items() if g not in groups["reduce"] or nbytes >= few}
    sharing = (groups["reduce"] | groups["all_to_all"]) - data
    receives = any(op.name == "nccl.recv" for op in trace.counts)
    own = _counted(data, sharing, bool(groups["scattered"] & data), receives, ranks)
    if not data & groups["all_to_all"]:
        return own
    note = (
        "ranks that reduce each other's gradients also exchange activations (all-to-all); whether "
        "they share samples is not known, and each was taken to have its own"
    )
    return OwnRanks(own.strategy, (*own.notes, note))


def _counted(
    data: set[_Group], sharing: set[_Group], scattered: bool, receives: bool, ranks: int
) -> OwnRanks:
    """The strategy of ranks that reduce gradients, share samples, or receive from each other."""
    notes: list[str] = []
    known = prod(size for size, _ in sharing)
    samples = prod(size for size, _ in data) if data else 1 if receives else ranks // known
    if not 1 <= samples <= ranks or ranks % samples:
        samples = ranks
        notes.append("the ranks that reduce gradients are not a part of all ranks")
    elif not data and not sharing and not receives:
        notes.append("the ranks reduce neither gradients nor activations")
    rest, shard = ranks // samples, 3 if scattered and samples > 1 else 0
    if notes:
        notes = [f"{notes[0]}: each was taken to have samples of its own, which is not known"]
    elif receives and rest % known == 0:
        stages = rest // known
        return OwnRanks(Parallel(data=samples, tensor=known, pipeline=stages, shard=shard))
    elif known != rest:
        notes.append(
            f"{rest} ranks at a time have the same samples; what they share is not known, and they "
            "are counted as tensor-parallel"
        )
    return OwnRanks(Parallel(data=samples, tensor=rest, shard=shard), tuple(notes))


def _sharded_arguments(trace: Trace, ranks: int) -> Parallel | None:
    """The strategy that the shardings of a JAX step's arguments show; None if they show none."""
    for call in trace.calls[:1]:
        if call.op.name != XLA_CALL:
            break
        samples, weights = (call.op.attr(name, 0) for name in ("sample_ranks", "weight_ranks"))
        if isinstance(samples, int) and isinstance(weights, int) and 1 <= samples <= ranks:
            rest = ranks // samples
            group = weights // rest
            if group <= 1 or samples % group:
                return Parallel(data=samples, tensor=rest)
            return Parallel(
                data=samples,
                tensor=rest,
                shard=3,
                shard_group=group if group < samples else None,
            )
    return None


class _GradientMemory:
    """The memory of gradients of parameters, and of what is made of them, or they of it, alone.

    A trace without values, or whose parameters are not known, tells them by the phase.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        held = {n for n, memory in enumerate(trace.allocations) if memory.role is Role.GRADIENT}
        named = (value.allocation for value in trace.values if value.gradient_of)
        held.update(number for number in named if number is not None)
        self.nbytes = sum(
            trace.allocations[number].nbytes
            for number in held
            if trace.allocations[number].freed is None
        )
        self._known = bool(trace.values) and bool(held)
        for call in reversed(trace.calls):  # what is only copied to gradients
            written = self._of(call.writes)
            read = self._of(call.reads) - written
            given, results = (sum(t.numel for t in ts) for ts in (call.op.inputs, call.op.outputs))
            if len(read) == 1 and written and written <= held and given == results:
                held |= read
        for call in trace:
            written = self._of(call.writes)
            read = self._of(call.reads) - written
            if read and read <= held:
                held |= written
        self._held = held

    def _of(self, values: tuple[int, ...]) -> set[int]:
        numbers = (self._trace.values[value].allocation for value in values)
        return {number for number in numbers if number is not None}

    def are_moved_by(self, call: Call) -> bool:
        """Whether a collective reduces gradients."""
        if not self._known:
            return call.phase is not Phase.FORWARD
        return not self._held.isdisjoint(self._of(call.reads) | self._of(call.writes))


def _group(call: Call) -> _Group:
    size, stride = (call.op.attr(name, 1) for name in ("ranks", "stride"))
    assert isinstance(size, int)
    assert isinstance(stride, int)
    return size, stride


# Data parallelism as DistributedDataParallel does it: buckets of gradients, reduced on the way.
#
# Each gradient is copied into its bucket when it is ready. A full bucket is reduced on a stream of
# its own, beside the rest of the backward pass. At the end of the backward pass the compute stream
# waits for all reductions, and the gradients are copied back (torch's `c10d/reducer.cpp`).
# Compiled graphs are cut at buckets.
#
# Gradients in one buffer (`Parallel.has_one_buffer`) are reduced when the backward pass has ended.
# One kernel fills the buffer and one empties it, as in Apex (`flatten`, `multi_tensor_scale`).
#
# Sums that the framework keeps in its buffers (`Gradient.in_place`) are reduced where they are.


def with_reduction(trace: Trace, strategy: Parallel, end: int) -> Trace:
    """A micro-batch whose gradients are reduced over the data axis."""
    holders = Holders.of(trace, strategy, "data")
    if holders.alone:
        return trace
    edit = Edit(trace)
    ready = gradients(trace)
    if strategy.has_one_buffer:
        for axis, members in holders.grouped(ready):
            copied = reduced_as(_apart(members), strategy)
            copies = (
                [kernel("aten.copy_", copied, copied, Phase.BACKWARD, "")] if copied.numel else []
            )
            there = wait(REDUCTIONS, COMPUTE, Phase.BACKWARD)
            reduction = all_reduce(reduced_as(members, strategy), axis, REDUCTIONS, Phase.BACKWARD)
            back = wait(COMPUTE, REDUCTIONS, Phase.BACKWARD)
            edit.insert(end, [*copies, there, reduction, back, *copies])
            if copies:
                edit.allocate(copied.nbytes, Role.GRADIENT)
        return edit.trace()
    for axis, members in holders.grouped(ready):
        for bucket in framework_buckets(members, strategy):
            _reduce(edit, bucket, axis, strategy)
    edit.insert(end, [wait(COMPUTE, REDUCTIONS, Phase.BACKWARD)])
    reduced = [gradient for gradient in ready if holders.axis(gradient.parameter).size > 1]
    for gradient in _apart(reduced):
        own, sent = flat(gradient.nbytes, gradient.dtype), reduced_as([gradient], strategy)
        edit.insert(end, [kernel("aten.copy_", sent, own, Phase.BACKWARD, gradient.module)])
    return edit.trace()


def cut_at_buckets(trace: Trace, strategy: Parallel) -> Trace:
    """The step with compiled graphs cut as Dynamo's DDPOptimizer cuts them: one for each bucket.

    The graph of the forward pass is cut where that of the backward pass is: before the module whose
    gradient completes a bucket.
    """
    holders = Holders.of(trace, strategy, "data")
    if holders.alone or strategy.has_one_buffer or not has_graphs(trace):
        return trace
    first_use: dict[str, int] = {}
    for position, call in enumerate(trace):
        if call.phase is Phase.FORWARD and call.op.name not in HOST_CALLS:
            first_use.setdefault(call.module, position)
    cuts = []
    for _, members in holders.grouped(gradients(trace, inside_graphs=True)):
        for bucket in framework_buckets(members, strategy):
            last = bucket[-1]
            cuts += [last.ready + 1, first_use.get(last.module, 0)]
    return cut_graphs(trace, cuts)


def _reduce(edit: Edit, bucket: Sequence[Gradient], axis: RankAxis, strategy: Parallel) -> None:
    """Copy gradients into a bucket when they are ready, and reduce it when it is full.

    Sums that are kept in place lie in their bucket, which one kernel divides by the ranks.
    """
    apart, last = _apart(bucket), bucket[-1]
    for gradient in apart:
        own, sent = flat(gradient.nbytes, gradient.dtype), reduced_as([gradient], strategy)
        copy = kernel("aten.mul.Tensor", own, sent, Phase.BACKWARD, gradient.module)
        edit.insert(gradient.ready + 1, [copy])
    if apart:
        edit.allocate(reduced_as(apart, strategy).nbytes, Role.GRADIENT)
    in_place = reduced_as([gradient for gradient in bucket if gradient.in_place], strategy)
    if in_place.numel:
        scaling = kernel("aten.mul_.Tensor", in_place, in_place, Phase.BACKWARD, last.module)
        edit.insert(last.ready + 1, [scaling])
    whole = reduced_as(bucket, strategy)
    reduction = all_reduce(whole, axis, REDUCTIONS, Phase.BACKWARD, last.module)
    waiting = wait(REDUCTIONS, COMPUTE, Phase.BACKWARD, last.module)
    edit.insert(last.ready + 1, [waiting, reduction])


def _apart(members: Sequence[Gradient]) -> list[Gradient]:
    """The gradients that do not lie in the buffer that is reduced."""
    return [gradient for gradient in members if not gradient.in_place]
