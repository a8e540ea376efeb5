"""`wavecast predict` and `extrapolate`: the time of a step on other GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import wavecast
from wavecast.cli.app import INCOMPLETE, JsonOption, app
from wavecast.cli.options.predictors import (
    NO_HOST_OPTIONS,
    By,
    ByOption,
    DepthOption,
    EquationOption,
    HostOption,
    HostOptions,
    ModelOption,
    OriginOption,
    PredictorOption,
    SetupOption,
    chosen_predictor,
    host_options,
    refuse_scaling,
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
    GpusOption,
    ParallelOption,
    StepOptions,
    TargetArgument,
    as_compiled,
    named_or_all_gpus,
    step_options,
)
from wavecast.cli.output.pages import NO_FILES, ReportFiles, report_files
from wavecast.cli.output.screen import print_json, show, waiting, width
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
from wavecast.cli.steps.sources import step_source, with_largest
from wavecast.errors import InvalidInput
from wavecast.parallel.ranks import own_strategy
from wavecast.report.results import predictions as report
from wavecast.report.results.predictions import COMPILED, gains, predicted
from wavecast.steps.prediction import comparable
from wavecast.targets.sources import generations
from wavecast.targets.targets import Trait, resolve, strategy_of

if TYPE_CHECKING:
    from wavecast import Prediction
    from wavecast.advice.proposals import StepAdvice
    from wavecast.analysis.generation import TextGeneration
    from wavecast.hardware.devices import Device
    from wavecast.planning.prices import PriceBook
    from wavecast.targets.sources import StepSource
    from wavecast.targets.targets import Target


def _refuse_moved(value: list[str] | None) -> None:
    if value:
        raise InvalidInput(
            "a whole run is predicted from past runs by: wavecast runs predict MODEL --from SOURCE "
            "--batch N --iterations N; --gpus, --inner-modules, --phase and --method are options "
            "of that command"
        )


MovedOption = Annotated[
    list[str] | None,
    typer.Option(
        *("--from", "-n", "--gpus", "--inner-modules", "--phase", "--method"),
        hidden=True,
        is_eager=True,  # before a missing TARGET or --gpu is complained about
        callback=_refuse_moved,
    ),
]


AdviceOption = Annotated[
    bool,
    typer.Option(
        "--advice",
        help="Also say what would make the step faster, smaller or cheaper on the GPU, without "
        "compiling it (wavecast advise tries that as well).",
    ),
]


@app.command()
@report_files
@host_options
@step_options(both=True)
@price_options
@training_options
def predict(
    target: TargetArgument,
    gpu: GpusOption,
    by: ByOption = None,
    depth: DepthOption = 2,
    predictor: PredictorOption = None,
    setup: SetupOption = None,
    equation: EquationOption = None,
    model: ModelOption = None,
    origin: OriginOption = None,
    parallel: ParallelOption = None,
    advice: AdviceOption = False,
    moved: MovedOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    step: StepOptions = NO_STEP_OPTIONS,
    issuing: HostOptions = NO_HOST_OPTIONS,
    files: ReportFiles = NO_FILES,
) -> None:
    """Predict the time of a training step on GPUs you do not have.

    \b
    wavecast predict resnet50 --batch 64 --precision bf16 --gpu all --compile both
    wavecast predict resnet50 --batch 64 --gpu l4 --epochs 90 --dataset-samples 1281167
    wavecast predict train.py:make_step --gpu h100-sxm-80gb --by module --json
    wavecast predict train.py --gpu l4 --compile both -- --batch-size 64
    wavecast predict hf:llama-3.1-8b --qlora --seq 2048 --gpu l4
    wavecast predict measured.json.gz --gpu v100-sxm-16gb

    A measured trace (wavecast measure, wavecast import) is scaled from the GPU it was measured on.
    The exit code is 3 if the ops that nobody could predict are more than 20% of the step.
    """
    files.refuse_bad_places()
    gpus, resolved = named_or_all_gpus(gpu), step.target(target, fixed=())
    plan, book = training.plan(resolved), pricing.book(gpus, setup)
    shown = PredictionOutput(files, as_json, plan, book, by, depth, setup)
    refuse_scaling(resolved, origin, predictor, setup)
    _refuse_beside_both(shown, step, parallel)
    fixed = {"--predictor": predictor, "--setup": setup, "--model": model, "--origin": origin}
    _refuse_beside_advice(advice, fixed | {"--parallel": parallel}, step, issuing)
    source, how = step_source(resolved), issuing.arguments()
    if parallel is not None or step.ranks is not None:
        refuse_beside_several(fixed | {"--by": by, "--equation": equation})
        traces, shown = source.families(gpus), replace(shown, several=True)
        own = None if parallel is not None else own_strategy(traces.traces[0], step.ranks or 1)
        strategy = own or strategy_of(parallel or "", target, step.options)
        rows = with_largest(predict_spread(traces, gpus, strategy, plan, issuing), source)
    else:
        chosen = chosen_predictor(predictor, resolved, step.precision, model, setup, equation)
        how |= {"predictor": chosen, "origin": origin}
        if step.compile is False:
            return show_gains(resolved, gpus, partial(wavecast.predict, **how), as_json)
        rows = listed(_alone(source, gpus, by, how), ranked=ALL in gpu)
    advised = _advised(resolved, gpus, book, issuing.host) if advice else None
    shown = counting_uneven(shown, source, rows, how)
    shown = replace(shown, advice=advised, generation=_generated(resolved, source, rows))
    if steps := print_predictions(resolved.name, rows, shown):
        print_json(steps)
    exit_if_incomplete(rows)


def _advised(
    target: Target, gpus: Sequence[Device], book: PriceBook, host: str | None
) -> StepAdvice:
    from wavecast.cli.steps.advise import quickly_advised

    return quickly_advised(target, gpus, book, host)


def _generated(
    target: Target, source: StepSource, rows: Sequence[Prediction]
) -> tuple[TextGeneration, ...]:
    """What serving takes, if the steps are of one GPU and generate text."""
    if Trait.GENERATES not in target.traits or any(row.gpus > 1 for row in rows):
        return ()
    with waiting("looking for the largest batch"):
        return generations(target, source, rows)


def _alone(
    source: StepSource, gpus: Sequence[Device], by: By | None, how: dict[str, Any]
) -> list[Prediction]:
    """The step on one of each GPU."""
    with naming_lines(by):
        traces = source.families(gpus)
    with waiting(f"predicting on {len(gpus)} GPUs"):
        return list(with_largest((wavecast.predict(traces, gpu, **how) for gpu in gpus), source))


def _refuse_beside_advice(
    is_asked: bool, given: Mapping[str, object], step: StepOptions, issuing: HostOptions
) -> None:
    """Refuse options beside which nothing is advised: changes are tried as `advise` does it."""
    both = "both" if step.compile is False else None
    others = {"--ranks": step.ranks, "--compile both": both, **issuing.given(), "--host": None}
    for option, value in {**given, **others}.items():
        if is_asked and value is not None:
            raise InvalidInput(f"--advice cannot be used with {option}; leave out one of them")


def _refuse_beside_both(shown: PredictionOutput, step: StepOptions, parallel: str | None) -> None:
    """Refuse options that a table of gains has no place for."""
    if step.compile is not False:
        return
    given = {
        "--by": shown.by,
        "--html": shown.files.html,
        "--chrome-trace": shown.files.chrome_trace,
        "the length of a training": shown.plan,
        "--parallel or --ranks": parallel or step.ranks,
    }
    for option, value in given.items():
        if value is not None:
            raise InvalidInput(
                f"--compile both shows the gain of compiling alone; leave out {option}, or give "
                "--compile"
            )


@app.command()
def extrapolate(
    targets: Annotated[
        list[str], typer.Argument(metavar="TRACE...", help="Traces at three or more batches.")
    ],
    gpu: GpusOption,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", "-b", help="The batch to predict: samples, or whatever the traces count."
        ),
    ],
    origin: OriginOption = None,
    host: HostOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict a step at a batch that is too large to measure.

    The times at three or more smaller batches are extrapolated by a straight line.

    \b
    wavecast extrapolate b16.json.gz b32.json.gz b64.json.gz --batch 256 --gpu a100-sxm-80gb
    """
    from wavecast.analysis.larger_batch import by_samples

    steps = [resolve(target) for target in targets]
    for step in steps:
        refuse_scaling(step, origin)
    traces = by_samples([(step.text or step.name, step_source(step).on()) for step in steps])
    predicted = {
        device: {
            samples: wavecast.predict(trace, device, origin=origin, host=host)
            for samples, trace in traces.items()
        }
        for device in named_or_all_gpus(gpu)
    }
    answers = {
        device: wavecast.extrapolate_batch(points, batch) for device, points in predicted.items()
    }
    predictions = [point for points in predicted.values() for point in points.values()]
    if as_json:
        print_json(report.larger_by_gpu(answers, predicted))
    else:
        unit = next(iter(traces.values())).unit
        show(report.larger_batches(answers, unit, width(), predictions))
    exit_if_incomplete(predictions)


# What compiling a step would gain on each GPU: `wavecast predict --compile both`.


def show_gains(
    target: Target,
    gpus: Sequence[Device],
    predict_on: Callable[..., Prediction],
    as_json: bool,
) -> None:
    """Predict a step as written and compiled, and print both for each GPU."""
    pairs = []
    steps = target, as_compiled(target)
    written, compiled = (step_source(step).families(gpus) for step in steps)
    for gpu in gpus:
        pairs.append((predict_on(written, gpu), predict_on(compiled, gpu)))
    if as_json:
        named = zip(steps, zip(*pairs, strict=True), strict=True)
        both = [predicted(step.name, rows) for step, rows in named]
        print_json(COMPILED.record({"eager": both[0], "compiled": both[1]}))
    else:
        show(gains(target.name, pairs))
    if not all(comparable(row) for pair in pairs for row in pair):
        raise typer.Exit(INCOMPLETE)
