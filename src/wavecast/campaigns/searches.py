"""Large searches in parts, each of which a node of a cluster makes by itself.

A part names the step by its target, and traces it where it runs: code, files and models must be
there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wavecast.advice.settings import StepSettings
from wavecast.errors import InvalidInput
from wavecast.frameworks.pytorch.huggingface.options import NO_OPTIONS, ModelOptions
from wavecast.hardware.devices import Device
from wavecast.hardware.kept_hosts import find_host
from wavecast.parallel.strategy import Parallel
from wavecast.planning.candidates import TrainingQuestion, find_candidates
from wavecast.planning.layout_search import search_layouts
from wavecast.planning.layouts import Layout, Search, ranked, shortened
from wavecast.planning.prices import PriceBook
from wavecast.planning.selection import Candidate
from wavecast.steps.request import on_cluster
from wavecast.targets.sources import target_source
from wavecast.targets.targets import Target, recomputing, resolve

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
        found = resolve(self.text, self.batch, self.precision, self.options)
        return replace(found, **dict(self.rest))


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
    parts = [_CandidatePart(step, allowed, (one,), question, book) for one in devices]
    found: list[Candidate] = []
    for number, part in enumerate(spread(find_candidates_of, parts), start=1):
        found += part
        progress(number, len(parts))
    return found


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
        target: the step.
        search: what is looked for.
        device: the GPU.
        where: the names of the cluster and of the host; None for the usual ones.
        parts: how many parts to make.
        spread: calls a function on other machines.
        progress: called with the number of parts that are done, that of all, and the best so far.
    """
    step = NamedStep.of(target)
    asked = [_LayoutPart(step, search, device, *where, (at, parts)) for at in range(parts)]
    found: list[Layout] = []
    for number, part in enumerate(spread(find_layouts_of, asked), start=1):
        found = ranked([*found, *part])
        progress(number, parts, found[0] if found[0].prediction is not None else None)
    return found


def find_layouts_of(asked: _LayoutPart) -> list[Layout]:
    """The layouts of one part."""
    target = asked.step.target()
    predictor = on_cluster(asked.device, Parallel(cluster=asked.cluster))
    host = find_host(asked.host, asked.device, predictor.cluster)
    sources = {way: target_source(recomputing(target, way)) for way in asked.search.recompute}
    found = search_layouts(
        asked.search,
        lambda micro, way: sources[way].on(asked.device, micro),
        predictor,
        host,
        part=asked.part,
    )
    return shortened(found, asked.search.best)
