"""A trace as arrays, which are made once and used by the predictions for all GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wavecast.results import Brief
from wavecast.traces.step import Call, Op, Phase, Trace

Codes = NDArray[np.int64]
"""An array of positions in a list of distinct values."""


@dataclass(frozen=True, eq=False, repr=False)
class StepArrays(Brief):
    """The calls of a step as columns, and the distinct pieces of work among them.

    A piece of work is a distinct op; in a measured trace, where no two calls took the same time, it
    is one call.
    """

    calls: tuple[Call, ...]
    works: tuple[Call, ...]
    """One call for each distinct piece of work."""
    counts: Codes
    names: tuple[str, ...]
    name: Codes
    """The op name of each piece of work, as a position in `names`."""
    work: Codes
    """The piece of work of each call, as a position in `works`."""
    phase: Codes
    """The phase of each call, as a position in `Phase`."""
    stream: Codes
    syncs: tuple[int, ...]
    """The positions of the calls after which the host waits for the GPU."""


def arrays_of(trace: Trace) -> StepArrays:
    """The arrays of a trace. Use `Trace.arrays`, which caches them."""
    works, work = _works(trace)
    phases = {phase: position for position, phase in enumerate(Phase)}
    names, name = encode([call.op.base for call in works])
    return StepArrays(
        calls=trace.calls,
        works=works,
        counts=np.bincount(work, minlength=len(works)),
        names=names,
        name=name,
        work=work,
        phase=np.array([phases[call.phase] for call in trace], dtype=np.int64),
        stream=np.array([call.stream for call in trace], dtype=np.int64),
        syncs=tuple(i for i, call in enumerate(trace) if call.syncs),
    )


def _works(trace: Trace) -> tuple[tuple[Call, ...], Codes]:
    """The distinct pieces of work, and the position of each call's work among them."""
    if trace.measurement is not None:
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
    """The distinct module paths, cut after `depth` names, and the position of each call's."""
    paths = [call.module.split(".")[:depth] for call in arrays.calls]
    return encode([".".join(path) or "(no module)" for path in paths])


def encode(values: Sequence[str]) -> tuple[tuple[str, ...], Codes]:
    """The distinct values, and the position of each value among them."""
    positions: dict[str, int] = {}
    codes = [positions.setdefault(value, len(positions)) for value in values]
    return tuple(positions), np.array(codes, dtype=np.int64)
