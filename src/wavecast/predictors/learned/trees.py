"""Boosted oblivious trees: all nodes of a level ask the same question.

A tree of depth d is d questions and 2^d answers (Prokhorenkova et al., "CatBoost", NeurIPS 2018),
so that a whole forest is evaluated with a few array operations. `lab/fit/boosting.py` grows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.learned.gpus import Floats

FOREST = ("feature", "threshold", "answer", "low", "high", "sorts", "worth")
"""The arrays of a forest in the file of the shipped fit. There, `families` are called "sorts", and
`trust` is called "worth"."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose answers add up."""

    feature: NDArray[np.int64]
    """The feature that each level of each tree compares: (trees, depth)."""
    threshold: Floats
    """A level's bit is set where the feature is larger than this: (trees, depth)."""
    answer: Floats
    """The answer for each combination of bits: (trees, 2^depth)."""
    low: Floats
    """The smallest value of each feature in the fit."""
    high: Floats
    """The largest value of each feature in the fit."""
    families: Floats = field(default_factory=lambda: np.zeros((0, 1)))
    """The filter families in the fit, one in each row; no rows where families do not matter."""
    trust: float = 1.0
    """The share of the answer that counts for other families; found by leaving families out."""

    def trust_in(self, families: Floats) -> Floats:
        """The share of the answer that counts for each row: 1 if its family was in the fit."""
        if not len(self.families):
            return np.ones(len(families))
        in_fit = (families[:, None, :] == self.families[None, :, :]).all(axis=2).any(axis=1)
        shares: Floats = np.where(in_fit, 1.0, self.trust)
        return shares

    def __call__(self, features: Floats) -> Floats:
        """The sum of all trees' answers for each row.

        Outside of a feature's range in the fit, trees answer as at its edge, halved for each unit
        of distance (most features are logarithms to base 2): the farther away, the less of what
        was measured applies. Features that came after the fit are the last; they are not looked at.
        """
        if not len(self.feature) or not len(features):
            return np.zeros(len(features))
        features = features[:, : len(self.low)]
        columns = np.ascontiguousarray(features.T)
        leaf = np.zeros((len(self.feature), len(features)), np.uint16)
        for level, feature in enumerate(self.feature.T):
            larger = columns[feature] > self.threshold[:, level, None]
            leaf |= larger.astype(np.uint16) << level
        answers = np.take_along_axis(self.answer, leaf.astype(np.intp), axis=1).sum(axis=0)
        beyond = np.maximum(self.low - features, features - self.high).max(axis=1)
        damped: Floats = answers * 0.5 ** np.maximum(beyond, 0.0)
        return damped

    def and_then(self, more: Forest) -> Forest:
        """This forest with more trees of the same depth, grown on the same rows and others.

        Ranges of features stay, so that ops far from what this forest saw are answered as before.
        """
        if not len(more.feature) or not len(self.feature):
            return more if len(more.feature) else self
        known = len(self.low)
        return replace(
            self,
            low=np.concatenate([self.low, more.low[known:]]),
            high=np.concatenate([self.high, more.high[known:]]),
            feature=np.concatenate([self.feature, more.feature]),
            threshold=np.concatenate([self.threshold, more.threshold]),
            answer=np.concatenate([self.answer, more.answer]),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The arrays that a file stores, by the names in `FOREST`."""
        return {
            "feature": self.feature.astype(np.int16),
            "threshold": self.threshold.astype(np.float32),
            "answer": self.answer.astype(np.float16),
            "low": self.low.astype(np.float32),
            "high": self.high.astype(np.float32),
            "sorts": self.families.astype(np.float32),
            "worth": np.array(self.trust, np.float32),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Forest:
        """The forest of the arrays that `arrays()` returned."""
        return cls(
            feature=arrays["feature"].astype(np.int64),
            threshold=arrays["threshold"].astype(np.float64),
            answer=arrays["answer"].astype(np.float64),
            low=arrays["low"].astype(np.float64),
            high=arrays["high"].astype(np.float64),
            families=arrays["sorts"].astype(np.float64),
            trust=float(arrays["worth"]),
        )


NOTHING = Forest(
    np.zeros((0, 1), np.int64), np.zeros((0, 1)), np.zeros((0, 2)), np.zeros(0), np.zeros(0)
)
"""A forest without trees, which answers zero."""
