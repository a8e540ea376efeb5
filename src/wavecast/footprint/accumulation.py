"""The trace of a step that accumulates the gradients of two batches, made from that of one batch.

The gradients of the first batch stay while the second runs forward and backward. Each gradient of
the second is a tensor of its own until it is added to the first. The first is copied where an op
made it in another layout than its weight's; the second is added as it is.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wavecast import ops
from wavecast.ops.reading import has_possible_tensors
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace

_SUMS = ("aten.add", "aten.add_")
_CLEARING = ("aten.zero_", "aten._foreach_zero_")


def accumulate_twice(trace: Trace) -> Trace | None:
    """The step with two batches like the traced one before its update, None if it has several.

    All calls up to the end of the backward pass run twice; the update runs once.
    """
    backward = [i for i, call in enumerate(trace) if call.phase is Phase.BACKWARD]
    if not backward:
        return None
    end = backward[-1] + 1
    if any(_is_update(call) for call in trace.calls[:end]):
        return None
    sums = sorted(_sums(trace, end), key=lambda added: added.after)
    skipped = sorted(i for added in sums if added.is_copy for i in (added.after - 1, added.after))
    places = _Places(end, tuple(added.after for added in sums), skipped)
    samples = None if trace.samples is None else 2 * trace.samples
    return replace(
        trace,
        calls=_calls(trace, places, sums),
        allocations=tuple(_allocations(trace, places, sums)),
        samples=samples,
    )


def _is_update(call: Call) -> bool:
    """Whether an optimizer's call changes weights; `zero_grad` may clear gradients in place."""
    return call.phase is Phase.OPTIMIZER and call.op.base not in _CLEARING


@dataclass(frozen=True)
class _Sum:
    """The addition of a gradient of the second batch to that of the first."""

    gradient: Allocation
    after: int
    """The traced call after which it runs."""
    call: Call
    is_copy: bool
    """Whether the gradient of the first batch is a copy in another layout, made by two calls."""


@dataclass(frozen=True)
class _Places:
    """The positions of the traced calls in the longer step."""

    end: int
    """How many calls run twice."""
    sums: Sequence[int]
    """The traced calls after which gradients are added, in order."""
    skipped: Sequence[int]
    """The traced calls that do not run again, in order."""

    def later(self, time: int) -> int:
        """The position of a call or a release that comes once, after both batches."""
        return time + self.end + len(self.sums) - len(self.skipped)

    def again(self, born: int) -> int:
        """The position of a call when it runs for the second batch."""
        return self._kept(born) + bisect.bisect_left(self.sums, born)

    def freed_again(self, freed: int) -> int:
        """The call before which memory of the second batch is freed.

        What an op leaves is freed before the gradients that it made are added.
        """
        if freed > self.end:
            return self.later(freed)
        return self._kept(freed) + bisect.bisect_left(self.sums, freed - 1)

    def added(self, order: int) -> int:
        """The position of an addition, by its order."""
        return self._kept(self.sums[order] + 1) + order

    def _kept(self, time: int) -> int:
        return self.end + time - bisect.bisect_left(self.skipped, time)


def _calls(trace: Trace, places: _Places, sums: Sequence[_Sum]) -> tuple[Call, ...]:
    end = places.end
    second: list[Call] = []
    waiting = list(reversed(sums))
    skipped = set(places.skipped)
    for position, call in enumerate(trace.calls[:end]):
        second += [] if position in skipped else [call]
        while waiting and waiting[-1].after == position:
            second.append(waiting.pop().call)
    return (*trace.calls[:end], *second, *trace.calls[end:])


