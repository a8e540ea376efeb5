"""`wavecast predict` and `extrapolate`: the time of a step on other GPUs."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import BatchOption, JsonOption, PrecisionOption, app
from wavecast.cli.assumptions import AssumeOption, assuming
from wavecast.cli.run_models import (
    DEFAULT_METHOD,
    FromOption,
    MethodOption,
    RunQuestion,
    predict_run,
)
from wavecast.cli.screen import print_json, show, width
from wavecast.cli.steps import family_traces, named_or_all_gpus, trace_of
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import FORMS, Target, resolve
from wavecast.planning.choice import fastest_first, fitting_first
from wavecast.report import predictions as report
from wavecast.report import records
from wavecast.steps.larger_batch import by_samples

if TYPE_CHECKING:
    from wavecast import Prediction, Predictor, Scaler


class By(StrEnum):
    """The ways to break down the GPU's time."""

    OP = "op"
    MODULE = "module"


class PredictorName(StrEnum):
    """The predictors of ops, and the scalers of measured ones, by name."""

    LEARNED = "learned"
    ATTAINABLE = "attainable"
    ROOFLINE = "roofline"
    MLP = "mlp"
    HABITAT = "habitat"
    WAVE = "wave"


_GPU_HELP = 'A GPU to predict for; repeat for more, or "all".'
GpuOption = Annotated[list[str], typer.Option("--gpu", "-g", help=_GPU_HELP)]
GpusOption = Annotated[list[str] | None, typer.Option("--gpu", "-g", help=_GPU_HELP)]
PredictorOption = Annotated[
    PredictorName | None,
    typer.Option(
        "--predictor",
        help="The predictor of op times (learned, attainable, roofline, mlp), or the method that "
        "scales a measurement (habitat, wave); the most accurate one by default.",
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
TargetOrModel = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help=f"The training step: {FORMS}. With --from: the model of the past runs.",
        show_default=False,
    ),
]
ByOption = Annotated[
    By | None, typer.Option("--by", help="Also break the GPU's time down by op or module.")
]
IterationsOption = Annotated[
    int | None, typer.Option("--iterations", "-n", help="With --from: iterations of the run.")
]
CountOption = Annotated[
    int | None, typer.Option("--gpus", help="With --from: the number of GPUs to extrapolate to.")
]
ModulesOption = Annotated[
    int | None, typer.Option("--inner-modules", help="With --from: the depth to extrapolate to.")
]
PhaseOption = Annotated[str, typer.Option("--phase", help="With --from: training or testing.")]


@app.command()
def predict(
    target: TargetOrModel = None,
    gpu: GpusOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    by: ByOption = None,
    predictor: PredictorOption = None,
    model: ModelOption = None,
    origin: OriginOption = None,
    host: HostOption = None,
    host_factor: FactorOption = 1.0,
    cuda_graph: GraphOption = False,
    assume: AssumeOption = None,
    source: FromOption = None,
    iterations: IterationsOption = None,
    count: CountOption = None,
    inner_modules: ModulesOption = None,
    phase: PhaseOption = "training",
    method: MethodOption = DEFAULT_METHOD,
    as_json: JsonOption = False,
) -> None:
    """Predict the time of a training step on GPUs you do not have.

    \b
    wavecast predict resnet50 --batch 64 --precision bf16 --gpu all
    wavecast predict train.py:make_step --gpu h100-sxm-80gb --gpu l4
    wavecast predict gpt2.json.gz --gpu a100-sxm-80gb --by module --json
    wavecast predict measured.json.gz --gpu v100-sxm-16gb
    wavecast predict alexnet --from runs.csv --batch 64 --iterations 90000

    A measured trace (wavecast measure, wavecast import) is scaled from the GPU it was measured on.
    With --from, the time of a whole run is predicted from past runs.
    """
    if source is not None:
        if assume:
            raise typer.BadParameter("--assume is for traced steps, not for past runs (--from)")
        question = RunQuestion(batch, iterations, phase, method, count, gpu, inner_modules)
        predict_run(source, target, question, as_json)
        return
    if target is None:
        raise typer.BadParameter("Missing argument 'TARGET'; or predict --from past runs")
    if not gpu:
        raise typer.BadParameter("Missing option '--gpu' / '-g'; or predict --from past runs")
    wanted = assuming(resolve(target, batch, precision), assume)
    predict_on = partial(
        wavecast.predict,
        predictor=_predictor(predictor, wanted, precision, model),
        origin=origin,
        host=host,
        host_factor=host_factor,
        graphed=cuda_graph,
    )
    gpus = named_or_all_gpus(gpu)
    traces = family_traces(wanted, gpus)
    predictions = [predict_on(traces, device) for device in gpus]
    rows = fastest_first(predictions) if "all" in gpu else fitting_first(predictions)
    _print(wanted, rows, by, as_json)


def _print(target: Target, rows: list[Prediction], by: By | None, as_json: bool) -> None:
    """Print predictions as JSON, or as a table and, if asked for, breakdowns."""
    if as_json:
        print_json(records.predictions(target.name, rows))
        return
    show(report.predictions(target.name, rows, width()))
    for row in rows if by is not None else ():
        parts = row.by_op() if by is By.OP else row.by_module()
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
    traces = by_samples([(target, trace_of(resolve(target), None)) for target in targets])
    answers = {
        device: wavecast.extrapolate_batch(
            {
                samples: wavecast.predict(trace, device, origin=origin)
                for samples, trace in traces.items()
            },
            batch,
        )
        for device in named_or_all_gpus(gpu)
    }
    if as_json:
        print_json(records.larger_batches(answers))
    else:
        show(report.larger_batches(answers, next(iter(traces.values())).unit, width()))


def _predictor(
    name: PredictorName | None, target: Target, precision: str | None, models: list[Path] | None
) -> Predictor | Scaler | None:
    """The predictor that the options ask for. None to let the library choose."""
    if models and name not in (PredictorName.MLP, PredictorName.HABITAT):
        raise InvalidInput("--model is for --predictor mlp or habitat")
    if target.trace is not None and precision is not None:
        from wavecast.predictors.mixed_precision import MixedPrecision

        if name is not None:
            raise InvalidInput(
                "--precision with a measured trace has its own predictor; leave --predictor out"
            )
        return MixedPrecision.shipped(precision)
    match name:
        case None:
            return None
        case PredictorName.LEARNED:
            from wavecast.predictors.learned.predictor import Learned

            return Learned.shipped()
        case PredictorName.ATTAINABLE:
            from wavecast.predictors.attainable import Attainable

            return Attainable.shipped()
        case PredictorName.ROOFLINE:
            from wavecast.predictors.roofline import Roofline

            return Roofline()
        case PredictorName.WAVE:
            from wavecast.predictors.wave import WaveScaling

            return WaveScaling()
    from wavecast.predictors.habitat import Habitat
    from wavecast.predictors.mlp.predictor import Mlp

    networks = Mlp.read(models) if models else Mlp.shipped()
    return networks if name is PredictorName.MLP else Habitat(networks)
