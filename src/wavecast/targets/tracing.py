"""Traces made without a GPU: for one GPU, for several GPU families, or at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, overload

from wavecast.errors import InvalidInput
from wavecast.footprint.largest_batch import LargestBatch, largest_batch
from wavecast.footprint.memory import allocatable_bytes, fullest_trace
from wavecast.hardware.contexts import context_bytes
from wavecast.hardware.devices import Device, device
from wavecast.parallel.ranks import communicator_bytes
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.retargeting import FamilyTraces
from wavecast.targets.sources import StepSource, captured
from wavecast.traces.step import Trace


@overload
def trace(
    make_step: Callable[[], Callable[[], Any]],
    *,
    gpu: Device | str | None = None,
    gpus: None = None,
    capability: tuple[int, int] | None = None,
    samples: int | None = None,
    unit: str = "samples",
    progress: Callable[[int], None] | None = None,
    assume: Mapping[str, Any] | None = None,
    ranks: int | None = None,
    rank: int = 0,
    compiled: bool = False,
) -> Trace: ...


@overload
def trace(
    make_step: Callable[[], Callable[[], Any]],
    *,
    gpus: Sequence[Device | str],
    samples: int | None = None,
    unit: str = "samples",
    progress: Callable[[int], None] | None = None,
    assume: Mapping[str, Any] | None = None,
    ranks: int | None = None,
    rank: int = 0,
    compiled: bool = False,
) -> FamilyTraces: ...


def trace(
    make_step: Callable[[], Callable[[], Any]],
    *,
    gpu: Device | str | None = None,
    gpus: Sequence[Device | str] | None = None,
    capability: tuple[int, int] | None = None,
    samples: int | None = None,
    unit: str = "samples",
    progress: Callable[[int], None] | None = None,
    assume: Mapping[str, Any] | None = None,
    ranks: int | None = None,
    rank: int = 0,
    compiled: bool = False,
) -> Trace | FamilyTraces:
    """The trace of one training step. It needs no GPU, computes nothing and holds no weights.

    Example:
        ```python
        trace = wavecast.trace(make_step, samples=64)
        wavecast.predict(trace, "h100-sxm-80gb").seconds
        ```

    Args:
        make_step: builds model, optimizer and inputs as for CUDA, and returns the function that
            runs one training step.
        gpu: the GPU for which to trace; a recent data-centre GPU if None. It matters for attention,
            which has other kernels on older GPUs, and for code that asks for the capability.
        gpus: several GPUs instead. `FamilyTraces` comes back, which `predict` and `memory` take.
            The step is traced again for each family for which no other trace is exact.
        capability: the compute capability of the GPU, instead of `gpu`.
        samples: how many samples (or other `unit`) one step consumes, for throughput.
        unit: what `samples` counts.
        progress: called from time to time with the number of ops traced so far.
        assume: what the step reads from the GPU, by line of code, as in `{"train.py:41": 0.5}`: a
            value, a list of values in order, or the number of rows of a mask's result.
        ranks: for code that starts a process group (DistributedDataParallel, `fully_shard`,
            DTensor, collectives), how many ranks there are. The step runs as one of them, without
            the others, and its collectives are ops of the trace.
        rank: which of the ranks it is.
        compiled: whether to trace the step as if it were compiled: each module that it calls from
            outside of all modules, and that has parameters, as with `torch.compile(module)`. Code
            that the step compiles itself is always compiled.

    Raises:
        CaptureError: the step cannot be traced. The message names the line of your code.
        InvalidInput: `assume` names a line that reads nothing, more than one of `gpu`, `gpus` and
            `capability` was given, or there is no such rank.
    """
    if sum(choice is not None for choice in (gpu, gpus, capability)) > 1:
        raise InvalidInput("trace takes only one of gpu, gpus and capability; leave out the others")
    counted: dict[str, Any] = {"samples": samples, "unit": unit, "progress": progress}
    named: dict[str, Any] = {"assume": assume, "ranks": ranks, "rank": rank}
    traced = partial(captured, make_step, compiled=compiled, **named, **counted)
    if gpus is not None:
        return StepSource(lambda wanted, _: traced(gpu=wanted)).families(gpus)
    return traced(gpu=None if gpu is None else _device(gpu), capability=capability)


def _device(gpu: Device | str) -> Device:
    return device(gpu) if isinstance(gpu, str) else gpu


def max_batch(
    make_step_of_batch: Callable[[int], Callable[[], Any]],
    gpu: Device | str,
    *,
    limit_bytes: int | None = None,
    start: int = 8,
    expandable_segments: bool = False,
    assume: Mapping[str, Any] | None = None,
    parallel: Parallel | None = None,
) -> LargestBatch:
    """The largest batch whose training step fits into a GPU's memory.

    Example:
        ```python
        wavecast.max_batch(make_step_of_batch, "l4").batch  # make_step_of_batch(16) -> step
        fsdp = wavecast.Parallel(data=8, shard=3)
        wavecast.max_batch(make_step_of_batch, "l4", parallel=fsdp).batch  # of one replica
        ```

    Args:
        make_step_of_batch: builds model, optimizer and inputs for a batch of that many samples, as
            for CUDA, and returns the function that runs one step.
        gpu: the GPU.
        limit_bytes: how much the allocator may reserve. None for the GPU's whole memory without
            the CUDA context and the libraries.
        start: a batch that is likely to fit, where the search begins.
        expandable_segments: whether torch's allocator is set to `expandable_segments:True`.
        assume: what the step reads from the GPU, by line of code, as for `trace`.
        parallel: how the step is spread over several GPUs. The answer is then the largest
            micro-batch of one replica with which the fullest rank fits.
    """
    target = _device(gpu)

    def trace_at(gpu: Device | None, batch: int | None) -> Trace:
        return captured(lambda: make_step_of_batch(batch or start), gpu=gpu, assume=assume)

    traced = partial(StepSource(trace_at).on, target)
    return largest_traced_batch(
        traced, target, limit_bytes, start=start, expandable=expandable_segments, parallel=parallel
    )


def largest_traced_batch(
    traced: Callable[[int], Trace],
    gpu: Device,
    limit_bytes: int | None = None,
    *,
    start: int = 8,
    expandable: bool = False,
    parallel: Parallel | None = None,
) -> LargestBatch:
    """The largest batch that fits, from a function that traces the step at a batch size.

    The function is called more than once for some batches. The other arguments are those of
    `max_batch`.
    """
    of_rank = traced if parallel is None else _of_fullest_rank(traced, parallel)
    if limit_bytes is None:
        first = of_rank(start)
        limit_bytes = allocatable_bytes(first, gpu, context_bytes(first, gpu))
        limit_bytes -= 0 if parallel is None else communicator_bytes(parallel)
    return largest_batch(of_rank, gpu, limit_bytes, start=start, expandable=expandable)


def _of_fullest_rank(traced: Callable[[int], Trace], strategy: Parallel) -> Callable[[int], Trace]:
    """A function that gives what the fullest rank runs of a step at a batch size."""

    @cache
    def of_rank(batch: int) -> Trace:
        return fullest_trace(spread(traced(batch), strategy))

    return of_rank
