"""How wide must the range of a step on several GPUs be? Fits the width, and scores it.

    python -m lab score distributed --data FOLDER --source NAMES --save FILE
    python -m lab score parallel_ranges FILE... --data FOLDER [--write]

Needs pandas and the public table distributed (docs/sources.md), and files of the first command. The
range of a step is that of one such GPU while it computes, and a width for what no op shows, added
up in squares (`wavecast.steps.ranges`). It is the width beyond which one in twenty steps
lie, which has the least interval score. Then both sides are multiplied by one factor, with which
ranges that know nothing of the source of a step hold nine in ten. The figures are of such ranges,
of which neither width nor factor knows the source.

Each row is there as it was rebuilt, and, where options say how its framework runs the step, once
more without them, as by users who do not state them. Rows that their source
flags as far below the best ones are left out. Mixtures of experts and adapters are judged but are
no part of the fit, since the rows leave out much that they depend on. Steps whose hosts set the
pace have the range of hosts, and are no part of the fit of the width, but of that factor.

Prints, for each source, the share of steps in their ranges, the ratio of high and low end (given,
and needed to hold nine in ten) and the mean interval score. `--write` writes the shipped
models/parallel_ranges.toml.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.figures import percent
from lab.measured.tables import read_rows
from lab.pages import heading
from lab.score.range_widths import ALPHA, LEAST_WIDTH, interval_score
from wavecast.files import shipped, write_whole
from wavecast.predictors.base import Spread
from wavecast.steps.ranges import PARALLEL_FILE, RangeParts

APART = "mixtures of experts, adapters"
HOST_SETS = 1.1
"""A step waits for its host if the slowest hosts make it so many times as long."""
LEAST_FACTOR = 0.5
"""No width is made narrower than this by its factor."""
Width = tuple[float, float]
"""How far what no op shows reaches down and up, in logarithms."""


@dataclass(frozen=True)
class RangedStep:
    """How far a step's measured time is from its predicted time, and what its range is made of."""

    owner: str
    """Its source."""
    off: float
    """The logarithm of the measured over the predicted time."""
    parts: RangeParts
    rebuilt: bool = True
    """Whether it is predicted as its row was rebuilt, and not once more without options."""

    @property
    def waits(self) -> bool:
        """Whether the host sets its pace."""
        return self.parts.hosts.high > HOST_SETS

    def reach(self, width: Width) -> tuple[float, float]:
        """How far down and up its range reaches."""
        low, high = self.parts.ends(*width)
        return -math.log(low), math.log(high)

    @property
    def out(self) -> Width:
        """The widths to both sides with which its range just holds it. 0 if it needs none."""
        sides = zip((-self.off, self.off), self.parts.own, strict=True)
        below, above = (
            math.sqrt(off**2 - own**2) / self.parts.weight if off > own else 0.0
            for off, own in sides
        )
        return below, above

    def factor(self, width: Width) -> float:
        """The factor on a width with which its range just holds it. 0 if it needs none."""
        below, above = self.reach((0.0, 0.0))
        if -below <= self.off <= above:
            return 0.0
        side = int(self.off > 0)
        return self.out[side] / width[side]


@dataclass(frozen=True)
class JudgedParallelStep:
    """A step, and how far the range reaches that was made without its source."""

    step: RangedStep
    below: float
    above: float

    @property
    def needed(self) -> float:
        """The factor on both ends with which the range just holds the step."""
        return max(-self.step.off / self.below, self.step.off / self.above)

    @property
    def score(self) -> float:
        """The interval score."""
        return interval_score(self.step.off, self.below, self.above)


def read_steps(paths: Sequence[Path], table: Sequence[Mapping[str, Any]]) -> list[RangedStep]:
    """The steps in files that `lab.score.distributed --save` wrote, without flagged ones."""
    apart = {str(row["row_id"]) for row in table if _is_apart(row)}
    steps = []
    for path in paths:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if "far_below_best" not in row["flags"] and row["weight"]:
                    owner = APART if row["row_id"] in apart else _source(row["source"])
                    off = math.log(float(row["measured_s"]) / float(row["predicted_s"]))
                    steps.append(RangedStep(owner, off, _parts(row), row["stated"] == "yes"))
    return steps


def _parts(row: Mapping[str, str]) -> RangeParts:
    alone, hosts = (
        Spread(*(float(row[f"{name}_{end}"]) for end in ("low", "high")))
        for name in ("alone", "hosts")
    )
    return RangeParts(float(row["computing"]), float(row["weight"]), alone, hosts)


