"""Traces as JSON: tables of distinct tensors, ops, modules and launches, and columns of indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from wavecast.traces import checked_json as read
from wavecast.traces.checked_json import Malformed
from wavecast.traces.editing import compacted
from wavecast.traces.graphs import numbered
from wavecast.traces.step import (
    DTYPE_BYTES,
    Allocation,
    Call,
    Kernel,
    Measurement,
    Op,
    Phase,
    Role,
    TensorSpec,
    Trace,
    Value,
)

_PHASES, _ROLES = tuple(Phase), tuple(Role)


def encode(trace: Trace) -> dict[str, Any]:
    """The trace as tables and columns, ready for JSON.

    Raises:
        ValueError: calls and values do not agree.
    """
    specs, ops, texts, launches = DistinctItems(), DistinctItems(), DistinctItems(), DistinctItems()
    calls = {
        "op": differences(ops.add(c.op) for c in trace.calls),
        "phase": [_PHASES.index(c.phase) for c in trace.calls],
        "module": differences(texts.add(c.module) for c in trace.calls),
        "stream": _sparse((c.stream for c in trace.calls), 0),
        "syncs": _sparse((int(c.syncs) for c in trace.calls), 0),
        "kernels": _sparse(
            (
                [[launches.add(_launch(k)), k.seconds, k.start_s] for k in call.kernels]
                for call in trace.calls
            ),
            [],
        ),
        "host_s": _sparse((c.host_s for c in trace.calls), None),
        "line": _sparse(((texts.add(c.line) if c.line else None) for c in trace.calls), None),
        "graph": _changes(c.graph for c in trace.calls),
    }
    op_rows = [
        [
            op.name,
            [specs.add(s) for s in op.inputs],
            [specs.add(s) for s in op.outputs],
            [[name, list(v) if isinstance(v, tuple) else v] for name, v in op.attrs],
        ]
        for op in ops
    ]
    allocations = {
        "nbytes": [a.nbytes for a in trace.allocations],
        "born": differences(a.born for a in trace.allocations),
        "freed": differences(a.freed for a in trace.allocations),
        "role": [_ROLES.index(a.role) for a in trace.allocations],
        "module": marks(texts.add(a.module) if a.module else None for a in trace.allocations),
    }
    has_values = trace.values or any(c.reads or c.writes for c in trace.calls)
    values = encode_values(trace, texts) if has_values else None
    return {
        "framework": trace.framework,
        "capability": trace.capability and list(trace.capability),
        "samples": trace.samples,
        "unit": trace.unit,
        "notes": list(trace.notes),
        "modules": list(texts),
        "measurement": trace.measurement and dataclasses.asdict(trace.measurement),
        "launches": list(launches),
        "ops": op_rows,
        "specs": [[s.shape, s.dtype, s.strides, s.device] for s in specs],
        "calls": calls,
        "allocations": allocations,
        "asks_capability": trace.asks_capability,
        "values": values,
    }


def _sparse(values: Iterable[Any], default: Any) -> list[list[Any]]:
    """A [position, value] pair for each value that is not the default."""
    return [[i, v] for i, v in enumerate(values) if v != default]


def _changes(values: Iterable[int | None]) -> list[list[int | None]]:
    """Where another value begins, and which, both as differences."""
    changes: dict[int, int | None] = {}
    last = None
    for position, value in enumerate(values):
        if value != last:
            changes[position] = value
        last = value
    return [differences(changes), differences(changes.values())]


def _launch(kernel: Kernel) -> tuple[Any, ...]:
    """Everything about a kernel except its times, since most launches repeat many times."""
    return (
        kernel.name,
        kernel.grid,
        kernel.block,
        kernel.registers,
        kernel.shared_bytes,
        kernel.stream,
        kernel.flops,
        kernel.dram_bytes,
    )


# Columns of a trace file: small numbers that repeat where layers do, so that they pack well.


class DistinctItems:
    """Distinct values in order of first use."""

    def __init__(self) -> None:
        self._index: dict[Any, int] = {}

    def add(self, value: Any) -> int:
        """The number of a value."""
        return self._index.setdefault(value, len(self._index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._index)


def differences(column: Iterable[int | None]) -> list[int | None]:
    """Each number less the one before it; None stays None and is passed over."""
    steps: list[int | None] = []
    last = 0
    for item in column:
        if item is None:
            steps.append(None)
        else:
            steps.append(item - last)
            last = item
    return steps


def marks(column: Iterable[int | None]) -> list[list[int | None]]:
    """The rows that have a number, and these numbers, both as differences."""
    known = [(row, item) for row, item in enumerate(column) if item is not None]
    return [differences(row for row, _ in known), differences(item for _, item in known)]


# The values of a trace as columns of a file, and back.
#
# Values are numbered in the order of their first use, so that a value's spec is that of the op
# that uses it first. All uses are one list: for each call what it reads, then what it writes. 0 is
# the next new value, and another number leads from the value of the use before it to this one.
# Equal layers have equal numbers, so the list packs well.


Uses = tuple[tuple[int, ...], tuple[int, ...]]
"""The numbers of the values that a call reads, and of those that it writes."""
_FIELDS = ("uses", "unknown", "allocation", "view_of", "names", "parameter", "gradient_of")


def encode_values(trace: Trace, texts: DistinctItems) -> dict[str, Any]:
    """The values that the calls of a trace use.

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
    uses_of: list[Uses] = []
    specs: list[TensorSpec] = []
    for position, op in enumerate(called):
        tensors = (*op.inputs, *op.outputs)
        if not tensors or position in unknown:
            uses_of.append(((), ()))
            continue
        numbers = []
        for step, spec in zip(uses[at : at + len(tensors)], tensors, strict=False):
            if step == 0:
                last = len(specs)
                specs.append(spec)
            else:
                last += step if step < 0 else step - 1
                if not 0 <= last < len(specs) or (specs[last] is not spec and specs[last] != spec):
                    raise Malformed(f"{where}: call {position} uses a value with another spec")
            numbers.append(last)
        if len(numbers) != len(tensors):
            raise Malformed(f"{where}: there are fewer than the calls have")
        at, count = at + len(tensors), len(op.inputs)
        uses_of.append((tuple(numbers[:count]), tuple(numbers[count:])))
    if at != len(uses):
        raise Malformed(f"{where}: there are more than the calls have")
    return uses_of, specs


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


