"""Decode traces from the columns that `lab.measured.trace_columns` makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lab.measured.exact_times import ExactTimes, expand
from lab.measured.trace_columns import DIFFERENCES, PHASES, ROLES, TIMES, Tables
from wavecast.traces.encoding import decode_values
from wavecast.traces.step import (
    Allocation,
    Call,
    Kernel,
    Measurement,
    Op,
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
