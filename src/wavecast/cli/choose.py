"""`wavecast choose`: which GPUs to take for a training."""

from __future__ import annotations

from functools import cache
from typing import Annotated

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
from wavecast.cli.durations import seconds_of
from wavecast.cli.model_options import NO_OPTIONS, ModelOptions, model_options
from wavecast.cli.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.predict import HostOption, SetupOption, refuse_scaling
from wavecast.cli.predictor_choice import chosen_predictor
from wavecast.cli.price_options import NO_PRICES, PriceOptions, price_options
from wavecast.cli.screen import counting_items, print_json, show, width
from wavecast.cli.steps import ALL, is_measured, named_or_all_gpus, trace_of
from wavecast.cli.training_options import (
    NO_TRAINING,
    TrainingOptions,
    training_options,
    units_of,
)
from wavecast.errors import InvalidInput
from wavecast.frameworks.targets import Target, resolve
from wavecast.hardware.device import Device
from wavecast.hardware.families import Family, family
from wavecast.hardware.retargeting import depends_on_family
from wavecast.planning.candidates import TraceFor, TrainingQuestion, find_candidates
from wavecast.planning.choosing import Aim, select
from wavecast.planning.cost import TrainingPlan
from wavecast.planning.prices import PriceBook
from wavecast.report import choices as report
from wavecast.report.html.choice_reports import choice_report
from wavecast.traces.step import Trace

_MILLION = 1e6


SomeGpusOption = Annotated[
    list[str] | None,
    typer.Option(
        *("--gpu", "-g"),
        autocompletion=gpu_names,
        help="Only these GPUs; by default all that have an offer.",
    ),
]
BudgetOption = Annotated[
    float | None, typer.Option("--budget", help="The most that the training may cost, in USD.")
]
DeadlineOption = Annotated[
    str | None, typer.Option("--deadline", help="The longest that it may take, as in 48h.")
]
GpusOption = Annotated[
    int, typer.Option("--gpus-up-to", min=1, help="Also try 2, 4, 8, ... GPUs, up to this.")
]


@app.command()
@model_options
@price_options
@training_options
def choose(
    target: TargetArgument,
    gpu: SomeGpusOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    gpus_up_to: GpusOption = 1,
    by: Annotated[Aim, typer.Option("--by", help="What is best.")] = Aim.MONEY,
    batch: BatchOption = None,
    precision: PrecisionOption = None,
    setup: SetupOption = None,
    host: HostOption = None,
    show_best: Annotated[int, typer.Option("--show", min=1, help="How many to show.")] = 10,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    options: ModelOptions = NO_OPTIONS,
) -> None:
    """Choose the GPUs for a training: the cheapest, the fastest, or the best of both.

    \b
    wavecast choose resnet50 --batch 64 --precision bf16 --epochs 90 --dataset-samples 1281167
    wavecast choose gpt2 --tokens 2e9 --budget 500 --deadline 48h --gpus-up-to 8
    wavecast choose train.py:make_step --batch 32 --iterations 100000 --by both --spot
    wavecast choose hf:llama-3.1-8b --qlora --samples 50000 --providers aws,gcp

    A step that does not fit is tried with smaller batches, whose gradients are accumulated, and on
    several GPUs with sharded weights. With --global-batch and without --batch, each GPU gets the
    largest batch that fits. Without an option for the length of the training, the cost of a
    million samples is compared.
    """
    refuse_bad_places(html)
    wanted = resolve(target, batch, precision, options)
    refuse_scaling(wanted, None, None, setup)
    named = named_or_all_gpus(gpu) if gpu else list(wavecast.devices())
    book = pricing.book(named if gpu else (), setup)
    limits = _budget(budget), None if deadline is None else seconds_of(deadline, "--deadline")
    plan = training.plan(wanted) or _usual_plan(wanted)
    question = TrainingQuestion(
        plan=plan,
        counts=_counts(gpus_up_to, wanted),
        batch=wanted.batch,
        each=units_of(wanted),
        is_batch_fixed=batch is not None,
        host=host,
        predictor=chosen_predictor(None, wanted, precision, None, setup),
        only_priced=not gpu or ALL in gpu,
    )
    trace_for = _tracing(wanted, (target, precision, options))
    devices = _looked_at(named, book, question)
    with counting_items(f"looking at {len(devices)} GPUs") as progress:
        found = find_candidates(devices, question, trace_for, book, progress)
    selection, unit = select(found, by, *limits), trace_for(devices[0], None).unit
    write_page(html, lambda: choice_report(wanted.name, selection, plan, unit, limits))
    if as_json:
        print_json({"target": wanted.name, **report.selection_record(selection)})
    else:
        show(report.choices(wanted.name, selection, plan, unit, width(), show_best))


def _budget(usd: float | None) -> float | None:
    if usd is not None and not 0 < usd < 1e15:
        raise InvalidInput(f"--budget is a number of USD above 0, not {usd:g}")
    return usd


def _usual_plan(target: Target) -> TrainingPlan:
    """The training that is compared if none is given: a million samples, or of steps."""
    known = target.samples if target.trace is None else target.trace.samples
    if known is None and target.make_step is None:
        return TrainingPlan(iterations=_MILLION)
    if known is None:
        raise InvalidInput(
            "how many samples a step takes is not known; give --batch, or say how long the "
            "training is with --iterations"
        )
    return TrainingPlan(samples=_MILLION * units_of(target))


def _counts(up_to: int, target: Target) -> tuple[int, ...]:
    """The numbers of GPUs to try: powers of two, up to the largest."""
    counts = [1]
    while counts[-1] * 2 <= up_to:
        counts.append(counts[-1] * 2)
    if len(counts) > 1 and is_measured(target):
        raise InvalidInput(
            f"{target.name} was measured on one GPU; name the step itself for --gpus-up-to"
        )
    return tuple(counts)


def _looked_at(
    named: list[Device], book: PriceBook, question: TrainingQuestion
) -> tuple[Device, ...]:
    """The GPUs to look at; those without an offer are left out, unless they were named."""
    if not question.only_priced:
        return tuple(named)
    priced = {offer.device_id for offer in book.seen()}
    found = tuple(device for device in named if device.id in priced)
    if not found:
        raise InvalidInput("no offer of any GPU is known; leave out --providers, or add --stale")
    return found


def _tracing(target: Target, asked: tuple[str, str | None, ModelOptions]) -> TraceFor:
    """Traces the target at any batch; GPUs of a family share a trace, and most families do."""
    text, precision, options = asked

    @cache
    def traced(batch: int | None, wanted: Family | None) -> Trace:
        chosen = target if batch is None else resolve(text, batch, precision, options)
        return trace_of(chosen, wanted, quiet=True)

    first: list[Family] = []

    def trace_for(device: Device, batch: int | None) -> Trace:
        mine = family(device)
        if not first:
            first.append(mine)
        common = traced(batch, first[0])
        return common if not depends_on_family(common) else traced(batch, mine)

    return trace_for