# Traces from JSON, of this and earlier versions, checked completely.


_EMPTY = encode(Trace(()))
_TRACE_FIELDS, _CALLS, _ALLOCATIONS = (
    tuple(_EMPTY),
    tuple(_EMPTY["calls"]),
    tuple(_EMPTY["allocations"]),
)
_WITH_GRAPHS = 3
"""The first version that says which compiled graph a call belongs to."""


def decode(body: Any, version: int) -> Trace:
    """The trace in JSON from an untrusted source, checked completely.

    Raises:
        Malformed: it is something else; the message says where.
    """
    fields = read.exact_fields(_completed(body, version), "trace", _TRACE_FIELDS)
    specs = [_spec(row, f"specs[{i}]") for i, row in _numbered_rows(fields["specs"], "specs")]
    ops = [_op(row, specs, f"ops[{i}]") for i, row in _numbered_rows(fields["ops"], "ops")]
    modules = [read.text(m, "modules") for m in read.listed(fields["modules"], "modules")]
    launches = [
        _kernel(row, f"launches[{i}]") for i, row in _numbered_rows(fields["launches"], "launches")
    ]
    columns = read.exact_fields(fields["calls"], "calls", _CALLS)
    called = read.picks(ops, read.sums(columns["op"], "calls.op"), "calls.op")
    allocations = _allocations(fields["allocations"], len(called), modules)
    uses: list[Uses] = [((), ())] * len(called)
    values: tuple[Value, ...] = ()
    if fields["values"] is not None:
        uses, values = decode_values(fields["values"], called, len(allocations), modules)
    calls = _calls(columns, called, uses, modules, launches)
    return Trace(
        calls=calls if version >= _WITH_GRAPHS else numbered(calls),
        allocations=allocations,
        framework=read.text(fields["framework"], "framework"),
        capability=read.optional(fields["capability"], "capability", read.pair),
        samples=read.optional(fields["samples"], "samples", lambda v, w: read.whole(v, w, low=1)),
        unit=read.text(fields["unit"], "unit"),
        notes=tuple(read.text(n, "notes") for n in read.listed(fields["notes"], "notes")),
        measurement=read.optional(fields["measurement"], "measurement", _measurement),
        asks_capability=read.truth(fields["asks_capability"], "asks_capability"),
        values=values,
    )


