"""Traces made without a GPU: for one GPU, for several GPU families, or at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from wavecast.errors import needing_extra
from wavecast.footprint.largest_batch import LargestBatch, largest_batch
from wavecast.hardware.contexts import context_bytes
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.hardware.families import family, family_of
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
    """The trace of one training step. It needs no GPU, computes nothing and holds no weights.

    Example:
        ```python
        def make_step():
            model = torch.nn.Linear(512, 10).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.randn(64, 512, device="cuda")

            def step():
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()

            return step

        trace = wavecast.trace(make_step, samples=64)
        wavecast.predict(trace, "h100-sxm-80gb").seconds
        ```

    Args:
        make_step: builds model, optimizer and inputs as for CUDA, and returns the function that
            runs one training step.
        gpu: the GPU whose kernels to choose; a recent data-centre GPU if None. It matters only for
            attention, for which older GPUs have other kernels.
        capability: the compute capability of the GPU, instead of `gpu`.
        samples: how many samples (or other `unit`) one step consumes, for throughput.
        unit: what `samples` counts.
        progress: called from time to time with the number of ops traced so far.

    Raises:
        CaptureError: the step cannot be traced. The message names the line of your code.
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
    """The traces of one step for several GPU families, each made when it is first needed.

    GPU families have different kernels for attention. A step without attention is traced once for
    all of them.
    """

    def __init__(self, trace_for: Callable[[Family], Trace]) -> None:
        self._trace_for = trace_for
        self._traces: dict[Family, Trace] = {}

    def on(self, gpu: Device) -> Trace:
        """The trace of the step with the kernels of this GPU's family."""
        wanted = family(gpu)
        if wanted not in self._traces:
            first = next(iter(self._traces.values()), None)
            if first is None or depends_on_family(first):
                self._traces[wanted] = self._trace_for(wanted)
            else:
                self._traces[wanted] = first
        return self._traces[wanted]


def depends_on_family(trace: Trace) -> bool:
    """Whether a step has attention, whose kernels depend on the GPU family."""
    # A GPU without a kernel for attention runs several ops instead, `_safe_softmax` among them.
    return any("attention" in op.name or op.base == "aten._safe_softmax" for op in trace.counts)


def kernels_of_other_families(name: str, trace: Trace, gpus: Sequence[Device]) -> list[str]:
    """A note if a traced step holds attention kernels that some of the GPUs would not choose.

    Args:
        name: what the note calls the trace.
        trace: traced or measured. A measured one gets no note: scaling accounts for the kernels.
        gpus: those that the step is predicted for.
    """
    made_for = trace.capability
    if made_for is None or trace.measurement is not None or not depends_on_family(trace):
        return []
    others = [gpu.id for gpu in gpus if family(gpu) != family_of(made_for)]
    if not others:
        return []
    names = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    return [
        f"{name} holds the attention kernels of compute capability {made_for[0]}.{made_for[1]}, "
        f"but {names} would choose others; predict from the step itself instead of its trace"
    ]


def max_batch(
    make_step_of_batch: Callable[[int], Callable[[], Any]],
    gpu: Device | str,
    *,
    limit_bytes: int | None = None,
    start: int = 8,
    expandable_segments: bool = False,
) -> LargestBatch:
    """The largest batch whose training step fits into a GPU's memory.

    Example:
        ```python
        wavecast.max_batch(make_step_of_batch, "l4").batch  # make_step_of_batch(16) -> step
        ```

    Args:
        make_step_of_batch: builds model, optimizer and inputs for a batch of that many samples, as
            for CUDA, and returns the function that runs one step.
        gpu: the GPU.
        limit_bytes: how much the allocator may reserve. None for the GPU's whole memory without
            the CUDA context and the libraries.
        start: a batch that is likely to fit, where the search begins.
        expandable_segments: whether torch's allocator is set to `expandable_segments:True`.
    """
    target = device(gpu) if isinstance(gpu, str) else gpu

    @cache
    def traced(batch: int) -> Trace:
        return trace(lambda: make_step_of_batch(batch), gpu=target)

    if limit_bytes is None:
        beside = context_bytes(traced(start), target) or 0
        limit_bytes = target.memory_bytes - beside
    return largest_batch(traced, target, limit_bytes, start=start, expandable=expandable_segments)
