"""How well are collectives predicted whose GPU count, GPU or cluster was left out of the fit?

    python -m lab score collectives --data FOLDER

Needs scipy, pandas and the public tables kernels and distributed (docs/sources.md); takes five
minutes. Prints the tables of docs/parallel.md. The error is |predicted / measured - 1|; the range
is that of the shipped constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lab.fit.collectives import (
    LeftOutLinks,
    Vector,
    chip_of,
    count_of,
    fit,
    left_out,
    log_errors,
    machines_of,
    usable,
)
from lab.measured.collectives import MeasuredCollective, measured_collectives
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast.predictors.collectives import Collectives, shipped_constants

LONG = 1 << 20
"""Messages from this size on: bandwidth counts more than latency."""
TARGETS = {"GPU count": 0.15, "GPU": 0.25, "several machines": 0.25}


def within_range(title: str, rows: Sequence[MeasuredCollective], errors: Vector) -> float:
    """The share of rows whose measured time is in the range that would have been given."""
    constants = shipped_constants()
    if title == "GPU":  # a GPU that was left out has links that nobody measured
        constants = replace(constants, generations={})
    model, inside = Collectives(constants), 0
    for row, error in zip(rows, errors, strict=True):
        answer = model.estimate(row.kind, row.size, row.cluster, row.device, row.placement)
        if answer is not None:
            inside += abs(error) <= np.log(answer.high_s / answer.seconds) + 1e-9
    return inside / len(rows)


def line(title: str, what: str, rows: Sequence[MeasuredCollective], errors: Vector) -> str:
    """One row of the table."""
    shares = np.abs(np.expm1(errors))
    long = shares[[row.size >= LONG for row in rows]]
    quantile = np.quantile(shares, 0.9)
    far = f"{np.median(long):.0%}" if len(long) else ""
    inside = within_range(title, rows, errors)
    return (
        f"| {title} | {what} | {len(rows)} | {np.median(shares):.0%} | {far} | {quantile:.0%} "
        f"| {inside:.0%} |"
    )


def lines(title: str, parts: Sequence[LeftOutLinks]) -> Iterator[str]:
    """The rows of one kind of what was left out, and all of them together."""
    for part in parts:
        yield line(title, part.what, part.rows, part.log_errors)
    rows = [row for part in parts for row in part.rows]
    errors = np.concatenate([part.log_errors for part in parts])
    target = f"all (target {TARGETS[title]:.0%})"
    yield line(title, f"**{target}**", rows, errors)


def tables(data: Path) -> Iterator[ScoreTable]:
    """The errors without each GPU count, GPU and cluster of several machines."""
    rows = measured_collectives(data)
    near = fit(usable(rows), shipped_constants())
    names = "left out | which | rows | median | of these from 1 MiB | 9 in 10 | in the range"
    shown = [*heading(names, "ll")]
    keys = {"GPU count": count_of, "GPU": chip_of, "several machines": machines_of}
    for title, key in keys.items():
        shown += lines(title, left_out(rows, near, key))
    unstated = [row for row in rows if row.source == "vidur, two machines"]
    shown.append(line("network not stated", "vidur", unstated, log_errors(near, unstated)))
    errors = log_errors(near, usable(rows))
    shown.append(line("nothing", "the rows of the fit", usable(rows), errors))
    yield ScoreTable("\n".join(shown))
