"""Traces as JSON: tables of distinct tensors, ops, modules and launches, and columns of indices."""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

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
)

_LARGEST_DIMENSION = 1 << 48
_PHASES = tuple(Phase)
_ROLES = tuple(Role)

T = TypeVar("T")


def short(value: Any) -> str:
    """A value as an error message shows it, shortened."""
    return reprlib.repr(value)


class _Table:
    """Distinct values in order of first use."""

    def __init__(self) -> None:
        self._index: dict[Any, int] = {}

    def add(self, value: Any) -> int:
        return self._index.setdefault(value, len(self._index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._index)


def encode(trace: Trace) -> dict[str, Any]:
    """The trace as tables and columns, ready for JSON."""
    specs, ops, modules, launches = _Table(), _Table(), _Table(), _Table()
    calls = {
        "op": [ops.add(c.op) for c in trace.calls],
        "phase": [_PHASES.index(c.phase) for c in trace.calls],
        "module": [modules.add(c.module) for c in trace.calls],
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
    }
    lines = _sparse(((modules.add(c.line) if c.line else None) for c in trace.calls), None)
    if lines:
        calls["line"] = lines  # which only compiled steps have, and no older file
    op_rows = [
        [
            op.name,
            [specs.add(s) for s in op.inputs],
            [specs.add(s) for s in op.outputs],
            [[name, list(v) if isinstance(v, tuple) else v] for name, v in op.attrs],
        ]
        for op in ops
    ]
    modules_of = ((modules.add(a.module) if a.module else None) for a in trace.allocations)
    named = _sparse(modules_of, None)
    owners = {"module": named} if named else {}  # older files do not have this column
    asked = {"asks_capability": True} if trace.asks_capability else {}  # nor this field
    return {
        "framework": trace.framework,
        "capability": trace.capability and list(trace.capability),
        "samples": trace.samples,
        "unit": trace.unit,
        "notes": list(trace.notes),
        "modules": list(modules),
        "measurement": trace.measurement and dataclasses.asdict(trace.measurement),
        "launches": list(launches),
        "ops": op_rows,
        "specs": [[s.shape, s.dtype, s.strides, s.device] for s in specs],
        "calls": calls,
        "allocations": {
            "nbytes": [a.nbytes for a in trace.allocations],
            "born": [a.born for a in trace.allocations],
            "freed": [a.freed for a in trace.allocations],
            "role": [_ROLES.index(a.role) for a in trace.allocations],
            **owners,
        },
        **asked,
    }


def _sparse(values: Iterable[Any], default: Any) -> list[list[Any]]:
    """A [position, value] pair for each value that is not the default."""
    return [[i, v] for i, v in enumerate(values) if v != default]


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


class Malformed(Exception):
    """The JSON is not a trace; the message says where and why."""


def decode(body: Any) -> Trace:
    """The trace in JSON from an untrusted source, checked completely.

    Raises:
        Malformed: it is not what `encode` makes; the message says where.
    """
    names = tuple(encode(Trace(())))
    if isinstance(body, dict) and "asks_capability" in body:
        names = (*names, "asks_capability")
    fields = _object(body, "trace", names)
    specs = [_spec(row, f"specs[{i}]") for i, row in enumerate(_list(fields["specs"], "specs"))]
    ops = [_op(row, specs, f"ops[{i}]") for i, row in enumerate(_list(fields["ops"], "ops"))]
    modules = [_text(m, "modules") for m in _list(fields["modules"], "modules")]
    launches = [
        _kernel(row, f"launches[{i}]")
        for i, row in enumerate(_list(fields["launches"], "launches"))
    ]
    calls = _calls(fields["calls"], ops, modules, launches)
    capability = fields["capability"]
    return Trace(
        calls=calls,
        allocations=_allocations(fields["allocations"], len(calls), modules),
        framework=_text(fields["framework"], "framework"),
        capability=_optional(capability, "capability", _pair),
        samples=_optional(fields["samples"], "samples", lambda v, w: _int(v, w, low=1)),
        unit=_text(fields["unit"], "unit"),
        notes=tuple(_text(n, "notes") for n in _list(fields["notes"], "notes")),
        measurement=_optional(fields["measurement"], "measurement", _measurement),
        asks_capability=_bool(fields.get("asks_capability", False), "asks_capability"),
    )


def _calls(
    value: Any, ops: Sequence[Op], modules: Sequence[str], launches: Sequence[Kernel]
) -> tuple[Call, ...]:
    value = {"line": [], **value} if isinstance(value, dict) else value
    names = ("op", "phase", "module", "stream", "syncs", "kernels", "host_s", "line")
    columns = _object(value, "calls", names)
    op_column = _list(columns["op"], "calls.op")
    count = len(op_column)
    phases = _column(columns["phase"], "calls.phase", count)
    paths = _column(columns["module"], "calls.module", count)
    streams = _dense(columns["stream"], "calls.stream", count, lambda v, w: _int(v, w))
    syncs = _dense(columns["syncs"], "calls.syncs", count, lambda v, w: _int(v, w, high=1))
    kernels = _dense(
        columns["kernels"],
        "calls.kernels",
        count,
        lambda v, w: tuple(_run(run, launches, w) for run in _list(v, w)),
    )
    host = _dense(columns["host_s"], "calls.host_s", count, _amount)
    lines = _dense(columns["line"], "calls.line", count, lambda v, w: _pick(modules, v, w))
    return tuple(
        Call(
            op=_pick(ops, op_column[i], "calls.op"),
            phase=_pick(_PHASES, phases[i], "calls.phase"),
            module=_pick(modules, paths[i], "calls.module"),
            stream=streams.get(i, 0),
            syncs=bool(syncs.get(i, 0)),
            kernels=kernels.get(i, ()),
            host_s=host.get(i),
            line=lines.get(i, ""),
        )
        for i in range(count)
    )


def _allocations(value: Any, calls: int, modules: Sequence[str]) -> tuple[Allocation, ...]:
    value = {"module": [], **value} if isinstance(value, dict) else value
    columns = _object(value, "allocations", ("nbytes", "born", "freed", "role", "module"))
    sizes = _list(columns["nbytes"], "allocations.nbytes")
    born, freed, roles = (
        _column(columns[name], f"allocations.{name}", len(sizes))
        for name in ("born", "freed", "role")
    )

    owners = _dense(
        columns["module"],
        "allocations.module",
        len(sizes),
        lambda v, w: _pick(modules, v, w),
    )

    def time(value: Any, name: str) -> int | None:
        return None if value is None else _int(value, f"allocations.{name}", high=calls)

    allocations = tuple(
        Allocation(
            nbytes=_int(size, "allocations.nbytes"),
            born=time(start, "born"),
            freed=time(end, "freed"),
            role=_pick(_ROLES, role, "allocations.role"),
            module=owners.get(i, ""),
        )
        for i, (size, start, end, role) in enumerate(zip(sizes, born, freed, roles, strict=True))
    )
    if any(a.freed is not None and a.freed < (a.born or 0) for a in allocations):
        raise Malformed("allocations: memory is freed before it is allocated")
    return allocations


def _spec(row: Any, where: str) -> TensorSpec:
    shape, dtype, strides, device = _row(row, 4, where)
    if _text(dtype, where) not in DTYPE_BYTES:
        raise Malformed(f"{where}: unknown dtype {short(dtype)}")
    if device not in ("cuda", "cpu"):
        raise Malformed(f"{where}: unknown device {short(device)}")
    sizes = _ints(shape, where)
    steps = None if strides is None else _ints(strides, where)
    if steps is not None and len(steps) != len(sizes):
        raise Malformed(f"{where}: {len(sizes)} dimensions but {len(steps)} strides")
    return TensorSpec(sizes, dtype, steps, device)


def _op(row: Any, specs: Sequence[TensorSpec], where: str) -> Op:
    name, inputs, outputs, attrs = _row(row, 4, where)
    return Op(
        _text(name, where),
        tuple(_pick(specs, i, where) for i in _list(inputs, where)),
        tuple(_pick(specs, i, where) for i in _list(outputs, where)),
        tuple(_attribute(pair, where) for pair in _list(attrs, where)),
    )


def _attribute(pair: Any, where: str) -> tuple[str, Any]:
    name, value = _row(pair, 2, where)
    name = _text(name, where)
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(v, bool | int | float | str) for v in items):
        raise Malformed(f"{where}: attribute {short(name)} has a value of an unknown type")
    if isinstance(value, list) and any(isinstance(v, str) for v in value):
        raise Malformed(f"{where}: attribute {short(name)} is a list of texts")
    return name, tuple(value) if isinstance(value, list) else value


