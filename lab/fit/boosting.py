"""Grow boosted oblivious trees with numpy: histograms of gradients, as LightGBM does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.learned.gpus import Floats
from wavecast.predictors.learned.trees import NOTHING, Forest

BINS = 32
MARGIN = 0.5
"""Beyond the smallest and the largest of each feature (most are powers of two)."""
CLIP = 0.5
"""Residuals are clipped to this, because a few rows are off by factors and would dominate."""


def grow(
    features: Floats,
    target: Floats,
    weight: Floats,
    *,
    trees: int = 120,
    depth: int = 4,
    rate: float = 0.08,
    least: float = 30.0,
) -> Forest:
    """Trees that meet `target` by weighted squares, clipped; `least` rows' weight shrinks answers.

    Deterministic: every tree sees all rows and all features.
    """
    if len(target) < 2 * least:
        return NOTHING
    weight = weight / weight.mean()
    edges = [_edges(column) for column in features.T]
    binned = np.stack(
        [np.searchsorted(edge, column) for edge, column in zip(edges, features.T, strict=True)]
    )
    left = target.copy()
    found: list[tuple[list[int], list[float], Floats]] = []
    for _ in range(trees):
        gradient = np.clip(left, -CLIP, CLIP) * weight
        tree = _tree(binned, edges, gradient, weight, depth, least)
        if tree is None:
            break
        asked, thresholds, leaf, answer = tree
        found.append((asked, thresholds, rate * answer))
        left -= rate * answer[leaf]
    if not found:
        return NOTHING
    return Forest(
        np.array([each[0] for each in found]),
        np.array([each[1] for each in found]),
        np.array([each[2] for each in found]),
        *_range(features),
    )


def _range(features: Floats) -> tuple[Floats, Floats]:
    """The range of each feature that a forest was trained on; none for a constant feature."""
    low, high = features.min(axis=0), features.max(axis=0)
    varied = high > low
    return np.where(varied, low - MARGIN, -np.inf), np.where(varied, high + MARGIN, np.inf)


def _edges(column: Floats) -> Floats:
    """Where a feature may be asked: halfway between two of its values, near its quantiles.

    Files keep thresholds in float32. One that is a value itself would be rounded to either side of
    it, and all rows that have this value would get another row's answer.
    """
    values = np.unique(column)
    below = np.searchsorted(values, np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1]))
    below = np.unique(np.minimum(below, max(len(values) - 2, 0)))
    halfway = (values[below] + values[np.minimum(below + 1, len(values) - 1)]) / 2
    found: Floats = np.unique(halfway.astype(np.float32).astype(np.float64))
    return found


def _tree(
    binned: NDArray[np.int64],
    edges: list[Floats],
    gradient: Floats,
    weight: Floats,
    depth: int,
    least: float,
) -> tuple[list[int], list[float], NDArray[np.int64], Floats] | None:
    """One tree: level by level the question that explains the most over all leaves."""
    leaf = np.zeros(len(gradient), np.int64)
    asked: list[int] = []
    thresholds: list[float] = []
    for level in range(depth):
        best = (0.0, -1, -1)
        for feature, codes in enumerate(binned):
            bins = len(edges[feature]) + 1
            if bins < 2:
                continue
            place = leaf * bins + codes
            shape = (1 << level, bins)
            sums, weights = (
                np.bincount(place, weights=each, minlength=shape[0] * bins).reshape(shape)
                for each in (gradient, weight)
            )
            below_s, below_w = sums.cumsum(1)[:, :-1], weights.cumsum(1)[:, :-1]
            above_s, above_w = sums.sum(1)[:, None] - below_s, weights.sum(1)[:, None] - below_w
            gain = (below_s**2 / (below_w + least) + above_s**2 / (above_w + least)).sum(0)
            at = int(np.argmax(gain))
            if gain[at] > best[0] * (1 + 1e-9):
                best = (float(gain[at]), feature, at)
        if best[1] < 0:
            return None
        _, feature, at = best
        asked.append(feature)
        thresholds.append(float(edges[feature][at]))
        leaf += (binned[feature] > at).astype(np.int64) << level
    size = 1 << depth
    sums, weights = (np.bincount(leaf, weights=each, minlength=size) for each in (gradient, weight))
    return asked, thresholds, leaf, sums / (weights + least)
