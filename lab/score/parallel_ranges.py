"""How wide must the range of a step on several GPUs be? Fits the widths, and scores them.

    python -m lab score distributed --data FOLDER --source NAMES --save FILE
    python -m lab score parallel_ranges FILE... --data FOLDER [--write]

Needs pandas and the public table distributed (docs/sources.md), and files of the first command. The
range of a step reaches as far as that of one such GPU while it computes, and beyond it by widths of
what else it is spent on (`wavecast.steps.parallel_ranges`). Here these widths are fitted by the
interval score (`lab.score.range_widths`), those of a class pulled to those of all steps. Each step
is judged by a range that is made without its source. All widths of a class are then multiplied by
one factor, with which nine in ten of its steps lie in such ranges.

Each row is there as it was rebuilt, and, where options say how its framework runs the step, once
more without them, so that widths are known for those who do not state them. Rows that their source
flags as far below the best ones are left out. Mixtures of experts and adapters are judged but are
no part of the fit, since the rows leave out much that they depend on. Steps whose hosts set the
pace have the range of hosts, and are no part of the fit of widths, but of that factor.

Prints, for each source, the share of steps in their ranges, the ratio of high and low end (given,
and needed to hold nine in ten) and the mean interval score. `--write` writes the shipped
models/parallel_ranges.toml.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.markdown import heading
from lab.measured.figures import percent
from lab.measured.tables import read_rows
from lab.score.range_widths import (
    ALPHA,
    LEAST_WIDTH,
    Floats,
    Widths,
    descended,
    interval_score,
    weights_of,
)
from wavecast.files import shipped, write_whole
from wavecast.steps.parallel_ranges import CLASSES, FILE, RangeParts, Spending
from wavecast.steps.ranges import Factors

APART = "mixtures of experts, adapters"
PARTS = tuple(field.name for field in fields(Spending))
PULL = 100.0
"""How strongly the widths of a class are pulled to those of all steps, as a number of steps."""
ROOT_PULL = 25.0
"""The same for the widths of all steps, which are pulled to one for all shares and none on top."""
HOST_SETS = 1.1
"""A step waits for its host if the slowest hosts make it so many times as long."""
WIDEST = 8.0
"""The largest factor for the widths of a class."""


@dataclass(frozen=True)
class OffStep:
    """How far a step's measured time is from its predicted time, and what its range is made of."""

    owner: str
    """Its source."""
    off: float
    """The logarithm of the measured over the predicted time."""
    parts: RangeParts
    stated: bool = True
    """Whether it is predicted as its row was rebuilt."""

    @property
    def shares(self) -> tuple[float, ...]:
        """What the widths are multiplied by."""
        return tuple(getattr(self.parts.spending, name) for name in PARTS)

    @property
    def waits(self) -> bool:
        """Whether the host sets its pace."""
        return self.parts.hosts.high > HOST_SETS

    @property
    def alone(self) -> tuple[float, float]:
        """How far down and up the range of one GPU reaches while it computes."""
        share, ends = self.parts.spending.computing, self.parts.alone
        return -share * math.log(ends.low), share * math.log(ends.high)

    def reach(self, widths: Widths) -> tuple[float, float]:
        """How far down and up its range reaches."""
        low, high = self.parts.ends(*widths.reach(self))
        return -math.log(low), math.log(high)

    def factor(self, widths: Widths) -> float:
        """The factor on all widths with which its range just holds it. 0 if it needs none."""
        none = Widths((0.0,) * len(PARTS), (0.0,) * len(PARTS))
        below, above = self.reach(none)
        if -below <= self.off <= above:
            return 0.0
        side = int(self.off > 0)
        return (abs(self.off) - self.alone[side]) / widths.reach(self)[side]


@dataclass(frozen=True)
class JudgedStep:
    """A step, and how far the range reaches that was made without its source."""

    step: OffStep
    weight: float
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


