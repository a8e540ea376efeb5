"""The source of steps: from a target and its options to traces for GPU families and batches.

A step is traced when a trace is first needed, and every trace is kept. A trace serves all GPUs for
which it is exact: those of its own family, and those whose attention kernels can be chosen again in
it. Compiled steps are traced for the first GPU of each family. The models of libraries, whose code
does not depend on the batch, are traced at two batches; larger ones follow from these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from itertools import combinations
from typing import Any, overload

from wavecast.analysis.generation import TextGeneration
from wavecast.errors import InvalidInput, needing_extra
from wavecast.footprint.largest_batch import LargestBatch, largest_batch
from wavecast.footprint.memory import allocatable_bytes, fullest_trace
from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of
from wavecast.frameworks.pytorch.recording.user_lines import all_are_named
from wavecast.hardware.contexts import context_bytes
from wavecast.hardware.devices import Device, Family, device, family
from wavecast.parallel.pipeline import cut
from wavecast.parallel.ranks import communicator_bytes
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.predictors.retargeting import FamilyTraces, retarget, serves
from wavecast.steps.prediction import Prediction
from wavecast.targets.scripts import run_script
from wavecast.targets.targets import MakeStep, Target, Trait, hugging_face_name
from wavecast.traces.graphs import compiled_gpu
from wavecast.traces.joining import FEWEST, at_batch
from wavecast.traces.script import ScriptRun
from wavecast.traces.step import Trace

TraceAt = Callable[[Device | None, int | None], Trace]
"""Traces a step for a GPU, at a batch. None is a recent GPU, and the step's own batch."""
Progress = Callable[[int], None] | None
Tracing = Callable[[Target], AbstractContextManager[Progress]]
"""What surrounds the tracing of a step; it gives what is called with the number of ops so far."""


_Key = tuple[Family | str | None, int | None]
"""What a trace serves: a family of GPUs, or one GPU if XLA compiled it; and the batch."""


class StepSource:
    """The traces of one step, each made when it is first needed.

    Args:
        batch: the step's own batch. None if it is not known.
        follows: whether traces at larger batches may follow from those at smaller ones.
    """

    def __init__(
        self, trace_at: TraceAt, batch: int | None = None, *, follows: bool = False
    ) -> None:
        self._trace_at, self._batch, self._follows = trace_at, batch, follows
        self._traced: dict[int | None, list[Trace]] = {}
        self._served: dict[_Key, Trace] = {}

    def on(self, gpu: Device | None = None, batch: int | None = None) -> Trace:
        """The trace with the kernels of a GPU, at a batch.

        Args:
            gpu: the GPU. None for any trace that exists, else one for a recent GPU.
            batch: the batch. None for the step's own.
        """
        at = self._other(batch)
        by_family: _Key = (None if gpu is None else family(gpu), at)
        by_gpu: _Key = (None if gpu is None else gpu.id, at)
        for key in (by_family, by_gpu):
            if key in self._served:
                return self._served[key]
        trace = self._common(gpu, at)
        key = by_family if compiled_gpu(trace) is None else by_gpu
        self._served[key] = trace if gpu is None else retarget(trace, gpu).trace
        return self._served[key]

    def families(self, gpus: Sequence[Device | str], batch: int | None = None) -> FamilyTraces:
        """The traces that serve several GPUs, at a batch; one if it is exact for all of them."""
        if isinstance(gpus, str) or not gpus:
            raise InvalidInput(
                f'gpus must be a list of at least one GPU, such as ["l4"], not {gpus!r}'
            )
        named = [device(gpu) if isinstance(gpu, str) else gpu for gpu in gpus]
        at = self._other(batch)
        traces = {id(trace): trace for trace in (self._common(gpu, at) for gpu in named)}
        return FamilyTraces(tuple(traces.values()))

    def larger(self, gpu: Device | None = None, batch: int | None = None) -> Trace | None:
        """Another step of the same loop that needs more memory; None if there is none."""
        return None

    def fullest(self, gpu: Device | None = None, batch: int | None = None) -> Trace:
        """The step of the loop that needs most memory."""
        return self.larger(gpu, batch) or self.on(gpu, batch)

    def _other(self, batch: int | None) -> int | None:
        """A batch, if it is not the step's own."""
        return None if batch == self._batch else batch

    def _common(self, gpu: Device | None, batch: int | None) -> Trace:
        """A trace that serves a GPU, with the kernels of the GPU that it was made for."""
        traced = self._traced.setdefault(batch, [])
        for trace in traced:
            if _fits(trace, gpu):
                return trace
        traced.append(self._following(gpu, batch) or self._trace_at(gpu, batch))
        return traced[-1]

    def _following(self, gpu: Device | None, batch: int | None) -> Trace | None:
        """The trace at a batch, from those at two smaller ones; None if it does not follow."""
        if batch is None or not self._follows:
            return None
        smaller = [at for at in self._traced if FEWEST <= (at or self._batch or 0) < batch]
        pairs = combinations(sorted(smaller, key=lambda at: at or self._batch or 0), 2)
        for pair in pairs:
            known = [next((t for t in self._traced[at] if _fits(t, gpu)), None) for at in pair]
            sizes = tuple(at or self._batch or 0 for at in pair)
            if known[0] is not None and known[1] is not None:
                trace = at_batch(known[0], known[1], (sizes[0], sizes[1]), batch)
                if trace is not None:
                    return trace
        return None