def _numbered_rows(value: Any, where: str) -> Iterator[tuple[int, Any]]:
    return enumerate(read.listed(value, where))


def _completed(body: Any, version: int) -> Any:
    """The fields as version 3 has them. Version 2 has no differences, values and graphs."""
    if version >= _WITH_GRAPHS or not isinstance(body, dict):
        return body
    body = {"asks_capability": False, "values": None, **body}
    calls, memory = body.get("calls"), body.get("allocations")
    if isinstance(calls, dict):
        columns = {name: differences(_old_column(calls, name)) for name in ("op", "module")}
        body["calls"] = {"line": [], **calls, **columns, "graph": [[], []]}
    if isinstance(memory, dict):
        columns = {name: differences(_old_column(memory, name)) for name in ("born", "freed")}
        owners = read.sparse_column(
            memory.get("module", []), "allocations.module", 1 << 62, lambda v, w: read.whole(v, w)
        )
        named = [differences(owners), differences(owners.values())]
        body["allocations"] = {**memory, **columns, "module": named}
    return body


def _old_column(columns: dict[str, Any], name: str) -> list[int | None]:
    return [
        read.optional(item, name, lambda v, w: read.whole(v, w))
        for item in read.listed(columns.get(name), name)
    ]


def _calls(
    columns: dict[str, Any],
    called: Sequence[Op],
    uses: Sequence[Uses],
    modules: Sequence[str],
    launches: Sequence[Kernel],
) -> tuple[Call, ...]:
    count = len(called)
    phases = read.picks(_PHASES, columns["phase"], "calls.phase")
    paths = read.picks(modules, read.sums(columns["module"], "calls.module"), "calls.module")
    for name, column in (("phase", phases), ("module", paths)):
        read.row_of(column, count, f"calls.{name}")

    def sparse(name: str, reader: Callable[[Any, str], Any]) -> dict[int, Any]:
        return read.sparse_column(columns[name], f"calls.{name}", count, reader)

    streams = sparse("stream", lambda v, w: read.whole(v, w))
    syncs = sparse("syncs", lambda v, w: read.whole(v, w, high=1))
    kernels = sparse(
        "kernels", lambda v, w: tuple(_run(run, launches, w) for run in read.listed(v, w))
    )
    host = sparse("host_s", read.amount)
    lines = sparse("line", lambda v, w: read.pick(modules, v, w))
    graphs = _read_changes(columns["graph"], "calls.graph")
    calls, graph = [], None
    for i in range(count):
        graph = graphs.get(i, graph)
        calls.append(
            Call(
                op=called[i],
                phase=phases[i],
                module=paths[i],
                stream=streams.get(i, 0),
                syncs=bool(syncs.get(i, 0)),
                kernels=kernels.get(i, ()),
                host_s=host.get(i),
                line=lines.get(i, ""),
                reads=uses[i][0],
                writes=uses[i][1],
                graph=graph,
            )
        )
    return tuple(calls)


def _read_changes(value: Any, where: str) -> dict[int, int | None]:
    """The values that begin at some rows."""
    rows, items = (read.sums(part, where) for part in read.row_of(value, 2, where))
    read.wholes([item for item in items if item is not None], where)
    read.row_of(items, len(rows), where)
    return dict(zip(read.wholes(rows, where), items, strict=True))


