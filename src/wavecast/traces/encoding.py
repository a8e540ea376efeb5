"""Traces as JSON: tables of distinct tensors, ops, modules and launches, and columns of indices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from wavecast.traces.columns import DistinctItems, differences, marks
from wavecast.traces.step import Kernel, Phase, Role, Trace
from wavecast.traces.value_columns import encode_values

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