def _allocations(trace: Trace, places: _Places, sums: Sequence[_Sum]) -> list[Allocation]:
    """The allocations of both batches and of the update."""
    first: list[Allocation] = []
    second: list[Allocation] = []
    later: list[Allocation] = []
    orders = {id(added.gradient): order for order, added in enumerate(sums)}
    for allocation in trace.allocations:
        born, freed = allocation.born, allocation.freed
        stays = freed is None or freed > places.end
        last = None if freed is None else places.later(freed)
        if born is None:
            first.append(replace(allocation, freed=last) if stays else allocation)
        elif born >= places.end:
            later.append(replace(allocation, born=places.later(born), freed=last))
        elif id(allocation) in orders:
            first.append(replace(allocation, freed=last))
            order = orders[id(allocation)]
            if not sums[order].is_copy:
                again, gone = places.again(born), places.added(order) + 1
                second.append(Allocation(allocation.nbytes, again, gone, Role.INTERMEDIATE))
        else:
            again = places.again(born)
            # A result that outlives the backward pass, such as the loss, is replaced by the next.
            first.append(replace(allocation, freed=again + 1) if stays else allocation)
            end = None if freed is None else places.freed_again(freed)
            second.append(replace(allocation, born=again, freed=end))
    return [*first, *second, *later]


def _sums(trace: Trace, end: int) -> list[_Sum]:
    """The additions of the second batch: one for each gradient that the traced step allocates."""
    made = {a.born for a in trace.allocations if a.born is not None}
    gradients = {
        a.born for a in trace.allocations if a.role is Role.GRADIENT and a.born is not None
    }
    sums = []
    for allocation in trace.allocations:
        born = allocation.born
        if allocation.role is not Role.GRADIENT or born is None or born >= end:
            continue
        if allocation.freed is not None and allocation.freed <= end:
            continue
        spec = _spec(allocation, trace.calls[born].op)
        is_copy = _is_copy(trace, born, end)
        node_end = born + 1 if is_copy else _end_of_node(trace, born, end, gradients)
        after = node_end if is_copy else max(node_end, _last_use(trace, born, end, spec, made))
        op = Op("aten.add_.Tensor", (spec, spec), (spec,))
        call = replace(trace.calls[after], op=op, phase=Phase.BACKWARD, syncs=False)
        sums.append(_Sum(allocation, after, call, is_copy))
    return sums


def _is_copy(trace: Trace, born: int, end: int) -> bool:
    """Whether a gradient is a copy in the layout of its weight."""
    if born + 1 >= end or trace.calls[born].op.base != "aten.new_empty_strided":
        return False
    return trace.calls[born + 1].op.base == "aten.copy_"


def _spec(allocation: Allocation, op: Op) -> TensorSpec:
    """The tensor of a gradient: the output of its op that has its size."""
    for spec in op.outputs:
        if has_possible_tensors(op) and spec.nbytes == allocation.nbytes:
            return spec
    return TensorSpec((allocation.nbytes // 4,), "float32")


def _end_of_node(trace: Trace, born: int, end: int, gradients: set[int]) -> int:
    """The last call of the autograd node that makes a gradient, as far as the trace shows.

    A linear layer makes the gradient of its weight, then that of its bias, with views between and
    after them. A cast is a node of its own.
    """
    is_cast = trace.calls[born].op.base == "aten._to_copy"
    last = born
    for position in range(born + 1, end):
        call = trace.calls[position]
        if call.module != trace.calls[born].module or call.phase is not Phase.BACKWARD:
            break
        joins = position in gradients and not is_cast and call.op.base != "aten._to_copy"
        if ops.launches(call.op) and not joins:
            break
        last = position
    return last


def _last_use(trace: Trace, born: int, end: int, spec: TensorSpec, made: set[int]) -> int:
    """The last call that adds a further part to a gradient in place.

    A weight that is used several times has one part from each use; the sum is complete with the
    last one.
    """
    shape = sorted(spec.shape)
    for position in range(end - 1, born, -1):
        call = trace.calls[position]
        if position in made or call.phase is not Phase.BACKWARD or call.op.base not in _SUMS:
            continue
        output = _written(call.op)
        if output is None:
            continue
        if output.nbytes == spec.nbytes and sorted(output.shape) == shape:
            return position
    return born


def _written(op: Op) -> TensorSpec | None:
    """The tensor that an op writes first; None for an op whose tensors cannot be read."""
    return op.outputs[0] if op.outputs and has_possible_tensors(op) else None