def read_steps(paths: Sequence[Path], table: Sequence[Mapping[str, Any]]) -> list[OffStep]:
    """The steps in files that `lab.score.distributed --save` wrote, without flagged ones."""
    apart = {str(row["row_id"]) for row in table if _is_apart(row)}
    steps = []
    for path in paths:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if "far_below_best" not in row["flags"] and row["known"]:
                    owner = APART if row["row_id"] in apart else _source(row["source"])
                    off = math.log(float(row["measured_s"]) / float(row["predicted_s"]))
                    steps.append(OffStep(owner, off, _parts(row), row["stated"] == "yes"))
    return steps


def _parts(row: Mapping[str, str]) -> RangeParts:
    alone, hosts = (
        Factors(float(row[f"{name}_low"]), float(row[f"{name}_high"]))
        for name in ("alone", "hosts")
    )
    spending = Spending(*(float(row[name]) for name in PARTS))
    return RangeParts(row["known"], spending, alone, hosts)


def _source(name: str) -> str:
    return "MLPerf" if name.startswith("training_results") else name


def _is_apart(row: Mapping[str, Any]) -> bool:
    return (row["n_experts"] or 1) > 1 or row["task"] == "lora"


class WidthTree:
    """The widths of all classes that some steps give."""

    def __init__(self, steps: Sequence[OffStep]) -> None:
        self._steps = [step for step in steps if not step.waits and step.owner != APART]
        self.widths = cache(self._widths)

    def _widths(self, known: str) -> Widths:
        """The widths of a class, pulled to those of all steps."""
        own = [step for step in self._steps if step.parts.known == known]
        root = self._root
        return fit(own, root, PULL) if own else root

    @property
    def _root(self) -> Widths:
        sides = []
        for side in (0, 1):
            usual = max(float(np.quantile(_out(self._steps, side), 1 - ALPHA / 2)), LEAST_WIDTH)
            sides.append((usual, usual, usual, LEAST_WIDTH, LEAST_WIDTH))
        return fit(self._steps, Widths(*sides), ROOT_PULL)


def fit(steps: Sequence[OffStep], parent: Widths, pull: float) -> Widths:
    """The widths with the least interval score, pulled to those of a parent."""
    shares, weights = np.array([step.shares for step in steps]), weights_of(steps)
    below, above = (
        tuple(map(float, descended(shares, _out(steps, side), weights, np.array(from_), pull)))
        for side, from_ in enumerate((parent.below, parent.above))
    )
    return Widths(below, above)


def _out(steps: Sequence[OffStep], side: int) -> Floats:
    """How far steps lie out on a side (0 below, 1 above), beyond the range of one GPU."""
    sign = 1 if side else -1
    return np.array([sign * step.off - step.alone[side] for step in steps])


def factors_of(steps: Sequence[OffStep], make: Callable[[str], WidthTree]) -> dict[str, float]:
    """For each class the factor on widths, made without a source, that holds nine in ten of it.

    Nine in ten hold whether every step has the same weight or a source's weight grows with the
    square root of its number of steps.
    """
    found = {}
    for known in CLASSES:
        own = [s for s in steps if s.parts.known == known and s.owner != APART]
        if not own:
            continue
        needed = [step.factor(make(step.owner).widths(known)) for step in own]
        weights = weights_of(own).tolist()
        both = (_quantile(needed, by) for by in (weights, [1.0] * len(own)))
        found[known] = math.ceil(100 * min(max(both), WIDEST)) / 100
    return found


def _quantile(values: Sequence[float], weights: Sequence[float]) -> float:
    """The smallest value that nine in ten of the weights do not exceed."""
    ordered = sorted(zip(values, weights, strict=True))
    total = np.cumsum([weight for _, weight in ordered])
    at = int(np.searchsorted(total, (1 - ALPHA) * total[-1] - 1e-9))
    return ordered[min(at, len(ordered) - 1)][0]


