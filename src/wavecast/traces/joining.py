"""Several short looks at one step, joined: kernels from one, counters or memory from another.

TBD samples a run several times, each time with another tool, since tools disturb each other, and
merges what they saw (Zhu et al., IISWC 2018, section III-D).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from wavecast.errors import InvalidInput
from wavecast.traces.counters import Counted, KernelKey, key_of, with_counters
from wavecast.traces.step import Measurement, Trace

SAME = 0.9
"""Kernels that two looks must have in common to be of the same step."""


def join(pieces: Sequence[Trace]) -> Trace:
    """One measured trace of several: the first, with what the others know better.

    The times of the whole are medians of those that are known; counters go to kernels of the same
    name and launch; memory and samples are the first ones that are recorded.

    Raises:
        InvalidInput: a trace was not measured, or on another GPU, or ran other kernels.
    """
    if not pieces:
        raise InvalidInput("there is nothing to join")
    first, *others = pieces
    for other in others:
        _refuse_another_step(first, other)
    counting = next((piece for piece in pieces if piece.samples), first)
    counted = {key: each for piece in reversed(pieces) for key, each in _counters(piece)}
    return replace(
        with_counters(first, counted),
        allocations=next((p.allocations for p in pieces if p.allocations), ()),
        samples=counting.samples,
        unit=counting.unit,
        notes=tuple(dict.fromkeys(note for piece in pieces for note in piece.notes)),
        measurement=_whole([_measurement(piece) for piece in pieces]),
    )


def _measurement(piece: Trace) -> Measurement:
    if piece.measurement is None:
        raise InvalidInput("only measured traces can be joined; this one was traced without a GPU")
    return piece.measurement


def _refuse_another_step(first: Trace, other: Trace) -> None:
    gpus = _measurement(first).gpu, _measurement(other).gpu
    if gpus[0] != gpus[1]:
        raise InvalidInput(f"these were measured on two GPUs, {gpus[0]} and {gpus[1]}")
    names = [Counter(k.name for call in piece for k in call.kernels) for piece in (first, other)]
    common, most = (names[0] & names[1]).total(), max(map(Counter.total, names))
    if common < SAME * most:
        raise InvalidInput(
            f"these are not of the same step: {common} kernels in common of {most}; measure the "
            "same model, batch and precision"
        )


def _counters(piece: Trace) -> Iterable[tuple[KernelKey, Counted]]:
    for call in piece:
        for kernel in call.kernels:
            key = key_of(kernel)
            if key and kernel.flops is not None and kernel.dram_bytes is not None:
                yield key, Counted(kernel.flops, kernel.dram_bytes)


def _whole(wholes: Sequence[Measurement]) -> Measurement:
    def middle(name: str) -> float | None:
        known = [value for whole in wholes if (value := getattr(whole, name)) is not None]
        return statistics.median(known) if known else None

    return replace(
        wholes[0],
        seconds=middle("seconds"),
        gpu_s=middle("gpu_s"),
        host_s=middle("host_s"),
        cpu_s=middle("cpu_s"),
        cores=next((whole.cores for whole in wholes if whole.cores), None),
        repeats=sum(whole.repeats for whole in wholes),
    )
