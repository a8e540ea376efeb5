"""`wavecast predict` and `extrapolate`: the time of a step on other GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import (
    INCOMPLETE,
    BatchOption,
    JsonOption,
    PrecisionOption,
    SetupName,
    TargetArgument,
    app,
    gpu_names,
)
from wavecast.cli.assumptions import AssumeOption, assuming
from wavecast.cli.compile_options import CompileOrBothOption, as_compiled
from wavecast.cli.compiled_gains import show_gains
from wavecast.cli.model_options import NO_OPTIONS, ModelOptions, model_options
from wavecast.cli.pages import NO_FILES, ReportFiles, report_files, write_prediction_files
from wavecast.cli.parallel import show_parallel
from wavecast.cli.parallel_options import ParallelOption
from wavecast.cli.predictor_choice import SCALERS, PredictorName, chosen_predictor
from wavecast.cli.price_options import NO_PRICES, PriceOptions, price_options
from wavecast.cli.ranks import RanksOption, of_ranks
from wavecast.cli.screen import print_json, show, waiting, width
from wavecast.cli.steps import ALL, family_traces, is_measured, named_or_all_gpus, trace_of
from wavecast.cli.training_options import NO_TRAINING, TrainingOptions, training_options
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target, resolve
from wavecast.planning.choice import comparable, fastest_first, fitting_first
from wavecast.planning.cost import TrainingCost, TrainingPlan, training_cost
from wavecast.report import costs as cost_report
from wavecast.report import predictions as report
from wavecast.report import records
from wavecast.steps.larger_batch import by_samples

if TYPE_CHECKING:
    from wavecast import Prediction
    from wavecast.planning.prices import PriceBook


class By(StrEnum):
    """The ways to break down the GPU's time."""

    OP = "op"
    MODULE = "module"


_NARROW = (
    "the networks are those that ship, narrower than published; wavecast fit makes full ones, for "
    "--model"
)

GpuOption = Annotated[
    list[str],
    typer.Option(
        "--gpu",
        "-g",
        autocompletion=gpu_names,
        help='A GPU to predict for; repeat for more, or "all".',
    ),
]
PredictorOption = Annotated[
    PredictorName | None,
    typer.Option(
        "--predictor",
        help="The predictor of op times (learned, attainable, roofline, mlp), or the method that "
        "scales a measurement (habitat, wave, or daydream with --precision); the most accurate "
        "one by default.",
    ),
]
SetupOption = Annotated[
    SetupName | None,
    typer.Option(
        "--setup",
        help="Scale a measurement as published: habitat takes its paper's clocks, bandwidths, "
        "prices and networks (--model), and Daydream's rule for --precision.",
    ),
]
ModelOption = Annotated[
    list[Path] | None,
    typer.Option("--model", help="Your own networks (from wavecast fit) for mlp and habitat."),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="reference|mine|NAME|FILE",
        help="The host that issues the ops: the shipped reference, this machine, or another that "
        "wavecast calibrate measured (by name or file). By default a measured step keeps its own "
        "host; others use one that was calibrated with the same GPU, else the reference.",
    ),
]
FactorOption = Annotated[
    float, typer.Option("--host-factor", help="Multiply all times of the host by this.")
]
GraphOption = Annotated[
    bool,
    typer.Option("--cuda-graph", help="Assume that the step is replayed as one CUDA graph."),
]
OriginOption = Annotated[
    str | None,
    typer.Option("--origin", help="The GPU of the measurement, if the trace does not name it."),
]
ByOption = Annotated[
    By | None, typer.Option("--by", help="Also break the GPU's time down by op or module.")
]
DepthOption = Annotated[
    int,
    typer.Option("--depth", min=1, help="With --by module: how many names of a path are kept."),
]


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


@app.command()
@report_files
@model_options
@price_options
@training_options
def predict(
    target: TargetArgument,
    gpu: GpuOption,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    by: ByOption = None,
    depth: DepthOption = 2,
    predictor: PredictorOption = None,
    setup: SetupOption = None,
    model: ModelOption = None,
    origin: OriginOption = None,
    host: HostOption = None,
    host_factor: FactorOption = 1.0,
    cuda_graph: GraphOption = False,
    parallel: ParallelOption = None,
    assume: AssumeOption = None,
    ranks: RanksOption = None,
    compile_: CompileOrBothOption = None,
    moved: MovedOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    options: ModelOptions = NO_OPTIONS,
    files: ReportFiles = NO_FILES,
) -> None:
    """Predict the time of a training step on GPUs you do not have.

    \b
    wavecast predict resnet50 --batch 64 --precision bf16 --gpu all --compile both
    wavecast predict resnet50 --batch 64 --gpu l4 --epochs 90 --dataset-samples 1281167
    wavecast predict train.py:make_step --gpu h100-sxm-80gb --by module --json
    wavecast predict hf:llama-3.1-8b --qlora --seq 2048 --gpu l4
    wavecast predict measured.json.gz --gpu v100-sxm-16gb

    A measured trace (wavecast measure, wavecast import) is scaled from the GPU it was measured on.
    The exit code is 3 if the ops that nobody could predict are more than 20% of the step.
    """
    files.refuse_bad_places()
    gpus, step = named_or_all_gpus(gpu), resolve(target, batch, precision, options)
    wanted = of_ranks(assuming(as_compiled(step, compile_ is True), assume), ranks)
    plan, book = training.plan(wanted), pricing.book(gpus, setup)
    refuse_scaling(wanted, origin, predictor, setup)
    if parallel is not None or ranks is not None:
        given = {"--by": by, "--predictor": predictor, "--setup": setup, "--model": model}
        _refuse_beside_parallel(given | {"--cuda-graph": cuda_graph or None, "--origin": origin})
        hosts, parallel = (host, host_factor), parallel or f"data={ranks}"
        return show_parallel(wanted, gpus, parallel, hosts, files, as_json, plan, book)
    chosen = chosen_predictor(predictor, wanted, precision, model, setup)
    on = partial(wavecast.predict, predictor=chosen, origin=origin, graphed=cuda_graph)
    predict_on = partial(on, host=host, host_factor=host_factor)
    if compile_ is False:
        return show_gains(wanted, gpus, predict_on, as_json)
    traces = family_traces(wanted, gpus)
    notes = (_NARROW,) if setup is not None and not model else ()
    with waiting(f"predicting on {len(gpus)} GPUs"):
        steps = [_noted(predict_on(traces, device), notes) for device in gpus]
        rows = fastest_first(steps) if ALL in gpu else fitting_first(steps)
    write_prediction_files(files, wanted.name, rows, setup)
    _print(wanted, rows, (by, depth), as_json, setup, book, plan)
    exit_if_incomplete(rows)


