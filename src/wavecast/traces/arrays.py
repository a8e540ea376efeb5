"""A trace as arrays, made once and used by the predictions on every GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wavecast.traces.step import Call, Op, Phase, Trace

Codes = NDArray[np.int64]
"""Positions in a list of distinct values."""


@dataclass(frozen=True, eq=False)
class StepArrays:
    """The calls of a step by columns, and the distinct pieces of work among them.

    A piece of work is an op, or in a measured trace one call with the kernels it ran.
    """

    calls: tuple[Call, ...]
    works: tuple[Call, ...]
    """One call for each distinct piece of work."""
    counts: Codes
    """How many calls each piece of work has."""
    names: tuple[str, ...]
    """The distinct names of ops."""
    name: Codes
    """Of each piece of work: the position of its name in `names`."""
    work: Codes
    """Of each call: the position of its piece of work in `works`."""
    phase: Codes
    """Of each call: the position of its phase in `Phase`."""
    syncs: tuple[int, ...]
    """The positions of the calls after which the host waits for the GPU."""


def arrays_of(trace: Trace) -> StepArrays:
    """The arrays of a trace. Use `Trace.arrays`, which keeps them."""
    works, work = _works(trace)
    phases = list(Phase)
    names, name = encode([call.op.base for call in works])
    return StepArrays(
        calls=trace.calls,
        works=works,
        counts=np.bincount(work, minlength=len(works)),
        names=names,
        name=name,
        work=work,
        phase=np.array([phases.index(call.phase) for call in trace]),
        syncs=tuple(i for i, call in enumerate(trace) if call.syncs),
    )


def _works(trace: Trace) -> tuple[tuple[Call, ...], Codes]:
    """The distinct pieces of work, and which one each call is."""
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
def modules_of(arrays: StepArrays, depth: int) -> tuple[tuple[str, ...], Codes]:
    """The distinct modules, `depth` names deep, and the position of each call's module."""
    paths = [call.module.split(".")[:depth] for call in arrays.calls]
    return encode([".".join(path) or "(no module)" for path in paths])


def encode(values: Sequence[str]) -> tuple[tuple[str, ...], Codes]:
    """The distinct values, and the position of each value among them."""
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    return tuple(known), codes
