"""`wavecast memory`, `fits` and `max-batch`: the GPU memory of a step."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.steps import (
    ALL,
    NO_STEP_OPTIONS,
    GpusOption,
    ParallelOption,
    SomeGpusOption,
    StepOptions,
    TargetArgument,
    named_gpus,
    named_or_all_gpus,
    refuse_all,
    step_options,
)
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import print_json, show, width
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.cli.steps.sources import step_source
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.report.results import memory as report
from wavecast.report.units import bytes_of_gib
from wavecast.targets.sources import largest_traced_batch
from wavecast.targets.targets import SmallerStep, Target, smaller_variants, strategy_of
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast.footprint.advice import Advice
    from wavecast.footprint.largest_batch import LargestBatch
    from wavecast.footprint.memory import Memory
    from wavecast.parallel.strategy import Parallel

SegmentsOption = Annotated[
    bool,
    typer.Option(
        "--expandable-segments", help="Assume PYTORCH_ALLOC_CONF=expandable_segments:True."
    ),
]


AdviceOption = Annotated[
    bool, typer.Option("--advice", help="Also compute changes that would save memory.")
]


@app.command()
@step_options()
def memory(
    target: TargetArgument,
    gpu: SomeGpusOption = None,
    expandable_segments: SegmentsOption = False,
    parallel: ParallelOption = None,
    advice: AdviceOption = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run the step on this machine's GPU.")
    ] = False,
    page: HtmlOption = None,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Show the memory that a training step needs.

    By kind of memory, by module, and the largest tensors at the peak. TARGET, --batch and
    --precision are as for "wavecast predict". The details are of the first GPU.

    \b
    wavecast memory resnet50 --batch 64 --gpu l4 --advice
    wavecast memory train.py:make_step --gpu rtx-4090 --html memory.html
    wavecast memory gpt2 --measure                        (on a machine with a GPU)
    """
    from wavecast.report.results.memory import memory_report

    refuse_bad_places(page)
    refuse_all(gpu, "memory", f"fits {target}")
    strategy = None if parallel is None else strategy_of(parallel, target, step.options)
    if measure:
        _refuse_beside_measuring(gpu, expandable_segments, parallel, step)
    resolved, headings = step.target(target), list[str]()
    if measure:
        headings, memories = ["predicted", "measured"], _predicted_and_measured(resolved)
    else:
        devices = named_gpus(gpu or [])
        source = step_source(resolved)
        memories = [
            wavecast.memory(
                source.fullest(device),
                device,
                expandable_segments=expandable_segments,
                parallel=strategy,
            )
            for device in devices or (None,)
        ]
    advised: tuple[Advice, ...] = ()
    if advice:
        advised = _advised(resolved, memories[0], strategy, expandable_segments)
    write_page(page, lambda: memory_report(resolved.name, memories, advised))
    if as_json:
        print_json(report.advised(resolved.name, memories, advised))
    else:
        show(report.memories(resolved.name, memories, width(), advised, headings))


def _refuse_beside_measuring(
    gpu: list[str] | None, expandable_segments: bool, parallel: str | None, step: StepOptions
) -> None:
    """Refuse options that a measured step would not follow."""
    if step.ranks is not None or step.compile is not None:
        option = "--compile" if step.ranks is None else "--ranks"
        raise InvalidInput(
            f"--measure runs the step as it was written, on one GPU; leave {option} out"
        )
    if parallel is not None:
        raise InvalidInput(
            "--measure runs the step on one GPU, so it cannot be used with --parallel; leave out "
            "one of them"
        )
    if gpu:
        raise InvalidInput(
            f"--measure runs the step on this machine's GPU, so --gpu {gpu[0]} would change "
            "nothing; leave one of them out"
        )
    if expandable_segments:
        raise InvalidInput(
            "--measure runs the step with the allocator as PYTORCH_ALLOC_CONF sets it up; leave "
            "--expandable-segments out"
        )


