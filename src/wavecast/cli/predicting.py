"""The command that predicts."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import BatchOption, JsonOption, PrecisionOption, app
from wavecast.cli.regressing import (
    DEFAULT_METHOD,
    Asked,
    FromOption,
    MethodOption,
    predict_run,
)
from wavecast.cli.screen import print_json, show, width
from wavecast.cli.tracing import family_traces, gpus, trace_of
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import FORMS, Target, resolve
from wavecast.frameworks.tracing import depends_on_family
from wavecast.hardware.device import Device
from wavecast.hardware.families import family, family_of
from wavecast.report import measured, record, text
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast import Prediction, Predictor, Scaler


class By(StrEnum):
    """What a breakdown is by."""

    OP = "op"
    MODULE = "module"


class PredictorName(StrEnum):
    """Who predicts the ops, or scales the measured ones."""

    LEARNED = "learned"
    ATTAINABLE = "attainable"
    ROOFLINE = "roofline"
    MLP = "mlp"
    HABITAT = "habitat"
    WAVE = "wave"


_GPU_HELP = 'A GPU to predict for; repeat for more, or "all".'
GpuOption = Annotated[list[str], typer.Option("--gpu", "-g", help=_GPU_HELP)]
PredictorOption = Annotated[
    PredictorName | None,
    typer.Option(
        "--predictor",
        help="Who predicts the ops (learned, attainable, roofline, mlp), or scales a measurement "
        "(habitat, wave); the best one if not given.",
    ),
]
ModelOption = Annotated[
    list[Path] | None,
    typer.Option("--model", help="Your own networks (wavecast fit) for mlp and habitat."),
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="reference|mine|FILE",
        help="Whose host issues the ops: the shipped reference, yours (wavecast calibrate), or a "
        "file's. If not given, a measured step has its own host; others have yours if it was "
        "calibrated, and the reference if not.",
    ),
]
FactorOption = Annotated[
    float, typer.Option("--host-factor", help="How many times as long that host takes.")
]
GraphOption = Annotated[
    bool,
    typer.Option("--cuda-graph", help="The whole step is captured as a CUDA graph and replayed."),
]
OriginOption = Annotated[
    str | None,
    typer.Option("--origin", help="The GPU of the measurement, if its name does not say."),
]


TargetOrModel = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help=f"What to trace: {FORMS}. With --from: which model's runs.",
        show_default=False,
    ),
]
GpusOption = Annotated[list[str] | None, typer.Option("--gpu", "-g", help=_GPU_HELP)]
ByOption = Annotated[By | None, typer.Option("--by", help="Break the GPU's time down, too.")]
IterationsOption = Annotated[
    int | None, typer.Option("--iterations", "-n", help="With --from: of the run.")
]
CountOption = Annotated[
    int | None, typer.Option("--gpus", help="With --from: more GPUs than were run.")
]
ModulesOption = Annotated[
    int | None, typer.Option("--inner-modules", help="With --from: of a deeper network.")
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
    With --from, a whole run is predicted from past ones.
    """
    if source is not None:
        asked = Asked(batch, iterations, phase, method, count, gpu, inner_modules)
        predict_run(source, target, asked, as_json)
        return
    if target is None:
        raise typer.BadParameter("Missing argument 'TARGET'; or predict --from past runs")
    if not gpu:
        raise typer.BadParameter("Missing option '--gpu' / '-g'; or predict --from past runs")
    wanted = resolve(target, batch, precision)
    ask = partial(
        wavecast.predict,
        predictor=_predictor(predictor, wanted, precision, model),
        origin=origin,
        host=host,
        host_factor=host_factor,
        graphed=cuda_graph,
    )
    found = _predicted(wanted, gpu, ask)
    notes = _foreign_kernels(wanted, [each.device for each in found])
    if as_json:
        print_json(record.predictions(wanted.name, found, notes))
        return
    show(text.predictions(wanted.name, found, width(), notes))
    for each in found if by is not None else ():
        parts = each.by_op() if by is By.OP else each.by_module()
        show(text.shares(f"{each.device.id}, by {by}", parts, each.gpu_s))


def _predicted(
    wanted: Target, names: list[str], ask: Callable[[Trace, Device], Prediction]
) -> list[Prediction]:
    """The step on each GPU, the fastest first where all were asked for."""
    chosen = list(wavecast.devices()) if "all" in names else gpus(names)
    traces = family_traces(wanted)
    found = [ask(traces.on(each), each) for each in chosen]
    if "all" in names:
        found.sort(key=lambda each: (each.fits is False, each.seconds))
    return found


@app.command()
def extrapolate(
    targets: Annotated[
        list[str], typer.Argument(metavar="TRACE...", help="Traces at three or more batches.")
    ],
    gpu: GpuOption,
    batch: Annotated[
        int,
        typer.Option("--batch", "-b", help="What is asked for: samples, or the traces' own unit."),
    ],
    origin: OriginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predict a batch that did not fit where the step was measured.

    \b
    wavecast extrapolate b16.json.gz b32.json.gz b64.json.gz --batch 256 --gpu a100-sxm-80gb
    """
    traces = {}
    for target in targets:
        trace = trace_of(resolve(target), None)
        if trace.samples is None:
            raise InvalidInput(
                f"{target} does not say how many samples a step takes; measure or trace it with "
                "--batch"
            )
        if trace.samples in traces:
            raise InvalidInput(f"two of these traces have {trace.samples} {trace.unit} a step")
        traces[trace.samples] = trace
    chosen = list(wavecast.devices()) if "all" in gpu else gpus(gpu)
    found = {
        each: wavecast.extrapolate_batch(
            {size: wavecast.predict(t, each, origin=origin) for size, t in traces.items()}, batch
        )
        for each in chosen
    }
    if as_json:
        print_json(record.larger_batches(found))
    else:
        show(measured.larger_batches(found, next(iter(traces.values())).unit, width()))


def _foreign_kernels(target: Target, chosen: list[Device]) -> list[str]:
    """A warning where a saved trace has attention kernels that a GPU would not choose."""
    trace = target.trace
    if trace is None or trace.capability is None or not depends_on_family(trace):
        return []
    if trace.measurement is not None:  # scaled by what each GPU's own kernels would take
        return []
    others = [each.id for each in chosen if family(each) != family_of(trace.capability)]
    if not others:
        return []
    names = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    made = ".".join(map(str, trace.capability))
    return [
        f"{target.name} has the attention kernels of compute capability {made}; {names} would "
        "choose others: predict from the step itself"
    ]


def _predictor(
    name: PredictorName | None, target: Target, precision: str | None, models: list[Path] | None
) -> Predictor | Scaler | None:
    """Who answers; None: the library's choice."""
    if models and name not in (PredictorName.MLP, PredictorName.HABITAT):
        raise InvalidInput("--model is for --predictor mlp or habitat")
    if target.trace is not None and precision is not None:
        from wavecast.predictors.mixed_precision import MixedPrecision

        if name is not None:
            raise InvalidInput("--precision of a measured trace has its own predictor")
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
