"""Commands about memory: how much a step needs, where it fits, how large a batch may be."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import BatchOption, JsonOption, PrecisionOption, TargetArgument, app
from wavecast.cli.screen import print_json, show, width
from wavecast.cli.tracing import family_traces, gpus, trace_of
from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.frameworks.targets import Target, resolve
from wavecast.hardware.device import Device
from wavecast.hardware.families import family
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast.footprint.memory import Memory

SegmentsOption = Annotated[
    bool, typer.Option("--expandable-segments", help="As torch's allocator with that setting.")
]


@app.command()
def memory(
    target: TargetArgument,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", "-g", help="The GPU it should run on; repeat to compare several."),
    ] = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    expandable_segments: SegmentsOption = False,
    advice: Annotated[
        bool, typer.Option("--advice", help="Compute what would make it smaller.")
    ] = False,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run it on this machine's GPU, too.")
    ] = False,
    page: Annotated[
        Path | None, typer.Option("--html", help="Write memory over the step as a page.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what memory a training step needs: by kind, by module, and when the most.

    \b
    wavecast memory resnet50 --batch 64 --gpu l4 --advice
    wavecast memory train.py:make_step --gpu rtx-4090 --html memory.html
    wavecast memory gpt2 --measure                        (on a machine with a GPU)
    """
    from wavecast.footprint.advice import advise
    from wavecast.report import memory as report

    wanted = resolve(target, batch, precision)
    names: list[str] = []
    if measure:
        names, found = _measured(wanted)
    else:
        chosen: list[Device | None] = [*gpus(gpu)] if gpu else [None]
        found = [
            wavecast.memory(_trace(wanted, each), each, expandable_segments=expandable_segments)
            for each in chosen
        ]
    advised = advise(found[0], _others(target, batch, precision, found[0])) if advice else ()
    if page is not None:
        _write(page, wanted.name, found[0])
    if as_json:
        first, *others = found
        print_json([report.memory_record(first, advised), *map(report.memory_record, others)])
    else:
        show(report.memories(wanted.name, found, advised, names))


@app.command()
def fits(
    target: TargetArgument,
    gpu: Annotated[list[str], typer.Option("--gpu", "-g", help='A GPU; repeat, or "all".')],
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    expandable_segments: SegmentsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say on which GPUs a training step fits.

    \b
    wavecast fits llama-1b --precision bf16 --gpu all
    """
    from wavecast.report import memory as report

    wanted = resolve(target, batch, precision)
    chosen = list(wavecast.devices()) if "all" in gpu else gpus(gpu)
    traces = family_traces(wanted)
    found = [
        wavecast.memory(traces.on(each), each, expandable_segments=expandable_segments)
        for each in chosen
    ]
    if as_json:
        print_json([_short(each) for each in found])
    else:
        show(report.fitting_gpus(wanted.name, found, width()))


@app.command("max-batch")
def max_batch(
    target: TargetArgument,
    gpu: Annotated[list[str], typer.Option("--gpu", "-g", help="A GPU; repeat for more.")],
    precision: PrecisionOption = None,
    start: Annotated[int, typer.Option("--start", help="A batch that is likely to fit.")] = 8,
    limit: Annotated[
        float | None, typer.Option("--limit-gib", help="What the allocator may reserve, instead.")
    ] = None,
    expandable_segments: SegmentsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Find the largest batch that fits; no GPU needed.

    \b
    wavecast max-batch resnet50 --precision bf16 --gpu l4 --gpu a100-sxm-80gb
    """
    from wavecast.report import memory as report

    if resolve(target, start, precision).make_step is None:
        raise InvalidInput(f"{target} is a trace: its batch is fixed; name the step itself")
    found = [
        (
            each,
            wavecast.max_batch(
                _maker(target, precision),
                each,
                limit_bytes=None if limit is None else round(limit * (1 << 30)),
                start=start,
                expandable_segments=expandable_segments,
            ),
        )
        for each in gpus(gpu)
    ]
    if as_json:
        print_json([{"gpu": each.id, **asdict(answer)} for each, answer in found])
    else:
        show(report.largest_batches(f"{target}: the largest batch", found, width()))


def _trace(target: Target, gpu: Device | None) -> Trace:
    return trace_of(target, None if gpu is None else family(gpu))


def _maker(target: str, precision: str | None) -> Callable[[int], Callable[[], object]]:
    def make(batch: int) -> Callable[[], object]:
        wanted = resolve(target, batch, precision)
        assert wanted.make_step is not None
        with redirect_stdout(sys.stderr):
            return wanted.make_step()

    return make


def _others(
    target: str, batch: int | None, precision: str | None, found: Memory
) -> dict[str, Callable[[], Trace | None]]:
    """The same step in other words: a lower precision, half of the batch twice."""
    wanted = resolve(target, batch, precision)
    if wanted.make_step is None:
        return {}
    steps: dict[str, Target] = {}
    if precision in (None, "fp32", "tf32"):
        steps["bfloat16 autocast"] = resolve(target, batch, "bf16")
    samples = batch or _batch_of(wanted)
    if samples and samples > 1:
        half = resolve(target, samples // 2, precision)
        steps[f"batch {samples // 2}, accumulated twice"] = half
    return {name: partial(_traced, each, found.device) for name, each in steps.items()}


def _traced(target: Target, gpu: Device | None) -> Trace | None:
    """None: the step takes no such argument."""
    try:
        return _trace(target, gpu)
    except InvalidInput:
        return None


def _batch_of(target: Target) -> int | None:
    """The batch that a suite model has by itself."""
    words = target.name.split(", batch ")
    return int(words[1].split(",")[0]) if len(words) == 2 else None


def _measured(target: Target) -> tuple[list[str], list[Memory]]:
    """Predicted and measured, side by side."""
    from wavecast.footprint.memory import of_measured
    from wavecast.frameworks.pytorch.measurement.memory import measure_memory

    if target.make_step is None:
        raise InvalidInput(f"{target.name} is a trace: name the step itself to measure it")
    seen = measure_memory(target.make_step)
    here = wavecast.device(seen.trace.measurement.gpu) if seen.trace.measurement else None
    predicted = wavecast.memory(_trace(target, here), here)
    real = of_measured(seen.trace, here, seen.peak_bytes, seen.reserved_bytes, seen.device_bytes)
    return ["predicted", "measured"], [predicted, real]


def _write(path: Path, title: str, found: Memory) -> None:
    from wavecast.report import memory_page

    write_whole(path, memory_page.page(title, found))


def _short(found: Memory) -> dict[str, object]:
    return {
        "gpu": found.device.id if found.device else None,
        "fits": found.fits,
        "memory_bytes": found.device.memory_bytes if found.device else None,
        "process_bytes": found.process_bytes,
        "reserved_bytes": found.reserved_bytes,
        "peak_bytes": found.peak_bytes,
    }
