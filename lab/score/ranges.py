"""How wide must a step's range be to hold nine in ten measured steps?

    python -m lab score ranges --data FOLDER --cache FOLDER [--write]

There is one class of ranges for each state of knowledge about the GPU (`Familiarity`) and about the
host (`wavecast.steps.ranges`). The range of a GPU-bound step is its ops' combined range, raised to
the exponents `below` and `above`. The range of a host-bound step is a pair of factors. Each class
has its ends in two steps:

* Split conformal prediction: one in twenty steps of the class is faster than the range and one in
  twenty is slower. For GPUs every step has the same weight. For hosts every owner of a table has
  the same weight, because many steps share a host (docs/adr/0020-what-is-known-of-a-gpu.md).
* Each step is judged by the range that the class has without the step's GPU and without its source.
  Both ends, as logarithms, are multiplied by the smallest factor, `wider`, with which nine in ten
  steps lie in such ranges.

The steps are predicted by models that know as little as the class says (`lab.score.ranged_steps`):

* `partly`, `unseen` and `foreign` GPUs: published steps, predicted by models fitted without their
  source and, except for `partly`, without their GPU's architecture (`lab.fit.kept_apart`). `partly`
  and `unseen` also have the GPU time of our own steps, predicted without anything of ours.
* `measured` GPUs: steps on our H200, predicted by models that saw its chip, but no model of the
  step's family. The source is the campaign; the GPU cannot be left out.
* `unknown` and `foreign` hosts: published steps that wait for a host, predicted with the reference
  host. `unknown` also has our own hosts, predicted as if they had not been calibrated, with the
  machine left out of the reference host.
* `known` hosts: steps predicted with a host that was calibrated between the timings, its costs
  fitted without the machine and without the model (`lab.score.iterations`). The source is the
  machine.

A class has no range if too few steps are left to judge some of its steps (`LEAST`). The command
prints the shares of steps in their ranges and writes data/models/ranges.toml. `--write` puts the
tables into docs/appendix/accuracy-ranges.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np

from lab import needs
from lab.fit.kept_apart import KeptApart, owner_of
from lab.markdown import heading
from lab.measured.figures import percent
from lab.places import MODELS
from lab.score import pages, ranged_steps
from lab.score.ranged_steps import Score
from wavecast.predictors.base import Familiarity

OUTSIDE = 0.05
"""The share of steps that may lie below their ranges, and the share above them."""
LEAST = 19
"""The fewest steps that can show a share of one in twenty: the largest of them is the end."""
CLASSES = (
    *(("gpu", str(known)) for known in Familiarity),
    *(("host", known) for known in ("known", "unknown", "foreign")),
)
"""The part and the name of each class."""
MARK = "begin: python -m lab score ranges"


@dataclass(frozen=True)
class Reach:
    """How far down and up the ranges of a class reach: exponents, or logarithms of factors."""

    below: float
    above: float

    def holds(self, score: Score) -> bool:
        """Whether a step lies in the range."""
        return score.below <= self.below and score.above <= self.above

    def wider_for(self, score: Score) -> float:
        """The factor on both ends with which the range just holds a step."""
        pairs = ((score.below, self.below), (score.above, self.above))
        return max(needed and (needed / end if end else math.inf) for needed, end in pairs)

    def widened(self, factor: float) -> Reach:
        """The range with both ends multiplied by a factor."""
        return Reach(self.below * factor, self.above * factor)


def reach_of(scores: Sequence[Score]) -> Reach:
    """The ends of a range that holds nine in ten of these steps."""
    weights = weights_of(scores)
    return Reach(
        highest([score.below for score in scores], weights),
        highest([score.above for score in scores], weights),
    )


def weights_of(scores: Sequence[Score]) -> list[float]:
    """The weight of each step: the same for GPUs; for hosts, the same for every owner."""
    count = Counter(owner_of(score.set) for score in scores)
    return [1 / count[owner_of(s.set)] if s.part == "host" else 1.0 for s in scores]


def highest(values: Iterable[float], weights: Iterable[float]) -> float:
    """The weighted quantile at 1 - `OUTSIDE`, with the correction for a finite sample."""
    pairs = list(zip(values, weights, strict=True))
    return quantile(pairs, (1 - OUTSIDE) * (len(pairs) + 1) / len(pairs))


def quantile(pairs: Iterable[tuple[float, float]], share: float) -> float:
    """The smallest of the weighted values such that this share of the weights is not above it."""
    values, weights = zip(*sorted(pairs), strict=True)
    below = np.cumsum(weights) / sum(weights)
    return float(values[min(int(np.searchsorted(below, share - 1e-9)), len(values) - 1)])


class RangeClass:
    """The steps of one class, and the ranges that they make."""

    def __init__(self, scores: Sequence[Score]) -> None:
        self.scores = scores
        self._apart: dict[tuple[str, str], Reach | None] = {}
        self._wider_apart: dict[tuple[str, str], float | None] = {}

    @cached_property
    def reach(self) -> Reach:
        """The range that all steps make, before it is widened."""
        return reach_of(self.scores)

    def apart(self, owner: str, chip: str) -> Reach | None:
        """The range that the class makes without a source and a GPU; None if too few are left."""
        if (owner, chip) not in self._apart:
            others = [score for score in self.scores if score.is_apart(owner, chip)]
            enough = len(others) >= LEAST
            self._apart[owner, chip] = reach_of(others) if enough else None
        return self._apart[owner, chip]

    @cached_property
    def wider(self) -> float | None:
        """The factor with which ranges made apart hold nine in ten steps; at least 1.

        None if some of the steps cannot be judged: the class then has no range.
        """
        reaches = [self.apart(score.owner, score.chip) for score in self.scores]
        pairs = [(r.wider_for(s), 1) for r, s in zip(reaches, self.scores, strict=True) if r]
        if len(pairs) < len(self.scores) or not pairs:
            return None
        needed = [factor for factor, _ in pairs]
        share = quantile(zip(needed, weights_of(self.scores), strict=True), 1 - 2 * OUTSIDE)
        return _rounded_up(max(share, 1.0))

    def wider_apart(self, owner: str, chip: str) -> float | None:
        """The factor that the class asks for without a source and a GPU; None if too few do."""
        if (owner, chip) not in self._wider_apart:
            others = [score for score in self.scores if score.is_apart(owner, chip)]
            self._wider_apart[owner, chip] = RangeClass(others).wider
        return self._wider_apart[owner, chip]


def _rounded_up(value: float) -> float:
    """A number with three digits after the point, not below the given one."""
    return math.ceil(value * 1000 - 1e-6) / 1000


@dataclass(frozen=True)
class Verdict:
    """Whether a step lay in the range that its class makes without its GPU and source."""

    part: str
    known: str
    set: str
    weight: float
    narrow: bool
    """In the range before it is widened."""
    wide: bool
    """In the range after it is widened."""
    nested: bool | None = None
    """In the range widened by the factor that the other GPUs and sources ask for. None if too few
    of them are left."""


Classes = Mapping[tuple[str, str], RangeClass]
"""The classes by part ("gpu" or "host") and name."""


def classes_of(scores: Iterable[Score]) -> dict[tuple[str, str], RangeClass]:
    """The scores by class, in the order of `CLASSES`."""
    parts: dict[tuple[str, str], list[Score]] = {key: [] for key in CLASSES}
    for score in scores:
        parts[score.part, score.known].append(score)
    return {key: RangeClass(same) for key, same in parts.items() if same}


def judged(classes: Classes) -> Iterator[Verdict]:
    """The verdict on each step of the classes that have a range."""
    for same in classes.values():
        if same.wider is None:
            continue
        for score, weight in zip(same.scores, weights_of(same.scores), strict=True):
            apart = same.apart(score.owner, score.chip)
            assert apart is not None
            factor = same.wider_apart(score.owner, score.chip)
            yield Verdict(
                *(score.part, score.known, score.set, weight),
                narrow=apart.holds(score),
                wide=apart.widened(same.wider).holds(score),
                nested=None if factor is None else apart.widened(factor).holds(score),
            )


def to_toml(classes: Classes, verdicts: Sequence[Verdict]) -> str:
    """The content of ranges.toml."""
    lines = [
        "# The ranges of step times (wavecast/steps/ranges.py), by what is known about GPU and",
        "# host. below, above, low, high: the range that holds nine in ten steps of the class, all",
        "# of them predicted by models that do not know them. wider: the power to which both ends",
        "# are raised, so that ranges made without a step's GPU and source hold nine in ten. held,",
        "# least, most: the share of steps in such ranges, in all, and of the worst and best set.",
        "# modelled: the least share of a step's GPU time that came from the op models.",
        "# Written by lab/score/ranges.py.",
        f'fitted = "{datetime.now(UTC).date()}"',
        f"modelled = {math.floor(1000 * least_modelled(classes)) / 1000:.3f}",
    ]
    for (part, name), same in classes.items():
        if same.wider is None:
            lines += ["", f"# {part}.{name}: {len(same.scores)} steps, too few GPUs and sources"]
            continue
        below, above = _rounded_up(same.reach.below), _rounded_up(same.reach.above)
        ends = {"below": below, "above": above}
        if part == "host":
            ends = {"low": math.exp(-below), "high": math.exp(above)}
        lines += ["", f"[{part}.{name}]", *(f"{key} = {x:.3f}" for key, x in ends.items())]
        lines += [f"wider = {same.wider:.3f}", f"steps = {len(same.scores)}"]
        lines += _held([v for v in verdicts if (v.part, v.known) == (part, name)])
    return "\n".join(lines) + "\n"


def _held(verdicts: Sequence[Verdict]) -> list[str]:
    """The shares of steps in their ranges, rounded down."""
    shares = [share(group) or 0.0 for group in by_set(verdicts).values()]
    values = {"held": share(verdicts) or 0.0, "least": min(shares), "most": max(shares)}
    return [f"{name} = {math.floor(x * 1000 + 1e-6) / 1000:.3f}" for name, x in values.items()]


def least_modelled(classes: Classes) -> float:
    """The least share of a step's GPU time for which the op models answered."""
    return min(score.modelled for same in classes.values() for score in same.scores)


