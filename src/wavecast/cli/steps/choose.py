"""`wavecast choose`: which GPUs to take for a training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

import wavecast
from wavecast.advice.settings import StepSettings, allowed_names
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.groups import RayOption
from wavecast.cli.options.predictors import (
    HostOption,
    SetupOption,
    chosen_predictor,
    refuse_scaling,
)
from wavecast.cli.options.prices import (
    NO_PRICES,
    NO_TRAINING,
    PriceOptions,
    TrainingOptions,
    price_options,
    training_options,
)
from wavecast.cli.options.steps import (
    ALL,
    NO_STEP_OPTIONS,
    StepOptions,
    TargetArgument,
    gpu_option,
    named_or_all_gpus,
    step_options,
)
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import counting_items, print_json, show, width
from wavecast.cli.steps.sources import step_source
from wavecast.errors import InvalidInput
from wavecast.hardware.devices import Device
from wavecast.planning.candidates import TrainingQuestion, find_candidates
from wavecast.planning.cost import TrainingPlan
from wavecast.planning.prices import PriceBook
from wavecast.planning.scaling import doubles
from wavecast.planning.selection import Aim, Candidate, Selection, select
from wavecast.reading import seconds_of
from wavecast.report.results import selections as report
from wavecast.report.results.selections import AskedStep, asked_step, choice_report
from wavecast.targets.sources import StepSource, units_of
from wavecast.targets.targets import Target, Trait

_MILLION = 1e6
_Limits = tuple[float | None, float | None]
_COMPILED = 2
"""How many of the best choices are tried as compiled code."""


SomeGpusOption = Annotated[
    list[str] | None, gpu_option("Only these GPUs; by default all that have an offer.")
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
AllowOption = Annotated[
    str | None,
    typer.Option(
        "--allow",
        metavar="NAME,...",
        help="Also search settings that change the training: precision (autocast), lora, qlora, "
        "compile, or all.",
    ),
]
UnverifiedOption = Annotated[
    bool, typer.Option("--unverified", help="Let GPUs win on which no step was measured.")
]


@app.command()
@step_options()
@price_options
@training_options
def choose(
    target: TargetArgument,
    gpu: SomeGpusOption = None,
    budget: BudgetOption = None,
    deadline: DeadlineOption = None,
    gpus_up_to: GpusOption = 1,
    by: Annotated[Aim, typer.Option("--by", help="What is best.")] = Aim.MONEY,
    allow: AllowOption = None,
    unverified: UnverifiedOption = False,
    setup: SetupOption = None,
    host: HostOption = None,
    show_best: Annotated[int, typer.Option("--show", min=1, help="How many to show.")] = 10,
    ray: RayOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    training: TrainingOptions = NO_TRAINING,
    pricing: PriceOptions = NO_PRICES,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Choose the GPUs for a training: the cheapest, the fastest, or the best of both.

    \b
    wavecast choose resnet50 --batch 64 --precision bf16 --epochs 90 --dataset-samples 1281167
    wavecast choose gpt2 --tokens 2e9 --budget 500 --deadline 48h --gpus-up-to 8
    wavecast choose train.py:make_step --batch 32 --iterations 100000 --by both --spot
    wavecast choose train.py --epochs 90 --dataset-samples 1281167 -- --batch-size 64
    wavecast choose hf:llama-3.1-8b --samples 50000 --allow precision,lora,qlora

    A step that does not fit is tried with smaller batches, whose gradients are accumulated, with
    checkpointing, and on several GPUs with sharded weights. Without --batch, the batch grows where
    a sample gets cheaper. --allow adds settings that change the numbers or the weights that train.
    Without a length, a million samples are compared.
    """
    refuse_bad_places(html)
    resolved = step.target(target, fixed=())
    source = step_source(resolved, quiet=True)
    refuse_scaling(resolved, None, None, setup)
    named = named_or_all_gpus(gpu) if gpu else list(wavecast.devices())
    book = pricing.book(named if gpu else (), setup)
    limits = _limits(budget, deadline)
    plan = training.plan(resolved) or _usual_plan(resolved, source)
    question = TrainingQuestion(
        plan=plan,
        counts=_counts(gpus_up_to, resolved),
        shards=(0, 3) if step.ranks is None else (0,),
        **_batches(resolved, step),
        host=host,
        predictor=chosen_predictor(None, resolved, step.precision, None, setup),
        only_priced=not gpu or ALL in gpu,
    )
    settings = StepSettings(resolved, allowed_names(allow), _quiet_source(resolved, source))
    choosing = partial(_select, by, limits, unverified)
    candidates = _found(settings, _looked_at(named, book, question), question, book, ray)
    selection = _selected(candidates, choosing, settings, question, book)
    unit, asked = source.on().unit, _asked(target, resolved, step)
    write_page(html, lambda: choice_report(resolved.name, selection, plan, unit, limits, asked))
    if as_json:
        print_json(report.chosen_record(resolved.name, selection, asked))
    else:
        show(report.choices(resolved.name, selection, plan, unit, width(), show_best, asked))


