"""The one editor of traces: calls, values and memory change, and lifetimes and numbers follow.

```python
edit = Edit(trace)
total = edit.add_value(Value(spec, edit.allocate(spec.nbytes, Role.INTERMEDIATE, 7, 9)))
edit.insert(8, [Call(reduce, Phase.FORWARD, reads=(3,), writes=(total,))])
edit.reshape(3, smaller)
edit.trace()
```

Positions, values and allocations have the numbers of the trace as it was; new ones follow them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from wavecast.traces.graphs import GUARDS
from wavecast.traces.step import Allocation, Call, Op, Role, TensorSpec, Trace, Value


class Inserted(NamedTuple):
    """The place of an inserted call: before which call, and the how manieth there."""

    position: int
    order: int


Time = int | Inserted | None
"""The beginning or end of a lifetime: a call of the trace as it was, or an inserted one."""


class Edit:
    """Changes to a trace, applied all at once by `trace()`.

    Memory that exists while an inserted or moved call uses it lives as long as that call needs.
    """

    def __init__(self, before: Trace) -> None:
        self.before = before
        self._inserted: dict[int, list[Call]] = {}
        self._after_frees: dict[int, int] = {}
        self._calls: dict[int, Call] = {}
        self._removed: set[int] = set()
        self._moved: dict[int, Inserted] = {}
        self._values = list(before.values)
        self._reshaped: set[int] = set()
        self._allocations = dict(enumerate(before.allocations))
        self._times: dict[int, tuple[Time, Time]] = {}
        self._allocated = len(before.allocations)

    def insert(
        self, position: int, calls: Iterable[Call], *, after_frees: bool = False
    ) -> list[Inserted]:
        """Insert calls before a position, after what was inserted there already.

        Between two calls of a compiled graph they belong to it, unless they name another, or are
        guards, which precede the call of a graph.

        Args:
            position: the call before which they run; the number of calls for the end.
            calls: what is inserted.
            after_frees: whether memory that is freed before the position is freed before them too.
                All later insertions at this position then follow the release as well. At the end
                this is so in any case.
        """
        here = self._inserted.setdefault(position, [])
        first = len(here)
        if after_frees:
            self._after_frees.setdefault(position, first)
        here.extend(calls)
        return [Inserted(position, order) for order in range(first, len(here))]

    def replace(self, position: int, call: Call) -> None:
        """Let another call run at a position."""
        self._calls[position] = call

    def replace_op(
        self,
        position: int,
        op: Op,
        reads: tuple[int, ...] | None = None,
        writes: tuple[int, ...] | None = None,
    ) -> None:
        """Let another op run at a position."""
        call = self._calls.get(position, self.before.calls[position])
        self._calls[position] = with_op(
            call,
            op,
            call.reads if reads is None else reads,
            call.writes if writes is None else writes,
        )

    def remove(self, positions: Iterable[int]) -> None:
        """Remove the calls at these positions. What they allocated is allocated by the next."""
        self._removed.update(positions)

    def move(self, position: int, to: int) -> Inserted:
        """Let a call run before another one; what it allocates is allocated there."""
        call = self._calls.get(position, self.before.calls[position])
        self._moved[position] = self.insert(to, [call])[0]
        self._removed.add(position)
        return self._moved[position]

    def reshape(self, value: int, spec: TensorSpec) -> None:
        """Give a value another spec, in all calls that use it.

        Its memory gets the size in proportion, if it is not a view of another value.
        """
        old = self._values[value]
        self._values[value] = replace(old, spec=spec)
        self._reshaped.add(value)
        memory = None if old.allocation is None else self._allocations.get(old.allocation)
        if memory is not None and old.view_of is None and old.spec.nbytes:
            nbytes = -(-memory.nbytes * spec.nbytes // old.spec.nbytes)
            self._allocations[old.allocation or 0] = replace(memory, nbytes=nbytes)

    def add_value(self, value: Value) -> int:
        """Add a value, and return its number."""
        self._values.append(value)
        return len(self._values) - 1

    def allocate(
        self, nbytes: int, role: Role, born: Time = None, freed: Time = None, module: str = ""
    ) -> int:
        """Add memory that lives from one call until before another, and return its number."""
        number, self._allocated = self._allocated, self._allocated + 1
        self._allocations[number] = Allocation(nbytes, None, None, role, module)
        self.set_lifetime(number, born, freed)
        return number

    def set_lifetime(self, allocation: int, born: Time, freed: Time) -> None:
        """Let memory live from one call until before another."""
        if isinstance(born, Inserted) or isinstance(freed, Inserted):
            self._times[allocation] = born, freed
            return
        self._times.pop(allocation, None)
        self._allocations[allocation] = living(self._allocations[allocation], born, freed)

    def resize(self, allocation: int, nbytes: int) -> None:
        """Give memory another size."""
        self._allocations[allocation] = replace(self._allocations[allocation], nbytes=nbytes)

    def free(self, allocations: Iterable[int]) -> None:
        """Remove memory. Values that were in it are in none."""
        for number in allocations:
            del self._allocations[number]

    def change_memory(self, change: Callable[[Allocation], Allocation | None]) -> None:
        """Change each allocation, added ones too; None removes it."""
        changed = ((number, change(old)) for number, old in self._allocations.items())
        self._allocations = {number: new for number, new in changed if new is not None}

    def keep_memory(self, allocations: Iterable[int]) -> None:
        """Keep these allocations, in this order, and remove all others."""
        self._allocations = {number: self._allocations[number] for number in allocations}

    def trace(self) -> Trace:
        """The changed trace."""
        layout = _Layout(self._inserted, self._after_frees, self._removed)
        calls = layout.lay_out(self.before.calls, self._calls)
        layout.move(self._moved)
        if self._values:
            calls = self._fit(calls, layout.changed(self._calls))
        numbers = {number: index for index, number in enumerate(self._allocations)}
        values = self._values
        if len(numbers) != self._allocated or list(numbers) != list(range(self._allocated)):
            values = [_in_memory(value, numbers) for value in values]
        allocations = [
            living(
                allocation,
                *layout.lifetime(*self._times.get(n, (allocation.born, allocation.freed))),
            )
            for n, allocation in self._allocations.items()
        ]
        if values:
            _cover(allocations, calls, values, layout.inserted())
        return replace(
            self.before,
            calls=tuple(calls),
            allocations=tuple(allocations),
            values=tuple(values),
        )

    def _fit(self, calls: list[Call], changed: Iterable[int]) -> list[Call]:
        """Let the specs of calls and values agree.

        A changed call that sees a value with another spec reads or writes a view of it.
        """
        if self._reshaped:
            calls = [self._with_specs(call) for call in calls]
        views: dict[tuple[int, TensorSpec], int] = {}

        def viewed(numbers: tuple[int, ...], specs: tuple[TensorSpec, ...]) -> tuple[int, ...]:
            if len(numbers) != len(specs):
                return ()
            return tuple(
                number if self._values[number].spec == spec else self._view(number, spec, views)
                for number, spec in zip(numbers, specs, strict=True)
            )

        for position in changed:
            call, op = calls[position], calls[position].op
            reads, writes = viewed(call.reads, op.inputs), viewed(call.writes, op.outputs)
            if len(reads) != len(op.inputs) or len(writes) != len(op.outputs):
                reads = writes = ()  # it is not known what it reads and writes
            if (reads, writes) != (call.reads, call.writes):
                calls[position] = with_op(call, op, reads, writes)
        return calls

    def _view(self, number: int, spec: TensorSpec, views: dict[tuple[int, TensorSpec], int]) -> int:
        known = views.get((number, spec))
        if known is None:
            base = self._values[number]
            known = self.add_value(replace(base, spec=spec, view_of=number))
            views[number, spec] = known
        return known

    def _with_specs(self, call: Call) -> Call:
        if self._reshaped.isdisjoint(call.reads) and self._reshaped.isdisjoint(call.writes):
            return call

        def specs(numbers: tuple[int, ...], now: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
            if len(numbers) != len(now):
                return now
            return tuple(
                self._values[number].spec if number in self._reshaped else spec
                for number, spec in zip(numbers, now, strict=True)
            )

        op = call.op
        inputs, outputs = specs(call.reads, op.inputs), specs(call.writes, op.outputs)
        if (inputs, outputs) == (op.inputs, op.outputs):
            return call
        return with_op(call, Op(op.name, inputs, outputs, op.attrs), call.reads, call.writes)


class _Layout:
    """The new positions of calls and of releases of memory."""

    def __init__(
        self,
        inserted: dict[int, list[Call]],
        after_frees: dict[int, int],
        removed: set[int],
    ) -> None:
        self._inserted = inserted
        self._after_frees = after_frees
        self._removed = removed
        self._call_at: list[int] = []
        self._free_at: list[int] = []
        self._begins: dict[int, int] = {}
        self._end = 0

    def lay_out(self, before: Sequence[Call], replaced: dict[int, Call]) -> list[Call]:
        calls: list[Call] = []
        for position in range(len(before) + 1):
            here = self._inserted.get(position)
            begin = len(calls)
            if here:
                self._begins[position] = begin
                calls.extend(_in_graph(here, before, position))
            # What the last call leaves is freed before calls that are inserted at the end.
            ahead = len(here or ()) if position < len(before) else 0
            self._free_at.append(begin + self._after_frees.get(position, ahead))
            self._call_at.append(len(calls))
            if position < len(before) and position not in self._removed:
                calls.append(replaced.get(position, before[position]))
        self._end = len(calls)
        return calls

    def move(self, moved: dict[int, Inserted]) -> None:
        for position, place in moved.items():
            self._call_at[position] = self._at(place, self._call_at)

    def changed(self, replaced: Iterable[int]) -> list[int]:
        """The new positions of calls that were inserted or replaced."""
        kept = [self._call_at[position] for position in replaced if position not in self._removed]
        return kept + self.inserted()

    def inserted(self) -> list[int]:
        """The new positions of calls that were inserted or moved."""
        return [
            begin + order
            for position, begin in self._begins.items()
            for order in range(len(self._inserted[position]))
        ]

    def lifetime(self, born: Time, freed: Time) -> tuple[int | None, int | None]:
        begin = None if born is None else min(self._at(born, self._call_at), max(self._end - 1, 0))
        return begin, None if freed is None else self._at(freed, self._free_at)

    def _at(self, time: int | Inserted, positions: list[int]) -> int:
        if isinstance(time, Inserted):
            return self._begins[time.position] + time.order
        return positions[min(time, len(positions) - 1)]


def _in_graph(inserted: list[Call], calls: Sequence[Call], position: int) -> list[Call]:
    """Inserted calls as members of the compiled graph around them."""
    graph = calls[position].graph if 0 < position < len(calls) else None
    if graph is None or calls[position - 1].graph != graph:
        return inserted
    return [
        call if call.graph is not None or call.op.name == GUARDS else replace(call, graph=graph)
        for call in inserted
    ]


def _cover(
    allocations: list[Allocation],
    calls: Sequence[Call],
    values: Sequence[Value],
    positions: Iterable[int],
) -> None:
    """Let memory live while the calls at these positions use it."""
    for position in positions:
        for number in (*calls[position].reads, *calls[position].writes):
            index = values[number].allocation
            if index is None:
                continue
            memory = allocations[index]
            born = None if memory.born is None else min(memory.born, position)
            freed = None if memory.freed is None else max(memory.freed, position + 1)
            allocations[index] = living(memory, born, freed)


def living(allocation: Allocation, born: int | None, freed: int | None) -> Allocation:
    """An allocation with another lifetime."""
    if born == allocation.born and freed == allocation.freed:
        return allocation
    return Allocation(allocation.nbytes, born, freed, allocation.role, allocation.module)


def _in_memory(value: Value, numbers: dict[int, int]) -> Value:
    """A value with the new number of its memory; None if that was removed."""
    number = None if value.allocation is None else numbers.get(value.allocation)
    if number == value.allocation:
        return value
    # Faster than dataclasses.replace: each part of a pipeline renumbers the memory of all values.
    return Value(value.spec, number, value.view_of, value.parameter, value.gradient_of)


def with_op(call: Call, op: Op, reads: tuple[int, ...], writes: tuple[int, ...]) -> Call:
    """A call of another op on other values."""
    # Several times as fast as dataclasses.replace, which a search would call millions of times.
    return Call(
        op,
        call.phase,
        call.module,
        call.stream,
        call.syncs,
        call.kernels,
        call.host_s,
        call.line,
        reads,
        writes,
        call.graph,
    )


# The values of a trace as a whole: left out, or numbered anew.


def without_values(trace: Trace) -> Trace:
    """The trace without its data flow, for changes of memory that no call shows."""
    if not trace.values:
        return trace
    calls = tuple(with_op(call, call.op, (), ()) for call in trace)
    return replace(trace, calls=calls, values=())


def compacted(trace: Trace) -> Trace:
    """The trace with values in the order of their first use, and without those that have none."""
    number: dict[int, int] = {}
    for call in trace:
        for value in (*call.reads, *call.writes):
            number.setdefault(value, len(number))
    if list(number) == list(range(len(trace.values))):
        return trace
    calls = [
        with_op(
            call,
            call.op,
            tuple(number[value] for value in call.reads),
            tuple(number[value] for value in call.writes),
        )
        for call in trace
    ]
    values = tuple(_renumbered(trace.values, value, number) for value in number)
    return replace(trace, calls=tuple(calls), values=values)


def _renumbered(values: Sequence[Value], value: int, number: dict[int, int]) -> Value:
    """A value with the new number of its base, or of the base's base if the base is not used."""
    base = values[value].view_of
    while base is not None and base not in number:
        base = values[base].view_of
    return replace(values[value], view_of=None if base is None else number[base])
