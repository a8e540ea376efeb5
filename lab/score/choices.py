"""Does `wavecast choose` pick the right GPU? Lambda's measured steps, with the snapshot's prices.

    python -m lab score choices --data FOLDER --cache FOLDER [--write]

Reads the public sets of `lab.score.accuracy`, with timm and torchvision to rebuild their steps, and
writes the tables of docs/appendix/choices.md. For each task (a network in half precision, or in
fp32, which is TF32 on newer GPUs), every GPU has its fastest measured step. Each is predicted by
models that were fitted without the GPU's chip. The choice is judged by what was measured: how much
more it takes, or costs, than the best.

The correlation of the errors of one step on two GPUs (`selection.SHARED_ERROR`) is estimated from
the same predictions: the mean product of the errors of two GPUs in a task, over the mean square.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import wavecast
from lab import pages
from lab.fit.generations import LeftOut
from lab.measured import public_steps
from lab.measured.comparison import read
from lab.measured.public_steps.case import Case, Traces
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast import Prediction, Trace, TrainingPlan, training_cost
from wavecast.hardware.devices import device
from wavecast.planning.prices import PriceBook, price_book
from wavecast.planning.selection import SHARED_ERROR, Aim, Candidate, is_better, select

PAGE = pages.APPENDIX / "choices.md"
MARK = "begin: python -m lab score choices"
SET = "lambda"
PLAN = TrainingPlan(samples=1e6)
NEAR = 0.05
"""A choice that takes at most this much more than the best counts as right."""


@dataclass(frozen=True)
class Judged:
    """One GPU in a task: what was predicted, and what was measured."""

    case: Case
    candidate: Candidate

    @property
    def error(self) -> float:
        """The error of the logarithm of the time."""
        assert self.candidate.cost is not None
        return math.log(self.candidate.cost.step.value / self.case.measured_s)

    def measured(self, aim: Aim) -> float:
        """What a million samples really take: hours, or USD."""
        hours = PLAN.samples / self.case.throughput / 3600 if PLAN.samples else 0.0
        offer = self.candidate.cost.offer if self.candidate.cost else None
        if aim is Aim.TIME:
            return hours
        return math.inf if offer is None else hours * offer.usd_per_hour_of(1)


def task_of(case: Case) -> str:
    """The task of a case: its network, in half precision or not."""
    return f"{case.model}, {'half precision' if 'amp' in case.precision else 'fp32 or TF32'}"


def fastest(traced: Iterable[tuple[Case, Trace]]) -> list[tuple[Case, Trace]]:
    """Of each task and GPU, the newest step with the highest measured throughput."""
    best: dict[tuple[str, str], tuple[Case, Trace]] = {}
    for case, trace in traced:
        key = task_of(case), case.gpu
        if case.newest and (key not in best or best[key][0].throughput < case.throughput):
            best[key] = case, trace
    return list(best.values())


def judged(case: Case, prediction: Prediction, book: PriceBook) -> Judged:
    """A prediction with its cost, and the measurement."""
    cost = training_cost(prediction, PLAN, book.cheapest(case.gpu))
    return Judged(case, Candidate(device(case.gpu), 1, case.batch, cost=cost))


def by_task(rows: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The rows of each task."""
    tasks: dict[str, list[Judged]] = {}
    for row in rows:
        tasks.setdefault(task_of(row.case), []).append(row)
    return dict(sorted(tasks.items()))


def shared_error(tasks: Mapping[str, Sequence[Judged]]) -> float:
    """The correlation of the errors of one step on two GPUs, about zero."""
    products, squares = [], []
    for rows in tasks.values():
        errors = [row.error for row in rows]
        squares += [error**2 for error in errors]
        products += [error * other for error, other in itertools.combinations(errors, 2)]
    return statistics.mean(products) / statistics.mean(squares)


def choice_table(tasks: Mapping[str, Sequence[Judged]], aim: Aim) -> tuple[str, int, int]:
    """A line for each task, the number of right choices, and the number of tasks."""
    lines = [
        *heading(
            "task | GPUs | chosen | best as measured | it takes more | as good by the ranges",
            "lrllrl",
        )
    ]
    right = 0
    for task, rows in tasks.items():
        usable = [row for row in rows if math.isfinite(row.measured(aim))]
        if len(usable) < 2:
            continue
        selection = select([row.candidate for row in usable], aim)
        assert selection.best is not None
        real = {row.case.gpu: row.measured(aim) for row in usable}
        chosen, best = selection.best.device.id, min(real, key=real.__getitem__)
        loss = real[chosen] / real[best] - 1
        right += loss <= NEAR
        equal = ", ".join(candidate.device.id for candidate in selection.as_good) or "none"
        lines.append(f"| {task} | {len(usable)} | {chosen} | {best} | {loss:.1%} | {equal} |")
    return "\n".join(lines), right, len(lines) - 2


def told_apart(tasks: Mapping[str, Sequence[Judged]], aim: Aim) -> str:
    """How many pairs of GPUs are told apart, and how many of those in the right order."""
    pairs = apart = right = 0
    for rows in tasks.values():
        usable = [row for row in rows if math.isfinite(row.measured(aim))]
        for judged_gpu, other in itertools.permutations(usable, 2):
            pairs += judged_gpu.case.gpu < other.case.gpu
            if is_better(judged_gpu.candidate, other.candidate, aim):
                apart += 1
                right += judged_gpu.measured(aim) < other.measured(aim)
    share = right / apart if apart else math.nan
    return f"{apart} of {pairs} pairs of GPUs are told apart, {share:.1%} of them rightly"


def report(rows: Sequence[Judged]) -> dict[str, str]:
    """The Markdown of each part of the page, by its name."""
    tasks = by_task(rows)
    parts = {}
    for aim, word in ((Aim.MONEY, "cheapest"), (Aim.TIME, "fastest")):
        table, right, count = choice_table(tasks, aim)
        summary = (
            f"In {right} of {count} tasks the {word} GPU is chosen, or one within {NEAR:.0%} "
            f"of it. By the ranges, {told_apart(tasks, aim)}."
        )
        parts[word] = f"{summary}\n\n{table}"
    parts["errors"] = (
        f"Over {len(rows)} predictions, the correlation of the errors of one step on two GPUs is "
        f"{shared_error(tasks):.2f}; `choose` takes {SHARED_ERROR}."
    )
    return parts


def tables(data: Path, cache: Path) -> Iterator[ScoreTable]:
    """The choices that were judged, and how far speeds and prices were off."""
    cases = [case for case in public_steps.cases(data) if case.set == SET]
    traces = Traces(cache)
    traces.make_missing(cases)
    fit, book, rows = LeftOut(data, cache), price_book(), []
    for case, trace in fastest(read(cases, traces)):
        predictor = fit.aged(case.gpu, case.era) if case.era else fit(case.gpu)
        prediction = wavecast.predict(trace, case.gpu, predictor=predictor)
        rows.append(judged(case, prediction, book))
    for name, text in report(rows).items():
        # The page has the sums, without a line for each task.
        yield ScoreTable(
            text, PAGE, f"{MARK} '{name}'", title=name, on_page=text.partition("\n")[0]
        )
