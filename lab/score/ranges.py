"""How wide must a step's range be? Fits the widths by class, and scores them, before and after.

    python -m lab score ranges --data FOLDER --cache FOLDER [--traced] [--gpu-only]
                                  [--save FILE] [--write]
    python -m lab score ranges --steps FILE [--write]

The widths of ranges depend on the class of ignorance and on what the GPU time is made of
(`wavecast.steps.ranges`). `lab.score.range_widths` fits them by the interval score, each class
shrunk towards all steps. Each step is judged by a range that is made without the step's GPU and
without its source. All widths of a class are then multiplied by one factor, `wider`, with which 92%
of its steps lie in such ranges, and in those that all steps make: nine in ten of a new set. GPUs
of other vendors were measured with convolutions alone and nearly all by one source, so their class
has one width for all kinds, and is judged by the ranges that all its steps make.

The steps are predicted by models that know as little as the class says (`lab.score.ranged_steps`):

* `partly`, `unseen` and `foreign` GPUs: published steps, predicted by models fitted without their
  source and, except for `partly`, without their GPU's architecture (`lab.fit.kept_apart`). Our own
  steps are none of them: without our ops, most kinds of op are in no fit, which no user's are.
* `measured` GPUs: steps on our H200, predicted by models that saw its chip, but no model of the
  step's family; and steps that were measured after the fit. The source is the campaign; the GPU
  cannot be left out.
* `unknown` hosts: published steps that wait for a host, predicted with the reference host, and our
  own hosts, predicted as if they had not been calibrated, with the machine left out of the
  reference host.
* `known` hosts: steps predicted with a host that was calibrated between the timings, its costs
  fitted without the machine and without the model (`lab.score.iterations`). The source is the
  machine.

Steps with torch before 1.10 have a width of their own on top, which no prediction gets.

The command prints, by class and by set, the share of steps in their ranges, the ratio of high and
low end (given, and needed to hold nine in ten of the set) and the mean interval score. It writes
data/models/ranges.toml. `--traced` leaves out steps whose traces are not in the cache, and
`--gpu-only` those that wait for the host, which also need torchvision. `--save` keeps the predicted
steps, and `--steps` reads them; a class that they lack stays as it ships. `--write` puts the tables
into docs/appendix/accuracy-ranges.md, docs/accuracy.md and docs/concepts/estimates.md.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs, pages
from lab.figures import percent
from lab.fit.kept_apart import KeptApart
from lab.pages import heading
from lab.places import DOCS, MODELS
from lab.score import ranged_steps
from lab.score.range_widths import (
    CLASSES,
    KINDS,
    JudgedRange,
    Key,
    Widths,
    WidthTree,
    by_set,
    given,
    judged,
    needed,
    share,
    widening,
)
from lab.score.ranged_steps import OffStep
from wavecast.files import shipped_toml
from wavecast.predictors.base import Familiarity
from wavecast.steps.ranges import FILE, ScaledTo, least_modelled

LEAST = 19
"""The fewest steps that can show a share of one in twenty: the largest of them is the end."""
FEW_SOURCES = {("gpu", str(Familiarity.FOREIGN))}
"""Classes of which one source has nearly all steps, so that ranges without it say nothing."""
MARK = "begin: python -m lab score ranges"


@dataclass(frozen=True)
class Ranges:
    """The fitted widths of each class, the factors that widen them, and the judged steps."""

    tree: WidthTree
    wider: Mapping[tuple[str, str], float]
    judged: Sequence[JudgedRange]
    """With widened ranges."""
    least_modelled: float

    @classmethod
    def of(cls, steps: Sequence[OffStep]) -> Ranges:
        """The ranges that some steps give."""
        apart, tree = judged(steps), WidthTree(steps)
        wider: dict[Key, float] = {}
        kept: list[JudgedRange] = []
        for key in CLASSES:
            same = [ranged for ranged in apart if ranged.key == key]
            if len(same) >= LEAST:
                reach = tree.widths(*key).reach
                ships = [
                    JudgedRange(ranged.step, ranged.weight, *reach(ranged.step)) for ranged in same
                ]
                same = ships if key in FEW_SOURCES else same
                wider[key] = max(widening(same), widening(ships))
                kept += [ranged.times(wider[key]) for ranged in same]
        # Where only some of the steps were predicted, others that gave ranges before still count.
        traced = (step.modelled for step in steps if step.part in ("gpu", "host"))
        modelled = min([least_modelled(), *traced])
        return cls(tree, wider, kept, modelled)

    def widths(self, part: str, known: str) -> Widths:
        """The widths that ship."""
        return self.tree.widths(part, known).times(self.wider[part, known])

    def to_toml(self) -> str:
        """The content of ranges.toml."""
        lines = [
            "# The ranges of step times (wavecast/steps/ranges.py). below, above: how far they",
            "# reach, in logarithms, for each part of a step's time. steps: how many gave them.",
            "# held, least, most: the share of steps in ranges made without their GPU and source,",
            "# in all, and of the worst and best set of nineteen steps or more.",
            "# modelled: the least share of a step's GPU time that came from the op models.",
            "# Written by lab/score/ranges.py.",
            f'fitted = "{datetime.now(UTC).date()}"',
            f"modelled = {math.floor(1000 * self.least_modelled) / 1000:.3f}",
        ]
        for part, known in CLASSES:
            row = self.row(part, known) if (part, known) in self.wider else _kept(part, known)
            lines += ["", f"[{part}.{known}]", *row] if row else []
        return "\n".join(lines) + "\n"

    def row(self, part: str, known: str) -> list[str]:
        """The lines of a class in ranges.toml."""
        return list(self._row(part, known))

    def _row(self, part: str, known: str) -> Iterator[str]:
        widths = self.widths(part, known)
        for side, values in (("below", widths.below), ("above", widths.above)):
            if part == "host":
                yield f"{side} = {values[0]:.3f}"
            else:
                named = zip(KINDS, values[:-1], strict=True)  # the last one is of old software
                yield f"{side} = {{ {', '.join(f'{name} = {x:.3f}' for name, x in named)} }}"
        same = [step for step in self.judged if step.key == (part, known)]
        sets = [share(same), *(share(own) for own in by_set(same).values() if len(own) >= LEAST)]
        if known == ScaledTo.OTHER:
            modelled = min(ranged.step.modelled for ranged in same)
            yield f"modelled = {math.floor(1000 * modelled) / 1000:.3f}"
        yield f"steps = {len(same)}"
        for name, value in (("held", share(same)), ("least", min(sets)), ("most", max(sets))):
            yield f"{name} = {math.floor(value * 1000 + 1e-6) / 1000:.3f}"


def _kept(part: str, known: str) -> list[str]:
    """The lines of a class in the file that ships, for a class of which no steps were predicted."""
    row: Mapping[str, Any] = shipped_toml(FILE).get(part, {}).get(known, {})
    return [f"{name} = {_inline(value)}" for name, value in row.items()]


def _inline(value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"{value}"
    return f"{{ {', '.join(f'{name} = {x}' for name, x in value.items())} }}"


COLUMNS = "steps | in range | given / needed | score"


def table(every: Sequence[JudgedRange]) -> Iterator[str]:
    """The figures by class and by set."""
    yield from heading(f"class | set | {COLUMNS}", "ll")
    for known in dict.fromkeys(ranged.step.known for ranged in every):
        same = [ranged for ranged in every if ranged.step.known == known]
        for name in [*by_set(same), "**all**"]:
            group = [ranged for ranged in same if name in (ranged.step.set, "**all**")]
            yield f"| {known} | {name} | {_cells(group)} |"


def _cells(some: Sequence[JudgedRange]) -> str:
    score = float(np.mean([ranged.score for ranged in some]))
    ratios = f"{given(some):.2f} / {needed(some):.2f}"
    return f"{len(some)} | {percent(share(some))} | {ratios} | {score:.2f}"


def report(every: Sequence[JudgedRange]) -> str:
    """The tables of the page: steps by class of GPU, then steps that wait for the host."""
    parts = {"gpu": "Steps that keep the GPU busy", "host": "Steps that wait for the host"}
    lines: list[str] = []
    for part, title in parts.items():
        same = [ranged for ranged in every if ranged.step.part == part]
        if same:
            lines += [f"## {title}", "", *table(same), ""]
    return "\n".join(lines).strip()


def summary(every: Sequence[JudgedRange]) -> str:
    """The figures by class alone, for docs/accuracy.md."""
    lines = [*heading(f"class | {COLUMNS}", "l")]
    for part, known in dict.fromkeys(ranged.key for ranged in every):
        same = [ranged for ranged in every if ranged.key == (part, known)]
        lines.append(f"| {part.replace('gpu', 'GPU')}: {known} | {_cells(same)} |")
    return "\n".join(lines)


def widths_table(ranges: Ranges) -> str:
    """How far down and up ranges reach for each part of a step's time, for the page on ranges."""
    lines = [*heading(f"class | {' | '.join(KINDS)} | steps | held | by set", "l")]
    for part, known in ranges.wider:
        widths = ranges.widths(part, known)
        pairs = zip(widths.below[:-1], widths.above[:-1], strict=True)
        ends = [f"-{below:.2f} +{above:.2f}" for below, above in pairs]
        row = tomllib.loads("\n".join(ranges.row(part, known)))
        held = f"{row['held']:.0%} | {row['least']:.0%} to {row['most']:.0%}"
        cells = ends if part != "host" else ["", "", "", f"(host) {ends[0]}"]
        title = f"{part.replace('gpu', 'GPU')}: {known}"
        lines.append(f"| {title} | {' | '.join(cells)} | {row['steps']} | {held} |")
    return "\n".join(lines)