def _source(name: str) -> str:
    return "MLPerf" if name.startswith("training_results") else name


def _is_apart(row: Mapping[str, Any]) -> bool:
    return (row["n_experts"] or 1) > 1 or row["task"] == "lora"


@dataclass(frozen=True)
class FittedWidth:
    """The width that some steps give."""

    steps: tuple[RangedStep, ...]

    @cached_property
    def width(self) -> Width:
        """The width beyond which one in twenty lie on each side."""
        free = [step for step in self.steps if not step.waits]
        below, above = (
            max(float(np.quantile([s.out[side] for s in free], 1 - ALPHA / 2)), LEAST_WIDTH)
            for side in (0, 1)
        )
        return below, above

    def without(self, owner: str) -> FittedWidth:
        """The width that the steps of other sources give."""
        return FittedWidth(tuple(step for step in self.steps if step.owner != owner))

    @cached_property
    def widened(self) -> Width:
        """The width, times the factor that holds nine in ten when judged apart."""
        needed = []
        for owner in {step.owner for step in self.steps}:
            others = self.without(owner)
            if others.steps:
                own = (step for step in self.steps if step.owner == owner)
                needed += [step.factor(others.width) for step in own]
        factor = float(np.quantile(needed or [1.0], 1 - ALPHA, method="higher"))
        below, above = (max(factor, LEAST_FACTOR) * side for side in self.width)
        return below, above


def fitted(steps: Sequence[RangedStep]) -> FittedWidth:
    """The width that steps give, mixtures of experts and adapters left out."""
    return FittedWidth(tuple(step for step in steps if step.owner != APART))


def judged(steps: Sequence[RangedStep]) -> list[JudgedParallelStep]:
    """Each step with a range of which its source knows nothing, neither width nor factor."""
    every = []
    for owner in sorted({step.owner for step in steps}):
        width = fitted(steps).without(owner).widened
        own = (step for step in steps if step.owner == owner)
        every += [JudgedParallelStep(step, *step.reach(width)) for step in own]
    return every


def table(every: Sequence[JudgedParallelStep]) -> Iterator[str]:
    """The figures by source, of rows as they were rebuilt, and of all."""
    yield from heading("source left out | steps | in range | given / needed | score")
    rebuilt = [judged for judged in every if judged.step.rebuilt]
    for owner in sorted({judged.step.owner for judged in rebuilt}):
        own = [judged for judged in rebuilt if judged.step.owner == owner]
        yield f"| {owner} | {_cells(own)} |"
    for name, said in (("as rebuilt", True), ("once more without options", False)):
        own = [o for o in every if o.step.owner != APART and o.step.rebuilt is said]
        if own:
            yield f"| **all, {name}** | {_cells(own)} |"


def _cells(own: Sequence[JudgedParallelStep]) -> str:
    width = float(np.mean([judged.below + judged.above for judged in own]))
    factor = float(np.quantile([judged.needed for judged in own], 1 - ALPHA, method="higher"))
    inside = percent(float(np.mean([judged.needed <= 1 for judged in own])))
    score = float(np.mean([judged.score for judged in own]))
    ends = f"{math.exp(width):.2f} / {math.exp(width * max(factor, 0.0)):.2f}"
    return f"{len(own)} | {inside} | {ends} | {score:.2f}"


def to_toml(steps: Sequence[RangedStep]) -> str:
    """The content of the shipped file: the width that all sources give."""
    ranges = fitted(steps)
    rows = sum(step.rebuilt for step in ranges.steps)
    sources = len({step.owner for step in ranges.steps})
    lines = [
        "# Written by python -m lab score parallel_ranges: how far the ranges of steps on several",
        "# GPUs reach for what no op shows, in logarithms (wavecast.steps.ranges).",
        f"# From {rows} published steps of {sources} sources.",
        f'fitted = "{datetime.now(UTC).date()}"',
    ]
    below, above = ranges.widened
    return "\n".join([*lines, f"below = {below:.3f}", f"above = {above:.3f}"]) + "\n"


def main(given: Sequence[str] = ()) -> None:
    """Print the table, and write the width of all sources."""
    parser = needs.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="files that --save wrote")
    parser.add_argument("--write", action="store_true", help="write the shipped file")
    needs.add_data(parser, "distributed")
    args = parser.parse_args(given)
    steps = read_steps(args.files, read_rows(args.data / "distributed" / "steps.parquet"))
    text = to_toml(steps)
    print("\n".join(table(judged(steps))), text, sep="\n\n")
    if args.write:
        write_whole(shipped(PARALLEL_FILE), text)
