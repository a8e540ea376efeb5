"""Widen the ranges of steps on several GPUs until they hold nine in ten published steps.

    python -m lab.score.distributed --data FOLDER --source NAMES --save FILE
    python -m lab.fit.parallel_ranges FILE... [--write]

The range of a step follows from the ranges of its ops. What the model leaves out, such as the
software of a framework or an unknown host, is not in it. Two exponents widen the range: its low end
relative to the step is raised to the first power, its high end to the second. They are the smallest
with which 5% of the published steps lie below and 5% above, every source with the same weight. The
table has the share of each source's steps that lie in the range of the ops alone, and in the range
that the other sources give. `--write` writes the shipped models/parallel_ranges.toml.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wavecast.files import shipped, write_whole
from wavecast.steps.parallel_ranges import Widening

OUT = shipped("models/parallel_ranges.toml")
_HEAD = """\
# Written by python -m lab.fit.parallel_ranges: how the ranges of steps on several GPUs are widened
# (wavecast.steps.parallel_ranges). Fitted on {rows} published steps of {sources} sources.

"""
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

    def needed(self, above: bool) -> float:
        """The exponent with which this step just lies in the range. 0 if it lies on its side."""
        end = self.high if above else self.low
        return max(self.measured / end, 0.0)

    def lies_in(self, widening: Widening) -> bool:
        """Whether the measured time lies in the widened range."""
        return widening.below * self.low <= self.measured <= widening.above * self.high


NARROW = Widening(1.0, 1.0)
"""The range of the ops alone."""


def read_steps(paths: Sequence[Path]) -> dict[str, list[RangedStep]]:
    """The steps of each source in files that `lab.score.distributed --save` wrote.

    Ranges that were saved are those of the ops alone (`ops_low_s`, `ops_high_s`). Steps that their
    source flags as far below the best ones are left out.
    """
    steps: dict[str, list[RangedStep]] = defaultdict(list)
    for path in paths:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if "far_below_best" not in row["flags"]:
                    seconds = float(row["predicted_s"])
                    names = ("measured_s", "ops_low_s", "ops_high_s")
                    relative = (math.log(float(row[name]) / seconds) for name in names)
                    steps[row["source"]].append(RangedStep(*relative))
    return steps


def fit(steps: Mapping[str, Sequence[RangedStep]]) -> Widening:
    """The smallest exponents that leave out so few steps, every source with the same weight."""
    return Widening(_exponent(steps, above=False), _exponent(steps, above=True))


def _exponent(steps: Mapping[str, Sequence[RangedStep]], above: bool) -> float:
    needed = np.concatenate([[step.needed(above) for step in own] for own in steps.values()])
    weights = np.concatenate([np.full(len(own), 1 / len(own)) for own in steps.values()])
    order = np.argsort(needed)
    reached = np.cumsum(weights[order]) / weights.sum()
    exponent = needed[order][np.searchsorted(reached, 1 - OUTSIDE)]
    return max(math.ceil(20 * float(exponent)) / 20, 1.0)


def share_in(steps: Sequence[RangedStep], widening: Widening) -> float:
    """The share of steps in the widened range."""
    return float(np.mean([step.lies_in(widening) for step in steps]))


def table(steps: Mapping[str, Sequence[RangedStep]]) -> list[str]:
    """Lines of a table: the coverage of each source, which is left out of the fit."""
    lines = [
        "| source left out | steps | in the range of ops | exponents of the others | in theirs |",
        "|---|---:|---:|---:|---:|",
    ]
    narrow, wide = [], []
    for name, own in sorted(steps.items()):
        others = fit({other: rows for other, rows in steps.items() if other != name})
        narrow.append(share_in(own, NARROW))
        wide.append(share_in(own, others))
        lines.append(
            f"| {name} | {len(own)} | {narrow[-1]:.0%} | {others.below:.2f}, {others.above:.2f} "
            f"| {wide[-1]:.0%} |"
        )
    count = sum(map(len, steps.values()))
    lines.append(
        f"| **mean of sources** | {count} | {np.mean(narrow):.0%} | | {np.mean(wide):.0%} |"
    )
    return lines


def main(given: Sequence[str] | None = None) -> None:
    """Print the table, and write the exponents of all sources."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, help="files that --save wrote")
    parser.add_argument("--write", action="store_true", help="write the shipped file")
    args = parser.parse_args(given)
    steps = read_steps(args.files)
    chosen = fit(steps)
    print("\n".join(table(steps)), end="\n\n")
    print(f"all sources: {chosen.below:.2f}, {chosen.above:.2f}")
    if args.write:
        rows = sum(map(len, steps.values()))
        exponents = f"below = {chosen.below}\nabove = {chosen.above}\n"
        write_whole(OUT, _HEAD.format(rows=rows, sources=len(steps)) + exponents)


if __name__ == "__main__":
    main()
