"""`wavecast trace`, `measure` and `import`: three ways to the trace of a step."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

import wavecast
from wavecast.cli.app import JsonOption, OutOption, app
from wavecast.cli.options.predictors import SetupName
from wavecast.cli.options.steps import (
    NO_STEP_OPTIONS,
    StepOptions,
    TargetArgument,
    gpu_option,
    step_options,
)
from wavecast.cli.output.pages import refuse_unwritable
from wavecast.cli.output.screen import print_json, show, waiting
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.cli.steps.sources import measured_step, require_gpu, step_source
from wavecast.errors import InvalidInput
from wavecast.report import outputs
from wavecast.report.results import profiles as report
from wavecast.report.tables import line
from wavecast.traces.step import Trace


@app.command()
@step_options()
def trace(
    target: TargetArgument,
    out: OutOption = None,
    gpu: Annotated[str | None, gpu_option("Choose the kernels of this GPU.")] = None,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Trace a training step, without a GPU.

    \b
    wavecast trace gpt2 --batch 8 --precision bf16 -o gpt2.json.gz
    wavecast trace train.py:make_step
    """
    if out is not None:
        refuse_unwritable(out)
    device = wavecast.device(gpu) if gpu is not None else None
    resolved = step.target(target, fixed=("precision",))
    if device is not None and resolved.trace is not None:
        raise InvalidInput(
            f"{target} is a trace, whose kernels are fixed; trace the step itself for {device.id}"
        )
    traced = step_source(resolved).on(device)
    _finish(resolved.name, traced, report.traced_step(resolved.name, traced), out, as_json)


@app.command()
@step_options("assume", "compile", "ranks", "running")
def measure(
    target: TargetArgument,
    out: OutOption = None,
    warm_up: Annotated[
        int | None, typer.Option(min=0, help="Iterations to run before measuring; 3 by default.")
    ] = None,
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Iterations to measure, 10 by default; times are their median."),
    ] = None,
    setup: Annotated[
        SetupName | None,
        typer.Option(
            "--setup",
            help="Measure as published: habitat runs 3 iterations after 3 and takes their mean, "
            "and times each op by itself in the same way.",
        ),
    ] = None,
    counters: Annotated[
        bool, typer.Option("--counters", help="Count FLOPs and bytes of long kernels with ncu.")
    ] = False,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Measure a training step on this machine's GPU.

    \b
    wavecast measure resnet50 --batch 64 -o resnet50.json.gz
    wavecast predict resnet50.json.gz --gpu a100-sxm-80gb
    """
    if out is not None:
        refuse_unwritable(out)
    resolved = step.target(target, fixed=())
    measured = measured_step(resolved, warm_up=warm_up, repeats=repeats, setup=setup)
    if counters:
        from wavecast.frameworks import ncu

        command = [sys.executable, "-m", "wavecast", "iterate", target, *step.words()]
        with waiting("counting with ncu"):
            measured = ncu.with_counted_kernels(measured, command)
    _finish(resolved.name, measured, report.measured_step(resolved.name, measured), out, as_json)


@app.command(name="import")
def import_(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="A file that torch.profiler wrote.")],
    out: OutOption = None,
    step: Annotated[
        int | None,
        typer.Option("--step", help="The number of the ProfilerStep; a typical one by default."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", "-b", help="The number of samples in a step.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read a torch.profiler file as a measured trace.

    \b
    wavecast import rank0.pt.trace.json.gz -o rank0.json.gz
    wavecast predict rank0.json.gz --gpu h100-sxm-80gb
    """
    if out is not None:
        refuse_unwritable(out)
    if batch is not None and batch < 1:
        raise InvalidInput(f"the batch must be at least 1, not {batch}")
    with waiting(f"reading {path}"):
        measured = wavecast.read_kineto(path, step=step, samples=batch)
    _finish(path.name, measured, report.measured_step(path.name, measured), out, as_json)


@app.command(hidden=True)
@step_options("assume", "compile", "ranks", "running")
def iterate(
    target: TargetArgument,
    warm_up: int = 3,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Run one iteration between cudaProfilerStart and Stop, for `measure --counters`."""
    resolved = step.target(target, fixed=())
    if resolved.make_step is None:
        kind = "trace; it cannot run" if resolved.trace else "script; it runs itself"
        raise InvalidInput(f"{target} is a {kind}")
    require_gpu()
    from wavecast.frameworks.pytorch.measurement.iteration import run_profiled

    keep_for_results()
    run_profiled(resolved.make_step(), warm_up)


def _finish(
    name: str, traced: Trace, shown: RenderableType, out: Path | None, as_json: bool
) -> None:
    """Save a trace if a file was named, then print it."""
    if out is not None:
        traced.save(out)
    if as_json:
        print_json(outputs.TRACE.record({"target": name, "trace": traced}))
        return
    show(shown, None if out is None else line(f"saved as {out}", "dim"))
