"""The answers of a worker: what it does for each kind of question, and in which form it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import wavecast
from wavecast.advice.advising import SLOW_TO_TRACE, advise_on
from wavecast.advice.catalogue import CHANGES, TargetVariants
from wavecast.advice.settings import StepSettings
from wavecast.campaigns.searches import JobPredictor
from wavecast.errors import InvalidInput, MissingExtra, UnknownName, WavecastError
from wavecast.files import toml_table
from wavecast.frameworks.pytorch.huggingface.configs import Preset, presets
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS
from wavecast.frameworks.pytorch.huggingface.recipes import recipe_of
from wavecast.hardware.clusters import clusters
from wavecast.hardware.devices import Device, known_device
from wavecast.planning.candidates import TrainingQuestion, find_candidates
from wavecast.planning.cost import TrainingPlan, training_cost
from wavecast.planning.prices import price, price_book
from wavecast.planning.scaling import doubles
from wavecast.planning.schedule.jobs import LAYOUTS, Aims, JobSpec, fleet_of, jobs_of
from wavecast.planning.schedule.planned import cost_against_time, make_jobs, make_plan
from wavecast.planning.schedule.planner import Effort
from wavecast.planning.selection import Aim, select
from wavecast.predictors.base import Scaler
from wavecast.report.fields import columns, record
from wavecast.report.html.documents import Report, document, report_of
from wavecast.report.html.markup import Html, html_table
from wavecast.report.html.reports import (
    comparison,
    most_wanted,
    prediction_report,
    tiles,
    verdict,
)
from wavecast.report.results.advice import advice_view
from wavecast.report.results.costs import WholeTraining, price_lines
from wavecast.report.results.plans import plan_report
from wavecast.report.results.predictions import PricedStep, offer_for
from wavecast.report.results.selections import asked_step, choice_report
from wavecast.report.tables import ANY_WIDTH, fitting
from wavecast.server.questions import (
    MOST_GPUS,
    ChoiceQuestion,
    PlanQuestion,
    PredictionQuestion,
    digest,
    library_name,
    plain_name,
)
from wavecast.server.traced import (
    QuestionedStep,
    TraceShelf,
    decoder_sizes,
    questioned_step,
    read_file,
)
from wavecast.steps.prediction import in_order
from wavecast.suite import PRECISIONS, Benchmark, benchmarks
from wavecast.targets.sources import target_source, units_of
from wavecast.targets.targets import DECODERS, Target, Trait, hugging_face_target
from wavecast.traces.kept import Recent

# What to rent for a training, and what to change in its step: the page's longer questions.


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
    training = TrainingQuestion(
        plan=plan,
        counts=(1,) if Trait.MEASURED in target.traits else tuple(doubles(1, limits.most_gpus)),
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
    candidates = find_candidates(devices, training, settings.searched, book)
    deadline_s = None if limits.deadline_h is None else limits.deadline_h * _HOUR_S
    bounds = limits.budget_usd, deadline_s
    selection = select(candidates, Aim.MONEY, *bounds)
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
    return report_parts("advice", report_of(advice_view(advice)))


def report_parts(place: str, report: Report) -> dict[str, Any]:
    """A report as parts of the page, whose sections have names of their own there."""
    sections = [
        replace(section, identity=f"{place}-{section.identity}") for section in report.sections
    ]
    return {
        "verdict": report.verdict,
        "sections": [section.drawn() for section in sections],
        "data": report.data,
    }


# A step on one GPU model, or spread over several GPUs of it, predicted once and kept.


_KEPT_CALLS = 50_000
_priced: Recent[PricedStep] = Recent(_KEPT_CALLS, lambda _, row: len(row.step.trace))
"""What this worker predicted last: details and reports follow most predictions."""


def predicted_rows(
    question: PredictionQuestion, step: QuestionedStep, gpus: list[Device]
) -> tuple[list[PricedStep], dict[str, str]]:
    """The step on each GPU, and the reasons for those on which it could not be predicted.

    Raises:
        WavecastError: it could be predicted on none; gives the first reason.
    """
    rows, failed = [], {}
    first: WavecastError | None = None
    for gpu in gpus:
        name = digest(question.model_dump(), gpu.id)
        try:
            row = _priced.get(name) or _predicted(question, step, gpu)
        except WavecastError as error:
            first = first or error
            failed[gpu.id] = str(error)
        else:
            _priced.put(name, row)
            rows.append(row)
    if first is not None and not rows:
        raise first
    return in_order(rows, lambda row: row.step, bounds_last=False), failed


def _predicted(question: PredictionQuestion, step: QuestionedStep, gpu: Device) -> PricedStep:
    if question.parallel is None:
        scaler = _scaler(step, question.precision)
        row = wavecast.predict(step.traces, gpu, predictor=scaler, origin=question.origin)
    else:
        row = wavecast.predict(step.traces, gpu, parallel=question.parallel.strategy())
    offer = offer_for(row, price_book())
    cost = None if question.plan is None else training_cost(row, question.plan, offer)
    return PricedStep(row, offer, "none", training=cost)


def _record(row: PricedStep) -> dict[str, Any]:
    """A row as plain data: times in seconds, sizes in bytes, unknown is null."""
    gpu = row.step.device
    return record(row) | {"name": gpu.name, "memory_bytes": gpu.memory_bytes}


def _scaler(step: QuestionedStep, precision: str | None) -> Scaler | None:
    """The scaler that takes a measured step to another precision; None where there is no need."""
    if precision is None or not step.measured:
        return None
    from wavecast.predictors.habitat import MixedPrecision

    return MixedPrecision.shipped(precision)


# What there is to choose from: models with their sizes, GPUs, precisions and clusters.


_DECODER_TITLES = {
    "gpt": "GPT of any size",
    "llama": "Llama of any size",
    "mixtral": "Mixture of experts of any size",
}


def catalogue() -> dict[str, Any]:
    """The choices of the page, as plain data."""
    return {
        "version": wavecast.__version__,
        "models": _models(),
        "gpus": [
            {
                "id": gpu.id,
                "name": gpu.name,
                "vendor": gpu.vendor,
                "architecture": gpu.architecture,
                "memory_bytes": gpu.memory_bytes,
                "usd_per_hour": None if (offer := price(gpu)) is None else offer.usd_per_hour,
            }
            for gpu in wavecast.devices()
        ],
        "precisions": list(PRECISIONS),
        "compiles": True,
        "clusters": sorted(cluster.id for cluster in clusters()),
        "most_gpus": MOST_GPUS,
    }


def _models() -> list[dict[str, Any]]:
    """The models that can be traced here; none without torch."""
    try:
        own = [*map(_model, benchmarks()), *map(_decoder, DECODERS)]
        return [*own, *map(_preset, presets())] if find_spec("transformers") else own
    except MissingExtra:
        return []


def _model(model: Benchmark) -> dict[str, Any]:
    return {
        "name": model.name,
        "title": model.title,
        "domain": model.domain,
        "batch": model.default_batch,
        "unit": model.unit,
        "sizes": model.sizes(),
        "adapts": False,
    }


def _decoder(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": _DECODER_TITLES[name],
        "domain": "language modelling",
        "batch": 1,
        "unit": "tokens",
        "sizes": decoder_sizes(name),
        "adapts": False,
    }


def _preset(preset: Preset) -> dict[str, Any]:
    recipe = recipe_of(preset.name, None, None, NO_OPTIONS)
    return {
        "name": hugging_face_target(preset.name),
        "title": preset.title,
        "domain": "Hugging Face",
        "batch": recipe.batch,
        "unit": recipe.task.unit,
        "sizes": {} if recipe.sequence is None else {"seq": recipe.sequence},
        "adapts": recipe.task.adapted is not None,
    }


# The answers as parts of the page: the same drawings and tables as in a report.


_COMPARISON = "comparison"
"""The section of a report that the page has in a place of its own."""


def summary_parts(rows: Sequence[PricedStep]) -> dict[str, str | list[str]]:
    """The verdict, the main figures and the table that compares the GPUs, as HTML."""
    best = most_wanted(rows)[0]
    return {
        "verdict": verdict(rows),
        "tiles": tiles(best),
        "comparison": comparison(rows),
        "prices": _price_lines(rows),
        "training": _training(rows),
        "best": best.step.device.id,
    }


def _price_lines(rows: Sequence[PricedStep]) -> list[str]:
    """What the prices in the table mean, and how old they are."""
    offers, gpus = [row.offer for row in rows], rows[0].step.gpus
    lines = price_lines(offers)
    if lines and gpus > 1:
        dates = sorted(offer.date for offer in offers if offer is not None)
        whole = f"$/h: whole machines for {gpus} GPUs, cheapest offers on demand in USD"
        return [f"{whole}, prices of {dates[0]} to {dates[-1]}"]
    return lines


def _training(rows: Sequence[PricedStep]) -> Html:
    """What the whole training takes on each GPU; nothing if it was not asked for."""
    costs = [row.cost for row in rows if row.cost is not None]
    if not costs:
        return Html()
    table = fitting(columns(costs), ANY_WIDTH)
    return html_table(table, caption="The whole training on each GPU", sorts=len(costs) > 1)


def detail_parts(title: str, row: PricedStep) -> dict[str, Any]:
    """Where time and memory go on one GPU: sections as HTML, and the data of their script."""
    report = prediction_report(title, [row.step])
    kept = [section for section in report.sections if section.identity != _COMPARISON]
    return {"sections": [section.drawn() for section in kept], "data": report.data}


def report_page(title: str, rows: Sequence[PricedStep], plan: TrainingPlan | None) -> str:
    """The report of all rows, as one self-contained page, with the whole training if asked for."""
    whole = None if plan is None else WholeTraining(plan, [row.cost for row in rows])
    return document(prediction_report(title, [row.step for row in rows], training=whole))


# Plans of many jobs: what the page shows of them.


_MOST_JOBS = 200
_MOST_KINDS = 20
_MOST_POOLS = 12
_MOST_GPUS = 10_000
_SEARCH = Effort(limit_s=8.0, workers=1)
_CURVE = Effort(limit_s=1.5, workers=1)


@cache
def _predictor() -> JobPredictor:
    """The predictor of this worker, which remembers the steps that it traced."""
    return JobPredictor()


def planned_jobs(question: PlanQuestion) -> dict[str, Any]:
    """The plan of the jobs of a question, as parts of the page and as a page of its own.

    Raises:
        WavecastError: the jobs cannot be read or planned; names the key or the job.
    """
    table = toml_table(question.jobs)
    _refuse_files(table)
    specs = tuple(spec.in_a_week() for spec in jobs_of(table))
    _refuse_many(specs)
    fleet = fleet_of(table, price_book())
    if fleet.gpus > _MOST_GPUS:
        raise InvalidInput(
            f"the cluster has {fleet.gpus:,} GPUs; at most {_MOST_GPUS:,} are planned here, and "
            "any number by the command: wavecast plan"
        )
    jobs = make_jobs(specs, fleet, _predictor())
    aims = Aims(**{question.by: 1.0})
    plan = make_plan(fleet, jobs, aims, robust=question.robust, effort=_SEARCH)
    title = f"{len(jobs)} jobs on {fleet.gpus} GPUs"
    report = plan_report(title, plan, cost_against_time(fleet, jobs, _CURVE))
    return {
        **report_parts("plan", report),
        "title": title,
        "meets_deadlines": plan.meets_deadlines,
        "question": question.model_dump(),
        "html": document(report),
    }


def _refuse_files(table: dict[str, Any]) -> None:
    """Raise InvalidInput where a model, a GPU or links are a file: none is read here."""
    cluster = table.get("cluster")
    pools = cluster.get("pools") if isinstance(cluster, dict) else None
    for where, listed, key, check in (
        ("jobs", table.get("jobs"), "target", library_name),
        ("cluster.pools", pools, "gpu", plain_name),
        ("cluster.pools", pools, "links", plain_name),
    ):
        for number, entry in enumerate(listed if isinstance(listed, list) else (), start=1):
            named = entry.get(key) if isinstance(entry, dict) else None
            if isinstance(named, str):
                try:
                    check(named)
                except (ValueError, UnknownName) as error:
                    raise InvalidInput(f"{where}[{number}].{key}: {error}") from None
    if isinstance(pools, list) and len(pools) > _MOST_POOLS:
        raise InvalidInput(f"cluster.pools has {len(pools)} pools; at most {_MOST_POOLS} here")


def _refuse_many(specs: Sequence[JobSpec]) -> None:
    runs = sum(spec.runs for spec in specs)
    if runs > _MOST_JOBS or len(specs) > _MOST_KINDS:
        raise InvalidInput(
            f"there are {runs} jobs of {len(specs)} kinds; at most {_MOST_JOBS} of {_MOST_KINDS} "
            "are planned here, and any number by the command: wavecast plan"
        )
    for number, spec in enumerate(specs, start=1):
        if max(spec.counts) > 64 or len(spec.counts) > 8:
            raise InvalidInput(f"jobs[{number}].counts: at most 8 counts up to 64 GPUs here")
        if spec.layouts != LAYOUTS[0]:
            raise InvalidInput(
                f'jobs[{number}].layouts: "{LAYOUTS[0]}" only here, since others take long; all by '
                "the command: wavecast plan"
            )


_shelf = TraceShelf()


def _warm(_: Mapping[str, Any]) -> dict[str, Any]:
    """Load what most questions need, so that the first one does not wait for it."""
    with suppress(MissingExtra):
        step = {"model": "resnet50", "batch": 2, "precision": None, "sizes": {"image": 64}}
        named = questioned_step(step, [wavecast.device("l4")], None, TraceShelf())
        wavecast.predict(named.traces, "l4").low_s  # noqa: B018  (the models are read)
    return {}


def _catalogue(_: Mapping[str, Any]) -> dict[str, Any]:
    return catalogue()


def _inspect(question: Mapping[str, Any]) -> dict[str, Any]:
    """What an uploaded file holds."""
    trace = read_file(Path(question["file"]))
    measured = trace.measurement
    return {
        "calls": len(trace),
        "samples": trace.samples,
        "unit": trace.unit,
        "framework": trace.framework,
        "measured_on": None if measured is None else measured.gpu,
        "origin": None if measured is None else _known(measured.gpu),
        "has_memory": bool(trace.allocations),
        "notes": list(trace.notes),
    }


def _known(gpu: str) -> str | None:
    """The id of a GPU by the name that a file gives it; None if that fits none, or several."""
    try:
        return known_device(gpu).id
    except UnknownName:
        return None


def _predict(question: Mapping[str, Any]) -> dict[str, Any]:
    """The step on each GPU that a question names."""
    asked, step = _step(question)
    rows, failed = predicted_rows(asked, step, _gpus(asked))
    return {
        "target": step.name,
        "parts": summary_parts(rows),
        "measured": step.measured,
        "question": asked.model_dump(),
        "rows": list(map(_record, rows)),
        "failed": failed,
        "notes": list(dict.fromkeys(note for row in rows for note in row.step.trace.notes)),
    }


def _details(question: Mapping[str, Any]) -> dict[str, Any]:
    """Where time and memory go on one of the GPUs of a question."""
    asked, step = _step(question)
    gpu = wavecast.device(question["gpu"])
    (row,), _ = predicted_rows(asked, step, [gpu])
    return {"gpu": gpu.id, **detail_parts(step.name, row)}


def _advise(question: Mapping[str, Any]) -> dict[str, Any]:
    """What would make the step better on one of the GPUs of a question."""
    _, step = _step(question)
    return advised_changes(step.target, wavecast.device(question["gpu"]))


def _choose(question: Mapping[str, Any]) -> dict[str, Any]:
    """The GPUs to rent for the whole training of a question."""
    asked, step = _step(question)
    return chosen_gpus(asked, step.target, ChoiceQuestion.model_validate(question["limits"]))


def _plan(question: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of many jobs."""
    return planned_jobs(PlanQuestion.model_validate(question["plan"]))


def _report(question: Mapping[str, Any]) -> dict[str, Any]:
    """The whole answer as a page that needs nothing but itself."""
    asked, step = _step(question)
    rows, _ = predicted_rows(asked, step, _gpus(asked))
    return {"html": report_page(step.name, rows, asked.plan)}


def _gpus(asked: PredictionQuestion) -> list[Device]:
    return [wavecast.device(gpu) for gpu in asked.gpus]


def _step(question: Mapping[str, Any]) -> tuple[PredictionQuestion, QuestionedStep]:
    asked = PredictionQuestion.model_validate(question["question"])
    file, folder = question.get("file"), question.get("traces")
    _shelf.folder = None if folder is None else Path(folder)
    step = questioned_step(asked.step(), _gpus(asked), None if file is None else Path(file), _shelf)
    return asked, step


ANSWERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "warm": _warm,
    "catalogue": _catalogue,
    "inspect": _inspect,
    "predict": _predict,
    "details": _details,
    "advise": _advise,
    "choose": _choose,
    "plan": _plan,
    "report": _report,
}
"""What a worker answers, by the name of the question."""
