"""`wavecast advise`: what would make a step faster, smaller or cheaper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

import wavecast
from wavecast.advice.advising import SLOW_TO_TRACE, advise_on
from wavecast.advice.catalogue import CHANGES, TargetVariants
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.predictors import HostOption
from wavecast.cli.options.prices import NO_PRICES, PriceOptions, price_options
from wavecast.cli.options.steps import (
    NO_STEP_OPTIONS,
    OneGpuOption,
    StepOptions,
    TargetArgument,
    step_options,
)
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_view
from wavecast.cli.output.screen import print_json, show, telling_stages, width
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.cli.steps.run import CoresOption, LoaderOption
from wavecast.errors import InvalidInput
from wavecast.report.results.advice import advice_view
from wavecast.report.views import text_of

if TYPE_CHECKING:
    from wavecast.advice.proposals import StepAdvice
    from wavecast.hardware.devices import Device
    from wavecast.planning.prices import PriceBook
    from wavecast.targets.targets import Target

ChangeOption = Annotated[
    list[str] | None,
    typer.Option("--change", help=f"Try only this change; repeat for more: {', '.join(CHANGES)}."),
]


@app.command()
@step_options("ranks")
@price_options
def advise(
    target: TargetArgument,
    gpu: OneGpuOption,
    change: ChangeOption = None,
    loader: LoaderOption = False,
    cores: CoresOption = None,
    host: HostOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    pricing: PriceOptions = NO_PRICES,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Say what would make a step faster, smaller or cheaper on a GPU.

    \b
    wavecast advise train.py:make_step --gpu l4
    wavecast advise train.py --gpu l4 --loader -- --batch-size 64
    wavecast advise hf:llama-3.1-8b --seq 2048 --gpu rtx-4090
    wavecast advise measured.json.gz --gpu h100-sxm-80gb

    Each change is made in the step's code while it is traced, and predicted: autocast, TF32,
    channels-last, torch.compile, CUDA graphs, fused attention, optimizers and losses, waits of the
    host, padded sizes, larger batches, checkpointing, adapters. What helps is tried together; what
    does not is said to be of no use.
    """
    refuse_bad_places(html)
    device = wavecast.device(gpu)
    keep_for_results()
    book = pricing.book([device])
    step = replace(step, running=replace(step.running, loader=loader or bool(cores)))
    others = change is None
    resolved = step.target(target)
    advice = advised(resolved, device, book, change, host, has_others=others, cores=cores)
    view = advice_view(advice)
    write_view(html, view)
    if as_json:
        print_json(advice)
    else:
        show(text_of(view, width()))


def advised(
    target: Target,
    device: Device,
    book: PriceBook,
    changes: Sequence[str] | None,
    host: str | None,
    *,
    has_others: bool,
    cores: int | None = None,
) -> StepAdvice:
    """The advice on a step, with the change on the screen that is tried.

    Args:
        target: the step.
        device: the GPU.
        book: the prices.
        changes: the names of the changes to try. None for all.
        host: the host that issues the ops.
        has_others: whether other GPUs are looked at as well.
        cores: the cores of the machine with the GPU, for a script's data loader.
    """
    variants, offer = TargetVariants(target, device), book.cheapest(device.id)
    with telling_stages() as tell:

        def progress(what: str) -> None:
            tell(f"trying {what}")

        return advise_on(
            variants,
            device,
            offer,
            changes=changes,
            host=host,
            progress=progress,
            book=book if has_others else None,
            cores=cores,
        )


def quickly_advised(
    target: Target, gpus: Sequence[Device], book: PriceBook, host: str | None
) -> StepAdvice:
    """The advice beside a prediction: all changes but those that take long to trace.

    Raises:
        InvalidInput: there are several GPUs.
    """
    if len(gpus) != 1:
        raise InvalidInput(
            f"--advice is for one GPU, and {len(gpus)} were named; name one with --gpu"
        )
    quick = [name for name in CHANGES if name not in SLOW_TO_TRACE]
    return advised(target, gpus[0], book, quick, host, has_others=True)
