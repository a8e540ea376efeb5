"""Traces as files: versioned, checksummed JSON in gzip, read strictly.

A file is one JSON object {"format", "version", "sha256", "trace"}. Inside, tensors, ops and
module paths are tables; calls and allocations are columns of numbers that point into them, so
that a layer repeated a hundred times is stored once.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from wavecast.errors import InvalidInput
from wavecast.trace import DTYPE_BYTES, Allocation, Call, Kernel, Op, Phase, Role, TensorSpec, Trace

FORMAT = "wavecast-trace"
VERSION = 1

# Far beyond any real step; a file that needs more is a mistake or an attack.
LARGEST_JSON_BYTES = 1 << 28
_LARGEST_DIMENSION = 1 << 48
_PHASES = tuple(Phase)
_ROLES = tuple(Role)

T = TypeVar("T")


def write(trace: Trace, path: Path) -> None:
    """Write a trace. The same trace always gives the same bytes."""
    body = _encode(trace)
    document = {
        "format": FORMAT,
        "version": VERSION,
        "sha256": _digest(body),
        "trace": body,
    }
    try:
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except ValueError as error:
        raise InvalidInput(f"cannot write the trace {path}: {error}") from error
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read(path: Path) -> Trace:
    """The trace in a file. Anything but a whole, unaltered trace file is an InvalidInput."""
    document = _parse(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        _refuse(path, "it is not a wavecast trace")
    version = document.get("version")
    if version != VERSION or type(version) is not int:
        _refuse(
            path,
            f"it has trace format version {_short(version)}, this wavecast reads "
            f"version {VERSION}; trace the step again, or use the wavecast that wrote it",
        )
    if set(document) != {"format", "version", "sha256", "trace"}:
        _refuse(path, "it has missing or unknown fields")
    if document["sha256"] != _digest(document["trace"]):
        _refuse(path, "its checksum does not match: the file was altered")
    try:
        return _decode(document["trace"])
    except _Malformed as error:
        _refuse(path, str(error))


def _parse(path: Path) -> Any:
    try:
        with gzip.open(path) as file:
            text = file.read(LARGEST_JSON_BYTES + 1)
        if len(text) > LARGEST_JSON_BYTES:
            _refuse(path, f"it is larger than {LARGEST_JSON_BYTES >> 20} MiB when unpacked")
        return json.loads(
            text, parse_constant=_no_constants, parse_float=_finite, object_pairs_hook=_unique
        )
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no trace file {path}") from error
    except OSError as error:
        _refuse(path, f"it cannot be read as gzip ({error})")
    except (EOFError, zlib.error):
        _refuse(path, "it is truncated or damaged")
    except (ValueError, RecursionError) as error:
        _refuse(path, f"it holds no valid JSON ({error})")


def _no_constants(name: str) -> NoReturn:
    raise ValueError(f"{name} is not allowed")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a field is given twice")
    return fields


def _short(value: Any) -> str:
    """A value as an error shows it."""
    return reprlib.repr(value)


def _refuse(path: Path, reason: str) -> NoReturn:
    raise InvalidInput(f"cannot read the trace {path}: {reason}")


def _digest(body: Any) -> str:
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class _Table:
    """Distinct values in order of first use."""

    def __init__(self) -> None:
        self._index: dict[Any, int] = {}

    def add(self, value: Any) -> int:
        return self._index.setdefault(value, len(self._index))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._index)


def _encode(trace: Trace) -> dict[str, Any]:
    specs, ops, modules, kernels = _Table(), _Table(), _Table(), _Table()
    calls = {
        "op": [ops.add(c.op) for c in trace.calls],
        "phase": [_PHASES.index(c.phase) for c in trace.calls],
        "module": [modules.add(c.module) for c in trace.calls],
        "stream": _sparse((c.stream for c in trace.calls), 0),
        "syncs": _sparse((int(c.syncs) for c in trace.calls), 0),
        "kernels": _sparse(([kernels.add(k) for k in c.kernels] for c in trace.calls), []),
        "host_s": _sparse((c.host_s for c in trace.calls), None),
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
    return {
        "framework": trace.framework,
        "capability": trace.capability and list(trace.capability),
        "samples": trace.samples,
        "unit": trace.unit,
        "notes": list(trace.notes),
        "modules": list(modules),
        "kernels": [_kernel_row(k) for k in kernels],
        "ops": op_rows,
        "specs": [[s.shape, s.dtype, s.strides, s.device] for s in specs],
        "calls": calls,
        "allocations": {
            "nbytes": [a.nbytes for a in trace.allocations],
            "born": [a.born for a in trace.allocations],
            "freed": [a.freed for a in trace.allocations],
            "role": [_ROLES.index(a.role) for a in trace.allocations],
        },
    }


def _sparse(values: Iterable[Any], default: Any) -> list[list[Any]]:
    """[position, value] of the values that are not the default."""
    return [[i, v] for i, v in enumerate(values) if v != default]


def _kernel_row(kernel: Kernel) -> list[Any]:
    return [
        kernel.name,
        kernel.seconds,
        kernel.grid,
        kernel.block,
        kernel.registers,
        kernel.shared_bytes,
        kernel.stream,
    ]


class _Malformed(Exception):
    """What is wrong in the body, and where."""


def _decode(body: Any) -> Trace:
    fields = _object(body, "trace", tuple(_encode(Trace(()))))
    specs = [_spec(row, f"specs[{i}]") for i, row in enumerate(_list(fields["specs"], "specs"))]
    ops = [_op(row, specs, f"ops[{i}]") for i, row in enumerate(_list(fields["ops"], "ops"))]
    modules = [_text(m, "modules") for m in _list(fields["modules"], "modules")]
    kernels = [
        _kernel(k, f"kernels[{i}]") for i, k in enumerate(_list(fields["kernels"], "kernels"))
    ]
    calls = _calls(fields["calls"], ops, modules, kernels)
    capability = fields["capability"]
    return Trace(
        calls=calls,
        allocations=_allocations(fields["allocations"], len(calls)),
        framework=_text(fields["framework"], "framework"),
        capability=None if capability is None else _pair(capability),
        samples=None if fields["samples"] is None else _int(fields["samples"], "samples", low=1),
        unit=_text(fields["unit"], "unit"),
        notes=tuple(_text(n, "notes") for n in _list(fields["notes"], "notes")),
    )


def _calls(
    value: Any, ops: Sequence[Op], modules: Sequence[str], kernels: Sequence[Kernel]
) -> tuple[Call, ...]:
    names = ("op", "phase", "module", "stream", "syncs", "kernels", "host_s")
    columns = _object(value, "calls", names)
    op_column = _list(columns["op"], "calls.op")
    count = len(op_column)
    phases = _column(columns["phase"], "calls.phase", count)
    paths = _column(columns["module"], "calls.module", count)
    streams = _dense(columns["stream"], "calls.stream", count, lambda v, w: _int(v, w))
    syncs = _dense(columns["syncs"], "calls.syncs", count, lambda v, w: _int(v, w, high=1))
    ran = _dense(
        columns["kernels"],
        "calls.kernels",
        count,
        lambda v, w: tuple(_pick(kernels, k, w) for k in _list(v, w)),
    )
    host = _dense(columns["host_s"], "calls.host_s", count, _seconds)
    return tuple(
        Call(
            op=_pick(ops, op_column[i], "calls.op"),
            phase=_pick(_PHASES, phases[i], "calls.phase"),
            module=_pick(modules, paths[i], "calls.module"),
            stream=streams.get(i, 0),
            syncs=bool(syncs.get(i, 0)),
            kernels=ran.get(i, ()),
            host_s=host.get(i),
        )
        for i in range(count)
    )


def _allocations(value: Any, calls: int) -> tuple[Allocation, ...]:
    columns = _object(value, "allocations", ("nbytes", "born", "freed", "role"))
    sizes = _list(columns["nbytes"], "allocations.nbytes")
    born, freed, roles = (
        _column(columns[name], f"allocations.{name}", len(sizes))
        for name in ("born", "freed", "role")
    )

    def time(value: Any, name: str) -> int | None:
        return None if value is None else _int(value, f"allocations.{name}", high=calls)

    allocations = tuple(
        Allocation(
            nbytes=_int(size, "allocations.nbytes"),
            born=time(start, "born"),
            freed=time(end, "freed"),
            role=_pick(_ROLES, role, "allocations.role"),
        )
        for size, start, end, role in zip(sizes, born, freed, roles, strict=True)
    )
    if any(a.freed is not None and a.freed < (a.born or 0) for a in allocations):
        raise _Malformed("allocations: memory is freed before it is made")
    return allocations


def _spec(row: Any, where: str) -> TensorSpec:
    shape, dtype, strides, device = _row(row, 4, where)
    if _text(dtype, where) not in DTYPE_BYTES:
        raise _Malformed(f"{where}: unknown dtype {_short(dtype)}")
    if device not in ("cuda", "cpu"):
        raise _Malformed(f"{where}: unknown device {_short(device)}")
    sizes = _ints(shape, where)
    steps = None if strides is None else _ints(strides, where)
    if steps is not None and len(steps) != len(sizes):
        raise _Malformed(f"{where}: {len(sizes)} dimensions but {len(steps)} strides")
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
        raise _Malformed(f"{where}: attribute {_short(name)} has a value of an unknown type")
    if isinstance(value, list) and any(isinstance(v, str) for v in value):
        raise _Malformed(f"{where}: attribute {_short(name)} is a list of texts")
    return name, tuple(value) if isinstance(value, list) else value


def _kernel(row: Any, where: str) -> Kernel:
    name, seconds, grid, block, registers, shared, stream = _row(row, 7, where)
    return Kernel(
        name=_text(name, where),
        seconds=_seconds(seconds, where),
        grid=None if grid is None else _triple(grid, where),
        block=None if block is None else _triple(block, where),
        registers=None if registers is None else _int(registers, where),
        shared_bytes=None if shared is None else _int(shared, where),
        stream=_int(stream, where),
    )


def _object(value: Any, where: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict) or set(value) != set(names):
        raise _Malformed(f"{where} should have exactly the fields {', '.join(names)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise _Malformed(f"{where} should be a list")
    return value


def _row(value: Any, length: int, where: str) -> list[Any]:
    if len(_list(value, where)) != length:
        raise _Malformed(f"{where} should have {length} items, not {len(value)}")
    return list(value)


def _column(value: Any, where: str, length: int) -> list[Any]:
    return _row(value, length, where)


def _dense(value: Any, where: str, length: int, read: Callable[[Any, str], Any]) -> dict[int, Any]:
    rows = [_row(pair, 2, where) for pair in _list(value, where)]
    return {_int(i, where, high=length - 1): read(v, where) for i, v in rows}


def _int(value: Any, where: str, low: int = 0, high: int = 1 << 62) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _Malformed(f"{where}: {_short(value)} is not a whole number from {low} to {high}")
    return value


def _ints(value: Any, where: str) -> tuple[int, ...]:
    return tuple(_int(v, where, high=_LARGEST_DIMENSION) for v in _list(value, where))


def _pair(value: Any) -> tuple[int, int]:
    major, minor = _row(value, 2, "capability")
    return _int(major, "capability", high=99), _int(minor, "capability", high=99)


def _triple(value: Any, where: str) -> tuple[int, int, int]:
    x, y, z = _row(value, 3, where)
    return _int(x, where), _int(y, where), _int(z, where)


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Malformed(f"{where}: {_short(value)} is not a time")
    if not (math.isfinite(value) and value >= 0):
        raise _Malformed(f"{where}: {_short(value)} is not a time in seconds")
    return float(value)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _Malformed(f"{where}: {_short(value)} is not a text")
    return value


def _pick(table: Sequence[T], index: Any, where: str) -> T:
    return table[_int(index, where, high=len(table) - 1)]