@app.command()
@step_options()
def fits(
    target: TargetArgument,
    gpu: GpusOption,
    expandable_segments: SegmentsOption = False,
    parallel: ParallelOption = None,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Show on which GPUs a training step fits.

    TARGET, --gpu, --batch and --precision are as for "wavecast predict". The exit code is 0 if the
    step fits on every GPU that you name (with --gpu all: on at least one), 1 if it does not, and 2
    after an error.

    \b
    wavecast fits llama-1b --precision bf16 --gpu all
    wavecast fits train.py:make_step --gpu l4 && python train.py
    """
    resolved, gpus = step.target(target), named_or_all_gpus(gpu)
    source = step_source(resolved)
    strategy = None if parallel is None else strategy_of(parallel, target, step.options)
    memories = [
        wavecast.memory(
            source.fullest(device),
            device,
            expandable_segments=expandable_segments,
            parallel=strategy,
        )
        for device in gpus
    ]
    if as_json:
        print_json(report.FITS.records(memories))
    else:
        show(report.fitting_gpus(resolved.name, memories, width()))
    answers = [bool(step_memory.fits) for step_memory in memories]
    if not (any(answers) if ALL in gpu else all(answers)):
        raise typer.Exit(1)


@app.command("max-batch")
@step_options("batch")
def max_batch(
    target: TargetArgument,
    gpu: GpusOption,
    start: Annotated[
        int, typer.Option("--start", help="The first batch to try; one that is likely to fit.")
    ] = 8,
    limit: Annotated[
        float | None,
        typer.Option("--limit-gib", help="Let the allocator reserve at most this many GiB."),
    ] = None,
    expandable_segments: SegmentsOption = False,
    parallel: ParallelOption = None,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Find the largest batch that fits. No GPU is needed.

    TARGET, --gpu and --precision are as for "wavecast predict", but a saved trace has one batch
    only, a function must take the batch as an argument, and a script as an option of its own. With
    --parallel the answer is the largest micro-batch of one replica.

    \b
    wavecast max-batch train.py --gpu l4 -- --batch-size 64
    wavecast max-batch resnet50 --precision bf16 --gpu l4 --gpu a100-sxm-80gb
    wavecast max-batch gpt2 --precision bf16 --gpu l4 --parallel data=8,shard=3
    """
    strategy = None if parallel is None else strategy_of(parallel, target, step.options)
    resolved = replace(step, batch=start).target(target, fixed=())
    if resolved.trace is not None:
        raise InvalidInput(f"{target} is a trace, whose batch is fixed; name the step itself")
    limit_bytes, source = _limit_bytes(limit), step_source(resolved)

    def answer(device: Device) -> LargestBatch:
        return largest_traced_batch(
            partial(source.fullest, device),
            device,
            limit_bytes,
            start=start,
            expandable=expandable_segments,
            parallel=strategy,
        )

    answers = [(device, answer(device)) for device in named_or_all_gpus(gpu)]
    name = resolved.model or target
    if as_json:
        print_json(report.batches_by_gpu(name, answers))
    else:
        what = "batch" if parallel is None else f"micro-batch of one replica with {parallel}"
        show(report.largest_batches(f"{name}: the largest {what}", answers, width()))


def _limit_bytes(limit_gib: float | None) -> int | None:
    """The limit that the option gives; None for that of the GPU."""
    if limit_gib is None:
        return None
    if not 0 < limit_gib < math.inf:
        raise InvalidInput(f"--limit-gib is a number of GiB above 0, not {limit_gib:g}")
    return bytes_of_gib(limit_gib)


def _advised(
    target: Target, first: Memory, strategy: Parallel | None, expandable: bool
) -> tuple[Advice, ...]:
    """Changes that would save memory on the first GPU, or on the fullest of several."""
    from wavecast.footprint.advice import advise, advise_ranks

    gpu, variants = first.device, smaller_variants(target)
    if strategy is None:
        one_gpu = {
            change: partial(_trace_if_possible, variant, gpu, accumulated=variant.accumulated)
            for change, variant in variants.items()
        }
        return advise(first, one_gpu, expandable_segments=expandable)
    ranks = {
        change: (partial(_trace_if_possible, variant, gpu), 2 if variant.accumulated else 1)
        for change, variant in variants.items()
    }
    trace = step_source(target).fullest(gpu)
    return advise_ranks(trace, strategy, gpu, ranks, expandable_segments=expandable)


def _trace_if_possible(
    variant: SmallerStep, gpu: Device | None, accumulated: bool = False
) -> Trace | None:
    """The trace of a variant.

    None if the user's function takes no batch or precision, or updates weights more than once.
    """
    from wavecast.footprint.largest_batch import accumulate_twice

    try:
        trace = step_source(variant.target, quiet=True).fullest(gpu)
    except InvalidInput:
        return None
    return accumulate_twice(trace) if accumulated else trace


def _predicted_and_measured(target: Target) -> list[Memory]:
    from wavecast.footprint.memory import of_measured
    from wavecast.frameworks.pytorch.measurement.iteration import measure_memory

    if target.make_step is None:
        kind = "trace" if target.script is None else "script"
        raise InvalidInput(f"{target.name} is a {kind}; name the step itself to measure it")
    keep_for_results()
    measurement = measure_memory(target.make_step)
    gpu = (
        wavecast.device(measurement.trace.measurement.gpu)
        if measurement.trace.measurement
        else None
    )
    predicted = wavecast.memory(step_source(target).on(gpu), gpu)
    measured = of_measured(
        measurement.trace,
        gpu,
        measurement.peak_bytes,
        measurement.reserved_bytes,
        measurement.device_bytes,
    )
    return [predicted, measured]
