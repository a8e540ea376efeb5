"""Decode traces from the columns that `lab.measured.packed_traces` makes of them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wavecast.traces.encoding import DistinctItems, decode_values, encode_values
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
    Value,
)

T = TypeVar("T")


class PackedTraces(Mapping[str, Trace]):
    """The traces of a campaign by key. Each is decoded on access and not kept."""

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
        called, values = _with_values(list(self._calls(key, calls, kernels)), head)
        return Trace(
            calls=called,
            allocations=tuple(self._allocations(allocations)),
            framework=head["framework"],
            capability=capability and (capability[0], capability[1]),
            samples=head["samples"],
            unit=head["unit"],
            notes=tuple(head["notes"]),
            asks_capability=bool(head.get("asks_capability", False)),
            measurement=measurement and Measurement(**measurement),
            values=values,
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
        """The columns of calls, kernels and allocations, with differences summed up again."""
        tables = ("call.", "kernel.", "allocation.")
        names = [n for n in self._columns if n.startswith(tables) and not n.endswith("_odd_s")]
        rows = {name: self._column(name) for name in names}
        return {n: np.cumsum(row) if n in DIFFERENCES else row for n, row in rows.items()}

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
        """The arguments of `Kernel` in its order, without the two times."""
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
        """For each column of times, the rows of each trace among its integers and odd floats."""
        spans: dict[str, dict[str, tuple[slice, slice]]] = {}
        for name in TIMES:
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
                phase=PHASES[phase],
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
            yield Allocation(nbytes, _or_none(born), freed, ROLES[role], modules[module])


def _with_values(
    calls: list[Call], head: Mapping[str, Any]
) -> tuple[tuple[Call, ...], tuple[Value, ...]]:
    """The calls with their lines, graphs and values, and the values, where these were recorded."""
    names = head.get("names", ())
    values: tuple[Value, ...] = ()
    for name, column in (
        ("line", [names[i] for i in head.get("lines", ())]),
        ("graph", head.get("graphs")),
    ):
        if column:
            calls = [
                replace(call, **{name: item}) for call, item in zip(calls, column, strict=True)
            ]
    if "values" in head:
        ops = [call.op for call in calls]
        uses, values = decode_values(head["values"], ops, head["allocations"], names)
        calls = [
            replace(call, reads=reads, writes=writes)
            for call, (reads, writes) in zip(calls, uses, strict=True)
        ]
    return tuple(calls), values


def _attributes(text: str) -> tuple[tuple[str, Scalar], ...]:
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in json.loads(text))


def _take(values: Iterator[T], count: int) -> tuple[T, ...]:
    return tuple(islice(values, count))


def _or_none(value: int) -> int | None:
    return None if value < 0 else value


# Encode many traces as one set of columns.
#
# The traces of a campaign repeat the same tensors, ops, launches, modules and kernel names. Each
# distinct one becomes a row of a table, numbered in order of first use, and everything else
# becomes columns of small integers. Nothing is lost: `lab.measured.packed_traces` restores every
# trace to the last digit of its times.
#
# Columns have dotted names, TABLE.FIELD. None is written as -1 in columns of whole numbers and as
# NaN in columns of floats. `measurements/README.md` lists the columns.


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


# Store times in seconds as integers from which exactly the same floats are computed again.
#
# Profilers count time in whole units. Durations are in nanoseconds. Time stamps are microseconds
# in a double; at today's dates these are multiples of 2**-11 us. A trace holds the floats that
# were computed from these numbers. As doubles they take seven bytes each even when compressed,
# because their last digits look random. The integers behind them take one or two bytes.
#
# `compress` finds these integers and checks that `expand` returns every float exactly. A float
# that no integer reproduces ("odd") is kept as it is, with its position.


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

UNITS = ("dur", "ns", "ts", "scaled")
"""The units, by how an integer n becomes seconds (`_seconds`):

dur: n / 1000 / 1e6, a duration of n nanoseconds that Kineto wrote in microseconds.
ns: n / 1e9.
ts: n / 2048 / 1e6, the difference of two of Kineto's time stamps.
scaled: n / 2048 * 1e-6 * factor, the host time of an op. One factor for the whole trace
    corrects for the cost of the profiler (`wavecast.frameworks.pytorch.measurement.iteration`).
