"""Measured steps, each judged by a range that is made without its GPU and without its source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from lab.score.range_widths import ALPHA, LEAST_WIDTH, Widths, fit, interval_score, weights_of
from lab.score.ranged_steps import OffStep
from wavecast.predictors.base import Familiarity
from wavecast.steps.ranges import ScaledTo

KINDS = ("matmul", "convolution", "recurrent", "memory")
"""The parts of a makeup, in the order of its shares."""
HELD = 0.92
"""The share of a class that ranges hold: more than nine in ten, as new sets differ from these."""
CLASSES = (
    *(("gpu", str(known)) for known in Familiarity),
    *(("host", known) for known in ("known", "unknown")),
    *(("scaled", str(how)) for how in ScaledTo),
)
"""The part and the name of each class. The last two are of `lab.score.scaled_ranges`."""
PARTS = tuple(dict.fromkeys(part for part, _ in CLASSES))
Key = tuple[str, str]
"""The part and the name of a class."""


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
