"""The widths of ranges, fitted by the interval score, each class shrunk towards its parent.

The range of a step reaches as far down and up, in logarithms, as the sum over what its time is made
of: the share of each kind (`Makeup`), times a width of the kind. There is one set of widths for
each class of ignorance and each side, so that a range may be wider above than below.

The widths minimise the interval score (Gneiting and Raftery, "Strictly Proper Scoring Rules,
Prediction, and Estimation", JASA 2007, equation 43), which is the width plus 2 / alpha times the
distance by which a step lies outside. For each side alone that is quantile regression (Koenker and
Bassett, "Regression Quantiles", Econometrica 1978). A class with few steps and fewer sources tells
little, so its widths are pulled to those of all steps, and those to one width for all kinds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from lab.score.ranged_steps import OffStep
from wavecast.predictors.base import Familiarity
from wavecast.steps.ranges import ScaledTo

Floats = NDArray[np.float64]
ALPHA = 0.1
"""The share of steps that may lie outside of their ranges."""
PULL = 400.0
"""How strongly the widths of a class are pulled to those of all steps, as a number of steps. Weaker
pulls give worse scores for sources left out: widths by kind then describe the sources."""
ROOT_PULL = 400.0
"""The same for the widths of all steps, which are pulled to one width for all kinds."""
LEAST_WIDTH = 0.02
"""No kind is narrower than this: two measurements of a step differ by as much."""
SMOOTH = (0.1, 0.03, 0.01, 0.004)
"""The corner of the interval score is rounded by these, one after the other, so that Newton's
method finds its least."""
ROUNDS = 12


@dataclass(frozen=True)
class Widths:
    """How far down and up ranges reach for each part of a makeup, in logarithms."""

    below: tuple[float, ...]
    above: tuple[float, ...]

    def reach(self, step: OffStep) -> tuple[float, float]:
        """How far down and up the range of a step reaches."""
        shares = step.shares
        return _dot(self.below, shares), _dot(self.above, shares)

    def times(self, factor: float) -> Widths:
        """All widths multiplied by a factor."""
        below, above = (tuple(factor * x for x in side) for side in (self.below, self.above))
        return Widths(below, above)

    def flat(self, steps: Sequence[OffStep]) -> Widths:
        """One width for all kinds, as far as the ranges of these steps reach on average."""
        below, above = np.mean([self.reach(step) for step in steps], axis=0).tolist()
        count = len(self.below) - 1  # the last one is of old software
        return Widths((*[below] * count, self.below[-1]), (*[above] * count, self.above[-1]))


def _dot(widths: Iterable[float], shares: Iterable[float]) -> float:
    return sum(width * share for width, share in zip(widths, shares, strict=True))


def interval_score(off: float, below: float, above: float) -> float:
    """Equation 43 for a range from -below to above: its width, and a penalty outside of it."""
    outside = max(-below - off, 0.0) + max(off - above, 0.0)
    return below + above + 2 / ALPHA * outside


def weights_of(steps: Sequence[OffStep]) -> Floats:
    """A source's total weight grows with the square root of its number of steps."""
    counts = Counter(step.owner for step in steps)
    weights = np.array([counts[step.owner] ** -0.5 for step in steps])
    scaled: Floats = weights / weights.mean() if len(steps) else weights
    return scaled


def fit(steps: Sequence[OffStep], parent: Widths | None = None) -> Widths:
    """The widths of a class; without a parent, those of all steps."""
    shares = np.array([step.shares for step in steps])
    off = np.array([step.off for step in steps])
    weights = weights_of(steps)
    return Widths(
        _side(shares, -off, weights, None if parent is None else np.array(parent.below)),
        _side(shares, off, weights, None if parent is None else np.array(parent.above)),
    )


def _side(shares: Floats, off: Floats, weights: Floats, parent: Floats | None) -> tuple[float, ...]:
    """The widths of one side: `off` is how far a step lies out on it."""
    pull = PULL
    if parent is None:
        pull, count = ROOT_PULL, shares.shape[1]
        usual = max(float(np.quantile(off, 1 - ALPHA / 2)), LEAST_WIDTH)
        parent = np.full(count, usual)

    return tuple(map(float, _descended(shares, off, weights, parent, pull)))


def _descended(shares: Floats, off: Floats, weights: Floats, parent: Floats, pull: float) -> Floats:
    """The widths with the least score and pull, by Newton's method within bounds."""
    stiff = 2 * pull * float(parent.mean()) / len(parent) / parent**2
    widths = np.maximum(parent, LEAST_WIDTH)
    for smooth in SMOOTH:

        def cost(tried: Floats, smooth: float = smooth) -> float:
            reach = shares @ tried
            beyond = smooth * np.logaddexp(0.0, (off - reach) / smooth)
            drawn = float(stiff @ (tried - parent) ** 2) / 2
            return float(weights @ (reach + 2 / ALPHA * beyond)) + drawn

        for _ in range(ROUNDS):
            outside = 0.5 * (1 + np.tanh((off - shares @ widths) / (2 * smooth)))
            slope = shares.T @ (weights * (1 - 2 / ALPHA * outside)) + stiff * (widths - parent)
            bend = weights * 2 / ALPHA * outside * (1 - outside) / smooth
            curve = shares.T @ (bend[:, None] * shares) + np.diag(stiff)
            free = (widths > LEAST_WIDTH) | (slope < 0)
            step = np.zeros_like(widths)
            step[free] = np.linalg.solve(curve[np.ix_(free, free)], slope[free])
            widths = _stepped(cost, widths, step)
    return widths


def _stepped(cost: Callable[[Floats], float], widths: Floats, step: Floats) -> Floats:
    """The widths after as much of a step as makes them better."""
    now = cost(widths)
    for shrink in 0.5 ** np.arange(12):
        tried: Floats = np.maximum(widths - shrink * step, LEAST_WIDTH)
        if cost(tried) < now:
            return tried
    return widths


# Measured steps, each judged by a range that is made without its GPU and without its source.


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
            width = (LEAST_WIDTH,) * (len(KINDS) + 1)
            return Widths(width, width)
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
    by_step = _quantile([(judged.needed, 1.0) for judged in same])
    by_source = _quantile([(judged.needed, judged.weight) for judged in same])
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
    for judged in sorted(some, key=lambda judged: judged.step.set):
        sets.setdefault(judged.step.set, []).append(judged)
    return sets


def share(some: Sequence[JudgedRange]) -> float:
    """The share of steps in their ranges."""
    return sum(judged.inside for judged in some) / len(some)


def given(some: Sequence[JudgedRange]) -> float:
    """The mean width of the ranges, as the ratio of their ends."""
    return math.exp(float(np.mean([judged.below + judged.above for judged in some])))


def needed(some: Sequence[JudgedRange]) -> float:
    """The same if all ranges are scaled by the factor with which they hold nine in ten."""
    factor = float(np.quantile([judged.needed for judged in some], 1 - ALPHA, method="higher"))
    return float(given(some) ** max(factor, 0.0))
