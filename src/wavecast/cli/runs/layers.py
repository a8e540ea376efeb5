"""`wavecast layers`: the time of a network from the timed layers of others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import Commands, JsonOption, app
from wavecast.cli.options.steps import NO_STEP_OPTIONS, StepOptions, step_options
from wavecast.cli.output.screen import print_json, show
from wavecast.cli.runs.run_models import MethodOption
from wavecast.cli.steps.sources import step_source
from wavecast.errors import InvalidInput, needing_extra
from wavecast.targets.targets import Target, resolve
from wavecast.traces.file import SUFFIXES

if TYPE_CHECKING:
    from wavecast.runs.regression.complexities import Network
    from wavecast.runs.regression.layer_times import LayerTimes
    from wavecast.runs.regression.per_layer import LayerModel, LayerWork, NetworkTime
    from wavecast.traces.step import Trace

layers_app = Commands(
    help="Predict a network from the timed layers of others.",
    no_args_is_help=True,
)
app.add_typer(layers_app, name="layers")

_CAFFE = "caffe:"
_TRACES = (".gz", ".json", *SUFFIXES)
_DEFAULT_METHOD = "relative non-negative"
_WORKS = ("operations", "predicted")

WorkOption = Annotated[
    str,
    typer.Option(
        "--work",
        help='What a line goes through: the "operations" of a layer, as published, or the seconds '
        'that Wavecast\'s op models predict for it ("predicted").',
    ),
]


@layers_app.command()
def fit(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Measured traces or torch.profiler files, or logs of `caffe time`.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The file for the lines (FILE.json).")
    ] = None,
    method: MethodOption = None,
    work: WorkOption = _WORKS[0],
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", "-b", min=1, help="The samples of each file that does not say its own."
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option("--network", help="For logs of `caffe time`: alexnet, googlenet or vgg16."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a line to the timed layers of each category, forward and backward.

    A category whose layers determine no line is left out, by name.

    \b
    wavecast measure vgg16 --batch 16 -o vgg16-16.json.gz
    wavecast layers fit vgg16-16.json.gz vgg16-64.json.gz -o lines.json
    wavecast layers fit time.log --network alexnet --batch 64
    """
    if work not in _WORKS:
        raise InvalidInput(f'--work is "operations" or "predicted", not "{work}"')
    if out is not None and (out.suffix != ".json" or not out.parent.is_dir()):
        raise InvalidInput(f"lines are saved as FILE.json in a folder that exists, not {out}")
    with needing_extra("fitting"):
        from wavecast.report.results import run_models as report
        from wavecast.runs.regression.per_layer import PerLayer, write_lines
    predicts = work == "predicted"
    timed = [_timed_file(path, batch, network, predicts) for path in files]
    model = PerLayer(method or _DEFAULT_METHOD).fit(time for times in timed for time in times)
    model = replace(model, source=f"{', '.join(Path(path).name for path in files)}")
    if out is not None:
        write_lines(out, model)
    if as_json:
        print_json(model)
    else:
        show(report.fitted_lines(f"layers of {model.source}", model))


def _timed_file(path: str, batch: int | None, network: str | None, predicts: bool) -> LayerTimes:
    """The times of the layers in a measured trace or in a log of `caffe time`."""
    from wavecast.runs.regression.complexities import caffe_net
    from wavecast.runs.regression.layer_times import read_caffe_time, times_of_trace

    if not path.endswith(_TRACES):
        if network is None or batch is None or predicts:
            raise InvalidInput(
                f"{path} is no trace ({', '.join(_TRACES)}); a log of `caffe time` needs --network "
                "and --batch, and its lines go through operations"
            )
        return read_caffe_time(path, caffe_net(network), batch)
    trace = _trace(resolve(path))
    if trace.measurement is None:
        raise InvalidInput(
            f"{path} was traced, not measured, so its layers have no times; measure the step"
        )
    size = _own_batch(trace, batch)
    layers = _network(path, trace, size)
    given = _work(trace, layers, trace.measurement.gpu, size) if predicts else None
    return times_of_trace(trace, layers, size, given)


