"""Tracing without a GPU: one step for one GPU, for several families of GPUs, or at many batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from wavecast.errors import needing_extra
from wavecast.footprint.largest_batch import LargestBatch, largest_batch
from wavecast.hardware.contexts import context_bytes
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.hardware.families import family
from wavecast.traces.step import Trace

Family = tuple[int, int]


def trace(
    make_step: Callable[[], Callable[[], Any]],
    *,
    gpu: Device | str | None = None,
    capability: tuple[int, int] | None = None,
    samples: int | None = None,
    unit: str = "samples",
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """The trace of one training step: no GPU, no arithmetic, no weights in memory.

    Args:
        make_step: builds model, optimizer and inputs as for CUDA, and returns the function that
            runs one training step.
        gpu: the GPU for which kernels are chosen; a recent data-centre GPU if not given. It
            matters for attention, of which older GPUs have other kernels.
        capability: the same by compute capability alone.
        samples: how many samples (or other `unit`) one step consumes, for throughput.
        unit: what `samples` counts.
        progress: called now and then with the number of ops traced so far.
    """
    with needing_extra("tracing"):
        from wavecast.frameworks.pytorch.capture import capture
    target = device(gpu) if isinstance(gpu, str) else gpu
    return capture(
        make_step,
        capability=capability if target is None else family(target),
        samples=samples,
        unit=unit,
        progress=progress,
    )


class FamilyTraces:
    """The traces of one step for several families of GPUs, each made when first asked for.

    GPUs of different families choose different kernels for attention. A step without attention is
    traced once for all of them.
    """

    def __init__(self, trace_for: Callable[[Family], Trace]) -> None:
        self._trace_for = trace_for
        self._traces: dict[Family, Trace] = {}

    def on(self, gpu: Device) -> Trace:
        """The trace of the step as a GPU runs it."""
        wanted = family(gpu)
        if wanted not in self._traces:
            first = next(iter(self._traces.values()), None)
            same = first is not None and not depends_on_family(first)
            self._traces[wanted] = first if first and same else self._trace_for(wanted)
        return self._traces[wanted]


def depends_on_family(trace: Trace) -> bool:
    """Whether a step has attention, whose kernels depend on the family of the GPU."""
    # `_safe_softmax` is what attention is made of where a GPU has no kernel for it.
    return any("attention" in op.name or op.base == "aten._safe_softmax" for op in trace.counts)


def max_batch(
    make_step_of_batch: Callable[[int], Callable[[], Any]],
    gpu: Device | str,
    *,
    limit_bytes: int | None = None,
    start: int = 8,
    expandable_segments: bool = False,
) -> LargestBatch:
    """The largest batch whose training step fits on a GPU.

    Args:
        make_step_of_batch: builds model, optimizer and inputs for so many samples, as for CUDA,
            and returns the function that runs one step.
        gpu: where it should run.
        limit_bytes: what the allocator may reserve; all of the GPU's memory but the context and
            the libraries if not given.
        start: a batch that is likely to fit, to begin with.
        expandable_segments: as torch's allocator has it with `expandable_segments:True`.
    """
    target = device(gpu) if isinstance(gpu, str) else gpu

    @cache
    def traced(batch: int) -> Trace:
        return trace(lambda: make_step_of_batch(batch), gpu=target)

    if limit_bytes is None:
        beside = context_bytes(traced(start), target) or 0
        limit_bytes = target.memory_bytes - beside
    return largest_batch(traced, target, limit_bytes, start=start, expandable=expandable_segments)
