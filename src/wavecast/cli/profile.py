"""`wavecast profile`: where the time and memory of a step go."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import (
    BatchOption,
    JsonOption,
    PrecisionOption,
    TargetArgument,
    app,
    gpu_names,
)
from wavecast.cli.assumptions import AssumeOption, assuming
from wavecast.cli.compile_options import CompileOption, as_compiled
from wavecast.cli.model_options import NO_OPTIONS, ModelOptions, model_options
from wavecast.cli.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.predict import (
    GraphOption,
    HostOption,
    OriginOption,
    exit_if_incomplete,
    refuse_scaling,
)
from wavecast.cli.predictor_choice import precision_scaler
from wavecast.cli.screen import print_json, show, width
from wavecast.cli.steps import (
    family_traces,
    measured_step,
    named_gpus,
    refuse_all,
    trace_of,
    unchanged,
)
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target, resolve
from wavecast.report import profiles as report
from wavecast.report import records
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast import Prediction


MoreArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TRACE]...", help="Further measured traces of the same step, to join with it."
    ),
]
SomeGpusOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        "-g",
        autocompletion=gpu_names,
        help="Predict it for this GPU; repeat to compare several.",
    ),
]
KernelsOption = Annotated[
    int | None,
    typer.Option(
        "--kernels",
        min=0,
        help=f"How many kernels to list; by default {report.KERNELS} in a table, all in JSON.",
    ),
]


@app.command()
@model_options
def profile(
    target: TargetArgument,
    more: MoreArgument = None,
    gpu: SomeGpusOption = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    origin: OriginOption = None,
    host: HostOption = None,
    cuda_graph: GraphOption = False,
    assume: AssumeOption = None,
    compile_: CompileOption = False,
    kernels: KernelsOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    options: ModelOptions = NO_OPTIONS,
) -> None:
    """Show where the time and memory of a step go.

    The step is measured on this machine's GPU, read from a file, or predicted.

    \b
    wavecast profile resnet50 --batch 32                       (on a machine with a GPU)
    wavecast profile rank0.pt.trace.json.gz                    (a torch.profiler file)
    wavecast profile kernels.json.gz counters.json.gz          (two measurements of one step)
    wavecast profile resnet50 --batch 32 --gpu t4 --gpu l4     (predicted, side by side)
    """
    from wavecast.report.html import profile_reports as pages
    from wavecast.steps.arguments import origin_of
    from wavecast.steps.profiling import profile_measured, profile_predicted

    refuse_bad_places(html)
    refuse_all(gpu, "profile", f"predict {target}")
    _refuse_mixed(gpu, more, host is not None or cuda_graph, assume)
    wanted = assuming(resolve(target, batch, precision, options), assume)
    wanted = as_compiled(wanted, compile_)
    predictions: list[Prediction] = []
    if gpu:
        refuse_scaling(wanted, origin)
        predict_on = partial(
            wavecast.predict,
            predictor=precision_scaler(wanted, precision),
            origin=origin,
            host=host,
            graphed=cuda_graph,
        )
        gpus = named_gpus(gpu)
        traces = family_traces(wanted, gpus)
        predictions = [predict_on(traces, device) for device in gpus]
        profiles = [profile_predicted(wanted.name, prediction) for prediction in predictions]
        write_page(html, lambda: pages.predicted_profile_report(wanted.name, profiles, predictions))
    else:
        trace = _measured(unchanged(wanted, None, precision), more)
        profiles = [profile_measured(wanted.name, trace, origin_of(trace, origin))]
        write_page(html, lambda: pages.measured_profile_report(wanted.name, profiles[0], trace))
    if as_json:
        print_json([records.profile(step, kernels) for step in profiles])
    else:
        limit = report.KERNELS if kernels is None else kernels
        show(report.profiles(wanted.name, profiles, width(), limit))
    exit_if_incomplete(predictions)


def _refuse_mixed(
    gpu: list[str] | None, more: list[str] | None, is_hosted: bool, assume: list[str] | None
) -> None:
    """Refuse options of predictions for a measured step, and the other way round."""
    if gpu and more:
        raise InvalidInput("only measured traces can be joined; leave --gpu out")
    if not gpu and is_hosted:
        raise InvalidInput("--host and --cuda-graph are for predictions; name a GPU (--gpu)")
    if not gpu and assume:
        raise InvalidInput("--assume is for predictions; name a GPU (--gpu)")


def _measured(target: Target, more: list[str] | None) -> Trace:
    """The measured step of a target, joined with further measurements of it."""
    trace = target.trace or measured_step(target)
    if trace.measurement is None:
        raise InvalidInput(
            f"{target.name} was traced, not measured; name a GPU to predict it for (--gpu)"
        )
    if not more:
        return trace
    from wavecast.traces.joining import join

    return join([trace, *(trace_of(resolve(name), None) for name in more)])
