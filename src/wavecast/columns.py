"""A trace as arrays, made once for the predictions on all GPUs."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.trace import Allocation, Call, Op, Phase, Role, Trace

PERSISTENT_ROLES = (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)
"""Memory that training cannot do without, whatever happens to activations."""


@dataclass(frozen=True, eq=False)
class Columns:
    """A trace by columns."""

    calls: tuple[Call, ...]
    works: tuple[Call, ...]
    """A call for each different piece of work: an op, or an op and the kernels it was seen with."""
    launches: tuple[bool, ...]
    """Of each piece of work: whether the GPU has something to run."""
    counts: NDArray[np.int64]
    kind: NDArray[np.int64]
    names: tuple[str, ...]
    name: NDArray[np.int64]
    """Of each piece of work: the position of its name in `names`."""
    work: NDArray[np.int64]
    """Of each call: the position of its piece of work."""
    phase: NDArray[np.int64]
    syncs: tuple[int, ...]
    persistent_bytes: int
    tensor_bytes: int

    @cached_property
    def launched(self) -> tuple[Op, ...]:
        """The op of each piece of work that gives the GPU something to run."""
        return tuple(call.op for call, launches in self.work_items() if launches)

    def work_items(self) -> Iterator[tuple[Call, bool]]:
        """Each piece of work, and whether the GPU has something to run for it."""
        return zip(self.works, self.launches, strict=True)


# By identity: a trace is large, and hashing it costs more than what is kept here saves.
_COLUMNS: dict[int, Columns] = {}


def columns_of(trace: Trace) -> Columns:
    """The columns of a trace, made when first asked for."""
    known = _COLUMNS.get(id(trace))
    if known is None:
        known = _COLUMNS[id(trace)] = _columns(trace)
        weakref.finalize(trace, _COLUMNS.pop, id(trace), None)
    return known


def _columns(trace: Trace) -> Columns:
    works, work = _works(trace)
    phases = list(Phase)
    names, name = codes([call.op.base for call in works])
    return Columns(
        calls=trace.calls,
        works=works,
        launches=tuple(_launches(call, trace.measurement is not None) for call in works),
        counts=np.bincount(work, minlength=len(works)),
        kind=codes([str(ops.kind(call.op)) for call in works])[1],
        names=names,
        name=name,
        work=work,
        phase=np.array([phases.index(call.phase) for call in trace]),
        syncs=tuple(i for i, call in enumerate(trace) if call.syncs),
        persistent_bytes=peak_bytes(a for a in trace.allocations if a.role in PERSISTENT_ROLES),
        tensor_bytes=peak_bytes(a for a in trace.allocations if a.role is not Role.WORKSPACE),
    )


def _launches(call: Call, measured: bool) -> bool:
    return bool(call.kernels) if measured else ops.launches(call.op)


def _works(trace: Trace) -> tuple[tuple[Call, ...], NDArray[np.int64]]:
    """The different pieces of work, and which one each call is."""
    if trace.measurement is not None:  # no two calls took exactly the same time
        return trace.calls, np.arange(len(trace))
    first: dict[Op, int] = {}
    works: list[Call] = []
    work = np.empty(len(trace), dtype=np.int64)
    for position, call in enumerate(trace):
        index = first.setdefault(call.op, len(works))
        if index == len(works):
            works.append(call)
        work[position] = index
    return tuple(works), work


@lru_cache(maxsize=16)
def modules(columns: Columns, depth: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The modules, `depth` names deep, and the position of each call's among them."""
    paths = [call.module.split(".")[:depth] for call in columns.calls]
    return codes([".".join(path) or "(no module)" for path in paths])


def codes(values: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different values, and the position of each value among them."""
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    return tuple(known), codes


def peak_bytes(allocations: Iterable[Allocation]) -> int:
    """The most memory that these take together at any time of the step."""
    changes: dict[int, int] = {}
    for each in allocations:
        born = -1 if each.born is None else each.born
        changes[born] = changes.get(born, 0) + each.nbytes
        if each.freed is not None:
            changes[each.freed] = changes.get(each.freed, 0) - each.nbytes
    return max(accumulate(changes[time] for time in sorted(changes)), default=0)
