"""Several measurements of one step, joined: kernels from one, counters or memory from another.

Measuring tools disturb each other. So TBD samples a run several times, each time with another tool,
and merges the results (Zhu et al., IISWC 2018, section III-D).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wavecast.errors import InvalidInput
from wavecast.traces.step import Kernel, Measurement, Trace

SAME = 0.9
"""The share of kernels that two measurements of the same step must have in common."""


def join(traces: Sequence[Trace]) -> Trace:
    """One measured trace made of several: the first, completed from the others.

    The times of the whole step are medians of the known ones. Counters go to kernels of the same
    name and launch. Memory and samples come from the first trace that has them.

    Raises:
        InvalidInput: a trace was not measured, or on another GPU, or ran other kernels.
    """
    if not traces:
        raise InvalidInput("there is nothing to join; give at least one measured trace")
    first, *others = traces
    for other in others:
        _refuse_another_step(first, other)
    with_samples = next((trace for trace in traces if trace.samples), first)
    counted = {key: counts for trace in reversed(traces) for key, counts in _counters(trace)}
    return replace(
        with_counters(first, counted),
        allocations=next((trace.allocations for trace in traces if trace.allocations), ()),
        samples=with_samples.samples,
        unit=with_samples.unit,
        notes=tuple(dict.fromkeys(note for trace in traces for note in trace.notes)),
        measurement=_joined([_measurement(trace) for trace in traces]),
    )


def _measurement(trace: Trace) -> Measurement:
    if trace.measurement is None:
        raise InvalidInput("only measured traces can be joined; this one was traced without a GPU")
    return trace.measurement


def _refuse_another_step(first: Trace, other: Trace) -> None:
    gpus = _measurement(first).gpu, _measurement(other).gpu
    if gpus[0] != gpus[1]:
        raise InvalidInput(
            f"these traces are of two GPUs, {gpus[0]} and {gpus[1]}; join those of one GPU"
        )
    names = [Counter(k.name for call in trace for k in call.kernels) for trace in (first, other)]
    common, most = (names[0] & names[1]).total(), max(map(Counter.total, names))
    if common < SAME * most:
        raise InvalidInput(
            f"these traces are not of the same step: they share {common} of {most} kernels; "
            "measure the same model, batch and precision"
        )


def _counters(trace: Trace) -> Iterable[tuple[KernelKey, Counted]]:
    """The counts of every kernel that has them."""
    for call in trace:
        for kernel in call.kernels:
            key = key_of(kernel)
            if key and kernel.flops is not None and kernel.dram_bytes is not None:
                yield key, Counted(kernel.flops, kernel.dram_bytes)


def _joined(measurements: Sequence[Measurement]) -> Measurement:
    """One measurement with the medians of the times."""

    def median(name: str) -> float | None:
        values = [getattr(measurement, name) for measurement in measurements]
        times = [value for value in values if value is not None]
        return statistics.median(times) if times else None

    return replace(
        measurements[0],
        seconds=median("seconds"),
        gpu_s=median("gpu_s"),
        host_s=median("host_s"),
        cpu_s=median("cpu_s"),
        cores=next((m.cores for m in measurements if m.cores), None),
        repeats=sum(m.repeats for m in measurements),
    )


# FLOPs and memory traffic that the hardware counted, added to the kernels of a trace.


KernelKey = tuple[str, int, int]
"""A kernel's name, its number of blocks, and the threads of one block (Habitat, section 4.2)."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The hardware's counts for one run of a kernel."""

    flops: float
    dram_bytes: float
    """The bytes that it read from and wrote to GPU memory."""


def key_of(kernel: Kernel) -> KernelKey | None:
    """The key of a kernel's counts; None for copies and fills, which have no launch."""
    if kernel.blocks is None or kernel.threads is None:
        return None
    return kernel.name, kernel.blocks, kernel.threads


def with_counters(trace: Trace, counted: Mapping[KernelKey, Counted]) -> Trace:
    """The trace with FLOPs and bytes on every kernel that `counted` has counts for."""

    def filled(kernel: Kernel) -> Kernel:
        key = key_of(kernel)
        counts = counted.get(key) if key else None
        if counts is None:
            return kernel
        return replace(kernel, flops=counts.flops, dram_bytes=counts.dram_bytes)

    calls = tuple(replace(call, kernels=tuple(map(filled, call.kernels))) for call in trace)
    return replace(trace, calls=calls)