def _allocations(value: Any, calls: int, modules: Sequence[str]) -> tuple[Allocation, ...]:
    columns = read.exact_fields(value, "allocations", _ALLOCATIONS)
    sizes = read.wholes(columns["nbytes"], "allocations.nbytes")
    count = len(sizes)
    roles = read.picks(_ROLES, columns["role"], "allocations.role")
    read.row_of(roles, count, "allocations.role")
    owners = read.marked(columns["module"], "allocations.module", count, modules)

    def times(name: str) -> list[int | None]:
        where = f"allocations.{name}"
        column = read.sums(read.row_of(columns[name], count, where), where)
        read.wholes([time for time in column if time is not None], where, high=calls)
        return column

    allocations = tuple(
        Allocation(
            nbytes=size,
            born=born,
            freed=freed,
            role=role,
            module=owners.get(i, ""),
        )
        for i, (size, born, freed, role) in enumerate(
            zip(sizes, times("born"), times("freed"), roles, strict=True)
        )
    )
    if any(a.freed is not None and a.freed < (a.born or 0) for a in allocations):
        raise Malformed("allocations: memory is freed before it is allocated")
    return allocations


def _spec(row: Any, where: str) -> TensorSpec:
    shape, dtype, strides, device = read.row_of(row, 4, where)
    if read.text(dtype, where) not in DTYPE_BYTES:
        raise Malformed(f"{where}: unknown dtype {read.short(dtype)}")
    if device not in ("cuda", "cpu"):
        raise Malformed(f"{where}: unknown device {read.short(device)}")
    sizes = read.sizes(shape, where)
    steps = None if strides is None else read.sizes(strides, where)
    if steps is not None and len(steps) != len(sizes):
        raise Malformed(f"{where}: {len(sizes)} dimensions but {len(steps)} strides")
    return TensorSpec(sizes, dtype, steps, device)


def _op(row: Any, specs: Sequence[TensorSpec], where: str) -> Op:
    name, inputs, outputs, attrs = read.row_of(row, 4, where)
    return Op(
        read.text(name, where),
        tuple(read.pick(specs, i, where) for i in read.listed(inputs, where)),
        tuple(read.pick(specs, i, where) for i in read.listed(outputs, where)),
        tuple(_attribute(pair, where) for pair in read.listed(attrs, where)),
    )


def _attribute(pair: Any, where: str) -> tuple[str, Any]:
    name, value = read.row_of(pair, 2, where)
    name = read.text(name, where)
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(v, bool | int | float | str) for v in items):
        raise Malformed(f"{where}: attribute {read.short(name)} has a value of an unknown type")
    if isinstance(value, list) and any(isinstance(v, str) for v in value):
        raise Malformed(f"{where}: attribute {read.short(name)} is a list of texts")
    return name, tuple(value) if isinstance(value, list) else value


def _kernel(row: Any, where: str) -> Kernel:
    name, grid, block, registers, shared, stream, flops, dram = read.row_of(row, 8, where)
    return Kernel(
        name=read.text(name, where),
        seconds=0.0,
        grid=read.optional(grid, where, read.triple),
        block=read.optional(block, where, read.triple),
        registers=read.optional(registers, where, read.whole),
        shared_bytes=read.optional(shared, where, read.whole),
        stream=read.whole(stream, where),
        flops=read.optional(flops, where, read.amount),
        dram_bytes=read.optional(dram, where, read.amount),
    )


def _run(row: Any, launches: Sequence[Kernel], where: str) -> Kernel:
    which, seconds, start = read.row_of(row, 3, where)
    launch = read.pick(launches, which, where)
    return Kernel(  # five times as fast as dataclasses.replace
        name=launch.name,
        seconds=read.amount(seconds, where),
        grid=launch.grid,
        block=launch.block,
        registers=launch.registers,
        shared_bytes=launch.shared_bytes,
        stream=launch.stream,
        flops=launch.flops,
        dram_bytes=launch.dram_bytes,
        start_s=read.optional(start, where, read.amount),
    )


def _measurement(value: Any, where: str) -> Measurement:
    names = tuple(field.name for field in dataclasses.fields(Measurement))
    fields = read.exact_fields(value, where, names)
    times = ("seconds", "gpu_s", "host_s", "recorded_s", "cpu_s")
    return Measurement(
        gpu=read.text(fields["gpu"], where),
        repeats=read.whole(fields["repeats"], where, low=1),
        software=read.text(fields["software"], where),
        cores=read.optional(fields["cores"], where, lambda v, w: read.whole(v, w, low=1)),
        **{name: read.optional(fields[name], f"{where}.{name}", read.amount) for name in times},
    )