def predicted(data: Path, cache_folder: Path, traced: bool, gpu_only: bool) -> list[OffStep]:
    """All measured steps, predicted by models that know as little as their classes say."""
    apart = KeptApart(data, cache_folder)
    makers: Sequence[Callable[[], Iterator[OffStep]]] = (
        lambda: ranged_steps.families_out(data, cache_folder, traced),
        lambda: ranged_steps.never_seen(),
        lambda: ranged_steps.published(data, cache_folder, apart, traced),
        lambda: iter(()) if gpu_only else ranged_steps.timed(data, cache_folder),
    )
    every = (step for make in makers for step in make())
    return [step for step in every if step.part == "gpu" or not gpu_only]


def main(arguments: Sequence[str] = ()) -> None:
    """Predict the steps or read them, write ranges.toml, and print the tables."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *needs.OPS_AND_STEPS, required=False)
    parser.add_argument("--cache", type=Path, help="folder that keeps traces and fits")
    parser.add_argument("--traced", action="store_true", help="only steps traced in the cache")
    parser.add_argument("--gpu-only", action="store_true", help="no steps that wait for the host")
    parser.add_argument("--save", type=Path, help="a file for the predicted steps")
    parser.add_argument("--steps", type=Path, help="a file that --save wrote")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/appendix")
    args = parser.parse_args(arguments)
    if args.steps is None and not (args.data and args.cache):
        parser.error("give --data and --cache, or --steps")
    if args.steps is not None:
        steps = ranged_steps.read_file(args.steps)
    else:
        steps = predicted(args.data, args.cache, args.traced, args.gpu_only)
    if args.save is not None:
        ranged_steps.write(steps, args.save)
    ranges = Ranges.of(steps)
    text, shown = ranges.to_toml(), report(ranges.judged)
    (MODELS / "ranges.toml").write_text(text, encoding="utf-8")
    print(f"{text}\n{shown}")
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-ranges.md", MARK, shown)
        pages.write(DOCS / "accuracy.md", MARK, summary(ranges.judged))
        pages.write(DOCS / "concepts" / "estimates.md", MARK, widths_table(ranges))
