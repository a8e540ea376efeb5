"""Several measurements of one step, joined: kernels from one, counters or memory from another.

Measuring tools disturb each other. So TBD samples a run several times, each time with another tool,
and merges the results (Zhu et al., IISWC 2018, section III-D).
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from wavecast.errors import InvalidInput
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


# A trace at a larger batch, from the traces of two smaller ones.
#
# The calls of most steps are the same at every batch, and their sizes are lines in the batch: `a +
# b n`, with neither below zero. Where two traces agree in everything else, a third one follows
# from them exactly, in a fraction of the time. Where they do not, the step is traced.


_INDEXED_BY_32_BITS = 1 << 31
"""Kernels treat tensors of more elements otherwise, and libraries cut them into parts."""
FEWEST = 2
"""The smallest batch that others follow from: a single sample has no order in memory, and code
often treats it otherwise."""
_REPLACED = ("bitsandbytes.gemm_4bit",)
"""Ops for a few rows, in whose place others run where there are more."""
T = TypeVar("T")


class _Unlike(Exception):
    """The traces differ in more than sizes."""


def at_batch(small: Trace, large: Trace, batches: tuple[int, int], batch: int) -> Trace | None:
    """The trace at a batch, from those at two smaller ones; None if it does not follow from them.

    Args:
        small: the trace at the smaller batch.
        large: the trace at the larger batch.
        batches: their batches.
        batch: the batch to predict, larger than both.
    """
    if min(batches) < FEWEST or small.measurement is not None:
        return None
    if any(call.graph is not None or call.op.base in _REPLACED for call in large):
        return None
    try:
        return _SizeLine(*batches, batch).trace(small, large)
    except _Unlike:
        return None


@dataclass
class _SizeLine:
    """The line through the sizes at two batches."""

    first: int
    second: int
    batch: int

    def __post_init__(self) -> None:
        self._ops: dict[tuple[Op, Op], Op] = {}
        self._specs: dict[tuple[TensorSpec, TensorSpec], TensorSpec] = {}

    def trace(self, small: Trace, large: Trace) -> Trace:
        """The trace at the batch."""
        alike = ("framework", "capability", "unit", "asks_capability", "notes")
        _same([getattr(small, name) for name in alike], [getattr(large, name) for name in alike])
        samples = None
        if small.samples is not None and large.samples is not None:
            samples = self._whole(small.samples, large.samples)
        return replace(
            large,
            samples=samples,
            calls=tuple(_pairs(small.calls, large.calls, self._call)),
            allocations=tuple(_pairs(small.allocations, large.allocations, self._allocation)),
            values=tuple(_pairs(small.values, large.values, self._value)),
        )

    def _whole(self, small: int, large: int) -> int:
        if small == large:
            return small
        if large < small or large * self.first > small * self.second:
            raise _Unlike  # no line through a point at or above zero: a product of two batches
        more, rest = divmod((large - small) * (self.batch - self.first), self.second - self.first)
        if rest:
            raise _Unlike
        return small + more

    def _call(self, small: Call, large: Call) -> Call:
        key = small.op, large.op
        if key not in self._ops:
            self._ops[key] = self._op(*key)
        grown = replace(large, op=self._ops[key])
        _same(replace(small, op=grown.op), grown)
        return grown

    def _op(self, small: Op, large: Op) -> Op:
        _same(small.name, large.name)
        spec, value = self._spec, self._attribute
        return Op(
            large.name,
            tuple(_pairs(small.inputs, large.inputs, spec)),
            tuple(_pairs(small.outputs, large.outputs, spec)),
            tuple(_pairs(small.attrs, large.attrs, value)),
        )

    def _attribute(
        self, small: tuple[str, Scalar], large: tuple[str, Scalar]
    ) -> tuple[str, Scalar]:
        if small == large:
            return large
        _same(small[0], large[0])
        return large[0], self._scalar(small[1], large[1])

    def _scalar(self, small: Scalar, large: Scalar) -> Any:
        if isinstance(small, tuple) and isinstance(large, tuple):
            return tuple(_pairs(small, large, self._scalar))
        if type(small) is type(large) is int:
            return self._whole(small, large)
        _same(small, large)
        return large

    def _spec(self, small: TensorSpec, large: TensorSpec) -> TensorSpec:
        if small == large:
            return large
        key = small, large
        if key not in self._specs:
            self._specs[key] = self._grown(small, large)
        return self._specs[key]

    def _grown(self, small: TensorSpec, large: TensorSpec) -> TensorSpec:
        shape = tuple(_pairs(small.shape, large.shape, self._whole))
        _same(small.strides is None, large.strides is None)
        strides = tuple(_pairs(small.strides or (), large.strides or (), self._whole)) or None
        grown = replace(large, shape=shape, strides=strides)
        _same(replace(small, shape=shape, strides=strides), grown)
        if grown.numel >= _INDEXED_BY_32_BITS > large.numel:
            raise _Unlike
        return grown

    def _allocation(self, small: Allocation, large: Allocation) -> Allocation:
        grown = replace(large, nbytes=self._whole(small.nbytes, large.nbytes))
        _same(replace(small, nbytes=grown.nbytes), grown)
        return grown

    def _value(self, small: Value, large: Value) -> Value:
        grown = replace(large, spec=self._spec(small.spec, large.spec))
        _same(replace(small, spec=grown.spec), grown)
        return grown


def _pairs(small: Sequence[T], large: Sequence[T], grown: Callable[[T, T], Any]) -> list[Any]:
    if len(small) != len(large):
        raise _Unlike
    return [grown(low, high) for low, high in zip(small, large, strict=True)]


def _same(small: object, large: object) -> None:
    if small != large:
        raise _Unlike
