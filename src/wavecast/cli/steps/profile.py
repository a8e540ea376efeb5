"""`wavecast profile`: where the time and memory of a step go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.predictors import (
    NO_HOST_OPTIONS,
    HostOptions,
    OriginOption,
    host_options,
    precision_scaler,
    refuse_scaling,
)
from wavecast.cli.options.steps import (
    NO_STEP_OPTIONS,
    ParallelOption,
    SomeGpusOption,
    StepOptions,
    TargetArgument,
    named_gpus,
    refuse_all,
    step_options,
)
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import print_json, show, width
from wavecast.cli.steps.predicted import exit_if_incomplete, refuse_beside_several
from wavecast.cli.steps.sources import measured_step, step_source
from wavecast.errors import InvalidInput
from wavecast.report.results import profiles as report
from wavecast.targets.targets import Target, resolve, strategy_of
from wavecast.traces.step import Trace

if TYPE_CHECKING:
    from wavecast import Prediction


MoreArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TRACE]...", help="Further measured traces of the same step, to join with it."
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
@host_options
@step_options()
def profile(
    target: TargetArgument,
    more: MoreArgument = None,
    gpu: SomeGpusOption = None,
    origin: OriginOption = None,
    parallel: ParallelOption = None,
    kernels: KernelsOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
    issuing: HostOptions = NO_HOST_OPTIONS,
) -> None:
    """Show where the time and memory of a step go.

    The step is measured on this machine's GPU, read from a file, or predicted.

    \b
    wavecast profile resnet50 --batch 32                       (on a machine with a GPU)
    wavecast profile rank0.pt.trace.json.gz                    (a torch.profiler file)
    wavecast profile kernels.json.gz counters.json.gz          (two measurements of one step)
    wavecast profile resnet50 --batch 32 --gpu t4 --gpu l4     (predicted, side by side)
    """
    from wavecast.analysis.profile import profile_measured, profile_predicted
    from wavecast.steps.request import origin_of

    refuse_bad_places(html)
    refuse_all(gpu, "profile", f"predict {target}")
    spread = parallel or (None if step.ranks is None else f"data={step.ranks}")
    _refuse_mixed(gpu, more, issuing, step, spread)
    resolved = step.target(target, fixed=() if gpu else ("precision",))
    predictions: list[Prediction] = []
    if gpu:
        refuse_scaling(resolved, origin)
        how = issuing.arguments()
        if spread is None:
            how |= {"predictor": precision_scaler(resolved, step.precision), "origin": origin}
        else:
            refuse_beside_several({"--origin": origin})
            how["parallel"] = strategy_of(spread, target, step.options)
        gpus = named_gpus(gpu)
        traces = step_source(resolved).families(gpus)
        predictions = [wavecast.predict(traces, device, **how) for device in gpus]
        profiles = [profile_predicted(resolved.name, prediction) for prediction in predictions]
        write_page(
            html, lambda: report.predicted_profile_report(resolved.name, profiles, predictions)
        )
    else:
        trace = _measured(resolved, more)
        profiles = [profile_measured(resolved.name, trace, origin_of(trace, origin))]
        write_page(html, lambda: report.measured_profile_report(resolved.name, profiles[0], trace))
    if as_json:
        print_json([report.profile_record(shown, kernels) for shown in profiles])
    else:
        limit = report.KERNELS if kernels is None else kernels
        show(report.profiles(resolved.name, profiles, width(), limit))
    exit_if_incomplete(predictions)


def _refuse_mixed(
    gpu: list[str] | None,
    more: list[str] | None,
    issuing: HostOptions,
    step: StepOptions,
    spread: str | None,
) -> None:
    """Refuse options of predictions for a measured step, and the other way round."""
    if gpu and more:
        raise InvalidInput("only measured traces can be joined; leave --gpu out")
    predicts = issuing.given() | {"--assume": step.assume, "--compile": step.compile}
    for option, value in (predicts | {"--parallel and --ranks": spread}).items():
        if not gpu and value:
            raise InvalidInput(f"{option} is for predictions; name a GPU (--gpu)")


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

    return join([trace, *(step_source(resolve(name)).on() for name in more)])
