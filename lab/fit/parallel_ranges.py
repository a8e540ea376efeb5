"""Widen the ranges of steps on several GPUs until they hold nine in ten published steps.

    python -m lab score distributed --data FOLDER --source NAMES --save FILE
    python -m lab fit parallel_ranges FILE... --data FOLDER [--write]

Needs pandas and the public table distributed (docs/sources.md), and files of the first command. The
range of a step follows from the ranges of its ops. What the model leaves out, such as the software
of a framework or an unknown host, is not in it. Two exponents widen the range: its low end relative
to the step is raised to the first power, its high end to the second. They are the smallest with
which 5% of the published steps lie below and 5% above. Steps with both tensor and pipeline ranks
have exponents of their own: what eager frameworks do beside the model differs most there.

The table has the share of each source's steps that lie in the range of the ops alone, and in the
range that the other sources give. All rows are rebuilt with options that say how their framework
runs them, so what layered steps give is for strategies with such options (`stated`); without them,
ranges stay as wide as they were before nanotron's code was known (`layered`). Mixtures of experts
and adapters are no part of the fit, since the rows leave out much that they depend on. `--write`
writes the shipped models/parallel_ranges.toml.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.markdown import heading
from lab.measured.tables import read_rows
from wavecast.files import shipped, write_whole
from wavecast.steps.ranges import Widening, shipped_widening

OUT = shipped("models/parallel_ranges.toml")
_HEAD = """\
# Written by python -m lab fit parallel_ranges: how the ranges of steps on several GPUs are widened
# (wavecast.steps.ranges). Fitted on {rows} published steps of {sources} sources.
"""
APART = "mixtures of experts, adapters"
LEAST = 19
"""The fewest steps of a class that give it exponents: fewer cannot show one in twenty."""
OUTSIDE = 0.05
"""The share of steps that may lie below the range, and above it."""


@dataclass(frozen=True)
class RangedStep:
    """How far a measured step lies from the prediction, and the ends of the range of its ops.

    All are logarithms of the time relative to the predicted one.
    """

    measured: float
    low: float
    high: float
    layered: bool = False
    """Whether both layers and the model are divided (tensor and pipeline ranks)."""

    def needed(self, above: bool) -> float:
        """The exponent with which this step just lies in the range. 0 if it lies on its side."""
        end = self.high if above else self.low
        return max(self.measured / end, 0.0)

    def lies_in(self, widening: Widening) -> bool:
        """Whether the measured time lies in the widened range."""
        return widening.below * self.low <= self.measured <= widening.above * self.high


NARROW = Widening(1.0, 1.0)
"""The range of the ops alone."""


def read_steps(
    paths: Sequence[Path], table: Sequence[Mapping[str, Any]]
) -> dict[str, list[RangedStep]]:
    """The steps of each source in files that `lab.score.distributed --save` wrote.

    Ranges that were saved are those of the ops alone (`ops_low_s`, `ops_high_s`). Steps that their
    source flags as far below the best ones are left out.
    """
    apart = {str(row["row_id"]) for row in table if _is_apart(row)}
    steps: dict[str, list[RangedStep]] = defaultdict(list)
    for path in paths:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if "far_below_best" not in row["flags"]:
                    seconds = float(row["predicted_s"])
                    names = ("measured_s", "ops_low_s", "ops_high_s")
                    measured, low, high = (math.log(float(row[n]) / seconds) for n in names)
                    name = APART if row["row_id"] in apart else _source(row["source"])
                    layered = {"TP", "PP"} <= set(row["strategy"].split("+"))
                    steps[name].append(RangedStep(measured, low, high, layered))
    return steps


def _source(name: str) -> str:
    return "MLPerf" if name.startswith("training_results") else name


def _is_apart(row: Mapping[str, Any]) -> bool:
    return (row["n_experts"] or 1) > 1 or row["task"] == "lora"


def fit(
    steps: Mapping[str, Sequence[RangedStep]], left_out: str = APART, *, layered: bool = False
) -> Widening:
    """The smallest exponents that leave out so few steps that are layered, or that are not.

    Where fewer than `LEAST` are left, all steps give them.
    """
    kept = [s for name, own in steps.items() if name not in (left_out, APART) for s in own]
    same = [step for step in kept if step.layered is layered]
    chosen = same if len(same) >= LEAST else kept
    return Widening(_exponent(chosen, above=False), _exponent(chosen, above=True))


def _exponent(steps: Sequence[RangedStep], above: bool) -> float:
    needed = [step.needed(above) for step in steps]
    exponent = float(np.quantile(needed, 1 - OUTSIDE, method="higher"))
    return max(math.ceil(20 * exponent) / 20, 1.0)


def table(steps: Mapping[str, Sequence[RangedStep]]) -> list[str]:
    """Lines of a table: the coverage of each source, which is left out of the fit."""
    lines = [
        *heading(
            "source left out | steps | in the range of ops | exponents of the others | in theirs"
        ),
    ]
    inside = [0, 0]
    for name, own in sorted(steps.items()):
        others = {layered: fit(steps, name, layered=layered) for layered in (False, True)}
        counts = [
            sum(step.lies_in(NARROW) for step in own),
            sum(step.lies_in(others[step.layered]) for step in own),
        ]
        exponents = "; ".join(f"{one.below:.2f}, {one.above:.2f}" for one in others.values())
        lines.append(
            f"| {name} | {len(own)} | {counts[0] / len(own):.0%} | {exponents} "
            f"| {counts[1] / len(own):.0%} |"
        )
        if name != APART:
            inside = [before + count for before, count in zip(inside, counts, strict=True)]
    every = _count(steps)
    shares = f"{inside[0] / every:.0%} | | {inside[1] / every:.0%}"
    lines.append(f"| **all but those apart** | {every} | {shares} |")
    return lines


def _count(steps: Mapping[str, Sequence[RangedStep]]) -> int:
    return sum(len(own) for name, own in steps.items() if name != APART)


def main(given: Sequence[str] = ()) -> None:
    """Print the table, and write the exponents of all sources."""
    parser = needs.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="files that --save wrote")
    parser.add_argument("--write", action="store_true", help="write the shipped file")
    needs.add_data(parser, "distributed")
    args = parser.parse_args(given)
    steps = read_steps(args.files, read_rows(args.data / "distributed" / "steps.parquet"))
    print("\n".join(table(steps)), end="\n\n")
    text = _HEAD.format(rows=_count(steps), sources=len(set(steps) - {APART}))
    before = shipped_widening(layered=True)
    fits = {"others": fit(steps), "layered": before, "stated": fit(steps, layered=True)}
    for name, chosen in fits.items():
        print(f"all sources, {name}: {chosen.below:.2f}, {chosen.above:.2f}")
        text += f"\n[{name}]\nbelow = {chosen.below}\nabove = {chosen.above}\n"
    if args.write:
        write_whole(OUT, text)