def _kernel(row: Any, where: str) -> Kernel:
    name, grid, block, registers, shared, stream, flops, dram = _row(row, 8, where)
    return Kernel(
        name=_text(name, where),
        seconds=0.0,
        grid=_optional(grid, where, _triple),
        block=_optional(block, where, _triple),
        registers=_optional(registers, where, _int),
        shared_bytes=_optional(shared, where, _int),
        stream=_int(stream, where),
        flops=_optional(flops, where, _amount),
        dram_bytes=_optional(dram, where, _amount),
    )


def _run(row: Any, launches: Sequence[Kernel], where: str) -> Kernel:
    which, seconds, start = _row(row, 3, where)
    launch = _pick(launches, which, where)
    return Kernel(  # five times as fast as dataclasses.replace
        name=launch.name,
        seconds=_amount(seconds, where),
        grid=launch.grid,
        block=launch.block,
        registers=launch.registers,
        shared_bytes=launch.shared_bytes,
        stream=launch.stream,
        flops=launch.flops,
        dram_bytes=launch.dram_bytes,
        start_s=_optional(start, where, _amount),
    )


def _measurement(value: Any, where: str) -> Measurement:
    names = tuple(field.name for field in dataclasses.fields(Measurement))
    fields = _object(value, where, names)
    times = ("seconds", "gpu_s", "host_s", "recorded_s", "cpu_s")
    return Measurement(
        gpu=_text(fields["gpu"], where),
        repeats=_int(fields["repeats"], where, low=1),
        software=_text(fields["software"], where),
        cores=_optional(fields["cores"], where, lambda v, w: _int(v, w, low=1)),
        **{name: _optional(fields[name], f"{where}.{name}", _amount) for name in times},
    )


