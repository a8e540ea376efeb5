"""The step of one rank: ops, values and memory in local sizes, and collectives between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from wavecast.parallel.gradients import COMPUTE, TRANSFERS, exchange, kernel, wait
from wavecast.parallel.sharding.placements import Placements, Shard, local
from wavecast.parallel.sharding.propagation import Propagation
from wavecast.parallel.sharding.state import Exchange
from wavecast.parallel.strategy import RankAxis
from wavecast.traces.editing import Edit, with_op
from wavecast.traces.step import (
    CONTRADICTIONS,
    Allocation,
    Call,
    Op,
    Phase,
    Role,
    Scalar,
    TensorSpec,
    Trace,
    Value,
    contradiction,
)


@dataclass(frozen=True)
class Surroundings:
    """What is inserted around a call, as the steps of ring attention."""

    before: list[Call]
    after: list[Call]
    tensors: Sequence[TensorSpec]
    """What they hold in memory."""


@dataclass(frozen=True)
class ShardedAxis:
    """The placements of a step on the ranks of one axis."""

    ranks: RankAxis
    placements: Propagation
    around: Callable[[Call], Surroundings | None] | None = None
    """What is inserted around a call of the rank."""


def rank_trace(trace: Trace, axes: Sequence[ShardedAxis]) -> Trace:
    """The step of one rank of several axes."""
    return _RankTrace(trace, axes).made()


class _RankTrace:
    def __init__(self, trace: Trace, axes: Sequence[ShardedAxis]) -> None:
        self.trace, self.axes = trace, axes
        self.values = [
            replace(value, spec=self._spec(number, value.spec))
            for number, value in enumerate(trace.values)
        ]
        self.memory: dict[int, int] = {}
        """The allocation of values that show a copy, not the memory they had."""
        self.copies: dict[tuple[int, int], int] = {}
        """The value that a copy is, by axis and exchange."""
        self.slices: dict[tuple[int, TensorSpec], int] = {}
        self.added: list[Allocation] = []
        self.last_read: dict[int, int] = {}
        """The last call that reads each allocation."""

    def _spec(self, value: int, spec: TensorSpec, other_than: int = -1) -> TensorSpec:
        for number, axis in enumerate(self.axes):
            placement = axis.placements.first.get(value)
            if number != other_than and isinstance(placement, Shard):
                spec = local(spec, placement)
        return spec

    def made(self) -> Trace:
        for number, axis in enumerate(self.axes):
            for index, transfer in enumerate(axis.placements.exchanges):
                if transfer.is_copy and transfer.name != "rows" and not transfer.with_values:
                    self._add_copy(number, index, transfer)
        calls = [self._call(position, call) for position, call in enumerate(self.trace)]
        allocations = self._allocations(calls)
        values = [
            value if number not in self.memory else replace(value, allocation=self.memory[number])
            for number, value in enumerate(self.values)
        ]
        sharded = replace(
            self.trace, calls=tuple(calls), values=tuple(values), allocations=tuple(allocations)
        )
        edit = Edit(sharded)
        for number, axis in enumerate(self.axes):
            for index, transfer in enumerate(axis.placements.exchanges):
                edit.insert(transfer.position, self._exchange(edit, number, index, transfer))
        for axis in self.axes:
            if axis.around is not None:
                self._surround(edit, calls, axis.around)
        return edit.trace()

    def _surround(
        self,
        edit: Edit,
        calls: Sequence[Call],
        around: Callable[[Call], Surroundings | None],
    ) -> None:
        for position, call in enumerate(calls):
            extra = around(call)
            if extra is not None:
                edit.insert(position, extra.before)
                edit.insert(position + 1, extra.after)
                for tensor in extra.tensors:
                    edit.allocate(tensor.nbytes, Role.INTERMEDIATE, position, position + 1)

    def _add_copy(self, axis: int, index: int, transfer: Exchange) -> None:
        """A value, with memory, for what an exchange writes."""
        spec = local(self._spec(transfer.value, transfer.spec, axis), transfer.target)
        memory = len(self.trace.allocations) + len(self.added)
        self.added.append(Allocation(spec.nbytes, transfer.position, None, Role.INTERMEDIATE))
        self.copies[axis, index] = len(self.values)
        old = self.trace.values[transfer.value]
        self.values.append(
            Value(TensorSpec(spec.shape, spec.dtype), memory, None, "", old.gradient_of)
        )

    def _call(self, position: int, call: Call) -> Call:
        try:
            return self._part_of(position, call)
        except CONTRADICTIONS as error:
            raise contradiction("sharding", call, error) from error

    def _part_of(self, position: int, call: Call) -> Call:
        """The call on one rank."""
        placed = [axis.placements.calls.get(position) for axis in self.axes]
        if not any(placed):
            self._read(position, call.reads)
            return call
        op = call.op
        inputs = self._local(op.inputs, [p and p[0] for p in placed])
        outputs = self._local(op.outputs, [p and p[1] for p in placed])
        reads = tuple(
            self._version(position, index, value, spec)
            for index, (value, spec) in enumerate(zip(call.reads, inputs, strict=True))
        )
        self._read(position, reads)
        self._follow_memory(call, reads)
        writes = tuple(map(self._shown, call.writes, outputs))
        return with_op(call, _op(op, inputs, outputs), reads, writes)

    def _local(
        self, specs: tuple[TensorSpec, ...], placed: Sequence[Placements | None]
    ) -> tuple[TensorSpec, ...]:
        for placements in placed:
            if placements is not None:
                specs = tuple(map(local, specs, placements))
        return specs

    def _version(self, position: int, index: int, value: int, spec: TensorSpec) -> int:
        for number, axis in enumerate(self.axes):
            copy = axis.placements.copies.get((position, index))
            if copy is not None:
                value = self.copies[number, copy]
        return self._shown(value, spec)

    def _shown(self, value: int, spec: TensorSpec) -> int:
        """A value, or a view of it with another spec."""
        if self.values[value].spec == spec:
            return value
        if (value, spec) not in self.slices:
            self.slices[value, spec] = len(self.values)
            self.values.append(replace(self.values[value], spec=spec, view_of=value))
            if value in self.memory:
                self.memory[len(self.values) - 1] = self.memory[value]
        return self.slices[value, spec]

    def _allocation(self, value: int) -> int | None:
        return self.memory.get(value, self.values[value].allocation)

    def _read(self, position: int, reads: Iterable[int]) -> None:
        for value in reads:
            memory = self._allocation(value)
            if memory is not None:
                self.last_read[memory] = position

    def _follow_memory(self, call: Call, reads: Sequence[int]) -> None:
        """Views of a copy are in the memory of the copy."""
        for before, now in zip(call.reads, reads, strict=True):
            memory = self._allocation(now)
            old = self.trace.values[before].allocation
            if memory == old or memory is None:
                continue
            for value in call.writes:
                if self.trace.values[value].allocation == old and value not in call.reads:
                    self.memory[value] = memory
                    self.values[value] = replace(self.values[value], view_of=now)

    def _allocations(self, calls: Sequence[Call]) -> list[Allocation]:
        """The memory in local sizes; what was gathered or scattered may end earlier."""
        largest: dict[int, int] = {}
        for number, value in enumerate(self.trace.values):
            memory = value.allocation
            if memory is None or number in self.memory:
                continue
            if memory not in largest or value.spec.nbytes > self._whole(largest[memory]):
                largest[memory] = number
        allocations = []
        for number, allocation in enumerate(self.trace.allocations):
            if number in largest:
                whole = self._whole(largest[number])
                part = self.values[largest[number]].spec.nbytes
                if whole != part and whole:
                    nbytes = -(-allocation.nbytes * part // whole)
                    allocation = replace(allocation, nbytes=nbytes)
            allocations.append(allocation)
        self._share_unseen(allocations, set(largest))
        allocations += self.added
        return self._shortened(allocations)

    def _whole(self, value: int) -> int:
        return self.trace.values[value].spec.nbytes

    def _share_unseen(self, allocations: list[Allocation], seen: set[int]) -> None:
        """Memory that no call reads: gradients of the step before are as those of this one."""
        sizes: dict[tuple[int, str], list[int]] = {}
        for number in sorted(seen):
            old = self.trace.allocations[number]
            if old.role is Role.GRADIENT and old.born is not None:
                sizes.setdefault((old.nbytes, ""), []).append(allocations[number].nbytes)
        for number, allocation in enumerate(self.trace.allocations):
            if number in seen:
                continue
            known = sizes.get((allocation.nbytes, ""))
            if allocation.role is Role.GRADIENT and allocation.born is None and known:
                allocations[number] = replace(allocation, nbytes=known.pop(0))

    def _shortened(self, allocations: list[Allocation]) -> list[Allocation]:
        for number, axis in enumerate(self.axes):
            for index, exchanged in enumerate(axis.placements.exchanges):
                copy = self.copies.get((number, index))
                if copy is None:
                    continue
                memory = self.values[copy].allocation
                old = self.trace.values[exchanged.value].allocation
                assert memory is not None
                ends = None if old is None else allocations[old].freed
                last = self.last_read.get(memory, exchanged.position)
                if exchanged.name == "all_gather":
                    ends = last + 1
                allocations[memory] = replace(allocations[memory], freed=ends)
                if old is not None and allocations[old].role is Role.INTERMEDIATE:
                    freed = max(self.last_read.get(old, 0) + 1, exchanged.position)
                    before = allocations[old].freed
                    if before is None or before > freed:
                        allocations[old] = replace(allocations[old], freed=freed)
        return allocations

    def _exchange(self, edit: Edit, axis: int, index: int, transfer: Exchange) -> list[Call]:
        phase, module = transfer.call.phase, transfer.call.module
        ranks = self.axes[axis].ranks
        name = "all_reduce" if transfer.name == "rows" else transfer.name
        reads: tuple[int, ...] = ()
        writes: tuple[int, ...] = ()
        if transfer.with_values:
            numel = sum(self.values[value].spec.numel for value in transfer.with_values)
            source = target = TensorSpec((numel,), transfer.spec.dtype)
        elif transfer.name == "rows":
            source = target = self._rows(axis, transfer)
        else:
            whole = self._spec(transfer.value, transfer.spec, axis)
            source, target = (
                local(whole, transfer.source),
                local(whole, transfer.target),
            )
            reads = (transfer.value,)
            writes = (self.copies[axis, index],) if transfer.is_copy else reads
            if transfer.is_copy:
                target = self.values[writes[0]].spec
        call = exchange(name, source, target, ranks, TRANSFERS, phase, module)
        calls = [
            wait(TRANSFERS, COMPUTE, phase, module),
            replace(call, reads=reads, writes=writes) if reads else call,
            wait(COMPUTE, TRANSFERS, phase, module),
        ]
        if name != "all_to_all":
            return calls
        received = edit.add_value(Value(target, None))
        calls[1] = replace(calls[1], writes=(received,))
        sort = kernel("aten.index.Tensor", target, target, phase, module)
        counts = self._counts(transfer, ranks) if isinstance(transfer.target, Shard) else []
        return [*counts, *calls, replace(sort, reads=(received,), writes=writes)]

    def _counts(self, transfer: Exchange, ranks: RankAxis) -> list[Call]:
        """How many tokens each expert gets, exchanged once: the host waits for it."""
        phase, module = transfer.call.phase, transfer.call.module
        if phase is not Phase.FORWARD:
            return []
        experts = transfer.call.op.inputs[1].shape[0]
        counts = TensorSpec((experts,), "int64")
        host = TensorSpec((experts,), "int64", device="cpu")
        return [
            wait(TRANSFERS, COMPUTE, phase, module),
            exchange("all_to_all", counts, counts, ranks, TRANSFERS, phase, module),
            wait(COMPUTE, TRANSFERS, phase, module),
            Call(Op("aten._to_copy", (counts,), (host,)), phase, module, syncs=True),
        ]

    def _rows(self, axis: int, transfer: Exchange) -> TensorSpec:
        """The rows of a loss on this rank."""
        whole = self.trace.values[transfer.value].spec
        part = self._spec(transfer.value, whole, axis)
        if transfer.spec.numel == 1:
            return transfer.spec
        count = transfer.spec.numel * part.numel // max(whole.numel, 1)
        return TensorSpec((count,), transfer.spec.dtype)


@lru_cache(maxsize=65536)  # repeated blocks have the same ops
def _op(op: Op, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Op:
    if inputs == op.inputs and outputs == op.outputs:
        return op
    attrs = tuple((name, _attr(name, value, op, inputs, outputs)) for name, value in op.attrs)
    return Op(op.name, inputs, outputs, attrs)


def _attr(
    name: str,
    value: Scalar,
    op: Op,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> Scalar:
    """A size among the attributes, as one rank has it."""
    shape = outputs[0].shape if outputs else ()
    if name in ("size", "input_sizes") and isinstance(value, tuple) and len(value) == len(shape):
        return shape
    if name == "num_weights" and shape:
        return shape[0]
    if name == "groups" and isinstance(value, int) and value > 1:
        image = int("backward" in op.base)
        return value * inputs[image].shape[1] // op.inputs[image].shape[1]
    if name in ("split_size", "split_sizes", "bias_sizes", "end", "max_q", "max_k"):
        return _resized(name, value, op, inputs, outputs)
    return value


def _resized(
    name: str,
    value: Scalar,
    op: Op,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> Scalar:
    if name in ("max_q", "max_k") and isinstance(value, int):
        at = 1 if name == "max_q" else 2
        dim = 2 if "scaled_dot" in op.base else 1
        return value * inputs[at].shape[dim] // max(op.inputs[at].shape[dim], 1)
    if name == "bias_sizes":
        return (inputs[0].shape[1],)
    if name == "end" and op.base == "aten.arange" and isinstance(value, int):
        return value * outputs[0].shape[0] // max(op.outputs[0].shape[0], 1)
    along = op.attr("dim", 0)
    if name.startswith("split") and isinstance(along, int):
        sizes = tuple(tensor.shape[along] for tensor in outputs)
        return sizes if name == "split_sizes" else sizes[0]
    return value
