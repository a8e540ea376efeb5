"""The largest batch that fits in a GPU's memory.

Memory is nearly linear in the batch size, so a line through two small traces says where to search.
The answer itself is traced and replayed through the allocator with the limit in force.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.footprint.replay import replay, replay_within, usable_bytes
from wavecast.footprint.workspaces import with_workspaces
from wavecast.hardware.devices import Device
from wavecast.ops.registry import has_possible_tensors
from wavecast.results import Shown
from wavecast.traces.editing import Edit, Inserted, with_op
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace, Value

Traced = Callable[[int], Trace]
"""A function that traces the step at a batch size."""

_MOST_TRACES = 16
_PRECISION = 200
"""The search stops when the answer is known to one part in this many."""


@dataclass(frozen=True, repr=False)
class LargestBatch(Shown):
    """The largest batch that fits, and how it was found; `wavecast.max_batch` makes it.

    ```python
    answer = wavecast.max_batch(make_step_of_batch, "l4")
    answer.batch, answer.peak_bytes
    ```
    """

    batch: int
    """The largest batch size that fits. 0 if not even one sample fits."""
    too_large: int
    """The smallest batch size above it that is known not to fit."""
    limit_bytes: int
    """The most that the allocator may reserve."""
    peak_bytes: int
    """The peak of allocated memory at that batch size; if none fits, at the smallest one tried."""
    traced: tuple[int, ...]
    """The batch sizes that were traced, in order."""


def largest_batch(
    traced: Traced, device: Device, limit_bytes: int, *, start: int = 8, expandable: bool = False
) -> LargestBatch:
    """The largest batch whose step fits under a limit of reserved memory.

    Args:
        traced: a function that traces the step at a batch size.
        device: the GPU, which decides the sizes of workspaces.
        limit_bytes: the most that the allocator may reserve.
        start: the first batch size to try, one that is likely to fit.
        expandable: whether the allocator's segments grow (`expandable_segments:True`).
    """
    if start < 1:
        raise InvalidInput(f"start is {start!r}; a batch has at least one sample")
    if limit_bytes < 1:
        raise InvalidInput(f"the limit is {limit_bytes!r} bytes; nothing fits")
    return _Search(traced, device, limit_bytes, expandable).run(start)


class _Search:
    def __init__(self, traced: Traced, device: Device, limit_bytes: int, expandable: bool) -> None:
        self._traced, self._device = traced, device
        self._limit, self._expandable = limit_bytes, expandable
        self._needs: dict[int, int] = {}
        self._fits: dict[int, bool] = {}
        self._since_full = 0
        """The number of batch sizes tried since one did not fit, that one included."""

    def run(self, start: int) -> LargestBatch:
        """The answer: try where the line through two traces meets the limit, then in between."""
        batch = start
        while len(self._needs) < _MOST_TRACES:
            self._try(batch)
            low, high = self._low, self._high
            if high is not None and high - low <= max(1, low // _PRECISION):
                break
            batch = self._next(low, high)
        low, high = self._low, self._high
        return LargestBatch(
            batch=low,
            too_large=low + 1 if high is None else high,
            limit_bytes=self._limit,
            peak_bytes=self._needs[low or min(self._needs)],
            traced=tuple(self._needs),
        )

    @property
    def _low(self) -> int:
        """The largest batch size that fits."""
        return max((batch for batch, fits in self._fits.items() if fits), default=0)

    @property
    def _high(self) -> int | None:
        """The smallest batch size that does not fit, above the largest that does.

        A batch size below `_low` may not fit either: other block sizes leave other gaps.
        """
        low = self._low
        return min((b for b, fits in self._fits.items() if not fits and b > low), default=None)

    def _try(self, batch: int) -> None:
        """Trace one batch size, and note its peak and whether it fits."""
        trace = with_workspaces(self._traced(batch), self._device)
        self._needs[batch] = replay(trace, expandable=self._expandable).allocated_bytes
        within = replay_within(trace, self._limit, expandable=self._expandable)
        self._fits[batch] = within is not None
        self._since_full += not all(self._fits.values())

    def _next(self, low: int, high: int | None) -> int:
        """The next batch size to try."""
        if len(self._needs) == 1:
            return 2 * low if low else max(1, (high or 2) // 2)
        # The batch size where the line through the two largest ones tried meets the limit.
        (first, a), (second, b) = sorted(self._needs.items())[-2:]
        slope = (b - a) / (second - first)
        guess = int(second + (usable_bytes(self._limit) - b) / slope) if slope > 0 else 2 * second
        if high is None:
            return max(low + 1, min(guess, 64 * low))
        if low == 0:
            return max(1, min(guess, high // 2))
        if low < guess < high and guess not in self._needs:
            return guess
        # Fragmentation is not in the line. Go down from the batch that failed in growing steps.
        nearby = max(1, low // _PRECISION) << self._since_full
        return max(high - nearby, (low + high) // 2)


# The trace of a step that accumulates the gradients of two batches, from the trace of one batch.
#
# The gradients of the first batch stay while the second runs forward and backward. Each gradient
# of the second is a tensor of its own until it is added to the first. A gradient of the first
# batch is copied if its layout differs from its weight's; one of the second is added as it is.


_SUMS = ("aten.add", "aten.add_")
_CLEARING = ("aten.zero_", "aten._foreach_zero_")


def accumulate_twice(trace: Trace) -> Trace | None:
    """The step with two batches before its update; None if it cannot be accumulated.

    All calls up to the end of the backward pass run twice; the update runs once. A step without a
    backward pass, or with an update before the end of it, cannot be accumulated.
    """
    backward = [i for i, call in enumerate(trace) if call.phase is Phase.BACKWARD]
    if not backward:
        return None
    end = backward[-1] + 1
    if any(_is_update(call) for call in trace.calls[:end]):
        return None
    sums = sorted(_sums(trace, end), key=lambda added: added.after)
    batch = _SecondBatch(trace, end, sums)
    samples = None if trace.samples is None else 2 * trace.samples
    return replace(batch.trace(), samples=samples)


def _is_update(call: Call) -> bool:
    """Whether an optimizer's call changes weights; `zero_grad` may clear gradients in place."""
    return call.phase is Phase.OPTIMIZER and call.op.base not in _CLEARING


