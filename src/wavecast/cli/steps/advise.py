"""`wavecast advise`: what would make a step faster, smaller or cheaper."""

from __future__ import annotations

import shlex
from typing import Annotated

import typer

import wavecast
from wavecast.advice.advising import advise_on
from wavecast.advice.catalogue import CHANGES
from wavecast.advice.variants import ScriptVariants, StepVariants, TargetVariants
from wavecast.cli.app import JsonOption, app
from wavecast.cli.options.assumptions import given_values
from wavecast.cli.options.gpus import OneGpuOption
from wavecast.cli.options.prices import NO_PRICES, PriceOptions, price_options
from wavecast.cli.options.steps import NO_STEP_OPTIONS, StepOptions, TargetArgument, step_options
from wavecast.cli.output.pages import HtmlOption, refuse_bad_places, write_page
from wavecast.cli.output.screen import print_json, show, telling_stages, width
from wavecast.cli.output.standard_output import keep_for_results
from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.report import advice as report
from wavecast.report.html.advice_reports import advice_report

ChangeOption = Annotated[
    list[str] | None,
    typer.Option("--change", help=f"Try only this change; repeat for more: {', '.join(CHANGES)}."),
]
ArgumentsOption = Annotated[
    str | None,
    typer.Option("--arguments", help="The arguments of a script, as in --arguments '--lr 0.1'."),
]


@app.command()
@step_options("ranks")
@price_options
def advise(
    target: TargetArgument,
    gpu: OneGpuOption,
    change: ChangeOption = None,
    arguments: ArgumentsOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    pricing: PriceOptions = NO_PRICES,
    step: StepOptions = NO_STEP_OPTIONS,
) -> None:
    """Say what would make a step faster, smaller or cheaper on a GPU.

    \b
    wavecast advise train.py:make_step --gpu l4
    wavecast advise train.py --arguments "--batch-size 64" --gpu l4
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
    variants = _variants(target, arguments, device, step)
    offer = pricing.book([device]).cheapest(device.id)
    with telling_stages() as tell:
        advice = advise_on(
            variants, device, offer, changes=change, progress=lambda what: tell(f"trying {what}")
        )
    write_page(html, lambda: advice_report(advice))
    if as_json:
        print_json(advice)
    else:
        show(report.advised(advice, width()))


def _variants(
    target: str, arguments: str | None, device: Device, step: StepOptions
) -> StepVariants:
    if not (target.endswith(".py") and ":" not in target):
        if arguments is not None:
            raise InvalidInput(f"--arguments are those of a script; {target} is none")
        return TargetVariants(step.target(target), device)
    for option in ("precision", "compile"):
        if getattr(step, option) is not None:
            raise InvalidInput(f"a script says itself what --{option} would; leave it out")
    if step.options.given():
        raise InvalidInput(f"{step.options.given()[0]} is not for scripts; leave it out")
    options = {"samples": step.batch, "assume": given_values(step.assume or [])}
    return ScriptVariants(target, tuple(shlex.split(arguments or "")), device, options)
