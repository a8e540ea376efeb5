"""`wavecast parallelize` and `wavecast scale`: training steps on many GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.groups import RayOption, option_group
from wavecast.cli.options.predictors import HostOption
from wavecast.cli.options.prices import (
    NO_PRICES,
    NO_TRAINING,
    PriceOptions,
    TrainingOptions,
    price_options,
    training_options,
)
from wavecast.cli.options.steps import (
    NO_STEP_OPTIONS,
    OneGpuOption,
    ParallelOption,
    StepOptions,
    TargetArgument,
    step_options,
)
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import counting_items, print_json, show, waiting, width
from wavecast.cli.steps.sources import step_source
from wavecast.errors import InvalidInput
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import (
    LLAMA_3_GPU_HOURS,
    TrainingPlan,
    interruptions,
    training_cost,
)
from wavecast.planning.layouts import MEMORY_MARGIN, Search, batch_warning
from wavecast.planning.prices import PriceBook
from wavecast.reading import seconds_of
from wavecast.report.results import costs as cost_report
from wavecast.report.results import parallel as report
from wavecast.report.results.predictions import offer_for
from wavecast.steps.prediction import Prediction
from wavecast.targets.targets import (
    Target,
    plan_of_target,
    recompute_ways,
    recomputing,
    strategy_of,
    with_adapters,
)

if TYPE_CHECKING:
    from wavecast.hardware.devices import Device
    from wavecast.hardware.hosts import HostModel
    from wavecast.planning.layout_search import Progress
    from wavecast.planning.layouts import Layout
    from wavecast.steps.op_times import ClusterPredictor
    from wavecast.targets.sources import StepSource
    from wavecast.traces.step import Trace

# The options of a search for the best strategy.


@dataclass(frozen=True)
class SearchOptions:
    """The options as the user gave them."""

    micro_batch: list[int] | None = None
    show: int = 5
    memory_margin: float = MEMORY_MARGIN
    within: str | None = None

    def search(self, gpus: int, global_batch: int | None, target: Target) -> Search:
        """What is looked for.

        Raises:
            InvalidInput: an option is missing, or its value cannot be.
        """
        if global_batch is None:
            raise InvalidInput(
                "say how many samples one optimizer step of all GPUs has: --global-batch"
            )
        counts = ("--gpus", gpus), ("--global-batch", global_batch), ("--show", self.show)
        for name, value in counts:
            if value < 1:
                raise InvalidInput(f"{name} is a whole number of at least 1, not {value}")
        return Search(
            gpus,
            global_batch,
            _micro_batches(target.trace, self.micro_batch),
            tensor_plan=plan_of_target(target.text, target.options),
            recompute=recompute_ways(target),
            best=self.show,
            memory_margin=self.memory_margin,
            within_s=None if self.within is None else seconds_of(self.within, "--within"),
        )


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


NO_SEARCH = SearchOptions()

search_options = option_group(
    "searching",
    SearchOptions,
    {
        "micro_batch": "Samples of a micro-batch to try; repeat for more.",
        "show": "How many to show; more of them have to be played.",
        "memory_margin": "The share of a GPU's memory that must stay free.",
        "within": "End the search with the best so far after so many seconds, or a time as 5min. "
        "If nothing fits, what would fit is looked for after that.",
    },
    "The search",
)
"""A decorator that gives a command the options of a search, as its parameter `searching`."""


GpuHoursOption = Annotated[
    float,
    typer.Option(
        "--gpu-hours-between-failures",
        help="How many GPU hours pass between failures; by default as in Llama 3's training.",
    ),
]
RestartOption = Annotated[
    str | None,
    typer.Option("--restart-time", help="From a failure to the first new step; 10min by default."),
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="The cluster; the GPU's usual machine by default.")
]


@app.command()
@step_options("batch", "ranks")
@price_options
@training_options
@search_options
def parallelize(
    target: TargetArgument,
    gpu: OneGpuOption,
    gpus: Annotated[int, typer.Option("--gpus", help="How many GPUs there are.")],
    cluster: ClusterOption = None,
    host: HostOption = None,
    gpu_hours_between: GpuHoursOption = LLAMA_3_GPU_HOURS,
    restart_time: RestartOption = None,
    ray: RayOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    step: StepOptions = NO_STEP_OPTIONS,
    searching: SearchOptions = NO_SEARCH,
) -> None:
    """Find the fastest way to spread a training step over a number of GPUs.

    \b
    wavecast parallelize gpt2 --gpu h100-sxm-80gb --gpus 16 --global-batch 512 --precision bf16
    wavecast parallelize gpt2 --gpu h100-sxm-80gb --gpus 16 --global-batch 512 --tokens 1e10

    Data, sharded, tensor, sequence, context, expert and pipeline parallel strategies are tried,
    with several micro-batches, and with recomputed activations where the target can. Those that
    cannot be among the first by a lower bound are not played. Ctrl-C ends the search with the best
    so far. Where nothing fits, changes with which it does are looked for.
    """
    from wavecast.planning.layouts import INTERRUPTED
    from wavecast.report.html.reports import layouts_report
    from wavecast.steps.request import on_cluster

    refuse_bad_places(html)
    device = wavecast.device(gpu)
    book = pricing.book([device])
    predictor = on_cluster(device, Parallel(cluster=cluster))
    traced = step.target(target, fixed=("precision",))
    steady = replace(training, global_batch=None, checkpoint_time=None, checkpoint_every=None)
    plan = steady.plan(traced)
    search = searching.search(gpus, training.global_batch, traced)
    issuing = find_host(host, device, predictor.cluster)
    layouts = _found(traced, search, predictor, (cluster, host), ray)
    changes = _fitting_changes(traced, search, device, layouts) if ray is None else []
    if cluster is not None:
        layouts = [replace(way, strategy=replace(way.strategy, cluster=cluster)) for way in layouts]
    name, batch = traced.model or target, search.global_batch
    title = f"{name}: {gpus} x {device.id}, {batch} samples in a step"
    write_page(html, lambda: layouts_report(title, layouts, changes))
    if as_json:
        print_json(report.told_layouts(name, layouts))
    else:
        _show_layouts(title, layouts, search, changes)
        if plan is not None and (best := layouts[0].prediction) is not None:
            stops = _stops(training, restart_time, best)
            _show_training(best, plan, book, gpu_hours_between, stops)
        _show_networks(layouts[:_RETRIED], predictor, issuing)
    if any(layout.reason == INTERRUPTED for layout in layouts):
        raise KeyboardInterrupt("what is shown is the best so far")


def _found(
    target: Target,
    search: Search,
    predictor: ClusterPredictor,
    where: tuple[str | None, str | None],
    ray: str | None,
) -> list[Layout]:
    """The strategies, tried here or on the nodes of a Ray cluster."""
    from wavecast.campaigns.searches import layouts_in_parts

    with counting_items("trying strategies") as count:

        def progress(done: int, total: int, best: Layout | None) -> None:
            count(done, total, "" if best is None else f"best so far {best.summary}")

        if ray is None:
            host = find_host(where[1], predictor.device, predictor.cluster)
            return _searched(_sources(target, search), search, predictor, host, progress)
        from wavecast.campaigns.ray_workers import spread_over_ray

        device = predictor.device
        with spread_over_ray(ray) as (spread, cores):
            return layouts_in_parts(target, search, device, where, cores, spread, progress)


def _sources(target: Target, search: Search) -> dict[str, StepSource]:
    """The traces of the target, by what they recompute."""
    return {way: step_source(recomputing(target, way), quiet=True) for way in search.recompute}


def _searched(
    sources: dict[str, StepSource],
    search: Search,
    predictor: ClusterPredictor,
    host: HostModel,
    progress: Progress | None = None,
) -> list[Layout]:
    """The strategies, tried here."""
    from wavecast.planning.layout_search import search_layouts

    return search_layouts(
        search,
        lambda micro, way: sources[way].on(predictor.device, micro),
        predictor,
        host,
        progress,
        keeps_interrupted=progress is not None,
    )


def _fitting_changes(
    target: Target, search: Search, device: Device, layouts: Sequence[Layout]
) -> list[str]:
    """What to change where nothing fits, in words; empty where something does."""
    from wavecast.planning.layout_search import ADAPTERS, fitting_changes
    from wavecast.steps.request import on_cluster

    answered = any(layout.prediction is not None or not layout.is_tried for layout in layouts)
    if answered or all(layout.fits for layout in layouts):
        return []

    adapted = with_adapters(target, ADAPTERS)
    whole = _sources(target, search)

    def fitting(changed: Search, gpu: Device, has_adapters: bool) -> Layout | None:
        sources = _sources(adapted, search) if has_adapters and adapted is not None else whole
        predictor = on_cluster(gpu, Parallel())
        host = find_host(None, gpu, predictor.cluster)
        first = _searched(sources, changed, predictor, host)[0]
        return first if first.prediction is not None else None

    with waiting("looking for what fits"):
        return fitting_changes(search, device, fitting, adaptable=adapted is not None)


_RETRIED = 3
"""How many of the best strategies are tried on other networks."""


def _show_layouts(
    title: str, layouts: list[Layout], search: Search, changes: Sequence[str]
) -> None:
    """The best strategies, and a warning if the global batch is unusually large."""

    warned = []
    if layouts[0].prediction is not None:
        trace, micro = layouts[0].prediction.trace, layouts[0].micro_batch
        warned = [batch_warning(trace, search.global_batch, micro)]
    notes = [*changes, *(text for text in warned if text is not None)]
    show(report.layouts(title, layouts, width(), search.best or len(layouts), notes))


def _show_training(
    step: Prediction,
    plan: TrainingPlan,
    book: PriceBook,
    gpu_hours_between: float,
    stops: dict[str, float],
) -> None:
    """The whole training with the best strategy, and its failures."""

    cost = training_cost(step, plan, offer_for(step, book))
    show(cost_report.trainings(plan, step.trace.unit, [cost], width()))
    long_s = cost.training_s.value
    lost = interruptions(long_s, step.gpus, gpu_hours_between, **stops)
    show(*report.interruptions_lines(lost, long_s))


def _show_networks(best: list[Layout], predictor: ClusterPredictor, host: HostModel) -> None:
    from wavecast.planning.layouts import network_points

    with waiting("trying other networks"):
        points = network_points(best, predictor, host)
    if points:
        show(report.networks(points, width()))


def _stops(
    training: TrainingOptions, restart_time: str | None, step: Prediction
) -> dict[str, float]:
    """How long checkpoints and restarts stop a training, as far as it is given."""
    stops = {}
    if training.checkpoint_time is not None:
        stops["checkpoint_s"] = seconds_of(training.checkpoint_time, "--checkpoint-time")
    if training.checkpoint_every is not None:
        stops["every_s"] = training.checkpoint_every * step.seconds
    if restart_time is not None:
        stops["restart_s"] = seconds_of(restart_time, "--restart-time")
    return stops


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
        None if plan is None else training_cost(predicted, plan, offer_for(predicted, book))
        for predicted in (point.prediction for point in curve.points)
    ]
    title = f"{traced.name} on {device.id}"
    whole = None if plan is None else cost_report.WholeTraining(plan, costs)
    write_page(html, lambda: scaling_report(title, curve, whole))
    if as_json:
        trainings = None if plan is None else costs
        points = report.scaling_record(curve, book=book, trainings=trainings)
        print_json(report.SCALING.record({"target": traced.name, "curve": points}))
        return
    show(report.scaling(title, curve, width(), book))
    if plan is not None:
        show(cost_report.trainings(plan, trace.unit, costs, width()))
