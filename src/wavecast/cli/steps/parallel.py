"""`wavecast parallelize` and `wavecast scale`: training steps on many GPUs."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.gpus import OneGpuOption
from wavecast.cli.options.predictors import HostOption
from wavecast.cli.options.prices import NO_PRICES, PriceOptions, price_options
from wavecast.cli.options.steps import (
    NO_STEP_OPTIONS,
    ParallelOption,
    StepOptions,
    TargetArgument,
    step_options,
)
from wavecast.cli.options.trainings import NO_TRAINING, TrainingOptions, training_options
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import counting_items, print_json, show, waiting, width
from wavecast.cli.steps.sources import step_source
from wavecast.errors import InvalidInput
from wavecast.frameworks.strategies import plan_of_target, strategy_of
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import training_cost
from wavecast.report import costs as cost_report
from wavecast.report.priced_steps import offer_for
from wavecast.traces.step import Trace

ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="The cluster; the GPU's usual machine by default.")
]


@app.command()
@step_options("batch", "ranks")
def parallelize(
    target: TargetArgument,
    gpu: OneGpuOption,
    gpus: Annotated[int, typer.Option("--gpus", help="How many GPUs there are.")],
    global_batch: Annotated[
        int, typer.Option("--global-batch", help="Samples of one optimizer step of all GPUs.")
    ],
    micro_batch: Annotated[
        list[int] | None,
        typer.Option("--micro-batch", help="Samples of a micro-batch to try; repeat for more."),
    ] = None,
    cluster: ClusterOption = None,
    host: HostOption = None,
    show_best: Annotated[int, typer.Option("--show", help="How many to show.")] = 10,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Find the fastest way to spread a training step over a number of GPUs.

    \b
    wavecast parallelize gpt2 --gpu h100-sxm-80gb --gpus 16 --global-batch 512 --precision bf16

    Data, sharded, tensor and pipeline parallel strategies are tried. Those that do not fit in
    memory are listed with the reason.
    """
    from wavecast.planning.layouts import Search, search_layouts
    from wavecast.report import parallel as report
    from wavecast.report.html.reports import layouts_report
    from wavecast.steps.request import on_cluster

    refuse_bad_places(html)
    for name, value in (("--gpus", gpus), ("--global-batch", global_batch), ("--show", show_best)):
        if value < 1:
            raise InvalidInput(f"{name} is a whole number of at least 1, not {value}")
    device = wavecast.device(gpu)
    predictor = on_cluster(device, Parallel(cluster=cluster))
    traced = step.target(target, fixed=("precision",))
    sizes = _micro_batches(traced.trace, micro_batch)

    trace_for = partial(step_source(traced, quiet=True).on, device)
    issuing = find_host(host, device, predictor.cluster)
    search = Search(gpus, global_batch, sizes, tensor_plan=plan_of_target(target, step.options))
    with counting_items("trying strategies") as progress:
        found = search_layouts(search, trace_for, predictor, issuing, progress)
    title = f"{target}: {gpus} x {device.id}, {global_batch} samples in a step"
    write_page(html, lambda: layouts_report(title, found))
    if as_json:
        print_json(found)
        return
    show(report.layouts(title, found, width(), show_best))


def _micro_batches(trace: Trace | None, given: list[int] | None) -> tuple[int, ...]:
    """The micro-batches to try: those given, that of a saved trace, or powers of two."""
    if trace is None:
        return tuple(sorted(set(given))) if given else (1, 2, 4, 8)
    if given:
        raise InvalidInput("a trace has one micro-batch only; leave out --micro-batch")
    if trace.samples is None:
        raise InvalidInput(
            "the trace does not say how many samples it has; trace the step again with samples="
        )
    return (trace.samples,)


@app.command()
@step_options("ranks")
@price_options
@training_options
def scale(
    target: TargetArgument,
    gpu: OneGpuOption,
    up_to: Annotated[int, typer.Option("--up-to", help="The largest number of GPUs.")] = 64,
    parallel: ParallelOption = None,
    strong: Annotated[
        bool, typer.Option("--strong", help="Keep the samples of one optimizer step.")
    ] = False,
    cluster: ClusterOption = None,
    host: HostOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Predict how the speed of a training grows with the number of GPUs.

    \b
    wavecast scale resnet50 --gpu a100-sxm-80gb --up-to 256 --batch 64
    wavecast scale gpt2 --gpu h100-sxm-80gb --parallel shard=3 --up-to 512 --precision bf16
    wavecast scale gpt2 --gpu h100-sxm-80gb --up-to 64 --tokens 2e9

    --parallel gives the strategy; its data axis grows.
    """
    from wavecast.planning import scaling
    from wavecast.report import parallel as report
    from wavecast.report.html.reports import scaling_report
    from wavecast.steps.request import on_cluster

    refuse_bad_places(html)
    strategy = strategy_of(parallel or "", target, step.options)
    device = wavecast.device(gpu)
    book = pricing.book([device])
    predictor = on_cluster(device, Parallel(cluster=cluster or strategy.cluster))
    traced = step.target(target, fixed=("precision",))
    plan = training.plan(traced)
    trace = step_source(traced).on(device)
    counts = scaling.doubled_counts(strategy, up_to)
    issuing = find_host(host, device, predictor.cluster)
    with waiting(f"predicting {len(counts)} numbers of GPUs"):
        curve = scaling.scale(trace, strategy, counts, predictor, issuing, strong=strong)
    costs = [
        None if plan is None else training_cost(one, plan, offer_for(one, book))
        for one in (point.prediction for point in curve.points)
    ]
    title = f"{traced.name} on {device.id}"
    write_page(html, lambda: scaling_report(title, curve))
    if as_json:
        trainings = None if plan is None else costs
        points = report.scaling_record(curve, book=book, trainings=trainings)
        print_json(report.SCALING.record({"target": traced.name, "curve": points}))
        return
    show(report.scaling(title, curve, width(), book))
    if plan is not None:
        show(cost_report.trainings(plan, trace.unit, costs, width()))