def _fits(trace: Trace, gpu: Device | None) -> bool:
    return gpu is None or serves(trace, gpu)


def target_source(target: Target, tracing: Tracing = lambda _: nullcontext()) -> StepSource:
    """The source of a target's traces."""
    if target.script is not None:
        return ScriptSource(target, tracing)

    def trace_at(gpu: Device | None, batch: int | None) -> Trace:
        if target.trace is not None:
            return target.trace
        step = target if batch is None else target.changed(batch=batch)
        with tracing(step) as progress:
            return traced_target(step, gpu, progress)

    return StepSource(trace_at, target.batch, follows=Trait.LIBRARY in target.traits)


class ScriptSource(StepSource):
    """The traces of the step that a script repeats; the script runs once for each."""

    def __init__(
        self,
        target: Target,
        tracing: Tracing = lambda _: nullcontext(),
        tell_first: Callable[[ScriptRun], None] = lambda _: None,
    ) -> None:
        super().__init__(self._run_at, target.batch)
        self._target, self._tracing, self._tell_first = target, tracing, tell_first
        self.runs: list[ScriptRun] = []
        """What each run gave, in order."""
        self._batches: list[int | None] = []
        """The batch of each run."""

    def larger(self, gpu: Device | None = None, batch: int | None = None) -> Trace | None:
        """Another step of the same loop that needs more memory; None if there is none."""
        trace = self._common(gpu, self._other(batch))
        largest = next(run.largest for run in self.runs if run.trace is trace)
        return largest if largest is None or gpu is None else retarget(largest, gpu).trace

    def uneven(self, gpu: Device) -> list[tuple[Trace, float]]:
        """The steps of the loop that are not as the one that repeats, and the share of each.

        Empty where all are alike, or where it is not known how often they come.
        """
        trace = self._common(gpu, None)
        run = next(run for run in self.runs if run.trace is trace)
        cycle = run.cycle
        if cycle is None:
            return []
        steps = ((cut(cycle, range(s.begin, s.end)), s.times / run.cycle_steps) for s in run.uneven)
        return [(retarget(step, gpu).trace, share) for step, share in steps]

    def _run_at(self, gpu: Device | None, batch: int | None) -> Trace:
        target = self._target if batch is None else self._target.changed(batch=batch)
        with self._tracing(target) as progress:
            run = run_target(target, gpu, progress)
        self._refuse_unchanged(target, run)
        if not self.runs:
            self._tell_first(run)
        self.runs.append(run)
        self._batches.append(target.batch)
        return run.trace

    def _refuse_unchanged(self, target: Target, run: ScriptRun) -> None:
        """Refuse a run at another batch whose samples are not in proportion to those before."""
        for before, batch in zip(self.runs, self._batches, strict=True):
            if batch is None or target.batch is None or batch == target.batch:
                continue
            old, new = before.trace, run.trace
            if old.samples is None and new.samples is None:
                if old.allocations != new.allocations:
                    continue
                difference = "has the same memory"
            elif old.samples and new.samples and old.samples * target.batch == new.samples * batch:
                continue
            else:
                difference = f"has {_samples(new)}, and batch {batch} {_samples(old)}"
            raise InvalidInput(
                f"a step of {target.name} {difference}; name the option that sets the batch with "
                "--batch-option, or give the script data for as many samples"
            )


