"""`wavecast run`: a training script, unchanged, and the time or memory of the step it repeats."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

import wavecast
from wavecast.cli.app import JsonOption, OutOption, app, gpu_names, refuse_unwritable
from wavecast.cli.assumptions import AssumeOption, given_values
from wavecast.cli.pages import (
    NO_FILES,
    ReportFiles,
    report_files,
    write_page,
    write_parallel_files,
    write_prediction_files,
)
from wavecast.cli.predict import (
    By,
    ByOption,
    DepthOption,
    exit_if_incomplete,
    show_breakdowns,
)
from wavecast.cli.ranks import RanksOption
from wavecast.cli.screen import counting_ops, print_error, print_json, show, tell, width
from wavecast.cli.standard_output import keep_for_results
from wavecast.cli.steps import ALL, named_or_all_gpus
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.tracing import of_families
from wavecast.hardware.device import Device
from wavecast.planning.choice import fastest_first, fitting_first
from wavecast.report import memory as memory_tables
from wavecast.report import predictions as prediction_report
from wavecast.report import records
from wavecast.report import scripts as script_report
from wavecast.report import traces as trace_report
from wavecast.traces.script import ScriptRun
from wavecast.traces.step import Trace

ScriptArgument = Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script.")]
ArgumentsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARGUMENTS", help="The script's own arguments and options."),
]
ModuleOption = Annotated[
    bool, typer.Option("-m", help="SCRIPT is the name of a module, as in python -m.")
]
RunGpuOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        "-g",
        autocompletion=gpu_names,
        help='A GPU to predict for; repeat for more, or "all".',
    ),
]
MemoryOption = Annotated[
    bool, typer.Option("--memory", help="Show the memory of the step instead of its time.")
]
StepsOption = Annotated[
    int | None,
    typer.Option("--steps", help="Run this many steps; by default until two are equal."),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="FILE:LINE",
        help="A step ends when this line is reached, instead of at an optimizer step.",
    ),
]
SamplesOption = Annotated[
    int | None,
    typer.Option("--batch", "-b", help="The samples of one step, if no data loader tells."),
]
_SETTINGS = {"allow_interspersed_args": False}


@app.command("run", context_settings=_SETTINGS)
@report_files
def run(
    script: ScriptArgument,
    arguments: ArgumentsArgument = None,
    is_module: ModuleOption = False,
    gpu: RunGpuOption = None,
    memory: MemoryOption = False,
    by: ByOption = None,
    depth: DepthOption = 2,
    steps: StepsOption = None,
    until: UntilOption = None,
    batch: SamplesOption = None,
    assume: AssumeOption = None,
    ranks: RanksOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    files: ReportFiles = NO_FILES,
) -> None:
    """Run a training script unchanged, without a GPU, and predict its step.

    \b
    wavecast run --gpu h100-sxm-80gb --gpu l4 train.py --batch-size 64
    wavecast run --memory --gpu rtx-4090 train.py config/small.yaml
    wavecast run --gpu all -m package.train --epochs 3
    wavecast run --gpu h100-sxm-80gb --ranks 8 train_ddp.py

    The script is stopped when its step repeats itself. Nothing of yours is written. Options of
    wavecast come before the script; all that follows belongs to the script.
    """
    files.refuse_bad_places()
    _check(memory, files, by, gpu, batch, out)
    runs = _Runs(
        [script, *(arguments or ())],
        {"module": is_module, "steps": steps, "until": until, "samples": batch, "ranks": ranks},
    )
    runs.options["assume"] = given_values(assume or [])
    devices = named_or_all_gpus(gpu) if gpu else []
    if memory:
        record = _show_memory(runs, devices, files.html, as_json)
    elif devices and ranks is not None:
        record = _predict_ranks(runs, devices, ranks, by, files, as_json)
    elif devices:
        rows = _predictions(runs, devices, ranked=ALL in (gpu or ()))
        record = records.predictions(runs.first.script, rows, by, depth=depth)
        write_prediction_files(files, runs.first.script, rows)
        if not as_json:
            _show_predictions(runs.first, rows, (by, depth))
    else:
        trace = runs.trace_for(None)
        record = records.trace(trace)
        if not as_json:
            table = trace_report.traced_step(f"step {runs.first.step}", trace)
            show(script_report.script_run(runs.first), table)
    if out is not None:
        runs.first.trace.save(out)
    if as_json:
        print_json({"script": records.script_run(runs.first), **record})
    if devices and not memory and ranks is None:
        exit_if_incomplete(rows)


def _check(
    memory: bool,
    files: ReportFiles,
    by: Any,
    gpu: list[str] | None,
    batch: int | None,
    out: Path | None,
) -> None:
    """Refuse options that do not go together, before the script runs."""
    if files.html is not None and not (memory or gpu):
        raise InvalidInput("--html shows a prediction or the memory; add --gpu or --memory")
    if files.chrome_trace is not None and (memory or not gpu):
        raise InvalidInput("--chrome-trace is for predictions; it needs --gpu, and not --memory")
    if by is not None and (memory or not gpu):
        raise InvalidInput("--by breaks down the GPU's time; it needs --gpu, and not --memory")
    if batch is not None and batch < 1:
        raise InvalidInput(f"the batch must be at least 1, not {batch}")
    if out is not None:
        refuse_unwritable(out)


@dataclass
class _Runs:
    """The runs of a script: one, or one for each GPU family whose kernels differ."""

    command: list[str]
    options: dict[str, Any]
    done: list[ScriptRun] = field(default_factory=list)

    @property
    def first(self) -> ScriptRun:
        """The first run."""
        return self.done[0]

    def trace_for(self, gpu: Device | None) -> Trace:
        """The step of the script with the kernels of a GPU."""
        script, *arguments = self.command
        keep_for_results()
        with counting_ops(f"running {script}") as progress:
            try:
                done = wavecast.run_script(
                    script, arguments, gpu=gpu, progress=progress, **self.options
                )
            except CaptureError as error:
                _pass_on(error)
                raise
        self.done.append(done)
        return done.trace


def _pass_on(error: CaptureError) -> None:
    """Show the script's own traceback, or end with its own message and exit code."""
    cause = error.__cause__
    if isinstance(cause, SystemExit):
        if isinstance(cause.code, str):
            tell(cause.code)
        print_error(str(error))
        raise typer.Exit(cause.code if isinstance(cause.code, int) else 1) from error
    if cause is not None:
        from wavecast.frameworks.pytorch.scripts import own_traceback

        tell("".join(own_traceback(cause)).rstrip("\n"))