"""
_NUMBERS_A_SECOND = {"dur": 1e9, "ns": 1e9, "ts": 2048e6, "scaled": 2048e6}
_LARGEST_NUMBER = 1 << 22
"""The largest integer of a reference time in the search for a factor: 2 ms."""
_REFERENCES = 5
_ULPS = 6
"""How many neighbouring doubles are tried on each side of the estimated factor."""


@dataclass(frozen=True, eq=False)
class ExactTimes:
    """The times of one trace as integers in a unit, and the odd floats with their positions."""

    unit: str
    factor: float
    numbers: Integers
    odd_positions: Integers
    odd_values: Floats


def compress(seconds: Floats) -> ExactTimes:
    """The exact form of some times that leaves the fewest floats odd."""
    plain = [_in_unit(seconds, unit, 1.0) for unit in ("dur", "ns", "ts")]
    best = min(plain, key=lambda times: len(times.odd_values))
    if len(best.odd_values) > len(seconds) // 4:
        scaled = (_in_unit(seconds, "scaled", factor) for factor in _factors(seconds))
        best = min((best, *scaled), key=lambda times: len(times.odd_values))
    return best


def expand(times: ExactTimes) -> Floats:
    """The times in seconds, equal to the last digit to those that `compress` was given."""
    seconds = _seconds(times.numbers, times.unit, times.factor)
    seconds[times.odd_positions] = times.odd_values
    return seconds


def _seconds(numbers: Integers, unit: str, factor: float) -> Floats:
    # The order of the operations matters: it decides the last digit.
    if unit == "dur":
        return numbers / 1000 / 1e6
    if unit == "ns":
        return numbers / 1e9
    if unit == "ts":
        return numbers / 2048 / 1e6
    return numbers / 2048 * 1e-6 * factor


def _in_unit(seconds: Floats, unit: str, factor: float) -> ExactTimes:
    numbers = np.rint(seconds * _NUMBERS_A_SECOND[unit] / factor).astype(np.int64)
    (odd,) = np.nonzero(_seconds(numbers, unit, factor) != seconds)
    numbers[odd] = 0
    return ExactTimes(unit, factor, numbers, odd.astype(np.int64), seconds[odd])


def _factors(seconds: Floats) -> list[float]:
    """Candidates for the factor of the unit "scaled".

    The ratio of two times is a ratio of two integers. Take the ratio of a time to a reference time,
    as a fraction in lowest terms: its denominator divides the reference's integer. The least common
    multiple of the denominators over a few times is that integer, which gives the factor. Several
    references are tried, because a reference may be an odd value.
    """
    usable = np.sort(seconds[seconds > 0])
    factors: list[float] = []
    for place in range(1, _REFERENCES + 1):
        if len(usable) < 2 * _REFERENCES:
            break
        reference = float(usable[len(usable) * place // (2 * _REFERENCES)])
        number = _number_of(reference, usable)
        if number is None:
            continue
        estimate = reference * 2048e6 / number
        fits = [_in_unit(seconds, "scaled", factor) for factor in _neighbours(estimate)]
        best = min(fits, key=lambda times: len(times.odd_values))
        factors.append(best.factor)
        if len(best.odd_values) < len(seconds) // 10:
            break
    return factors


def _number_of(reference: float, seconds: Floats) -> int | None:
    """The integer of a reference time, or None when the times share no unit."""
    number = 1
    for value in seconds[:: max(1, len(seconds) // 24)].tolist():
        ratio = Fraction(value / reference).limit_denominator(_LARGEST_NUMBER)
        common = math.lcm(number, ratio.denominator)
        if common <= _LARGEST_NUMBER and abs(float(ratio) * reference / value - 1) < 1e-15:
            number = common
    multiples = seconds / reference * number
    close = np.abs(multiples - np.rint(multiples)) < 1e-4
    return number if close.mean() > 0.75 else None


def _neighbours(value: float) -> list[float]:
    below, above = [value], [value]
    for _ in range(_ULPS):
        below.append(float(np.nextafter(below[-1], 0.0)))
        above.append(float(np.nextafter(above[-1], np.inf)))
    return [*below, *above[1:]]
