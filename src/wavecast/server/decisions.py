"""What to rent for a training, and what to change in its step: the page's longer questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import wavecast
from wavecast.advice.advising import SLOW_TO_TRACE, advise_on
from wavecast.advice.catalogue import CHANGES
from wavecast.advice.settings import StepSettings
from wavecast.advice.variants import TargetVariants
from wavecast.errors import InvalidInput
from wavecast.frameworks.step_source import target_source, units_of
from wavecast.frameworks.targets import Target
from wavecast.hardware.device import Device
from wavecast.planning.candidates import TrainingQuestion, find_candidates
from wavecast.planning.prices import price_book
from wavecast.planning.scaling import doubles
from wavecast.planning.selection import Aim, select
from wavecast.report.html.advice_reports import advice_report
from wavecast.report.html.choice_reports import choice_report
from wavecast.report.html.documents import Report
from wavecast.report.recipes import asked_step
from wavecast.server.questions import ChoiceQuestion, PredictionQuestion

_HOUR_S = 3600.0


def chosen_gpus(
    question: PredictionQuestion, target: Target, limits: ChoiceQuestion
) -> dict[str, Any]:
    """The GPUs with an offer for a whole training, the cheapest first, within limits.

    Raises:
        InvalidInput: the question does not say how long the training is.
    """
    plan = question.plan
    if plan is None:
        raise InvalidInput("say how long the training is: in epochs, samples, tokens or steps")
    wanted = TrainingQuestion(
        plan=plan,
        counts=(1,) if target.is_measured else tuple(doubles(1, limits.most_gpus)),
        batch=target.batch,
        each=units_of(target),
    )
    book = price_book()
    offered = {offer.device_id for offer in book.seen()}
    devices = tuple(gpu for gpu in wavecast.devices() if gpu.id in offered)
    source = target_source(target)
    settings = StepSettings(
        target, (), lambda step: source if step is target else target_source(step)
    )
    found = find_candidates(devices, wanted, settings.searched, book)
    deadline_s = None if limits.deadline_h is None else limits.deadline_h * _HOUR_S
    bounds = limits.budget_usd, deadline_s
    selection = select(found, Aim.MONEY, *bounds)
    options = [*target.options.words(), *(["--compile"] if target.compiled else [])]
    asked = asked_step(target, target.text, options, target.precision)
    report = choice_report(target.name, selection, plan, source.on().unit, bounds, asked)
    return report_parts("offers", report)


def advised_changes(target: Target, gpu: Device) -> dict[str, Any]:
    """What would make a step faster, smaller or cheaper on a GPU.

    Compiled steps are left out: they take long to trace, and the page has a control for them.
    """
    book = price_book()
    changes = [name for name in CHANGES if name not in SLOW_TO_TRACE]
    advice = advise_on(
        TargetVariants(target, gpu), gpu, book.cheapest(gpu.id), changes=changes, book=book
    )
    return report_parts("advice", advice_report(advice))


def report_parts(place: str, report: Report) -> dict[str, Any]:
    """A report as parts of the page, whose sections have names of their own there."""
    sections = [replace(one, identity=f"{place}-{one.identity}") for one in report.sections]
    return {
        "verdict": report.verdict,
        "sections": [section.drawn() for section in sections],
        "data": report.data,
    }