def _show_memory(
    runs: _Runs, devices: list[Device], page: Path | None, as_json: bool
) -> dict[str, Any]:
    from wavecast.report.html.memory_reports import memory_report as page_of

    if devices:
        traces = of_families(runs.trace_for, devices)
        memories = [wavecast.memory(traces, device) for device in devices]
    else:
        memories = [wavecast.memory(runs.trace_for(None))]
    write_page(page, lambda: page_of(runs.first.script, memories))
    if not as_json:
        table = memory_tables.memories(f"memory of step {runs.first.step}", memories, width())
        show(script_report.script_run(runs.first), table)
    return {"memory": records.memories(memories)}


def _predictions(runs: _Runs, devices: list[Device], ranked: bool) -> list[wavecast.Prediction]:
    traces = of_families(runs.trace_for, devices)
    predictions = [wavecast.predict(traces, device) for device in devices]
    return fastest_first(predictions) if ranked else fitting_first(predictions)


def _predict_ranks(
    runs: _Runs,
    devices: list[Device],
    ranks: int,
    by: By | None,
    files: ReportFiles,
    as_json: bool,
) -> dict[str, Any]:
    """Predict a script whose own code is parallel, on so many GPUs."""
    from wavecast.footprint.parallel_memory import fullest_rank
    from wavecast.report import parallel as report

    if by is not None:
        raise InvalidInput("--by breaks down one GPU's time; leave it out with --ranks")
    traces = of_families(runs.trace_for, devices)
    strategy = wavecast.Parallel(data=ranks)
    steps = [wavecast.predict(traces, device, parallel=strategy) for device in devices]
    rows = [(step, fullest_rank(step.step, step.device)) for step in steps]
    write_parallel_files(files, runs.first.script, rows)
    if not as_json:
        table = report.predictions(f"step {runs.first.step}, predicted", rows, width())
        show(script_report.script_run(runs.first), table)
    return {"predictions": [report.record(*row) for row in rows]}


def _show_predictions(
    run: ScriptRun, rows: list[wavecast.Prediction], breakdown: tuple[By | None, int]
) -> None:
    table = prediction_report.predictions(f"step {run.step}, predicted", rows, width())
    show(script_report.script_run(run), table)
    show_breakdowns(rows, *breakdown)
