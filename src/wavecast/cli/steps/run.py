"""`wavecast run`: a training script, unchanged, and the time or memory of the step it repeats."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer

import wavecast
from wavecast.cli.app import JsonOption, OutOption, app, refuse_unwritable
from wavecast.cli.options.assumptions import AssumeOption, given_values
from wavecast.cli.options.gpus import ALL, SomeGpusOption, named_or_all_gpus
from wavecast.cli.options.predictors import (
    NO_HOST_OPTIONS,
    ByOption,
    DepthOption,
    HostOptions,
    host_options,
)
from wavecast.cli.options.prices import NO_PRICES, PriceOptions, price_options
from wavecast.cli.options.scripts import NO_RUN_OPTIONS, RunOptions, run_options
from wavecast.cli.options.steps import ParallelOption, RanksOption
from wavecast.cli.options.trainings import NO_TRAINING, TrainingOptions, training_options
from wavecast.cli.output.pages import NO_FILES, ReportFiles, report_files, write_page
from wavecast.cli.output.screen import counting_ops, print_error, print_json, show, tell, width
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.cli.steps.predicted import (
    ShownPredictions,
    exit_if_incomplete,
    listed,
    predict_spread,
    print_predictions,
    refuse_beside_several,
)
from wavecast.errors import CaptureError, InvalidInput
from wavecast.frameworks.step_source import StepSource
from wavecast.frameworks.strategies import parse_parallel
from wavecast.hardware.device import Device
from wavecast.parallel.own_ranks import own_strategy
from wavecast.planning.cost import TrainingPlan
from wavecast.report import memory as memory_tables
from wavecast.report import scripts as script_report
from wavecast.report import traces as trace_report
from wavecast.retargeting.rewriting import serves
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
MemoryOption = Annotated[
    bool, typer.Option("--memory", help="Show the memory of the step instead of its time.")
]
SamplesOption = Annotated[
    int | None,
    typer.Option("--batch", "-b", help="The samples of one step, if no data loader tells."),
]
_SETTINGS = {"allow_interspersed_args": False}


@app.command("run", context_settings=_SETTINGS)
@report_files
@host_options
@price_options
@training_options
@run_options
def run(
    script: ScriptArgument,
    arguments: ArgumentsArgument = None,
    is_module: ModuleOption = False,
    gpu: SomeGpusOption = None,
    memory: MemoryOption = False,
    by: ByOption = None,
    depth: DepthOption = 2,
    batch: SamplesOption = None,
    assume: AssumeOption = None,
    ranks: RanksOption = None,
    parallel: ParallelOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    issuing: HostOptions = NO_HOST_OPTIONS,
    running: RunOptions = NO_RUN_OPTIONS,
    files: ReportFiles = NO_FILES,
) -> None:
    """Run a training script unchanged, without a GPU, and predict its step.

    \b
    wavecast run --gpu h100-sxm-80gb --gpu l4 train.py --batch-size 64
    wavecast run --memory --gpu rtx-4090 train.py config/small.yaml
    wavecast run --gpu all -m package.train --epochs 3
    wavecast run --gpu h100-sxm-80gb --ranks 8 train_ddp.py

    The script is stopped when its step repeats itself. Nothing of yours is written. Ctrl-C gives
    what is known so far. Options of wavecast come before the script; all that follows belongs to
    the script.
    """
    devices = named_or_all_gpus(gpu or [])
    strategy = None if parallel is None else parse_parallel(parallel)
    shown = ShownPredictions(files, as_json, training.plan(), pricing.book(devices), by, depth)
    shown = replace(shown, several=parallel is not None or ranks is not None)
    _check(shown, issuing, (memory, bool(devices)), batch, out)
    if parallel is not None and not (memory or devices):
        raise InvalidInput("--parallel spreads a prediction or the memory; add --gpu or --memory")
    given = {"module": is_module, "samples": batch, "assume": given_values(assume or [])}
    given |= {"ranks": ranks, **running.arguments()}
    runs = _Runs([script, *(arguments or ())], given)
    rows: list[wavecast.Prediction] = []
    record: dict[str, Any] = {}
    if memory:
        record["memory"] = _show_memory(runs, devices, strategy, files.html, as_json)
    elif devices:
        rows = _predictions(runs, devices, strategy, shown.plan, issuing)
        rows = rows if shown.several else listed(rows, ranked=ALL in (gpu or ()))
        record["predicted"] = _show_predictions(runs.first, rows, shown)
    else:
        record["trace"] = runs.source.on()
        if not as_json:
            table = trace_report.traced_step(f"step {runs.first.step}", record["trace"])
            show(script_report.script_run(runs.first), table)
    if out is not None:
        runs.first.trace.save(out)
    if as_json:
        print_json(script_report.result_record(runs.first, **record))
    exit_if_incomplete(rows)


def _check(
    shown: ShownPredictions,
    issuing: HostOptions,
    asked: tuple[bool, bool],
    batch: int | None,
    out: Path | None,
) -> None:
    """Refuse options that do not go together, before the script runs.

    Args:
        shown: what is printed of predictions.
        issuing: how ops are issued, which only a prediction uses.
        asked: whether memory is asked for, and whether GPUs are named.
        batch: the samples of a step.
        out: the file of the trace.
    """
    memory, on_gpus = asked
    shown.files.refuse_bad_places()
    if shown.files.html is not None and not (memory or on_gpus):
        raise InvalidInput("--html shows a prediction or the memory; add --gpu or --memory")
    if shown.by is not None and (memory or not on_gpus):
        raise InvalidInput("--by breaks down the GPU's time; it needs --gpu, and not --memory")
    predicts = issuing.given() | {
        "--chrome-trace": shown.files.chrome_trace,
        "the length of a training": shown.plan,
    }
    for option, value in predicts.items():
        if value is not None and (memory or not on_gpus):
            raise InvalidInput(f"{option} is for predictions; it needs --gpu, and not --memory")
    if shown.several:
        refuse_beside_several({"--by": shown.by}, issuing)
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

    @cached_property
    def source(self) -> StepSource:
        """The traces of the step that the script repeats."""
        return StepSource(self._trace_at)

    @property
    def first(self) -> ScriptRun:
        """The first run."""
        return self.done[0]

    def larger(self, gpu: Device | None) -> Trace | None:
        """The step that needs most memory, for a GPU; None if it is the step itself."""
        served = [done for done in self.done if gpu is None or serves(done.trace, gpu)]
        return (served or self.done)[0].largest

    def largest(self, gpu: Device | None) -> Trace:
        """The step that needs most memory, for a GPU."""
        return self.larger(gpu) or self.source.on(gpu)

    def _trace_at(self, gpu: Device | None, _: int | None) -> Trace:
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
    """Show the script's own traceback, and end with its own exit code."""
    if error.__cause__ is not None and str(error.__cause__):
        tell(str(error.__cause__))
    if error.script_code is not None:
        print_error(str(error))
        raise typer.Exit(error.script_code) from error