def _optional(value: Any, where: str, read: Callable[[Any, str], T]) -> T | None:
    return None if value is None else read(value, where)


def _object(value: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise Malformed(f"{where} should have exactly the fields {', '.join(names)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed(f"{where} should be a list")
    return value


def _row(value: Any, length: int, where: str) -> list[Any]:
    if len(_list(value, where)) != length:
        raise Malformed(f"{where} should have {length} items, not {len(value)}")
    return list(value)


def _column(value: Any, where: str, length: int) -> list[Any]:
    return _row(value, length, where)


def _dense(value: Any, where: str, length: int, read: Callable[[Any, str], Any]) -> dict[int, Any]:
    rows = [_row(pair, 2, where) for pair in _list(value, where)]
    return {_int(i, where, high=length - 1): read(v, where) for i, v in rows}


def _int(value: Any, where: str, low: int = 0, high: int = 1 << 62) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Malformed(f"{where}: {short(value)} is not a whole number from {low} to {high}")
    return value


def _bool(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise Malformed(f"{where} should be true or false")
    return value


def _ints(value: Any, where: str) -> tuple[int, ...]:
    return tuple(_int(v, where, high=_LARGEST_DIMENSION) for v in _list(value, where))


def _pair(value: Any, where: str) -> tuple[int, int]:
    major, minor = _row(value, 2, where)
    return _int(major, where, high=99), _int(minor, where, high=99)


def _triple(value: Any, where: str) -> tuple[int, int, int]:
    x, y, z = _row(value, 3, where)
    return _int(x, where), _int(y, where), _int(z, where)


def _amount(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed(f"{where}: {short(value)} is not a number")
    if not (math.isfinite(value) and value >= 0):
        raise Malformed(f"{where}: {short(value)} is not a finite number from 0 on")
    return float(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{where}: {short(value)} is not a text")
    return value


def _pick(table: Sequence[T], index: Any, where: str) -> T:
    return table[_int(index, where, high=len(table) - 1)]