def by_set(verdicts: Iterable[Verdict]) -> dict[str, list[Verdict]]:
    """Verdicts by set, in the order of the names."""
    sets: dict[str, list[Verdict]] = {}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.set):
        sets.setdefault(verdict.set, []).append(verdict)
    return sets


def share(verdicts: Sequence[Verdict], inside: str = "wide") -> float | None:
    """The weighted share of steps in a range: "narrow", "wide" or "nested". None if unknown."""
    known: list[bool | None] = [getattr(verdict, inside) for verdict in verdicts]
    if None in known:
        return None
    weights = [verdict.weight for verdict in verdicts]
    return sum(w for w, held in zip(weights, known, strict=True) if held) / sum(weights)


def table(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The shares of steps within ranges made without their GPU and source, by class and set."""
    yield from heading("class | set | steps | made apart | widened | factor made apart, too", "ll")
    for known in dict.fromkeys(verdict.known for verdict in verdicts):
        same = [verdict for verdict in verdicts if verdict.known == known]
        for name, group in (*by_set(same).items(), ("**all**", same)):
            shares = (share(group, inside) for inside in ("narrow", "wide", "nested"))
            yield f"| {known} | {name} | {len(group)} | {' | '.join(map(percent, shares))} |"


def report(verdicts: Sequence[Verdict]) -> str:
    """The tables of the page: steps by class of GPU, then steps that wait for the host."""
    parts = {"gpu": "Steps that keep the GPU busy", "host": "Steps that wait for the host"}
    lines: list[str] = []
    for part, title in parts.items():
        same = [verdict for verdict in verdicts if verdict.part == part]
        lines += [f"## {title}", "", *table(same), ""]
    return "\n".join(lines).strip()


def main(given: Sequence[str] = ()) -> None:
    """Score all steps, write ranges.toml, and print the tables."""
    parser = needs.parser(__doc__)
    needs.add_data(parser, *needs.OPS_AND_STEPS)
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder that keeps traces and fits"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/appendix")
    args = parser.parse_args(given)
    data, cache = args.data, args.cache
    apart = KeptApart(data, cache)
    scores = [
        *ranged_steps.families_out(data, cache),
        *ranged_steps.published(data, cache, apart),
        *ranged_steps.on_our_gpu(cache, apart),
        *ranged_steps.timed(data, cache),
    ]
    classes = classes_of(scores)
    verdicts = list(judged(classes))
    text, shown = to_toml(classes, verdicts), report(verdicts)
    (MODELS / "ranges.toml").write_text(text, encoding="utf-8")
    print(f"{text}\n{shown}")
    if args.write:
        pages.write(pages.APPENDIX / "accuracy-ranges.md", MARK, shown)