def _samples(trace: Trace) -> str:
    return "an unknown number of samples" if trace.samples is None else f"{trace.samples} samples"


def run_target(target: Target, gpu: Device | None = None, progress: Progress = None) -> ScriptRun:
    """What the run of a target's script gives, for a GPU."""
    script = target.script
    assert script is not None
    changes = [*target.changes, *([] if target.precision is None else [target.precision])]
    changes += ["compile"] if target.compiled else []
    changes += ["few_samples"] if script.is_asked else []
    return run_script(
        script.path,
        script.arguments,
        module=script.is_module,
        gpu=gpu,
        samples=target.samples,
        progress=progress,
        assume=target.assume,
        ranks=target.ranks,
        changes=changes,
        lines=all_are_named(),
        **script.options.arguments(),
    )


def traced_target(target: Target, gpu: Device | None = None, progress: Progress = None) -> Trace:
    """The trace of a target for a GPU, made anew."""
    if target.script is not None:
        return run_target(target, gpu, progress).trace
    assert target.make_step is not None
    if Trait.JAX in target.traits:
        from wavecast.frameworks.jax.steps import captured_jax

        _refuse_torch_options(target)
        return captured_jax(
            target.make_step,
            gpu=gpu,
            samples=target.samples,
            unit=target.unit,
            ranks=target.ranks,
            changes=target.changes,
        )
    counted: dict[str, Any] = {
        "samples": target.samples,
        "unit": target.unit,
        "progress": progress,
    }
    return captured(target.make_step, gpu=gpu, **counted, **target.tracing)


def units_of(target: Target) -> int:
    """How many units of its trace one sample of a target's batch has: the tokens of a sequence."""
    if target.samples is None or not target.batch or target.samples % target.batch:
        return 1
    return target.samples // target.batch


def _refuse_torch_options(target: Target) -> None:
    if target.compiled:
        raise InvalidInput(f"{target.name} is a JAX step, which XLA compiles; leave out --compile")
    if target.assume:
        raise InvalidInput(f"{target.name} is a JAX step, which reads nothing; leave out --assume")
    from wavecast.frameworks.jax.steps import NAMES

    if others := set(target.changes) - set(NAMES):
        raise InvalidInput(
            f"{target.name} is a JAX step, to whose code this cannot be done here "
            f"({', '.join(sorted(others))}); change it yourself, and compare"
        )


def captured(make_step: MakeStep, *, changes: Sequence[str] = (), **options: Any) -> Trace:
    """The trace of one step with changes to its code.

    The options are those of `wavecast.trace`, for one GPU.
    """
    with needing_extra("tracing"):
        from wavecast.frameworks.pytorch.changes.changed_code import changed
        from wavecast.frameworks.pytorch.compiled.tracing import capture
    return capture(changed(make_step, changes), **options)


# Traces made without a GPU: for one GPU, for several GPU families, or at several batch sizes.


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
        return StepSource(lambda family_gpu, _: traced(gpu=family_gpu)).families(gpus)
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


# Steps of text generation, beside what fits: the cache of keys and values, the largest batch.


_MOST_SEARCHED = 4
"""The largest batch is looked for on so many GPUs; it takes some traces on each.

It is not looked for where compiling makes traces slow.
"""


def generations(
    target: Target, source: StepSource, rows: Sequence[Prediction]
) -> tuple[TextGeneration, ...]:
    """The steps of a target that generates text, with what fits on their GPUs."""
    from wavecast.frameworks.pytorch.huggingface.inference import cache_bytes

    name = hugging_face_name(target.text) or ""
    recipe = recipe_of(name, target.batch, target.precision, target.options)
    needed = cache_bytes(recipe)
    is_searched = len(rows) <= _MOST_SEARCHED and not target.compiled

    def largest(gpu: Device) -> int | None:
        if not is_searched:
            return None
        return largest_traced_batch(partial(source.on, gpu), gpu, start=recipe.batch).batch

    decodes, context = recipe.task.name == "decode", recipe.sequence or 1
    return tuple(
        TextGeneration(row, decodes, recipe.batch, context, needed, largest(row.device))
        for row in rows
    )
