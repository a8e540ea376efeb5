"""`wavecast memory`, `fits` and `max-batch`: the GPU memory of a step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import BatchOption, JsonOption, PrecisionOption, TargetArgument, app
from wavecast.cli.assumptions import AssumeOption, assuming, given_values
from wavecast.cli.screen import print_json, show, width
from wavecast.cli.steps import family_traces, named_gpus, named_or_all_gpus, trace_of
from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.frameworks.targets import SmallerStep, Target, resolve, smaller_variants
from wavecast.hardware.device import Device
from wavecast.hardware.families import family
from wavecast.report import memory as report
from wavecast.report import records
from wavecast.report.units import bytes_of_gib
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast.footprint.memory import Memory

SegmentsOption = Annotated[
    bool,
    typer.Option(
        "--expandable-segments", help="Assume PYTORCH_ALLOC_CONF=expandable_segments:True."
    ),
]


@app.command()
def memory(
    target: TargetArgument,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", "-g", help="The GPU to run on; repeat to compare several."),
    ] = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    expandable_segments: SegmentsOption = False,
    assume: AssumeOption = None,
    advice: Annotated[
        bool, typer.Option("--advice", help="Also compute changes that would save memory.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run the step on this machine's GPU.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option("--html", help="Write the memory over the step as a page of HTML."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the memory that a training step needs.

    By kind of memory, by module, and the largest tensors at the peak.

    \b
    wavecast memory resnet50 --batch 64 --gpu l4 --advice
    wavecast memory train.py:make_step --gpu rtx-4090 --html memory.html
    wavecast memory gpt2 --measure                        (on a machine with a GPU)
    """
    from wavecast.footprint.advice import advise

    wanted = assuming(resolve(target, batch, precision), assume)
    headings: list[str] = []
    if measure:
        headings, memories = ["predicted", "measured"], _predicted_and_measured(wanted)
    else:
        devices: list[Device | None] = [*named_gpus(gpu)] if gpu else [None]
        memories = [
            wavecast.memory(_trace(wanted, device), device, expandable_segments=expandable_segments)
            for device in devices
        ]
    advised = advise(memories[0], _retraced(wanted, memories[0])) if advice else ()
    if page is not None:
        from wavecast.report import pages

        write_whole(page, pages.memory_page(wanted.name, memories[0]))
    if as_json:
        print_json(records.memories(memories, advised))
    else:
        show(report.memories(wanted.name, memories, width(), advised, headings))


@app.command()
def fits(
    target: TargetArgument,
    gpu: Annotated[list[str], typer.Option("--gpu", "-g", help='A GPU; repeat, or "all".')],
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    expandable_segments: SegmentsOption = False,
    assume: AssumeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show on which GPUs a training step fits.

    \b
    wavecast fits llama-1b --precision bf16 --gpu all
    """
    wanted = assuming(resolve(target, batch, precision), assume)
    gpus = named_or_all_gpus(gpu)
    traces = family_traces(wanted, gpus)
    memories = [
        wavecast.memory(traces, device, expandable_segments=expandable_segments) for device in gpus
    ]
    if as_json:
        print_json([records.fit_in_memory(step_memory) for step_memory in memories])
    else:
        show(report.fitting_gpus(wanted.name, memories, width()))


@app.command("max-batch")
def max_batch(
    target: TargetArgument,
    gpu: Annotated[list[str], typer.Option("--gpu", "-g", help="A GPU; repeat for more.")],
    precision: PrecisionOption = None,
    start: Annotated[
        int, typer.Option("--start", help="The first batch to try; one that is likely to fit.")
    ] = 8,
    limit: Annotated[
        float | None,
        typer.Option("--limit-gib", help="Let the allocator reserve at most this many GiB."),
    ] = None,
    expandable_segments: SegmentsOption = False,
    assume: AssumeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the largest batch that fits. No GPU is needed.

    \b
    wavecast max-batch resnet50 --precision bf16 --gpu l4 --gpu a100-sxm-80gb
    """
    if resolve(target, start, precision).make_step is None:
        raise InvalidInput(f"{target} is a trace, whose batch is fixed; name the step itself")
    answers = [
        (
            device,
            wavecast.max_batch(
                _step_maker(target, precision),
                device,
                limit_bytes=None if limit is None else bytes_of_gib(limit),
                start=start,
                expandable_segments=expandable_segments,
                assume=given_values(assume or []),
            ),
        )
        for device in named_gpus(gpu)
    ]
    if as_json:
        print_json(records.largest_batches(answers))
    else:
        show(report.largest_batches(f"{target}: the largest batch", answers, width()))


def _trace(target: Target, gpu: Device | None) -> Trace:
    return trace_of(target, None if gpu is None else family(gpu))


def _step_maker(target: str, precision: str | None) -> Callable[[int], Callable[[], object]]:
    """A function that makes the step of a target for any batch."""

    def make(batch: int) -> Callable[[], object]:
        wanted = resolve(target, batch, precision)
        assert wanted.make_step is not None
        with redirect_stdout(sys.stderr):
            return wanted.make_step()

    return make


def _retraced(target: Target, step_memory: Memory) -> dict[str, Callable[[], Trace | None]]:
    """Functions that trace smaller variants of a step, by what they change."""
    return {
        change: partial(_trace_if_possible, variant, step_memory.device)
        for change, variant in smaller_variants(target).items()
    }


def _trace_if_possible(variant: SmallerStep, gpu: Device | None) -> Trace | None:
    """The trace of a variant.

    None if the user's function takes no batch or precision, or updates weights more than once.
    """
    from wavecast.footprint.accumulation import accumulate_twice

    try:
        trace = _trace(variant.target, gpu)
    except InvalidInput:
        return None
    return accumulate_twice(trace) if variant.accumulated else trace


def _predicted_and_measured(target: Target) -> list[Memory]:
    from wavecast.footprint.memory import of_measured
    from wavecast.frameworks.pytorch.measurement.memory import measure_memory

    if target.make_step is None:
        raise InvalidInput(f"{target.name} is a trace; name the step itself to measure it")
    seen = measure_memory(target.make_step)
    gpu = wavecast.device(seen.trace.measurement.gpu) if seen.trace.measurement else None
    predicted = wavecast.memory(_trace(target, gpu), gpu)
    measured = of_measured(seen.trace, gpu, seen.peak_bytes, seen.reserved_bytes, seen.device_bytes)
    return [predicted, measured]
