"""How a step's own parallel code is spread, read from the collectives of one of its ranks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from math import prod

from wavecast.ops.matmul import GROUPED
from wavecast.parallel.strategy import Parallel
from wavecast.traces.graphs import XLA_CALL
from wavecast.traces.step import Call, Phase, Role, Trace

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

    Args:
        trace: the step of one rank.
        ranks: how many ranks there are.
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
    made = _counted(data, sharing, bool(groups["scattered"] & data), receives, ranks)
    if not data & groups["all_to_all"]:
        return made
    note = (
        "ranks that reduce each other's gradients also exchange activations (all-to-all); whether "
        "they share samples is not known, and each was taken to have its own"
    )
    return OwnRanks(made.strategy, (*made.notes, note))


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
            given, made = (sum(t.numel for t in ts) for ts in (call.op.inputs, call.op.outputs))
            if len(read) == 1 and written and written <= held and given == made:
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