def _show_memory(
    runs: _Runs,
    devices: list[Device],
    strategy: wavecast.Parallel | None,
    page: Path | None,
    as_json: bool,
) -> list[memory_tables.AdvisedMemory]:
    from wavecast.report.html.memory_reports import memory_report as page_of

    runs.source.families(devices) if devices else runs.source.on()
    memories = [
        wavecast.memory(runs.largest(device), device, parallel=strategy)
        for device in devices or (None,)
    ]
    write_page(page, lambda: page_of(runs.first.script, memories))
    if not as_json:
        table = memory_tables.memories(f"memory of step {runs.first.step}", memories, width())
        show(script_report.script_run(runs.first), table)
    return memory_tables.advised(memories)


def _show_predictions(
    run: ScriptRun, rows: list[wavecast.Prediction], shown: ShownPredictions
) -> dict[str, Any]:
    before = script_report.script_run(run, min(row.seconds for row in rows))
    heading = f"step {run.step}, predicted"
    return print_predictions(run.script, rows, shown, heading, before)


def _predictions(
    runs: _Runs,
    devices: list[Device],
    strategy: wavecast.Parallel | None,
    plan: TrainingPlan | None,
    issuing: HostOptions,
) -> list[wavecast.Prediction]:
    traces = runs.source.families(devices)
    ranks = runs.options["ranks"]
    if strategy is None and ranks is not None:
        strategy = own_strategy(traces.traces[0], ranks)
    if strategy is None:
        rows = [wavecast.predict(traces, on, **issuing.arguments()) for on in devices]
    else:
        rows = predict_spread(traces, devices, strategy, plan, issuing)
    return [replace(row, largest=runs.larger(row.device)) for row in rows]
