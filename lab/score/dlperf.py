"""How well is the scaling on one and two machines of eight V100 predicted (DLPerf)?

    python -m lab score dlperf --data FOLDER [--cache FOLDER]

Needs the public table dlperf (docs/sources.md), and transformers; takes two minutes. Prints all
rows, and writes the sum of PyTorch's into docs/parallel.md. The error is
|predicted / measured - 1| of the speed on 4, 8 and 16 GPUs relative to one. Nothing was fitted to
these rows. The steps are those of NVIDIA's examples for PyTorch; the rows of other frameworks are
compared with the same steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

from lab import pages
from lab.fit.overlap import ScaledStep, steps_of
from lab.measured.scaled_rows import dlperf_rows
from lab.pages import heading
from lab.places import DOCS
from lab.scores import ScoreTable
from wavecast.steps.op_times import shipped_overlap

PAGE = DOCS / "parallel.md"
MARK = "begin: python -m lab score dlperf"
PYTORCH = ("PyTorch", "NGC PyTorch")
TARGET = 0.08


def group_of(step: ScaledStep) -> tuple[str, str, str]:
    """The line of the table to which a row belongs."""
    row = step.row
    if row.source not in PYTORCH:
        return ("other frameworks", row.task, row.link)
    return (row.source + (", input-bound" if row.is_flagged else ""), row.task, row.link)


def table(steps: Sequence[ScaledStep]) -> str:
    """Errors by framework, model and number of machines."""
    groups: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
    for step in steps:
        pair = (step.efficiency(shipped_overlap()), step.row.efficiency)
        group = group_of(step)
        groups[group].append(pair)
        if group[0] in PYTORCH:
            groups[f"**PyTorch, target {TARGET:.0%}**", "all", "all"].append(pair)
    lines = [
        *heading(
            "framework | model | machines x GPUs | rows | measured | predicted | mean error", "lll"
        )
    ]
    for key, pairs in sorted(groups.items()):
        error = fmean(abs(predicted / measured - 1) for predicted, measured in pairs)
        predicted, measured = (fmean(values) for values in zip(*pairs, strict=True))
        lines.append(
            f"| {' | '.join(key)} | {len(pairs)} | {measured:.2f} | {predicted:.2f} | {error:.1%} |"
        )
    return "\n".join(lines)


def tables(data: Path, cache: Path | None) -> Iterator[ScoreTable]:
    """All rows; the page has the sum of PyTorch's."""
    steps = steps_of(dlperf_rows(data), cache)
    own = table([step for step in steps if step.row.source in PYTORCH])
    yield ScoreTable(table(steps), PAGE, MARK, on_page=pages.sums(own))
