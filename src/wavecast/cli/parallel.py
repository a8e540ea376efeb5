"""`wavecast parallelize` and `wavecast scale`: training steps on many GPUs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Annotated, Any

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
from wavecast.cli.model_options import NO_OPTIONS, ModelOptions, model_options
from wavecast.cli.pages import (
    HtmlOption,
    ReportFiles,
    refuse_bad_places,
    write_page,
    write_parallel_files,
)
from wavecast.cli.parallel_options import ParallelOption, plan_of_target, strategy_of
from wavecast.cli.price_options import NO_PRICES, PriceOptions, price_options
from wavecast.cli.screen import counting_items, print_json, show, waiting, width
from wavecast.cli.steps import family_traces, trace_of
from wavecast.cli.training_options import NO_TRAINING, TrainingOptions, training_options
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target, resolve
from wavecast.hardware.device import Device
from wavecast.hardware.families import family
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.strategy import Parallel
from wavecast.planning.cost import TrainingCost, TrainingPlan, training_cost
from wavecast.planning.prices import PriceBook
from wavecast.report import costs as cost_report
from wavecast.steps.parallel_prediction import ParallelPrediction
from wavecast.traces.step import Trace

OneGpuOption = Annotated[
    str, typer.Option("--gpu", "-g", autocompletion=gpu_names, help="The model of the GPUs.")
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="The cluster; the GPU's usual machine by default.")
]
HostNameOption = Annotated[
    str | None, typer.Option("--host", help="The host that issues the ops, as for predict.")
]


@app.command()
@model_options
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
    precision: PrecisionOption = None,
    cluster: ClusterOption = None,
    host: HostNameOption = None,
    show_best: Annotated[int, typer.Option("--show", help="How many to show.")] = 10,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    options: ModelOptions = NO_OPTIONS,
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
    from wavecast.steps.predicting import on_cluster

    refuse_bad_places(html)
    for name, value in (("--gpus", gpus), ("--global-batch", global_batch), ("--show", show_best)):
        if value < 1:
            raise InvalidInput(f"{name} is a whole number of at least 1, not {value}")
    device = wavecast.device(gpu)
    predictor = on_cluster(device, Parallel(cluster=cluster))
    traced = resolve(target, None, precision, options)
    sizes = _micro_batches(traced.trace, micro_batch)

    @cache
    def trace_for(batch: int) -> Trace:
        if traced.trace is not None:
            return traced.trace
        return trace_of(resolve(target, batch, precision, options), family(device), quiet=True)

    issuing = find_host(host, device, predictor.cluster)
    search = Search(gpus, global_batch, sizes, tensor_plan=plan_of_target(target, options))
    with counting_items("trying strategies") as progress:
        found = search_layouts(search, trace_for, predictor, issuing, progress)
    title = f"{target}: {gpus} x {device.id}, {global_batch} samples in a step"
    write_page(html, lambda: layouts_report(title, found))
    if as_json:
        print_json([report.layout_record(layout) for layout in found])
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
@model_options
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
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    cluster: ClusterOption = None,
    host: HostNameOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    options: ModelOptions = NO_OPTIONS,
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
    from wavecast.steps.predicting import on_cluster

    refuse_bad_places(html)
    strategy = strategy_of(parallel or "", target, options)
    device = wavecast.device(gpu)
    book = pricing.book([device])
    predictor = on_cluster(device, Parallel(cluster=cluster or strategy.cluster))
    traced = resolve(target, batch, precision, options)
    plan = training.plan(traced)
    step = trace_of(traced, family(device))
    counts = _counts(strategy, up_to)
    issuing = find_host(host, device, predictor.cluster)
    with waiting(f"predicting {len(counts)} numbers of GPUs"):
        curve = scaling.scale(step, strategy, counts, predictor, issuing, strong=strong)
    costs = [parallel_cost(point.prediction, plan, book) for point in curve.points]
    title = f"{traced.name} on {device.id}"
    write_page(html, lambda: scaling_report(title, curve))
    if as_json:
        record = report.scaling_record(curve, book)
        for each, cost in zip(record["points"], costs, strict=True):
            each.update(_training(plan, cost))
        print_json({"target": traced.name, **record})
        return
    show(report.scaling(title, curve, width(), book))
    if plan is not None:
        show(cost_report.trainings(plan, step.unit, costs, width()))


def _counts(strategy: Parallel, up_to: int) -> list[int]:
    """The numbers of GPUs: one replica, or as many as share the experts, and its doubles."""
    sharing = strategy.expert // math.gcd(strategy.expert, strategy.tensor * strategy.sequence or 1)
    smallest = strategy.gpus // strategy.data * sharing
    if up_to < smallest:
        one = "the replicas that share the experts, which have" if sharing > 1 else ""
        raise InvalidInput(
            f"--up-to {up_to} is less than {one or 'one replica, which has'} {smallest} GPUs"
        )
    counts = [smallest]
    while counts[-1] * 2 <= up_to:
        counts.append(counts[-1] * 2)
    return counts


def show_parallel(
    target: Target,
    gpus: list[Device],
    text: str,
    issuing: tuple[str | None, float],
    files: ReportFiles,
    as_json: bool,
    plan: TrainingPlan | None,
    book: PriceBook,
) -> None:
    """Print the prediction of a step that is spread as the option `--parallel` says."""
    from wavecast.footprint.parallel_memory import fullest_rank
    from wavecast.report import parallel as report

    host, factor = issuing
    traces = family_traces(target, gpus)
    named = strategy_of(text, target.text, target.options)
    strategy = accumulating(named, plan, traces.traces[0].samples)
    rows = []
    for gpu in gpus:
        step = wavecast.predict(traces, gpu, parallel=strategy, host=host, host_factor=factor)
        needed = fullest_rank(step.step, gpu) if step.trace.allocations else None
        rows.append((step, needed))
    costs = [
        None if needed is not None and not needed.fits else parallel_cost(step, plan, book)
        for step, needed in rows
    ]
    write_parallel_files(files, target.name, rows)
    if as_json:
        records = [
            report.record(*row) | _training(plan, cost)
            for row, cost in zip(rows, costs, strict=True)
        ]
        print_json({"target": target.name, "predictions": records})
        return
    show(report.predictions(target.name, rows, width()))
    if plan is not None:
        show(cost_report.trainings(plan, rows[0][0].trace.unit, costs, width()))


def _training(plan: TrainingPlan | None, cost: TrainingCost | None) -> dict[str, Any]:
    """The key of a whole training, if one is asked for."""
    if plan is None:
        return {}
    return {"training": None if cost is None else cost_report.cost_record(cost)}


def accumulating(strategy: Parallel, plan: TrainingPlan | None, samples: int | None) -> Parallel:
    """The strategy with as many micro-batches as the plan's global batch asks for."""
    batch = None if plan is None else plan.global_batch
    if batch is None or samples is None or strategy.microbatches > 1:
        return strategy
    count, rest = divmod(batch, samples * strategy.data)
    if rest or not count:
        raise InvalidInput(
            f"a global batch of {batch} cannot be divided among {strategy.data} replicas with "
            f"micro-batches of {samples}; use a multiple of {samples * strategy.data}, or another "
            "--batch"
        )
    return replace(strategy, microbatches=count)


def parallel_cost(
    step: ParallelPrediction, plan: TrainingPlan | None, book: PriceBook
) -> TrainingCost | None:
    """What a training takes on several GPUs, rented in machines that hold them; None unplanned."""
    if plan is None:
        return None
    together = min(step.gpus, step.cluster.gpus_per_node)
    return training_cost(step, plan, book.cheapest(step.device.id, step.gpus, together=together))