@dataclass(frozen=True)
class _Sum:
    """The addition of a gradient of the second batch to that of the first."""

    gradient: int
    """The allocation of the gradient."""
    after: int
    """The traced call after which it runs."""
    op: Op
    is_copy: bool
    """Whether the gradient of the first batch is a copy in another layout, made by two calls."""
    value: int | None = None
    """The value of the gradient, if values were recorded."""


class _SecondBatch:
    """The traced step with the calls, memory and values of a second batch before its update."""

    def __init__(self, trace: Trace, end: int, sums: Sequence[_Sum]) -> None:
        self._trace = trace
        self._end = end
        self._sums = {added.gradient: added for added in sums}
        self._after: dict[int, list[_Sum]] = defaultdict(list)
        for added in sums:
            self._after[added.after].append(added)
        self._skipped = {i for s in sums if s.is_copy for i in (s.after - 1, s.after)}
        self._edit = Edit(trace)
        self._begins: list[int] = []
        self._ends: list[int] = [0]
        self._added: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._values: dict[int, int] = {}

    def trace(self) -> Trace:
        """The step with both batches."""
        count = self._lay_out()
        for number, allocation in enumerate(self._trace.allocations):
            if allocation.born is not None and allocation.born < self._end:
                self._allocate_again(number, allocation)
        calls: list[Call] = []
        for position, call in enumerate(self._trace.calls[: self._end]):
            if position not in self._skipped:
                reads, writes = map(self._again, call.reads), map(self._again, call.writes)
                calls.append(with_op(call, call.op, tuple(reads), tuple(writes)))
            calls += [self._sum(added) for added in self._after[position]]
        assert len(calls) == count
        self._edit.insert(self._end, calls, after_frees=True)
        return self._edit.trace()

    def _lay_out(self) -> int:
        """Number the calls of the second batch, and return how many there are.

        A traced call begins at `_begins`, and what it frees is gone at `_ends`.
        """
        count = 0
        for position in range(self._end):
            self._begins.append(count)
            count += position not in self._skipped
            # What an op frees is gone before the gradients that it computed are added.
            self._ends.append(count)
            for added in self._after[position]:
                self._added[added.gradient] = count
                count += 1
        return count

    def _allocate_again(self, number: int, old: Allocation) -> None:
        """Allocate for the second batch what the first has allocated."""
        born, freed = Inserted(self._end, self._begins[old.born or 0]), old.freed
        added = self._sums.get(number)
        if added is not None:
            if not added.is_copy:
                gone = Inserted(self._end, self._added[number] + 1)
                self._memory[number] = self._edit.allocate(
                    old.nbytes, Role.INTERMEDIATE, born, gone
                )
            return
        if freed is None or freed > self._end:
            # A result that outlives the backward pass, such as the loss, is replaced by the next.
            self._edit.set_lifetime(number, old.born, Inserted(born.position, born.order + 1))
        until = freed if freed is None or freed > self._end else self._ends[freed]
        is_inside = freed is not None and freed <= self._end
        self._memory[number] = self._edit.allocate(
            old.nbytes,
            old.role,
            born,
            Inserted(self._end, until or 0) if is_inside else freed,
            old.module,
        )

    def _again(self, value: int) -> int:
        """The value that the second batch has instead of one of the first."""
        old = self._trace.values[value]
        if old.allocation not in self._memory:
            return value
        if value not in self._values:
            base = None if old.view_of is None else self._again(old.view_of)
            place = self._memory[old.allocation]
            self._values[value] = self._edit.add_value(Value(old.spec, place, base, old.parameter))
        return self._values[value]

    def _sum(self, added: _Sum) -> Call:
        call = self._trace.calls[added.after]
        values: tuple[int, ...] = ()
        if added.value is not None:
            second = call.reads[-1] if added.is_copy else added.value
            values = added.value, self._again(second)
        return replace(
            call,
            op=added.op,
            phase=Phase.BACKWARD,
            syncs=False,
            reads=values,
            writes=values[:1],
        )


