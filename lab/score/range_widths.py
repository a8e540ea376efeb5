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

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lab.score.ranged_steps import OffStep

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
