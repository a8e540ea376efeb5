"""How well are iterations predicted on machines whose hosts were calibrated?

    python -m lab score iterations --data FOLDER --cache FOLDER [--write]

Needs transformers, pandas, the public tables (`--data`, docs/sources.md) and the iterations that
were timed (measurements/h200/iterations). `--cache` keeps traces and fits.
`--write` puts the tables into docs/appendix/accuracy-hosts.md.

Hosts differ by more than models do, and `wavecast calibrate` times a host within a minute. Each
machine is predicted without the times of its steps: the host's costs (`lab.fit.host`) and the
benchmark times of the reference host are fitted again without that machine. The last two machines
are in no fit at all, and the ranges were not calibrated on them. The fit of `learned` has the ops
of the suite. The last lines of the table leave the model out of the fit of the host, and its family
out of the fit of ops as well (`lab.score.families`).
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import wavecast
from lab import pages
from lab.figures import Figures, figures, percent
from lab.fit.host import Steps, host_without, machine_factor, model_of, reference_of
from lab.fit.host import read as read_steps
from lab.measured import own_steps
from lab.measured.comparison import is_within
from lab.measured.timed import GPU, Machine, machines, suite_steps, traced, unseen_machines
from lab.pages import heading
from lab.score.families import folds
from lab.scores import ScoreTable
from wavecast import Host
from wavecast.hardware.kept_hosts import factor_of, reference_times
from wavecast.predictors.learned.predictor import Learned

MARK = "begin: python -m lab score iterations"


@dataclass(frozen=True)
class IterationRow:
    """How well one timed step was predicted with one host."""

    machine: str
    host: str
    """The title of the host that the step was predicted with."""
    of_suite: bool
    """Whether it is a step of the suite, not of the blind test."""
    error: float
    within: bool | None
    """Whether the timed iteration lies in the predicted range. None if it has none."""
    host_over_gpu: float
    """The predicted host time over the predicted GPU time."""
    unseen: bool = False
    """Whether the machine is in no fit."""


REFERENCE, AT_START, THROUGHOUT, HOST_OUT, MODEL_OUT = (
    "the reference host",
    "a host calibrated at the start",
    "a host calibrated throughout",
    "the same, its costs fitted without the model",
    "the same, ops fitted without the family, too",
)
EVERY = (REFERENCE, AT_START, THROUGHOUT, HOST_OUT, MODEL_OUT)


def hosts_of(machine: Machine, steps: Steps, others: Sequence[Machine]) -> dict[str, Host]:
    """The hosts that a machine is predicted with, by title, fitted without its steps."""
    base = host_without(machine.name, steps)
    reference = reference_of(others, base)["cuda"]

    def calibrated(times: Mapping[str, float]) -> Host:
        costs: dict[str, Any] = {"known": True, **machine.direct}
        return replace(base.scaled(factor_of(times, reference)), **costs)

    return {
        REFERENCE: base,
        AT_START: calibrated(machine.start["cuda"]),
        THROUGHOUT: calibrated(machine.throughout),
    }


def predictors(data: Path, cache: Path) -> dict[str, Learned]:
    """For each model of the suite: op models fitted without its family."""
    cases = list(own_steps.cases())
    return {case.model: fitted for fitted, own in folds(cases, data, cache) for case in own}


def rows(data: Path, cache: Path, titles: Collection[str] = EVERY) -> Iterator[IterationRow]:
    """Every step of every machine, predicted with each of these hosts."""
    every, unseen, fitted = machines(), unseen_machines(), read_steps()
    of_suite = {name for name, _ in suite_steps()}
    family_out = predictors(data, cache) if MODEL_OUT in titles else {}
    for machine in (*every, *unseen):
        others = [other for other in every if other is not machine]
        machine_hosts = hosts_of(machine, fitted, others)
        hosts_without_model = {
            model: hosts_of(machine, fitted.where(fitted.models != model), others)[THROUGHOUT]
            for model in {model_of(step) for step in machine.steps}
        }
        for step in machine.steps:
            trace = traced(cache, step.name, search=step.search)
            host_out = hosts_without_model[model_of(step)]
            hosts = {**machine_hosts, HOST_OUT: host_out, MODEL_OUT: host_out}
            for title in titles:
                predictor = family_out.get(model_of(step)) if title == MODEL_OUT else None
                prediction = wavecast.predict(trace, GPU, host=hosts[title], predictor=predictor)
                yield IterationRow(
                    machine.name,
                    title,
                    step.name in of_suite,
                    prediction.seconds / step.seconds - 1,
                    is_within(prediction, step.seconds),
                    prediction.host_s / prediction.gpu_s,
                    machine in unseen,
                )


def table(scored: Sequence[IterationRow]) -> Iterator[str]:
    """A line for each host and set: the suite on all machines, on each, and the blind models."""
    yield from heading("predicted with | steps | mean error | median | bias | worst | in range")
    for title, chosen in sets_of(scored).items():
        yield _line(title, chosen)


def sets_of(scored: Sequence[IterationRow]) -> dict[str, list[IterationRow]]:
    """The rows of each line of the table, by its title."""
    sets: dict[str, list[IterationRow]] = {}
    names = dict.fromkeys(row.machine for row in scored)
    for title in dict.fromkeys(row.host for row in scored):
        same = [row for row in scored if row.host == title]
        of_suite = [row for row in same if row.of_suite]
        sets[f"{title}: the suite"] = of_suite
        unseen = [row for row in of_suite if row.unseen]
        if unseen:
            sets[f"{title}: the suite, machines in no fit"] = unseen
        for name in names if title in (AT_START, THROUGHOUT) else ():
            there = [row for row in of_suite if row.machine == name]
            sets[f"{title}: the suite, {name} machine"] = there
        sets[f"{title}: models of the blind test"] = [row for row in same if not row.of_suite]
    return sets


def figures_of(scored: Sequence[IterationRow]) -> dict[str, Figures]:
    """The five figures of each line of the table that is not about one machine."""
    return {
        f"h200 iterations, {title}": figures(
            (row.error for row in chosen), (row.within for row in chosen)
        )
        for title, chosen in sets_of(scored).items()
        if not title.endswith(" machine")
    }


def _line(title: str, some: Sequence[IterationRow]) -> str:
    scores = figures((row.error for row in some), (row.within for row in some))
    cells = " | ".join(scores.cells(1))
    return f"| {title} | {scores.count} | {cells} | {percent(scores.in_range)} |"


def noise() -> Iterator[str]:
    """A line for each machine: its host factors, and how much two timings of a step differ."""
    yield from heading(
        "machine | host factor at start | throughout | from its steps | two timings differ by"
    )
    reference = reference_times()["cuda"]
    for machine in (*machines(), *unseen_machines()):
        factors = (
            factor_of(machine.start["cuda"], reference),
            factor_of(machine.throughout, reference),
            machine_factor(machine),
        )
        apart = [step.apart for step in machine.steps if step.apart is not None]
        cells = " | ".join(f"{factor:.2f}" for factor in factors)
        yield f"| {machine.name} | {cells} | {f'{statistics.mean(apart):.1%}' if apart else ''} |"


def tables(data: Path, cache: Path) -> Iterator[ScoreTable]:
    """The tables of the page, which has no line for each machine."""
    predicted = list(rows(data, cache))
    text = "\n".join((*table(predicted), "", *noise()))
    on_page = "\n".join(line for line in text.splitlines() if " machine | " not in line)
    page = pages.APPENDIX / "accuracy-hosts.md"
    yield ScoreTable(text, page, MARK, figures_of(predicted), on_page=on_page)
