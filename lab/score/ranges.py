"""How wide must a step's range be? Fits the widths by class, and scores them, before and after.

    python -m lab score ranges --data FOLDER --cache FOLDER [--traced] [--save FILE] [--write]
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
low end (given, and needed to hold nine in ten of the set) and the mean interval score: before, with
the exponents of docs/adr/0024, and after. It writes data/models/ranges.toml. `--traced` leaves out
steps whose traces are not in the cache. `--save` keeps the predicted steps, and `--steps` reads
them; a class that they lack stays as it ships. `--write` puts the tables into
docs/appendix/accuracy-ranges.md, docs/accuracy.md and docs/concepts/estimates.md.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lab import needs
from lab.fit.kept_apart import KeptApart
from lab.markdown import heading
from lab.measured.figures import percent
from lab.places import DOCS, MODELS
from lab.score import pages, ranged_steps
from lab.score.range_widths import ALPHA, LEAST_WIDTH, Widths, fit, interval_score, weights_of
from lab.score.ranged_steps import OffStep
from wavecast.files import shipped_toml
from wavecast.predictors.base import Familiarity
from wavecast.steps.ranges import FILE, ScaledTo, least_modelled

BEFORE = {
    "gpu": {"measured": (0.425, 0.829), "partly": (0.889, 0.825), "unseen": (1.639, 0.911)},
    "host": {"known": (0.295, 0.324), "unknown": (0.403, 0.457)},
}
"""The ranges before: exponents of the range of the ops for GPUs, logarithms of factors for hosts
(docs/adr/0024)."""
KINDS = ("matmul", "convolution", "recurrent", "memory")
"""The parts of a makeup, in the order of its shares."""
HELD = 0.92
"""The share of a class that ranges hold: more than nine in ten, as new sets differ from these."""
LEAST = 19
"""The fewest steps that can show a share of one in twenty: the largest of them is the end."""
CLASSES = (
    *(("gpu", str(known)) for known in Familiarity),
    *(("host", known) for known in ("known", "unknown")),
    *(("scaled", str(how)) for how in ScaledTo),
)
"""The part and the name of each class. The last two are of `lab.score.scaled_ranges`."""
FEW_SOURCES = {("gpu", str(Familiarity.FOREIGN))}
"""Classes of which one source has nearly all steps, so that ranges without it say nothing."""
PARTS = tuple(dict.fromkeys(part for part, _ in CLASSES))
MARK = "begin: python -m lab score ranges"
Key = tuple[str, str]


class WidthTree:
    """The widths of all classes that some steps give."""

    def __init__(self, steps: Sequence[OffStep]) -> None:
        self._steps = steps
        self.widths = cache(self._widths)

    def _widths(self, part: str, known: str = "") -> Widths:
        """The widths of a class, shrunk towards all steps; "" stands for these."""
        own = [step for step in self._steps if step.part == part and known in ("", step.known)]
        if part == "scaled":  # too few to tell more than how far all reach, which is the factor
            one = (LEAST_WIDTH,) * (len(KINDS) + 1)
            return Widths(one, one)
        if not known:
            return fit(own)
        parent = self.widths(part)
        if not own:
            return parent
        fitted = fit(own, parent)
        return fitted.flat(own) if known == Familiarity.FOREIGN else fitted


@dataclass(frozen=True)
class JudgedRange:
    """A step, and how far the range reaches that was made without its GPU and source."""

    step: OffStep
    weight: float
    below: float
    above: float

    @property
    def key(self) -> Key:
        """The class of the step."""
        return self.step.part, self.step.known

    @property
    def needed(self) -> float:
        """The factor on both ends with which the range just holds the step."""
        return max(-self.step.off / self.below, self.step.off / self.above)

    @property
    def inside(self) -> bool:
        """Whether the step lies in the range."""
        return self.needed <= 1

    @property
    def score(self) -> float:
        """The interval score."""
        return interval_score(self.step.off, self.below, self.above)

    def times(self, factor: float) -> JudgedRange:
        """The same with a range that is wider by a factor."""
        return JudgedRange(self.step, self.weight, self.below * factor, self.above * factor)


def judged(steps: Sequence[OffStep]) -> list[JudgedRange]:
    """Each step with a range that is made without its GPU and source, before it is widened.

    Steps that no other GPU and source can judge are left out.
    """
    every = []
    for part in PARTS:
        own = [step for step in steps if step.part == part]
        trees: dict[tuple[str, str], WidthTree | None] = {}
        for step, weight in zip(own, weights_of(own).tolist(), strict=True):
            pair = step.owner, step.chip
            if pair not in trees:
                others = [other for other in own if other.is_apart(*pair)]
                trees[pair] = WidthTree(others) if others else None
            tree = trees[pair]
            if tree is not None:
                reach = tree.widths(part, step.known).reach(step)
                every.append(JudgedRange(step, weight, *reach))
    return every


def before(steps: Iterable[OffStep]) -> list[JudgedRange]:
    """The steps that had a range before, with that range."""
    every = []
    for step in steps:
        powers = BEFORE.get(step.part, {}).get(step.known)
        if powers is not None:
            logs = (-math.log(step.spread[0]), math.log(step.spread[1]))
            below, above = powers
            if step.part == "gpu":
                below, above = below * logs[0], above * logs[1]
            every.append(JudgedRange(step, 1.0, below, above))
    return every


def widening(same: Sequence[JudgedRange]) -> float:
    """The factor with which ranges made apart hold enough steps of a class.

    So many hold whether every step has the same weight or a source's weight grows with the
    square root of its number of steps. The factor may make ranges narrower, to a half at most.
    """
    by_step = _quantile([(one.needed, 1.0) for one in same])
    by_source = _quantile([(one.needed, one.weight) for one in same])
    return math.ceil(1000 * max(by_step, by_source, 0.5)) / 1000


def _quantile(pairs: Iterable[tuple[float, float]]) -> float:
    """The smallest value that `HELD` of the weights do not exceed."""
    values, weights = zip(*sorted(pairs), strict=True)
    total = np.cumsum(weights)
    at = int(np.searchsorted(total, HELD * total[-1] - 1e-9))
    return float(values[min(at, len(values) - 1)])


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
            same = [one for one in apart if one.key == key]
            if len(same) >= LEAST:
                reach = tree.widths(*key).reach
                ships = [JudgedRange(one.step, one.weight, *reach(one.step)) for one in same]
                same = ships if key in FEW_SOURCES else same
                wider[key] = max(widening(same), widening(ships))
                kept += [one.times(wider[key]) for one in same]
        # Where only some of the steps were predicted, others that gave ranges before still count.
        traced = (step.modelled for step in steps if step.part in BEFORE)
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
        same = [one for one in self.judged if one.key == (part, known)]
        sets = [share(same), *(share(own) for own in by_set(same).values() if len(own) >= LEAST)]
        if known == ScaledTo.OTHER:
            modelled = min(one.step.modelled for one in same)
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


def by_set(some: Iterable[JudgedRange]) -> dict[str, list[JudgedRange]]:
    """Steps by set, in the order of the names."""
    sets: dict[str, list[JudgedRange]] = {}
    for one in sorted(some, key=lambda one: one.step.set):
        sets.setdefault(one.step.set, []).append(one)
    return sets


def share(some: Sequence[JudgedRange]) -> float:
    """The share of steps in their ranges."""
    return sum(one.inside for one in some) / len(some)


def given(some: Sequence[JudgedRange]) -> float:
    """The mean width of the ranges, as the ratio of their ends."""
    return math.exp(float(np.mean([one.below + one.above for one in some])))


def needed(some: Sequence[JudgedRange]) -> float:
    """The same if all ranges are scaled by the factor with which they hold nine in ten."""
    factor = float(np.quantile([one.needed for one in some], 1 - ALPHA, method="higher"))
    return float(given(some) ** max(factor, 0.0))


COLUMNS = "steps | in range | given / needed | score | in range before | given / needed | score"


def table(old: Sequence[JudgedRange], new: Sequence[JudgedRange]) -> Iterator[str]:
    """The figures by class and by set, before and after."""
    yield from heading(f"class | set | {COLUMNS}", "ll")
    for known in dict.fromkeys(one.step.known for one in new):
        same = [[one for one in some if one.step.known == known] for some in (new, old)]
        for name in [*by_set(same[0]), "**all**"]:
            groups = [[one for one in some if name in (one.step.set, "**all**")] for some in same]
            cells = [cell for group in groups for cell in _cells(group)]
            yield f"| {known} | {name} | {len(groups[0])} | {' | '.join(cells)} |"


def _cells(some: Sequence[JudgedRange]) -> list[str]:
    if not some:
        return ["-", "-", "-"]
    score = float(np.mean([one.score for one in some]))
    return [percent(share(some)), f"{given(some):.2f} / {needed(some):.2f}", f"{score:.2f}"]


def report(old: Sequence[JudgedRange], new: Sequence[JudgedRange]) -> str:
    """The tables of the page: steps by class of GPU, then steps that wait for the host."""
    parts = {"gpu": "Steps that keep the GPU busy", "host": "Steps that wait for the host"}
    lines: list[str] = []
    for part, title in parts.items():
        same = [[one for one in some if one.step.part == part] for some in (old, new)]
        if same[1]:
            lines += [f"## {title}", "", *table(*same), ""]
    return "\n".join(lines).strip()


def summary(old: Sequence[JudgedRange], new: Sequence[JudgedRange]) -> str:
    """The figures by class alone, for docs/accuracy.md."""
    lines = [*heading(f"class | {COLUMNS}", "l")]
    for part, known in dict.fromkeys(one.key for one in new):
        groups = [[one for one in some if one.key == (part, known)] for some in (new, old)]
        cells = [cell for group in groups for cell in _cells(group)]
        title = f"{part.replace('gpu', 'GPU')}: {known}"
        lines.append(f"| {title} | {len(groups[0])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def widths_table(made: Ranges) -> str:
    """How far down and up ranges reach for each part of a step's time, for the page on ranges."""
    lines = [*heading(f"class | {' | '.join(KINDS)} | steps | held | by set", "l")]
    for part, known in made.wider:
        widths = made.widths(part, known)
        pairs = zip(widths.below[:-1], widths.above[:-1], strict=True)
        ends = [f"-{below:.2f} +{above:.2f}" for below, above in pairs]
        row = tomllib.loads("\n".join(made.row(part, known)))
        held = f"{row['held']:.0%} | {row['least']:.0%} to {row['most']:.0%}"
        cells = ends if part != "host" else ["", "", "", f"(host) {ends[0]}"]
        title = f"{part.replace('gpu', 'GPU')}: {known}"
        lines.append(f"| {title} | {' | '.join(cells)} | {row['steps']} | {held} |")
    return "\n".join(lines)


