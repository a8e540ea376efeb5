"""Traces from JSON, of this and earlier versions, checked completely."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from wavecast.traces import checked_json as read
from wavecast.traces.checked_json import Malformed
from wavecast.traces.columns import differences
from wavecast.traces.encoding import encode
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
from wavecast.traces.value_columns import Uses, decode_values

_PHASES, _ROLES = tuple(Phase), tuple(Role)
_EMPTY = encode(Trace(()))
_FIELDS, _CALLS, _ALLOCATIONS = tuple(_EMPTY), tuple(_EMPTY["calls"]), tuple(_EMPTY["allocations"])
_WITH_GRAPHS = 3
"""The first version that says which compiled graph a call belongs to."""


def decode(body: Any, version: int) -> Trace:
    """The trace in JSON from an untrusted source, checked completely.

    Args:
        body: what `encode` made, in this or an earlier version.
        version: the version of the file.

    Raises:
        Malformed: it is something else; the message says where.
    """
    fields = read.exact_fields(_completed(body, version), "trace", _FIELDS)
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
    graphs = _changes(columns["graph"], "calls.graph")
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


def _changes(value: Any, where: str) -> dict[int, int | None]:
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
