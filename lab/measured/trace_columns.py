"""Many traces as one set of columns, and back.

The traces of a campaign repeat the same tensors, ops, launches, modules and kernel names over and
over. Here each distinct one is a row of a table, numbered in order of first use, and everything
else is columns of small integers. `encode` and `decode` are exact: a decoded trace equals the one
that was given, to the last digit of every time.

Columns have dotted names, TABLE.FIELD. None is written as -1 in columns of whole numbers and as
NaN in columns of floats. `measurements/README.md` lists the columns.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from lab.measured.exact_times import ExactTimes, compress, expand
from wavecast.traces.step import (
    Allocation,
    Call,
    Kernel,
    Measurement,
    Op,
    Phase,
    Role,
    Scalar,
    TensorSpec,
    Trace,
)

Column = NDArray[Any]
T = TypeVar("T")
_PHASES, _ROLES = tuple(Phase), tuple(Role)
_TIMES = ("call.host", "kernel.duration", "kernel.start")
_TEXTS = ("module", "kernel", "name", "dtype", "attrs")
_DIFFERENCES = ("kernel.start", "allocation.born")
"""Columns that hold the difference to the row before."""
_FLOATS = ("launch.flops", "launch.dram_bytes", *(f"{name}_odd_s" for name in _TIMES))
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
    """The columns of a campaign, its texts by table, and what is known of each trace."""

    columns: Mapping[str, Column]
    texts: Mapping[str, Sequence[str]]
    heads: Sequence[Mapping[str, Any]]


class _Writer:
    """Collects the rows of all tables, trace by trace."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
        self.times: dict[str, list[ExactTimes]] = {name: [] for name in _TIMES}
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
        """Write the rows of a trace; gives what is known of the trace as a whole."""
        for call in trace.calls:
            self._add_call(call)
        for allocation in trace.allocations:
            born, freed = _or_minus_one(allocation.born), _or_minus_one(allocation.freed)
            self.add(
                "allocation",
                nbytes=allocation.nbytes,
                born=born,
                lifetime=freed - born,
                role=_ROLES.index(allocation.role),
                module=self.number("module", allocation.module),
            )
        kernels = [kernel for call in trace.calls for kernel in call.kernels]
        fields = {field.name: getattr(trace, field.name) for field in dataclasses.fields(trace)}
        return fields | {
            "calls": len(trace.calls),
            "allocations": len(trace.allocations),
            "measurement": trace.measurement and dataclasses.asdict(trace.measurement),
            "times": {
                "call.host": self._add_times("call.host", [c.host_s for c in trace.calls]),
                "kernel.duration": self._add_times("kernel.duration", [k.seconds for k in kernels]),
                "kernel.start": self._add_times("kernel.start", [k.start_s for k in kernels]),
            },
        }

    def _add_call(self, call: Call) -> None:
        self.add(
            "call",
            # Ops are equal whose attributes are 0 and 0.0; here they are told apart.
            op=self.number("op", (call.op, repr(call.op.attrs)), partial(self._add_op, call.op)),
            phase=_PHASES.index(call.phase),
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
        """Write one column of times; gives its unit, its factor and how many floats are odd."""
        known = np.array([value is not None for value in seconds], dtype=bool)
        times = compress(np.array([value for value in seconds if value is not None], np.float64))
        self.extend(f"{name}_known", known)
        self.times[name].append(times)
        return [times.unit, times.factor, len(times.odd_values)]

    def tables(self, heads: Sequence[Mapping[str, Any]]) -> Tables:
        """All that was added."""
        rows: dict[str, Sequence[Any]] = dict(self.rows)
        for name, traces in self.times.items():
            rows[name] = [number for times in traces for number in times.numbers.tolist()]
            rows[f"{name}_odd_at"] = [at for times in traces for at in times.odd_positions.tolist()]
            rows[f"{name}_odd_s"] = [value for times in traces for value in times.odd_values]
        columns = {n: np.array(row, float if n in _FLOATS else int) for n, row in rows.items()}
        for name in _DIFFERENCES:
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


class EncodedTraces(Mapping[str, Trace]):
    """The traces of a campaign by key. Each is made when it is asked for, and not kept."""

    def __init__(self, tables: Tables) -> None:
        self._columns, self._texts, heads = tables
        self._heads = {str(head["key"]): head for head in heads}

    def __len__(self) -> int:
        return len(self._heads)

    def __iter__(self) -> Iterator[str]:
        return iter(self._heads)

    def __contains__(self, key: object) -> bool:
        return key in self._heads

    def __getitem__(self, key: str) -> Trace:
        head, (calls, kernels, allocations) = self._heads[key], self._spans[key]
        capability, measurement = head["capability"], head["measurement"]
        return Trace(
            calls=tuple(self._calls(key, calls, kernels)),
            allocations=tuple(self._allocations(allocations)),
            framework=head["framework"],
            capability=capability and (capability[0], capability[1]),
            samples=head["samples"],
            unit=head["unit"],
            notes=tuple(head["notes"]),
            measurement=measurement and Measurement(**measurement),
        )

    @cached_property
    def _spans(self) -> dict[str, tuple[slice, slice, slice]]:
        """The rows of each trace among all calls, kernels and allocations."""
        kernels_before = np.concatenate(([0], np.cumsum(self._column("call.kernels"))))
        spans, call, allocation = {}, 0, 0
        for key, head in self._heads.items():
            calls = slice(call, call + head["calls"])
            kernels = slice(int(kernels_before[calls.start]), int(kernels_before[calls.stop]))
            spans[key] = calls, kernels, slice(allocation, allocation + head["allocations"])
            call, allocation = calls.stop, allocation + head["allocations"]
        return spans

    def _column(self, name: str) -> NDArray[np.int64]:
        return self._columns[name].astype(np.int64)

    @cached_property
    def _rows(self) -> dict[str, NDArray[np.int64]]:
        """The columns of calls, kernels and allocations as they are read."""
        tables = ("call.", "kernel.", "allocation.")
        names = [n for n in self._columns if n.startswith(tables) and not n.endswith("_odd_s")]
        rows = {name: self._column(name) for name in names}
        return {n: np.cumsum(row) if n in _DIFFERENCES else row for n, row in rows.items()}

    @cached_property
    def _tensors(self) -> list[TensorSpec]:
        names = ("dtype", "cpu", "rank", "strided")
        dtypes, cpu, ranks, strided = (self._column(f"tensor.{n}").tolist() for n in names)
        sizes = iter(self._column("tensor.shape").tolist())
        strides = iter(self._column("tensor.strides").tolist())
        return [
            TensorSpec(
                _take(sizes, ranks[i]),
                self._texts["dtype"][dtypes[i]],
                _take(strides, ranks[i]) if strided[i] else None,
                "cpu" if cpu[i] else "cuda",
            )
            for i in range(len(ranks))
        ]

    @cached_property
    def _ops(self) -> list[Op]:
        names, inputs, outputs, attrs = (
            self._column(f"op.{name}").tolist() for name in ("name", "inputs", "outputs", "attrs")
        )
        pairs = [_attributes(text) for text in self._texts["attrs"]]
        tensors = iter([self._tensors[i] for i in self._column("op.tensors").tolist()])
        return [
            Op(
                self._texts["name"][names[i]],
                _take(tensors, inputs[i]),
                _take(tensors, outputs[i]),
                pairs[attrs[i]],
            )
            for i in range(len(names))
        ]

    @cached_property
    def _launches(self) -> list[tuple[Any, ...]]:
        """The arguments of `Kernel`, in its order, but for the two times."""
        texts = [self._texts["kernel"][i] for i in self._column("launch.kernel").tolist()]
        grids, blocks = (
            [None if row[0] < 0 else tuple(row) for row in self._column(f"launch.{name}").tolist()]
            for name in ("grid", "block")
        )
        registers, shared = (
            list(map(_or_none, self._column(f"launch.{name}").tolist()))
            for name in ("registers", "shared_bytes")
        )
        flops, dram = (
            [
                None if np.isnan(value) else value
                for value in self._columns[f"launch.{name}"].tolist()
            ]
            for name in ("flops", "dram_bytes")
        )
        streams = self._column("launch.stream").tolist()
        columns = (texts, grids, blocks, registers, shared, streams, flops, dram)
        return list(zip(*columns, strict=True))

    @cached_property
    def _time_spans(self) -> dict[str, dict[str, tuple[slice, slice]]]:
        """For each column of times, the rows of each trace among the numbers and the odd ones."""
        spans: dict[str, dict[str, tuple[slice, slice]]] = {}
        for name in _TIMES:
            before = np.concatenate(([0], np.cumsum(self._rows[f"{name}_known"])))
            position = odd = 0
            spans[name] = {}
            for key, head in self._heads.items():
                calls, kernels, _ = self._spans[key]
                rows = calls if name.startswith("call.") else kernels
                count, odds = int(before[rows.stop] - before[rows.start]), head["times"][name][2]
                spans[name][key] = slice(position, position + count), slice(odd, odd + odds)
                position, odd = position + count, odd + odds
        return spans

    def _times(self, key: str, name: str, rows: slice) -> list[float | None]:
        unit, factor, _ = self._heads[key]["times"][name]
        here, odd = self._time_spans[name][key]
        times = ExactTimes(
            unit,
            factor,
            self._rows[name][here],
            self._rows[f"{name}_odd_at"][odd],
            self._columns[f"{name}_odd_s"][odd],
        )
        seconds, known = iter(expand(times).tolist()), self._rows[f"{name}_known"][rows].tolist()
        return [next(seconds) if there else None for there in known]

    def _calls(self, key: str, calls: slice, kernels: slice) -> Iterator[Call]:
        ran = self._kernels(key, kernels)
        names = ("op", "phase", "module", "stream", "syncs", "kernels")
        columns = [self._rows[f"call.{name}"][calls].tolist() for name in names]
        hosts = self._times(key, "call.host", calls)
        for op, phase, module, stream, syncs, count, host_s in zip(*columns, hosts, strict=True):
            yield Call(
                op=self._ops[op],
                phase=_PHASES[phase],
                module=self._texts["module"][module],
                stream=stream,
                syncs=bool(syncs),
                kernels=_take(ran, count),
                host_s=host_s,
            )

    def _kernels(self, key: str, rows: slice) -> Iterator[Kernel]:
        launches = self._rows["kernel.launch"][rows].tolist()
        seconds = self._times(key, "kernel.duration", rows)
        starts = self._times(key, "kernel.start", rows)
        for launch, duration_s, start_s in zip(launches, seconds, starts, strict=True):
            assert duration_s is not None
            name, grid, block, registers, shared, stream, flops, dram = self._launches[launch]
            yield Kernel(
                *(name, duration_s, grid, block, registers, shared, stream, start_s, flops, dram)
            )

    def _allocations(self, rows: slice) -> Iterator[Allocation]:
        names, modules = ("nbytes", "born", "lifetime", "role", "module"), self._texts["module"]
        columns = [self._rows[f"allocation.{name}"][rows].tolist() for name in names]
        for nbytes, born, lifetime, role, module in zip(*columns, strict=True):
            freed = _or_none(born + lifetime)
            yield Allocation(nbytes, _or_none(born), freed, _ROLES[role], modules[module])


def _attributes(text: str) -> tuple[tuple[str, Scalar], ...]:
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in json.loads(text))


def _take(values: Iterator[T], count: int) -> tuple[T, ...]:
    return tuple(islice(values, count))


def _or_minus_one(value: int | None) -> int:
    return -1 if value is None else value


def _or_none(value: int) -> int | None:
    return None if value < 0 else value


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