def predicted(data: Path, cache_folder: Path, traced: bool) -> list[OffStep]:
    """All measured steps, predicted by models that know as little as their classes say."""
    apart = KeptApart(data, cache_folder)
    makers: Sequence[Callable[[], Iterator[OffStep]]] = (
        lambda: ranged_steps.families_out(data, cache_folder, traced),
        lambda: ranged_steps.never_seen(),
        lambda: ranged_steps.published(data, cache_folder, apart, traced),
        lambda: ranged_steps.timed(data, cache_folder),
    )
    return [step for make in makers for step in make()]


def main(arguments: Sequence[str] = ()) -> None:
    """Predict the steps or read them, write ranges.toml, and print the tables."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *needs.OPS_AND_STEPS, required=False)
    parser.add_argument("--cache", type=Path, help="folder that keeps traces and fits")
    parser.add_argument("--traced", action="store_true", help="only steps traced in the cache")
    parser.add_argument("--save", type=Path, help="a file for the predicted steps")
    parser.add_argument("--steps", type=Path, help="a file that --save wrote")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/appendix")
    args = parser.parse_args(arguments)
    if args.steps is None and not (args.data and args.cache):
        parser.error("give --data and --cache, or --steps")
    kept = args.steps and ranged_steps.read_file(args.steps)
    steps = kept or predicted(args.data, args.cache, args.traced)
    if args.save:
        ranged_steps.write(steps, args.save)
    ranges, old = Ranges.of(steps), before(steps)
    text, shown = ranges.to_toml(), report(old, ranges.judged)
    (MODELS / "ranges.toml").write_text(text, encoding="utf-8")
    print(f"{text}\n{shown}")
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-ranges.md", MARK, shown)
        pages.write(DOCS / "accuracy.md", MARK, summary(old, ranges.judged))
        pages.write(DOCS / "concepts" / "estimates.md", MARK, widths_table(ranges))