def _quiet_source(target: Target, source: StepSource) -> Callable[[Target], StepSource]:
    """Sources of the step's variants; that of the step itself is there already."""
    return lambda step: source if step is target else step_source(step, quiet=True)


def _select(
    by: Aim, limits: _Limits, unverified: bool, candidates: Iterable[Candidate]
) -> Selection:
    return select(candidates, by, *limits, with_unverified=unverified)


def _asked(text: str, target: Target, step: StepOptions) -> AskedStep:
    """The step as it was asked for, for the recipe."""
    options = replace(step, batch=None, precision=None)
    words = (*options.words(), *(["--compile"] if step.compile else []))
    return asked_step(target, text, words, step.precision)


def _selected(
    candidates: list[Candidate],
    choosing: Callable[[list[Candidate]], Selection],
    settings: StepSettings,
    question: TrainingQuestion,
    book: PriceBook,
) -> Selection:
    """The choice, with the best ones also as compiled code: it takes long to trace for all."""
    selection = choosing(candidates)
    compiled: list[Candidate] = []
    for best in selection.ranked[:_COMPILED]:
        way = settings.compiled(best.changes)
        if way is not None:
            same = replace(question, counts=(best.gpus,), batch=best.batch, is_batch_fixed=True)
            compiled += find_candidates((best.device,), same, (way,), book)
    able = [candidate for candidate in compiled if candidate.cost is not None]
    return choosing([*candidates, *able]) if able else selection


def _found(
    settings: StepSettings,
    devices: tuple[Device, ...],
    question: TrainingQuestion,
    book: PriceBook,
    ray: str | None,
) -> list[Candidate]:
    """What the training takes on each GPU, looked at here or on the nodes of a Ray cluster."""
    with counting_items(f"looking at {len(devices)} GPUs") as progress:
        if ray is None:
            return find_candidates(devices, question, settings.searched, book, progress)
        from wavecast.campaigns.ray_workers import spread_over_ray
        from wavecast.campaigns.searches import candidates_in_parts

        with spread_over_ray(ray) as (spread, _):
            return candidates_in_parts(settings, devices, question, book, spread, progress)


def _batches(target: Target, step: StepOptions) -> dict[str, Any]:
    """The batch of a step, and whether others are tried."""
    is_script = target.script is not None  # it runs anew for each batch; max-batch says the largest
    return {
        "batch": target.batch,
        "each": units_of(target),
        "is_batch_fixed": step.batch is not None or is_script,
        "find_largest": not is_script,
    }


def _limits(usd: float | None, deadline: str | None) -> _Limits:
    if usd is not None and not 0 < usd < 1e15:
        raise InvalidInput(f"--budget is a number of USD above 0, not {usd:g}")
    return usd, None if deadline is None else seconds_of(deadline, "--deadline")


def _usual_plan(target: Target, source: StepSource) -> TrainingPlan:
    """The training that is compared if none is given: a million samples, or of steps."""
    known = target.samples if target.make_step is not None else source.on().samples
    if known is None and target.make_step is None:
        return TrainingPlan(iterations=_MILLION)
    if known is None:
        raise InvalidInput(
            "how many samples a step takes is not known; give --batch, or say how long the "
            "training is with --iterations"
        )
    return TrainingPlan(samples=_MILLION * units_of(target))


def _counts(up_to: int, target: Target) -> tuple[int, ...]:
    """The numbers of GPUs to try: powers of two, or the ranks of the step's own parallel code."""
    if target.ranks is not None:
        if up_to > 1:
            raise InvalidInput("--ranks says how many GPUs there are; leave out --gpus-up-to")
        return (target.ranks,)
    counts = tuple(doubles(1, up_to))
    if len(counts) > 1 and Trait.MEASURED in target.traits:
        raise InvalidInput(
            f"{target.name} was measured on one GPU; name the step itself for --gpus-up-to"
        )
    return counts


def _looked_at(
    named: list[Device], book: PriceBook, question: TrainingQuestion
) -> tuple[Device, ...]:
    """The GPUs to look at; those without an offer are left out, unless they were named."""
    if not question.only_priced:
        return tuple(named)
    priced = {offer.device_id for offer in book.seen()}
    offered = tuple(device for device in named if device.id in priced)
    if not offered:
        raise InvalidInput("no offer of any GPU is known; leave out --providers, or add --stale")
    return offered
