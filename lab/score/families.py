"""Our own steps, predicted by models that never saw an op of their model family.

    python -m lab score families --data FOLDER --cache FOLDER [--write]

Model families (BERT of all sizes, VGG, ...) are split into `FOLDS` groups. For each group the op
models are fitted again without the ops that occur only in the steps of these families. A model
whose name contains a family's name (RoBERTa, RepVGG) counts as a member of it. Ops of the same
shapes stay in the fit if other steps, the sweep of single layers or other GPUs have them. The H200
stays in the fit as well: the question is how well new models are predicted on a measured GPU.
`--write` puts the tables into docs/appendix/accuracy-families.md.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from lab import pages
from lab.figures import Figures, figures, percent
from lab.fit.learned import kept_fit, rows_of
from lab.measured import own_steps
from lab.measured.comparison import Contender, Scored, groups, read, score, summary
from lab.measured.op_data import OUR_STEPS, fitted_traces
from lab.measured.op_makers import OpRow, digest
from lab.measured.public_steps.case import Case, Traces
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast.predictors.learned.predictor import Learned
from wavecast.traces.step import Op

FOLDS = 6
NAME = "family left out"
SWEEP = "sweep"
SWEEPS = (SWEEP, "memory")
"""Campaigns of single layers, which belong to no model."""
MARK = "begin: python -m lab score families"


def family_of(model: str) -> str:
    """The leading letters of a model's name: "bert" for bert-base and hf_bert_padded."""
    prefix = re.match(r"(?:hf_)?([a-z]+(?:\d+[a-z]+)?)", model)
    return prefix[1] if prefix else model


def fold_of(family: str, families: Sequence[str]) -> int:
    """The number of the group that a family belongs to."""
    return sorted(families).index(family) % FOLDS


def owners() -> dict[Op, set[str]]:
    """The models in which each measured op occurs; `SWEEP` stands for the sweep of layers."""
    models: dict[Op, set[str]] = defaultdict(set)
    for campaign, key, trace in fitted_traces():
        owner = SWEEP if campaign in SWEEPS else key.partition("-b")[0].lower()
        for op in trace.counts:
            models[op].add(owner)
    return models


def kept(rows: Iterable[OpRow], left_out: set[str], seen: dict[Op, set[str]]) -> list[OpRow]:
    """The rows that stay in the fit when these families are left out."""
    models = {model for owners in seen.values() for model in owners}
    gone = {model for model in models if any(family in model for family in left_out)}
    return [row for row in rows if row.source != OUR_STEPS or not seen[row.ops[0]] <= gone]


def fitted_without(left_out: set[str], data: Path, cache: Path) -> Learned:
    """The models fitted without the ops of these families; the cache folder keeps the fit."""
    rows = kept(rows_of(data), left_out, owners())
    return kept_fit(cache / f"learned-families-{digest(rows)[:12]}.npz", rows)


def folds(cases: Sequence[Case], data: Path, cache: Path) -> Iterator[tuple[Learned, list[Case]]]:
    """For each group: models fitted without its families, and the cases of these families."""
    families = sorted({family_of(case.model) for case in cases})
    for fold in range(FOLDS):
        out = {family for family in families if fold_of(family, families) == fold}
        own = [case for case in cases if family_of(case.model) in out]
        yield fitted_without(out, data, cache), own
        print(f"group {fold + 1} of {FOLDS}: {', '.join(sorted(out))}", flush=True)


def table(
    rows: Sequence[Scored],
    shipped: Sequence[Scored],
    figures_of: Callable[[Sequence[Scored]], Figures],
) -> str:
    """Errors by set and by family, beside the errors of the shipped fit, which has seen the ops.

    Args:
        rows: the steps, predicted by models fitted without their family.
        shipped: the same steps, predicted by the shipped models.
        figures_of: the figures of some steps: of their GPU time, or of their iterations.
    """
    fitted = {(row.case.set, row.case.name): row for row in shipped}
    parts = {name: list(group) for name, group in groups(rows, lambda row: row.case.set)}
    parts["**all**"] = list(rows)
    for _, group in groups(rows, lambda row: family_of(row.case.model)):
        parts[", ".join(sorted({row.case.model for row in group}))] = group
    lines = [
        *heading(
            "set or models | steps | mean | median | bias | worst | in range | in the fit: mean"
        )
    ]
    for name, group in parts.items():
        scores = figures_of(group)
        in_fit = figures_of([fitted[row.case.set, row.case.name] for row in group])
        cells = [*scores.cells(1), percent(scores.in_range)]
        lines.append(f"| {name} | {len(group)} | {' | '.join(cells)} | {percent(in_fit.mean, 1)} |")
    return "\n".join(lines)


def gpu_figures(rows: Sequence[Scored]) -> Figures:
    """The five figures of the GPU-busy time, over the steps for which it was measured."""
    timed = [row for row in rows if row.gpu_error is not None]
    return figures((row.gpu_error or 0.0 for row in timed), (row.gpu_within for row in timed))


def _always(model: Learned, _: str) -> Learned:
    return model


def tables(data: Path, cache: Path) -> Iterator[ScoreTable]:
    """Fit without each group, and predict its steps."""
    cases = list(own_steps.cases())
    traces = Traces(cache)
    traces.make_missing(cases)
    rows: list[Scored] = []
    for model, own in folds(cases, data, cache):
        rows += score(read(own, traces), [Contender(NAME, partial(_always, model))])
    shipped = list(score(read(cases, traces), [Contender("shipped", lambda _: Learned.shipped())]))
    scores = {
        "h200 GPU time, in the fit": gpu_figures(shipped),
        "h200 GPU time, families left out": gpu_figures(rows),
    }
    page = pages.APPENDIX / "accuracy-families.md"
    yield ScoreTable(table(rows, shipped, gpu_figures), page, MARK, scores, title="GPU time")
    yield ScoreTable(table(rows, shipped, summary), title="Iterations")
