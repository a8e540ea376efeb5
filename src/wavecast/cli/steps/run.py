"""`wavecast run`: a training script, unchanged, and the time or memory of the step it repeats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import wavecast
from wavecast.cli.app import JsonOption, OutOption, app
from wavecast.cli.options.predictors import (
    NO_HOST_OPTIONS,
    By,
    ByOption,
    DepthOption,
    HostOptions,
    host_options,
)
from wavecast.cli.options.prices import (
    NO_PRICES,
    NO_TRAINING,
    PriceOptions,
    TrainingOptions,
    price_options,
    training_options,
)
from wavecast.cli.options.steps import (
    ALL,
    NO_STEP_OPTIONS,
    ParallelOption,
    SomeGpusOption,
    StepOptions,
    named_or_all_gpus,
    step_options,
)
from wavecast.cli.output.pages import (
    NO_FILES,
    ReportFiles,
    refuse_unwritable,
    report_files,
    write_page,
)
from wavecast.cli.output.screen import print_json, show, warn, width
from wavecast.cli.steps.predicted import (
    PredictionOutput,
    counting_uneven,
    exit_if_incomplete,
    listed,
    naming_lines,
    predict_spread,
    print_predictions,
    refuse_beside_several,
)
from wavecast.cli.steps.sources import script_source, with_largest
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.parallel.ranks import own_strategy
from wavecast.planning.cost import TrainingPlan
from wavecast.report.results import memory as memory_report
from wavecast.report.results import profiles as report
from wavecast.targets.scripts import Script
from wavecast.targets.sources import ScriptSource
from wavecast.targets.targets import Target, parse_parallel, script_target
from wavecast.traces.script import ScriptRun

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
LoaderOption = Annotated[
    bool,
    typer.Option(
        "--loader", help="Time the script's data loader here, with its workers, for a few seconds."
    ),
]
CoresOption = Annotated[
    int | None,
    typer.Option("--cores", min=1, help="With --loader: the cores of the machine with the GPU."),
]
ExplainOption = Annotated[
    bool, typer.Option("--explain", help="Show the GPU's time by line of code (--by line).")
]
_SETTINGS = {"allow_interspersed_args": False}


@app.command("run", context_settings=_SETTINGS)
@report_files
@host_options
@price_options
@training_options
@step_options("batch", "options")
def run(
    context: typer.Context,
    script: ScriptArgument,
    arguments: ArgumentsArgument = None,
    is_module: ModuleOption = False,
    gpu: SomeGpusOption = None,
    memory: MemoryOption = False,
    by: ByOption = None,
    depth: DepthOption = 2,
    explain: ExplainOption = False,
    loader: LoaderOption = False,
    cores: CoresOption = None,
    batch: SamplesOption = None,
    parallel: ParallelOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    issuing: HostOptions = NO_HOST_OPTIONS,
    step: StepOptions = NO_STEP_OPTIONS,
    files: ReportFiles = NO_FILES,
) -> None:
    """Run a training script unchanged, without a GPU, and predict its step.

    \b
    wavecast run --gpu h100-sxm-80gb --gpu l4 train.py --batch-size 64
    wavecast run --memory --gpu rtx-4090 train.py config/small.yaml
    wavecast run --gpu all -m package.train --epochs 3
    wavecast run --gpu h100-sxm-80gb --ranks 8 train_ddp.py
    wavecast run --gpu l4 --loader --cores 16 train.py

    The script is stopped when its step repeats itself. Nothing of yours is written. Options of
    wavecast come before the script; all that follows belongs to the script.
    """
    devices, by = named_or_all_gpus(gpu or []), By.LINE if explain else by
    shown = PredictionOutput(files, as_json, training.plan(), pricing.book(devices), by, depth)
    shown = replace(shown, several=parallel is not None or step.ranks is not None)
    _check(shown, issuing, (memory, bool(devices)), batch, out)
    strategy = _strategy(parallel, memory or bool(devices))
    step = replace(step, running=replace(step.running, loader=loader or bool(cores)))
    program = Script(script, _own(arguments or []), is_module, step.running)
    _notice_own_options(context, program, arguments, is_asked=memory or bool(devices))
    source = script_source(_target(program, step, batch), lambda _: None)
    rows, record = list[wavecast.Prediction](), dict[str, Any]()
    if memory:
        record["memory"] = _show_memory(source, devices, strategy, files.html, as_json)
    elif devices:
        with naming_lines(by):
            source.families(devices)
        rows = _predictions(source, devices, strategy or step.ranks, shown.plan, issuing)
        rows = rows if shown.several else listed(rows, ranked=ALL in (gpu or ()))
        shown = counting_uneven(_with_length(source, shown), source, rows, issuing.arguments())
        record["predicted"] = _show_predictions(source.runs[0], rows, shown, cores)
    else:
        record["trace"] = source.on()
        if not as_json:
            table = report.traced_step(f"step {source.runs[0].step}", record["trace"])
            show(report.script_run(source.runs[0], cores=cores), table)
    _hand_over(source.runs[0], record, out, as_json)
    exit_if_incomplete(rows)


def _hand_over(run: ScriptRun, record: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Write the trace to a file and the results as JSON, if that was asked for."""
    if out is not None:
        run.trace.save(out)
    if as_json:
        print_json(report.result_record(run, **record))