@layers_app.command()
@step_options("compile", "ranks")
def predict(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="The step, as for wavecast predict; or caffe:alexnet, caffe:googlenet, "
            "caffe:vgg16.",
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="A file that wavecast layers fit wrote, or a GPU whose lines are published: "
            "quadro-m6000-12gb.",
        ),
    ],
    iterations: Annotated[
        int, typer.Option("--iterations", "-n", min=1, help="How many batches.")
    ] = 1,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Predict the time of a network's layers, forward and backward.

    A measured step shows its own times beside the predicted ones.

    \b
    wavecast layers predict resnet50 --batch 64 --from lines.json
    wavecast layers predict caffe:vgg16 --batch 32 --from quadro-m6000-12gb
    """
    with needing_extra("predicting layers"):
        from wavecast.report.results import run_models as report
        from wavecast.runs.regression.per_layer import PUBLISHED_GPUS, published, read_lines

    model = published(source) if source in PUBLISHED_GPUS else read_lines(source)
    title, time, measured = _network_time(model, target, step, iterations)
    if as_json:
        record = {"predicted": time, "source": model.source, "measured": measured}
        print_json(report.PREDICTED.record(record))
    else:
        show(report.network_time(title, time, model.source, measured))


def _network_time(
    model: LayerModel, target: str, step: StepOptions, iterations: int
) -> tuple[str, NetworkTime, NetworkTime | None]:
    """The title, the predicted time of a target, and its measured time if it is a measurement."""
    from wavecast.runs.regression.complexities import caffe_net
    from wavecast.runs.regression.layer_times import PREDICTED, times_of_trace
    from wavecast.runs.regression.per_layer import timed_network

    runs = f", {iterations} iterations" if iterations > 1 else ""
    batch = step.batch
    if target.startswith(_CAFFE):
        if batch is None or step != StepOptions(batch):
            raise InvalidInput(
                f"{target} is a list of layers: give --batch, and no --precision or other option"
            )
        network = caffe_net(target.removeprefix(_CAFFE))
        title = f"{network.name}, batch {batch}{runs}"
        return title, model.predict(network, batch, iterations), None
    saved = target.endswith(_TRACES)
    # A saved trace is traced at one batch, and its layers are predicted at the given one.
    step_target = replace(step, batch=None if saved else batch).target(target)
    trace = _trace(step_target)
    own = _own_batch(trace, step_target.batch or batch)
    network = _network(step_target.name, trace, own)
    size = batch or own
    work = None
    if model.unit.startswith(PREDICTED) and size == own:
        work = _work(trace, network, model.unit.removeprefix(PREDICTED), own)
    time = model.predict(network, size, iterations, work)
    measured = None
    if trace.measurement is not None and size == own and iterations == 1:
        measured = timed_network(network.name, times_of_trace(trace, network, own).times)
    title = (
        f"{step_target.name}, batch {size}"
        if saved or step_target.batch is None
        else step_target.name
    )
    return title + runs, time, measured


def _trace(target: Target) -> Trace:
    return step_source(target).on()


def _own_batch(trace: Trace, batch: int | None) -> int:
    """The samples of a trace: its own number if it has one, else the given one."""
    from wavecast.runs.regression.complexities import counts_samples, samples_of

    return samples_of(trace, None if counts_samples(trace) else batch)


def _network(name: str, trace: Trace, batch: int) -> Network:
    from wavecast.runs.regression.complexities import network_of_trace

    return network_of_trace(trace, batch=batch, name=name)


def _work(trace: Trace, network: Network, gpu: str, batch: int) -> LayerWork:
    from wavecast.predictors.learned.predictor import Learned
    from wavecast.runs.regression.layer_times import predicted_work

    return predicted_work(trace, network, wavecast.device(gpu), Learned.shipped(), batch)
