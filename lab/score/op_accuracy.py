"""How far off are single ops on GPUs left out of the fit? Five figures for each kind of op.

    python -m lab score op_accuracy --data FOLDER [--write]

Every GPU is predicted by models that never saw its chip, as `lab.fit.learned --score` does, and
every GPU has the same weight. `in range` is the share of a GPU's ops within ranges calibrated on
the other GPUs. Kinds of op that were measured on only one GPU are left out. The fits take an hour.
`--write` records the figures for docs/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from lab.figures import Figures, percent
from lab.fit.learned import ScoredOps, covered, fit_all, grouped, left_out, rows_of
from lab.fit.op_table import tables as op_tables
from lab.pages import heading
from lab.scores import ScoreTable


def figures_of(scored: ScoredOps) -> Figures:
    """The five figures of one kind of op, with the same weight for every GPU."""
    errors = scored.said_s / np.array([row.seconds for row in scored.rows]) - 1
    gpu = np.array([row.gpu for row in scored.rows])
    by_gpu = [errors[gpu == name] for name in np.unique(gpu)]
    return Figures(
        count=len(errors),
        mean=float(np.mean([np.abs(some).mean() for some in by_gpu])),
        bias=float(np.mean([some.mean() for some in by_gpu])),
        worst=float(np.abs(errors).max()),
        in_range=covered(scored.rows, scored.said_s),
        median=float(np.mean([np.median(np.abs(some)) for some in by_gpu])),
    )


def by_kind(scores: Mapping[str, ScoredOps]) -> dict[str, Figures]:
    """The figures of each kind of op measured on two GPUs or more, by its name in the file."""
    return {
        f"op {name}": figures_of(scored)
        for name, scored in grouped(scores).items()
        if len({row.gpu for row in scored.rows}) > 1
    }


def table(kinds: Mapping[str, Figures]) -> str:
    """A line for each kind of op, in Markdown."""
    lines = [*heading("ops | measurements | mean | median | bias | worst | in range")]
    for name, scores in kinds.items():
        cells = [*scores.cells(), percent(scores.in_range)]
        lines.append(f"| {name.removeprefix('op ')} | {scores.count:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def tables(data: Path) -> Iterator[ScoreTable]:
    """Fit without each chip; the figures of each kind of op."""
    ops = op_tables(rows_of(data))
    kinds = by_kind(left_out(ops, fit_all(ops)))
    yield ScoreTable(table(kinds), figures=kinds)