def _notice_own_options(
    context: typer.Context, script: Script, typed: list[str] | None, *, is_asked: bool
) -> None:
    """Refuse an option of ours among a script's arguments, unless the script may have one, too.

    Args:
        context: the command as it was called.
        script: the script with its arguments.
        typed: what follows the script. After a -- all of it is the script's.
        is_asked: whether options before the script ask for a prediction or the memory.
    """
    ours = {name for parameter in context.command.params for name in parameter.opts}
    is_marked = (typed or [])[:1] == ["--"]
    words = [word.partition("=")[0] for word in (() if is_marked else script.arguments)]
    for option in dict.fromkeys(word for word in words if word.startswith("-") and word in ours):
        place = f"{option} stands after {script.path}, so it is the script's"
        order = (
            f"options of wavecast come before the script: wavecast run {option} ... {script.path}"
        )
        if not script.may_have(option):
            raise InvalidInput(
                f"{place}, whose own code has no such option; {order}. If it is for the script "
                f"all the same, put -- before it: wavecast run ... {script.path} -- {option}"
            )
        if not is_asked:
            warn([f"{place}; {order}"], "note")


def _own(arguments: list[str]) -> tuple[str, ...]:
    """A script's arguments; a -- before them, which other commands need, is none of them."""
    return tuple(arguments[1:] if arguments[:1] == ["--"] else arguments)


def _target(program: Script, step: StepOptions, samples: int | None) -> Target:
    return replace(step.applied(script_target(program, None, step.precision)), samples=samples)


def _strategy(parallel: str | None, is_shown: bool) -> wavecast.Parallel | None:
    """The strategy that an option names, which needs something to spread."""
    if parallel is not None and not is_shown:
        raise InvalidInput("--parallel spreads a prediction or the memory; add --gpu or --memory")
    return None if parallel is None else parse_parallel(parallel)


def _check(
    shown: PredictionOutput,
    issuing: HostOptions,
    asked: tuple[bool, bool],
    batch: int | None,
    out: Path | None,
) -> None:
    """Refuse options that do not go together, before the script runs."""
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
        refuse_beside_several({"--by": shown.by})
    if batch is not None and batch < 1:
        raise InvalidInput(f"the batch must be at least 1, not {batch}")
    if out is not None:
        refuse_unwritable(out)


def _show_memory(
    source: ScriptSource,
    devices: list[Device],
    strategy: wavecast.Parallel | None,
    page: Path | None,
    as_json: bool,
) -> list[memory_report.AdvisedMemory]:
    memories = [
        wavecast.memory(source.fullest(device), device, parallel=strategy)
        for device in devices or (None,)
    ]
    first = source.runs[0]
    write_page(page, lambda: memory_report.memory_report(first.script, memories))
    if not as_json:
        table = memory_report.memories(f"memory of step {first.step}", memories, width())
        show(report.script_run(first), table)
    return memory_report.advised(first.script, memories)


def _show_predictions(
    run: ScriptRun, rows: list[wavecast.Prediction], shown: PredictionOutput, cores: int | None
) -> dict[str, Any]:
    before = report.script_run(run, min(rows, key=lambda row: row.seconds), cores)
    heading = f"step {run.step}, predicted"
    return print_predictions(run.script, rows, shown, heading, before)


def _with_length(source: ScriptSource, shown: PredictionOutput) -> PredictionOutput:
    """What is shown, with the whole training if the script names its length."""
    length = source.runs[0].length
    if shown.plan is None and length is not None and length.steps is not None:
        return replace(shown, plan=TrainingPlan(iterations=length.steps))
    return shown


def _predictions(
    source: ScriptSource,
    devices: list[Device],
    spread: wavecast.Parallel | int | None,
    plan: TrainingPlan | None,
    issuing: HostOptions,
) -> list[wavecast.Prediction]:
    traces = source.families(devices)
    strategy = own_strategy(traces.traces[0], spread) if isinstance(spread, int) else spread
    if strategy is None:
        rows = [wavecast.predict(traces, on, **issuing.arguments()) for on in devices]
    else:
        rows = predict_spread(traces, devices, strategy, plan, issuing)
    return with_largest(rows, source)
