"""Grow boosted oblivious trees with numpy: histograms of gradients, as LightGBM does."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.learned.gpus import Floats
from wavecast.predictors.learned.model import NOTHING, Forest

BINS = 32
MARGIN = 0.5
"""How far outside a feature's trained range a forest still answers (most are log2 of sizes)."""
CLIP = 0.5
"""Residuals are clipped to +-this, because a few rows are off by factors and would dominate."""


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
    """Trees that minimise the weighted squared error to `target`, with clipped residuals.

    The result is deterministic: every tree sees all rows and all features.

    Args:
        features: one row for each sample.
        target: the value to predict for each row.
        weight: the weight of each row.
        trees: the number of trees.
        depth: the number of questions of each tree.
        rate: the learning rate.
        least: shrinks a leaf's answer as if this much more weight had answer zero. Fewer than twice
            as many rows give no trees.
    """
    if len(target) < 2 * least:
        return NOTHING
    weight = weight / weight.mean()
    edges = [_edges(column) for column in features.T]
    binned = np.stack(
        [np.searchsorted(edge, column) for edge, column in zip(edges, features.T, strict=True)]
    )
    residual = target.copy()
    grown: list[tuple[list[int], list[float], Floats]] = []
    for _ in range(trees):
        gradient = np.clip(residual, -CLIP, CLIP) * weight
        tree = _tree(binned, edges, gradient, weight, depth, least)
        if tree is None:
            break
        questions, thresholds, leaf, answer = tree
        grown.append((questions, thresholds, rate * answer))
        residual -= rate * answer[leaf]
    if not grown:
        return NOTHING
    questions_of, thresholds_of, answers = zip(*grown, strict=True)
    return Forest(
        np.array(questions_of),
        np.array(thresholds_of),
        np.array(answers),
        *_range(features),
    )


def _range(features: Floats) -> tuple[Floats, Floats]:
    """The range of each feature that a forest was trained on; unlimited for a constant feature."""
    low, high = features.min(axis=0), features.max(axis=0)
    varied = high > low
    return np.where(varied, low - MARGIN, -np.inf), np.where(varied, high + MARGIN, np.inf)


def _edges(column: Floats) -> Floats:
    """Candidate thresholds of a feature: halfway between neighbouring values, near its quantiles.

    Files keep thresholds in float32. A threshold equal to a value could be rounded to either side
    of it, and all rows with this value would then land in another leaf.
    """
    values = np.unique(column)
    below = np.searchsorted(values, np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1]))
    below = np.unique(np.minimum(below, max(len(values) - 2, 0)))
    halfway = (values[below] + values[np.minimum(below + 1, len(values) - 1)]) / 2
    edges: Floats = np.unique(halfway.astype(np.float32).astype(np.float64))
    return edges


def _tree(
    binned: NDArray[np.int64],
    edges: list[Floats],
    gradient: Floats,
    weight: Floats,
    depth: int,
    least: float,
) -> tuple[list[int], list[float], NDArray[np.int64], Floats] | None:
    """One tree: its features, thresholds, the leaf of each row and the leaves' answers.

    All leaves of a level ask the same question, the one with the largest gain summed over leaves.
    None when no feature can be split.
    """
    leaf = np.zeros(len(gradient), np.int64)
    questions: list[int] = []
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
                np.bincount(place, weights=values, minlength=shape[0] * bins).reshape(shape)
                for values in (gradient, weight)
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
        questions.append(feature)
        thresholds.append(float(edges[feature][at]))
        leaf += (binned[feature] > at).astype(np.int64) << level
    size = 1 << depth
    sums, weights = (
        np.bincount(leaf, weights=values, minlength=size) for values in (gradient, weight)
    )
    return questions, thresholds, leaf, sums / (weights + least)