def _sums(trace: Trace, end: int) -> list[_Sum]:
    """The additions of the second batch: one for each gradient that the traced step allocates."""
    allocating = {a.born for a in trace.allocations if a.born is not None}
    gradients = {
        a.born for a in trace.allocations if a.role is Role.GRADIENT and a.born is not None
    }
    written = _written_last(trace, end)
    sums = []
    for number, allocation in enumerate(trace.allocations):
        born = allocation.born
        if allocation.role is not Role.GRADIENT or born is None or born >= end:
            continue
        if allocation.freed is not None and allocation.freed <= end:
            continue
        value, last = written.get(number, (None, born))
        if value is None:
            spec = _spec(allocation, trace.calls[born].op)
            last = _last_use(trace, born, end, spec, allocating)
        else:
            spec = trace.values[value].spec
        is_copy = _is_copy(trace, born, end)
        node_end = born + 1 if is_copy else _end_of_node(trace, born, end, gradients)
        after = node_end if is_copy else max(node_end, last)
        op = Op("aten.add_.Tensor", (spec, spec), (spec,))
        sums.append(_Sum(number, after, op, is_copy, value))
    return sums


def _written_last(trace: Trace, end: int) -> dict[int, tuple[int, int]]:
    """The value that each gradient's memory holds at the end, and the call that writes it last.

    Empty if no values were recorded.
    """
    last: dict[int, tuple[int, int]] = {}
    for position, call in enumerate(trace.calls[:end]):
        for value in call.writes:
            place = trace.values[value].allocation
            if place is not None and trace.allocations[place].role is Role.GRADIENT:
                last[place] = value, position
    return last


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
    """The last call of the autograd node that computes a gradient, as far as the trace shows.

    A linear layer computes the gradient of its weight, then that of its bias, with views between
    and after them. A cast is a node of its own.
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


def _last_use(trace: Trace, born: int, end: int, spec: TensorSpec, writers: set[int]) -> int:
    """The last call that adds a further part to a gradient in place.

    A weight that is used several times has one part from each use; the sum is complete with the
    last one.
    """
    shape = sorted(spec.shape)
    for position in range(end - 1, born, -1):
        call = trace.calls[position]
        if position in writers or call.phase is not Phase.BACKWARD or call.op.base not in _SUMS:
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