def judged(steps: Sequence[OffStep]) -> list[JudgedStep]:
    """Each step with a range of which its source knows nothing, neither widths nor factor."""
    owners = {step.owner for step in steps}
    without = {o: [step for step in steps if step.owner != o] for o in owners}

    @cache
    def tree(*left_out: str) -> WidthTree:
        return WidthTree([step for step in steps if step.owner not in left_out])

    every = []
    for owner in sorted(owners):
        factors = factors_of(without[owner], lambda other, own=owner: tree(*sorted({own, other})))
        own = [step for step in steps if step.owner == owner]
        for step, weight in zip(own, weights_of(own).tolist(), strict=True):
            known = step.parts.known
            widths = tree(owner).widths(known).times(factors.get(known, 1.0))
            every.append(JudgedStep(step, weight, *step.reach(widths)))
    return every


COLUMNS = "steps | in range | given / needed | score"


def table(every: Sequence[JudgedStep]) -> Iterator[str]:
    """The figures by source and class, of rows as they were rebuilt; then by class, of all."""
    yield from heading(f"source left out | class | {COLUMNS}", "ll")
    stated = [one for one in every if one.step.stated]
    keys = sorted({(one.step.owner, one.step.parts.known) for one in stated})
    for key in keys:
        own = [one for one in stated if (one.step.owner, one.step.parts.known) == key]
        yield f"| {' | '.join(key)} | {_cells(own)} |"
    fitted = [one for one in every if one.step.owner != APART]
    for known in CLASSES:
        for name, said in (("habits as stated", True), ("habits not stated", False)):
            own = [o for o in fitted if o.step.parts.known == known and o.step.stated is said]
            if own:
                yield f"| **all, {name}** | {known} | {_cells(own)} |"


def _cells(own: Sequence[JudgedStep]) -> str:
    width = float(np.mean([one.below + one.above for one in own]))
    factor = float(np.quantile([one.needed for one in own], 1 - ALPHA, method="higher"))
    inside = percent(float(np.mean([one.needed <= 1 for one in own])))
    score = float(np.mean([one.score for one in own]))
    ends = f"{math.exp(width):.2f} / {math.exp(width * max(factor, 0.0)):.2f}"
    return f"{len(own)} | {inside} | {ends} | {score:.2f}"


def to_toml(steps: Sequence[OffStep]) -> str:
    """The content of the shipped file: the widths that all sources give."""
    fitted = [step for step in steps if step.owner != APART]
    tree = WidthTree(fitted)

    @cache
    def without(owner: str) -> WidthTree:
        return WidthTree([step for step in fitted if step.owner != owner])

    rows, sources = sum(s.stated for s in fitted), len({s.owner for s in fitted})
    lines = [
        "# Written by python -m lab score parallel_ranges: how far the ranges of steps on several",
        "# GPUs reach beyond those of one GPU, in logarithms (wavecast.steps.parallel_ranges).",
        f"# From {rows} published steps of {sources} sources.",
        f'fitted = "{datetime.now(UTC).date()}"',
    ]
    for known, factor in factors_of(fitted, without).items():
        widths = tree.widths(known).times(factor)
        lines += ["", f"[{known}]"]
        for side, values in (("below", widths.below), ("above", widths.above)):
            named = ", ".join(f"{n} = {x:.3f}" for n, x in zip(PARTS, values, strict=True))
            lines.append(f"{side} = {{ {named} }}")
    return "\n".join(lines) + "\n"


def main(given: Sequence[str] = ()) -> None:
    """Print the table, and write the widths of all sources."""
    parser = needs.parser(__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="files that --save wrote")
    parser.add_argument("--write", action="store_true", help="write the shipped file")
    needs.add_data(parser, "distributed")
    args = parser.parse_args(given)
    steps = read_steps(args.files, read_rows(args.data / "distributed" / "steps.parquet"))
    text = to_toml(steps)
    print("\n".join(table(judged(steps))), text, sep="\n\n")
    if args.write:
        write_whole(shipped(FILE), text)
