"""Encode many traces as one set of columns.

The traces of a campaign repeat the same tensors, ops, launches, modules and kernel names. Each
distinct one becomes a row of a table, numbered in order of first use, and everything else becomes
columns of small integers. Nothing is lost: `lab.measured.packed_traces` restores every trace to the
last digit of its times.

Columns have dotted names, TABLE.FIELD. None is written as -1 in columns of whole numbers and as
NaN in columns of floats. `measurements/README.md` lists the columns.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lab.measured.exact_times import ExactTimes, compress
from wavecast.traces.encoding import DistinctItems, encode_values
from wavecast.traces.step import (
    Call,
    Kernel,
    Op,
    Phase,
    Role,
    TensorSpec,
    Trace,
)

Column = NDArray[Any]
PHASES, ROLES = tuple(Phase), tuple(Role)
TIMES = ("call.host", "kernel.duration", "kernel.start")
_TEXTS = ("module", "kernel", "name", "dtype", "attrs")
DIFFERENCES = ("kernel.start", "allocation.born")
"""Columns that hold the difference to the previous row."""
_FLOATS = ("launch.flops", "launch.dram_bytes", *(f"{name}_odd_s" for name in TIMES))
_FIELDS = {
    "tensor": "dtype cpu rank shape strided strides",
    "op": "name inputs outputs tensors attrs",
    "launch": "kernel grid block registers shared_bytes stream flops dram_bytes",
    "call": "op phase module stream syncs kernels host_known",
    "kernel": "launch duration_known start_known",
    "allocation": "nbytes born lifetime role module",
}
_COLUMNS = tuple(f"{table}.{name}" for table, names in _FIELDS.items() for name in names.split())
"""All columns but those of times."""


class Tables(NamedTuple):
    """The columns of a campaign, its texts by table, and the data of each trace as a whole."""

    columns: Mapping[str, Column]
    texts: Mapping[str, Sequence[str]]
    heads: Sequence[Mapping[str, Any]]


class _Writer:
    """Collects the rows of all tables, trace by trace."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.times: dict[str, list[ExactTimes]] = {name: [] for name in TIMES}
        # Distinct values, numbered in order of first use.
        self.numbers: defaultdict[str, dict[Any, int]] = defaultdict(dict)

    def add(self, table: str, **fields: Any) -> None:
        for name, value in fields.items():
            self.rows[f"{table}.{name}"].append(value)

    def extend(self, column: str, values: Iterable[Any]) -> None:
        self.rows[column].extend(values)

    def number(self, table: str, value: Hashable, add: Callable[[], None] | None = None) -> int:
        """The number of a value; for a value not seen before, `add` writes its row."""
        numbers = self.numbers[table]
        if add is not None and value not in numbers:
            add()
        return numbers.setdefault(value, len(numbers))

    def add_trace(self, trace: Trace) -> dict[str, Any]:
        """Write the rows of a trace. Returns the data of the trace as a whole."""
        for call in trace.calls:
            self._add_call(call)
        for allocation in trace.allocations:
            born, freed = _or_minus_one(allocation.born), _or_minus_one(allocation.freed)
            self.add(
                "allocation",
                nbytes=allocation.nbytes,
                born=born,
                lifetime=freed - born,
                role=ROLES.index(allocation.role),
                module=self.number("module", allocation.module),
            )
        kernels = [kernel for call in trace.calls for kernel in call.kernels]
        fields = {field.name: getattr(trace, field.name) for field in dataclasses.fields(trace)}
        del fields["values"]
        if not trace.asks_capability:  # campaigns that were packed before do not have it
            del fields["asks_capability"]
        return (
            fields
            | _recorded_since(trace)
            | {
                "calls": len(trace.calls),
                "allocations": len(trace.allocations),
                "measurement": trace.measurement and dataclasses.asdict(trace.measurement),
                "times": {
                    "call.host": self._add_times("call.host", [c.host_s for c in trace.calls]),
                    "kernel.duration": self._add_times(
                        "kernel.duration", [k.seconds for k in kernels]
                    ),
                    "kernel.start": self._add_times("kernel.start", [k.start_s for k in kernels]),
                },
            }
        )

    def _add_call(self, call: Call) -> None:
        self.add(
            "call",
            # Ops with attributes 0 and 0.0 are equal; the repr tells them apart.
            op=self.number("op", (call.op, repr(call.op.attrs)), partial(self._add_op, call.op)),
            phase=PHASES.index(call.phase),
            module=self.number("module", call.module),
            stream=call.stream,
            syncs=call.syncs,
            kernels=len(call.kernels),
        )
        for kernel in call.kernels:
            launch = dataclasses.replace(kernel, seconds=0.0, start_s=None)
            add = partial(self._add_launch, launch)
            self.add("kernel", launch=self.number("launch", launch, add))

    def _add_op(self, op: Op) -> None:
        pairs = [[name, list(v) if isinstance(v, tuple) else v] for name, v in op.attrs]
        text = json.dumps(pairs, separators=(",", ":"), allow_nan=False)
        self.add(
            "op",
            name=self.number("name", op.name),
            inputs=len(op.inputs),
            outputs=len(op.outputs),
            attrs=self.number("attrs", text),
        )
        for tensor in (*op.inputs, *op.outputs):
            number = self.number("tensor", tensor, partial(self._add_tensor, tensor))
            self.add("op", tensors=number)

    def _add_tensor(self, tensor: TensorSpec) -> None:
        self.add(
            "tensor",
            dtype=self.number("dtype", tensor.dtype),
            cpu=tensor.device == "cpu",
            rank=len(tensor.shape),
            strided=tensor.strides is not None,
        )
        self.extend("tensor.shape", tensor.shape)
        self.extend("tensor.strides", tensor.strides or ())

    def _add_launch(self, kernel: Kernel) -> None:
        self.add(
            "launch",
            kernel=self.number("kernel", kernel.name),
            grid=kernel.grid or (-1, -1, -1),
            block=kernel.block or (-1, -1, -1),
            registers=_or_minus_one(kernel.registers),
            shared_bytes=_or_minus_one(kernel.shared_bytes),
            stream=kernel.stream,
            flops=np.nan if kernel.flops is None else kernel.flops,
            dram_bytes=np.nan if kernel.dram_bytes is None else kernel.dram_bytes,
        )

    def _add_times(self, name: str, seconds: Sequence[float | None]) -> list[Any]:
        """Write one column of times. Returns its unit, its factor and the number of odd floats."""
        known = np.array([value is not None for value in seconds], dtype=bool)
        times = compress(np.array([value for value in seconds if value is not None], np.float64))
        self.extend(f"{name}_known", known)
        self.times[name].append(times)
        return [times.unit, times.factor, len(times.odd_values)]

    def tables(self, heads: Sequence[Mapping[str, Any]]) -> Tables:
        """The tables of everything that was added."""
        rows: dict[str, Sequence[Any]] = dict(self.rows)
        for name, traces in self.times.items():
            rows[name] = [number for times in traces for number in times.numbers.tolist()]
            rows[f"{name}_odd_at"] = [at for times in traces for at in times.odd_positions.tolist()]
            rows[f"{name}_odd_s"] = [value for times in traces for value in times.odd_values]
        columns = {n: np.array(row, float if n in _FLOATS else int) for n, row in rows.items()}
        for name in DIFFERENCES:
            columns[name] = np.diff(columns[name], prepend=0)
        return Tables(
            {name: _narrowed(column) for name, column in sorted(columns.items())},
            {name: list(self.numbers[name]) for name in _TEXTS},
            heads,
        )


def encode(traces: Mapping[str, Trace]) -> Tables:
    """The tables of some traces."""
    writer = _Writer()
    return writer.tables([{"key": key, **writer.add_trace(trace)} for key, trace in traces.items()])


def _recorded_since(trace: Trace) -> dict[str, Any]:
    """What traces have had since values were recorded, without what this one does not have."""
    names = DistinctItems()
    columns = {
        "lines": [names.add(call.line) for call in trace] if any(c.line for c in trace) else [],
        "graphs": [c.graph for c in trace] if any(c.graph is not None for c in trace) else [],
        "values": encode_values(trace, names) if trace.values else [],
    }
    known = {name: column for name, column in columns.items() if column}
    return known | {"names": list(names)} if known else {}


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value


def _narrowed(column: Column) -> Column:
    """The column in the smallest type that holds it."""
    if column.dtype.kind != "i" or not column.size:
        return column
    least, most = int(column.min()), int(column.max())
    types = (np.uint8, np.uint16, np.uint32) if least >= 0 else (np.int8, np.int16, np.int32)
    for kind in types:
        if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max:
            return column.astype(kind)
    return column
