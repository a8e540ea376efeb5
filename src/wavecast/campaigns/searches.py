"""Large searches in parts, each of which a node of a cluster makes by itself.

A part names the step by its target, and traces it where it runs: code, files and models must be
there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from wavecast.advice.settings import StepSettings
from wavecast.errors import InvalidInput, prefixed
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS, ModelOptions
from wavecast.hardware.clusters import Cluster
from wavecast.hardware.devices import Device, device
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.strategy import Parallel
from wavecast.planning.candidates import StepSetting, TrainingQuestion, find_candidates
from wavecast.planning.cost import TrainingPlan, training_cost
from wavecast.planning.layout_search import search_layouts
from wavecast.planning.layouts import Layout, Search, ranked, shortened
from wavecast.planning.prices import PriceBook, price_book
from wavecast.planning.schedule.jobs import JobSpec
from wavecast.planning.selection import Candidate
from wavecast.steps.request import on_cluster
from wavecast.targets.sources import StepSource, target_source, units_of
from wavecast.targets.targets import Target, plan_of_target, recomputing, resolve

Spread = Callable[..., Iterator[Any]]
"""A function like `map` that calls on other machines, from `spread_over_ray`."""


@dataclass(frozen=True)
class NamedStep:
    """A target as it can be sent to another machine: by its name."""

    text: str
    batch: int | None
    precision: str | None
    options: ModelOptions = NO_OPTIONS
    rest: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, target: Target) -> NamedStep:
        """The name of a target.

        Raises:
            InvalidInput: it is a script, which runs on this machine only.
        """
        if target.script is not None:
            raise InvalidInput(f"{target.name} is a script, which runs here only; leave out --ray")
        rest = tuple(target.tracing.items())
        return cls(target.text, target.batch, target.precision, target.options, rest)

    def target(self) -> Target:
        """The target, found by its name."""
        target = resolve(self.text, self.batch, self.precision, self.options)
        return replace(target, **dict(self.rest))


@dataclass(frozen=True)
class _CandidatePart:
    step: NamedStep
    allowed: frozenset[str]
    devices: tuple[Device, ...]
    question: TrainingQuestion
    book: PriceBook


def candidates_in_parts(
    settings: StepSettings,
    devices: Sequence[Device],
    question: TrainingQuestion,
    book: PriceBook,
    spread: Spread,
    progress: Callable[[int, int], None],
) -> list[Candidate]:
    """What `find_candidates` finds, with each GPU looked at by itself, wherever there is room."""
    step, allowed = NamedStep.of(settings.target), frozenset(settings.allowed)
    parts = [_CandidatePart(step, allowed, (device,), question, book) for device in devices]
    candidates: list[Candidate] = []
    for number, part in enumerate(spread(find_candidates_of, parts), start=1):
        candidates += part
        progress(number, len(parts))
    return candidates


def find_candidates_of(part: _CandidatePart) -> list[Candidate]:
    """The candidates of one part."""
    settings = StepSettings(part.step.target(), part.allowed, target_source)
    return find_candidates(part.devices, part.question, settings.searched, part.book)


@dataclass(frozen=True)
class _LayoutPart:
    step: NamedStep
    search: Search
    device: Device
    cluster: str | None
    host: str | None
    part: tuple[int, int]


def layouts_in_parts(
    target: Target,
    search: Search,
    device: Device,
    where: tuple[str | None, str | None],
    parts: int,
    spread: Spread,
    progress: Callable[[int, int, Layout | None], None],
) -> list[Layout]:
    """What `search_layouts` finds first, with the strategies divided among parts.

    Each part knows its own best ones, so that the first of all are exact. Strategies after those
    that are wanted have no prediction.

    Args:
        search: what is looked for.
        where: the names of the cluster and of the host; None for the usual ones.
        parts: how many parts to make.
        spread: calls a function on other machines.
        progress: called with the number of parts that are done, that of all, and the best so far.
    """
    step = NamedStep.of(target)
    asked = [_LayoutPart(step, search, device, *where, (at, parts)) for at in range(parts)]
    layouts: list[Layout] = []
    for number, part in enumerate(spread(find_layouts_of, asked), start=1):
        layouts = ranked([*layouts, *part])
        progress(number, parts, layouts[0] if layouts[0].prediction is not None else None)
    return layouts


def find_layouts_of(asked: _LayoutPart) -> list[Layout]:
    """The layouts of one part."""
    target = asked.step.target()
    predictor = on_cluster(asked.device, Parallel(cluster=asked.cluster))
    host = find_host(asked.host, asked.device, predictor.cluster)
    sources = {way: target_source(recomputing(target, way)) for way in asked.search.recompute}
    layouts = search_layouts(
        asked.search,
        lambda micro, way: sources[way].on(asked.device, micro),
        predictor,
        host,
        part=asked.part,
    )
    return shortened(layouts, asked.search.best)


# Jobs of a file predicted on GPUs: each step is traced once, for all jobs that run it.


Progress = Callable[[str], AbstractContextManager[Callable[[int, int], None] | None]]
"""Shows how many GPUs are done, under a name."""


class JobPredictor:
    """Predicts jobs on GPUs.

    Args:
        host: the host that issues the ops. None for that which fits each GPU.
        source: makes the traces of a target.
        progress: what surrounds the prediction of a job.
    """

    def __init__(
        self,
        host: str | None = None,
        source: Callable[[Target], StepSource] = target_source,
        progress: Progress = lambda _: nullcontext(),
    ) -> None:
        self._host, self._book = host, price_book()
        self._make_source, self._progress = source, progress
        self._sources: dict[tuple[object, ...], tuple[Target, StepSource]] = {}

    def __call__(self, spec: JobSpec, gpus: Mapping[str, Cluster | None]) -> Sequence[Candidate]:
        """What a job takes on each GPU in machines of a kind, for each of its counts."""
        with prefixed(f"job {spec.name}: "):
            target, source = self._source(spec)
            question = TrainingQuestion(
                plan=_plan(spec, target),
                counts=spec.counts,
                batch=target.batch,
                each=units_of(target),
                is_batch_fixed=spec.batch is not None,
                host=self._host,
                only_priced=False,
                find_largest=False,
                clusters={
                    name: candidates for name, candidates in gpus.items() if candidates is not None
                },
            )
            devices = tuple(device(name) for name in gpus)
            with self._progress(f"predicting {spec.name}") as progress:
                as_it_is = (StepSetting("", source.on),)
                candidates = find_candidates(devices, question, as_it_is, self._book, progress)
            if spec.layouts == "data":
                return candidates
            return [_best_layout(candidate, question, target, source) for candidate in candidates]

    def _source(self, spec: JobSpec) -> tuple[Target, StepSource]:
        options = ModelOptions.named(spec.options)
        key = spec.target, spec.batch, spec.precision, options
        if key not in self._sources:
            target = resolve(spec.target, spec.batch, spec.precision, options)
            self._sources[key] = target, self._make_source(target)
        return self._sources[key]


def _best_layout(
    candidate: Candidate, question: TrainingQuestion, target: Target, source: StepSource
) -> Candidate:
    """The GPUs of a candidate with the fastest of all strategies for them."""
    samples, together = (
        candidate.batch or source.on(candidate.device).samples,
        question.plan.global_batch,
    )
    if candidate.gpus == 1 or not samples:
        return candidate
    machines = question.clusters.get(candidate.device.id)
    predictor = on_cluster(candidate.device, Parallel(), machines=machines)
    host = find_host(question.host, candidate.device, predictor.cluster)
    search = Search(
        gpus=candidate.gpus,
        global_batch=together // question.each if together else samples * candidate.gpus,
        micro_batches=_halves(samples) if target.trace is None else (samples,),
        tensor_plan=plan_of_target(target.text, target.options),
        best=1,
    )
    best, *_ = search_layouts(
        search, lambda micro, _: source.on(candidate.device, micro), predictor, host
    )
    if best.prediction is None:
        return candidate
    plan = replace(question.plan, global_batch=search.global_batch * question.each)
    cost = training_cost(best.prediction, plan)
    if cost.seconds.value >= candidate.seconds.value:
        return candidate
    return Candidate(
        candidate.device,
        candidate.gpus,
        best.micro_batch,
        best.strategy,
        memory=best.memory,
        cost=cost,
    )


def _halves(samples: int) -> tuple[int, ...]:
    """A batch, its half, and so on to one, as far as they are whole: micro-batches to try."""
    sizes = [samples]
    while sizes[-1] % 2 == 0:
        sizes.append(sizes[-1] // 2)
    return tuple(sizes)


def _plan(spec: JobSpec, target: Target) -> TrainingPlan:
    """The plan in units of the trace: files count samples of the batch, such as sequences."""
    plan, each = spec.plan, units_of(target)
    if plan is None:
        raise InvalidInput("say how long it is, as in iterations = 1000")
    if target.make_step is not None and target.samples is None and plan.iterations is None:
        raise InvalidInput(
            "how many samples a step takes is not known; give batch, or say how long it is with "
            "iterations"
        )
    if each == 1:
        return plan
    return replace(
        plan,
        samples=None if plan.samples is None else plan.samples * each,
        dataset_samples=None if plan.dataset_samples is None else plan.dataset_samples * each,
        global_batch=None if plan.global_batch is None else plan.global_batch * each,
        validation_samples=plan.validation_samples * each,
        sample_tokens=plan.sample_tokens or target.options.seq,
    )
