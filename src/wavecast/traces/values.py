"""The values of a trace as a whole: left out, or numbered anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wavecast.traces.editing import with_op
from wavecast.traces.step import Trace, Value


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
