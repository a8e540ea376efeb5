"""Parts of a trace: some of its calls, with their values and memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import replace

from wavecast.traces.editing import living, with_op
from wavecast.traces.step import Trace, Value


def cut(trace: Trace, positions: Iterable[int], allocations: Iterable[int] = ()) -> Trace:
    """The trace of some of the calls, in order, with some of the memory and what is in it.

    Args:
        trace: the whole trace.
        positions: the calls that stay.
        allocations: the numbers of the allocations that stay, in their new order.
    """
    # Not by an Edit, which looks at the whole trace: a search cuts thousands of small parts.
    order, memory = sorted(positions), list(allocations)
    last = max(len(order) - 1, 0)
    whole = replace(
        trace,
        calls=tuple(trace.calls[position] for position in order),
        allocations=tuple(
            living(
                one,
                None if one.born is None else min(bisect_left(order, one.born), last),
                None if one.freed is None else bisect_left(order, one.freed),
            )
            for one in (trace.allocations[number] for number in memory)
        ),
    )
    return with_own_values(whole, {number: index for index, number in enumerate(memory)})


def with_own_values(trace: Trace, memory: Mapping[int, int] | None = None) -> Trace:
    """The trace with those values only that its calls use, that are in its memory, or their bases.

    Args:
        trace: the trace.
        memory: the new numbers of the allocations that are kept. None if they keep theirs.
    """
    if memory is None:
        memory = {number: number for number in range(len(trace.allocations))}
    values = trace.values
    own = {value for call in trace for value in call.reads + call.writes}
    own.update(number for number, value in enumerate(values) if value.allocation in memory)
    for number in list(own):
        base = values[number].view_of
        while base is not None and base not in own:
            own.add(base)
            base = values[base].view_of
    numbers = {old: new for new, old in enumerate(sorted(own))}
    calls = (
        with_op(call, call.op, _renumbered(call.reads, numbers), _renumbered(call.writes, numbers))
        for call in trace
    )
    kept = (
        Value(
            value.spec,
            None if value.allocation is None else memory.get(value.allocation),
            None if value.view_of is None else numbers[value.view_of],
            value.parameter,
            value.gradient_of,
        )
        for value in (values[number] for number in numbers)
    )
    return replace(trace, calls=tuple(calls), values=tuple(kept))


def _renumbered(values: tuple[int, ...], numbers: Mapping[int, int]) -> tuple[int, ...]:
    return tuple([numbers[value] for value in values])