def _noted(prediction: Prediction, notes: tuple[str, ...]) -> Prediction:
    return replace(prediction, notes=(*prediction.notes, *notes)) if notes else prediction


def _refuse_beside_parallel(given: Mapping[str, object]) -> None:
    for option, value in given.items():
        if value is not None:
            raise InvalidInput(f"{option} cannot be used with --parallel; leave out one of them")


def refuse_scaling(
    target: Target,
    origin: str | None,
    predictor: PredictorName | None = None,
    setup: SetupName | None = None,
) -> None:
    """Refuse options that scale a measurement, if the step of a target was not measured."""
    if is_measured(target):
        return
    scaler = f"--predictor {predictor}" if predictor in SCALERS else None
    given = "--origin" if origin is not None else None, scaler, setup and f"--setup {setup}"
    for option in given:
        if option is not None:
            raise InvalidInput(
                f"{option} is for measured steps, and {target.name} was not measured, so there is "
                "nothing to scale; leave it out, or measure the step first (wavecast measure)"
            )


def exit_if_incomplete(predictions: Iterable[Prediction]) -> None:
    """Exit with `INCOMPLETE` if too much of a step could not be predicted on one of the GPUs."""
    if not all(map(comparable, predictions)):
        raise typer.Exit(INCOMPLETE)


def _print(
    target: Target,
    rows: list[Prediction],
    breakdown: tuple[By | None, int],
    as_json: bool,
    setup: SetupName | None,
    book: PriceBook,
    plan: TrainingPlan | None,
) -> None:
    """Print predictions as JSON, or as a table and, if asked for, trainings and breakdowns."""
    by, depth = breakdown
    costs = [_cost(row, plan, book) for row in rows]
    if as_json:
        record = records.predictions(target.name, rows, by, book, depth)
        if plan is not None:
            for each, cost in zip(record["predictions"], costs, strict=True):
                each["training"] = None if cost is None else cost_report.cost_record(cost)
        print_json(record)
        return
    show(report.predictions(target.name, rows, width(), setup, book))
    if plan is not None:
        show(cost_report.trainings(plan, rows[0].trace.unit, costs, width()))
    show_breakdowns(rows, by, depth)


def _cost(row: Prediction, plan: TrainingPlan | None, book: PriceBook) -> TrainingCost | None:
    """What a training takes; None without a plan, and where the step does not fit or compare."""
    if plan is None or row.fits is False or not comparable(row):
        return None
    return training_cost(row, plan, book.cheapest(row.device.id))


def show_breakdowns(rows: Iterable[Prediction], by: By | None, depth: int = 2) -> None:
    """Print where the GPU's time goes, for each GPU."""
    for row in rows if by is not None else ():
        parts = row.by_op() if by is By.OP else row.by_module(depth)
        show(report.shares(f"{row.device.id}, by {by}", parts, row.gpu_s))


@app.command()
def extrapolate(
    targets: Annotated[
        list[str], typer.Argument(metavar="TRACE...", help="Traces at three or more batches.")
    ],
    gpu: GpuOption,
    batch: Annotated[
        int,
        typer.Option(
            "--batch", "-b", help="The batch to predict: samples, or whatever the traces count."
        ),
    ],
    origin: OriginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict a step at a batch that is too large to measure.

    The times at three or more smaller batches are extrapolated by a straight line.

    \b
    wavecast extrapolate b16.json.gz b32.json.gz b64.json.gz --batch 256 --gpu a100-sxm-80gb
    """
    wanted = [resolve(target) for target in targets]
    for step in wanted:
        refuse_scaling(step, origin)
    traces = by_samples([(step.text or step.name, trace_of(step, None)) for step in wanted])
    predicted = {
        device: {
            samples: wavecast.predict(trace, device, origin=origin)
            for samples, trace in traces.items()
        }
        for device in named_or_all_gpus(gpu)
    }
    answers = {
        device: wavecast.extrapolate_batch(points, batch) for device, points in predicted.items()
    }
    predictions = [point for points in predicted.values() for point in points.values()]
    if as_json:
        print_json(records.larger_batches(answers, predicted))
    else:
        unit = next(iter(traces.values())).unit
        show(report.larger_batches(answers, unit, width(), predictions))
    exit_if_incomplete(predictions)
