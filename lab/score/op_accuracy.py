"""Single ops on GPUs left out of the fit: five figures for each kind of op.

    python -m lab.score.op_accuracy --data FOLDER [--write]

Every GPU is predicted by models that never saw its chip, as `lab.fit.learned --score` does, and
every GPU counts the same. `in range` is the share of a GPU's ops within the range that the other
GPUs' ops make. Kinds that were measured on one GPU only are left out. The fits take an hour.
`--write` records the figures for docs/accuracy.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

import numpy as np

from lab import needs
from lab.fit.learned import ScoredOps, covered, fit_all, grouped, left_out, rows_of
from lab.fit.op_table import tables
from lab.measured.figures import Figures, percent, record


def figures_of(scored: ScoredOps) -> Figures:
    """The five figures of one kind of op, every GPU counting the same."""
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
    """The figures of each kind that at least two GPUs measured, by its name in the file."""
    return {
        f"op {name}": figures_of(scored)
        for name, scored in grouped(scores).items()
        if len({row.gpu for row in scored.rows}) > 1
    }


def table(found: Mapping[str, Figures]) -> str:
    """A line for each kind of op, in Markdown."""
    lines = [
        "| ops | measurements | mean | median | bias | worst | in range |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, kind in found.items():
        cells = [*kind.cells(), percent(kind.in_range)]
        lines.append(f"| {name.removeprefix('op ')} | {kind.count:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Fit without each chip, and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    needs.add_data(parser, *needs.SINGLE_OPS)
    parser.add_argument("--write", action="store_true", help="record the figures")
    args = parser.parse_args(given)
    found = tables(rows_of(args.data))
    kinds = by_kind(left_out(found, fit_all(found)))
    print(table(kinds))
    if args.write:
        record(kinds)


if __name__ == "__main__":
    main()
