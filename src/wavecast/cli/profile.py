"""`wavecast profile`: where the time and memory of a step go."""

from __future__ import annotations

from typing import Annotated

import typer

import wavecast
from wavecast.cli.app import BatchOption, JsonOption, PrecisionOption, TargetArgument, app
from wavecast.cli.assumptions import AssumeOption, assuming
from wavecast.cli.predict import GraphOption, HostOption, OriginOption
from wavecast.cli.screen import print_json, show, width
from wavecast.cli.steps import family_traces, measured_step, named_gpus, trace_of
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target, resolve
from wavecast.report import profiles as report
from wavecast.report import records
from wavecast.traces.step import Trace


@app.command()
def profile(
    target: TargetArgument,
    more: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TRACE]...", help="Further measured traces of the same step, to join with it."
        ),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", "-g", help="Predict it for this GPU; repeat to compare several."),
    ] = None,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    origin: OriginOption = None,
    host: HostOption = None,
    cuda_graph: GraphOption = False,
    assume: AssumeOption = None,
    kernels: Annotated[int, typer.Option("--kernels", help="How many kernels to list.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show where the time and memory of a step go.

    The step is measured on this machine's GPU, read from a file, or predicted.

    \b
    wavecast profile resnet50 --batch 32                       (on a machine with a GPU)
    wavecast profile rank0.pt.trace.json.gz                    (a torch.profiler file)
    wavecast profile kernels.json.gz counters.json.gz          (two measurements of one step)
    wavecast profile resnet50 --batch 32 --gpu t4 --gpu l4     (predicted, side by side)
    """
    from wavecast.steps.arguments import origin_of
    from wavecast.steps.profiling import profile_measured, profile_predicted

    if gpu and more:
        raise InvalidInput("only measured traces can be joined; leave --gpu out")
    if not gpu and (host is not None or cuda_graph):
        raise InvalidInput("--host and --cuda-graph are for predictions; name a GPU (--gpu)")
    if not gpu and assume:
        raise InvalidInput("--assume is for predictions; name a GPU (--gpu)")

    wanted = assuming(resolve(target, batch, precision), assume)
    if gpu:
        gpus = named_gpus(gpu)
        traces = family_traces(wanted, gpus)
        profiles = [
            profile_predicted(
                wanted.name,
                wavecast.predict(traces, device, host=host, graphed=cuda_graph),
            )
            for device in gpus
        ]
    else:
        trace = _measured(wanted, more)
        profiles = [profile_measured(wanted.name, trace, origin_of(trace, origin))]
    if as_json:
        print_json([records.profile(step) for step in profiles])
    else:
        show(report.profiles(wanted.name, profiles, width(), kernels))


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
