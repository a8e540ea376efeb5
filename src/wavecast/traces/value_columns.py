"""The values of a trace as columns of a file, and back.

Values are numbered in the order of their first use, so that a value's spec is that of the op that
uses it first. All uses are one list: for each call what it reads, then what it writes. 0 is the
next new value, and another number leads from the value of the use before it to this one. Equal
layers have equal numbers, so the list packs well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from wavecast.traces import checked_json as read
from wavecast.traces.checked_json import Malformed
from wavecast.traces.columns import DistinctItems, marks
from wavecast.traces.step import Op, TensorSpec, Trace, Value
from wavecast.traces.values import compacted

Uses = tuple[tuple[int, ...], tuple[int, ...]]
"""The numbers of the values that a call reads, and of those that it writes."""
_FIELDS = ("uses", "unknown", "allocation", "view_of", "names", "parameter", "gradient_of")


def encode_values(trace: Trace, texts: DistinctItems) -> dict[str, Any]:
    """The values that the calls of a trace use.

    Args:
        trace: the trace.
        texts: the table of texts, which gets the names of parameters.

    Raises:
        ValueError: calls and values do not agree.
    """
    trace = compacted(trace)
    uses: list[int] = []
    unknown: list[int] = []
    new, last = 0, 0
    for position, call in enumerate(trace.calls):
        used, specs = (*call.reads, *call.writes), (*call.op.inputs, *call.op.outputs)
        if specs and not used:
            unknown.append(position)
        elif specs != tuple(trace.values[value].spec for value in used):
            raise ValueError(f"call {position} has other tensors than its values")
        for value in used:
            if value == new:
                uses.append(0)
                new += 1
            else:
                uses.append(value - last if value < last else value - last + 1)
            last = value
    values = trace.values
    names = DistinctItems()
    parameters, gradients = (
        marks(names.add(name) if name else None for name in column)
        for column in ([v.parameter for v in values], [v.gradient_of for v in values])
    )
    return {
        "uses": uses,
        "unknown": unknown,
        "allocation": list(_memory_column(values)),
        "view_of": [0 if v.view_of is None else i - v.view_of for i, v in enumerate(values)],
        "names": [[texts.add(part) for part in _parts(name)] for name in names],
        "parameter": parameters,
        "gradient_of": gradients,
    }


class _Memory:
    """The allocation that a value likely has: that of its base, or else the next one."""

    def __init__(self) -> None:
        self._known: list[int | None] = []
        self._next = 0

    def expected(self, base: int | None) -> int:
        known = None if base is None or base >= len(self._known) else self._known[base]
        return self._next if known is None else known

    def add(self, allocation: int | None) -> None:
        self._known.append(allocation)
        self._next = self._next if allocation is None else max(self._next, allocation + 1)


def _memory_column(values: Iterable[Value]) -> Iterator[int | None]:
    memory = _Memory()
    for value in values:
        place = value.allocation
        yield None if place is None else place - memory.expected(value.view_of)
        memory.add(place)


def _parts(name: str) -> tuple[str, str]:
    """The module of a parameter, which other columns name as well, and the rest."""
    module, _, rest = name.rpartition(".")
    return (module, rest) if module else ("", name)


def decode_values(
    columns: Any, called: Sequence[Op], allocations: int, texts: Sequence[str]
) -> tuple[list[Uses], tuple[Value, ...]]:
    """What each call reads and writes, and the values, from an untrusted source.

    Args:
        columns: the columns.
        called: the op of each call.
        allocations: the number of allocations.
        texts: the table of texts.

    Raises:
        Malformed: the columns are not what `encode_values` makes.
    """
    fields = read.exact_fields(columns, "values", _FIELDS)
    uses, specs = _uses(fields, called)
    count = len(specs)
    bases = _bases(read.row_of(fields["view_of"], count, "values.view_of"))
    names = [_name(row, texts) for row in read.listed(fields["names"], "values.names")]
    parameters = read.marked(fields["parameter"], "values.parameter", count, names)
    gradients = read.marked(fields["gradient_of"], "values.gradient_of", count, names)
    column = read.row_of(fields["allocation"], count, "values.allocation")
    places = _places(column, bases, allocations)
    values = (
        Value(spec, places[i], bases[i], parameters.get(i, ""), gradients.get(i, ""))
        for i, spec in enumerate(specs)
    )
    return uses, tuple(values)


def _uses(fields: dict[str, Any], called: Sequence[Op]) -> tuple[list[Uses], list[TensorSpec]]:
    """The numbers of the values of each call, and the specs of these."""
    where = "values.uses"
    uses, at, last = read.wholes(fields["uses"], where, low=-(1 << 62)), 0, 0
    unknown = set(read.wholes(fields["unknown"], "values.unknown", high=len(called) - 1))
    found: list[Uses] = []
    specs: list[TensorSpec] = []
    for position, op in enumerate(called):
        wanted = (*op.inputs, *op.outputs)
        if not wanted or position in unknown:
            found.append(((), ()))
            continue
        numbers = []
        for step, spec in zip(uses[at : at + len(wanted)], wanted, strict=False):
            if step == 0:
                last = len(specs)
                specs.append(spec)
            else:
                last += step if step < 0 else step - 1
                if not 0 <= last < len(specs) or (specs[last] is not spec and specs[last] != spec):
                    raise Malformed(f"{where}: call {position} uses a value with another spec")
            numbers.append(last)
        if len(numbers) != len(wanted):
            raise Malformed(f"{where}: there are fewer than the calls have")
        at, count = at + len(wanted), len(op.inputs)
        found.append((tuple(numbers[:count]), tuple(numbers[count:])))
    if at != len(uses):
        raise Malformed(f"{where}: there are more than the calls have")
    return found, specs


def _bases(column: Sequence[Any]) -> list[int | None]:
    """The value of which each value is a view."""
    where, count = "values.view_of", len(column)
    bases: list[int | None] = []
    for index, back in enumerate(read.wholes(column, where, low=-count, high=count)):
        bases.append(None if back == 0 else index - back)
    read.wholes([base for base in bases if base is not None], where, high=count - 1)
    checked = {index for index, base in enumerate(bases) if base is None}
    for start in range(count):
        path: dict[int, None] = {}
        at: int | None = start
        while at is not None and at not in checked:
            if at in path:
                raise Malformed(f"{where}: value {start} is a view of itself")
            path[at] = None
            at = bases[at]
        checked.update(path)
    return bases


def _places(
    column: Sequence[Any], bases: Sequence[int | None], allocations: int
) -> list[int | None]:
    """The allocation of each value."""
    where, memory = "values.allocation", _Memory()
    places: list[int | None] = []
    read.wholes([item for item in column if item is not None], where, low=-(1 << 62))
    for item, base in zip(column, bases, strict=True):
        place = None if item is None else memory.expected(base) + item
        memory.add(place)
        places.append(place)
    read.wholes([place for place in places if place is not None], where, high=allocations - 1)
    return places


def _name(row: Any, texts: Sequence[str]) -> str:
    module, rest = (
        read.pick(texts, part, "values.names") for part in read.row_of(row, 2, "values.names")
    )
    return f"{module}.{rest}" if module else rest
