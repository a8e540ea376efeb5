"""Boosted oblivious trees: every node of a level asks the same question.

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
"""The arrays that a forest is kept in."""


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees whose answers add up."""

    feature: NDArray[np.int64]
    """Which feature each level of each tree asks for: (trees, depth)."""
    threshold: Floats
    """A level's bit is set where the feature is larger: (trees, depth)."""
    answer: Floats
    """By the bits: (trees, 2^depth)."""
    low: Floats
    high: Floats
    """The range of each feature in the fit; one that was always the same has none."""
    sorts: Floats = field(default_factory=lambda: np.zeros((0, 1)))
    """What sorts of rows were in the fit, where these are told apart: (sorts, features of it)."""
    worth: float = 1.0
    """How much of what the trees say holds for other sorts, as those left out of the fit show."""

    def holds(self, sorts: Floats) -> Floats:
        """How much of the answer counts for each row, by its sort: all, or what it is worth."""
        if not len(self.sorts):
            return np.ones(len(sorts))
        known = (sorts[:, None, :] == self.sorts[None, :, :]).all(axis=2).any(axis=1)
        found: Floats = np.where(known, 1.0, self.worth)
        return found

    def __call__(self, features: Floats) -> Floats:
        """The sum of all trees' answers, for each row.

        Beyond the range of a feature they answer as at its edge, less by half for each power of two
        (most features are logarithms): the further off, the less of what was seen holds.
        """
        if not len(self.feature) or not len(features):
            return np.zeros(len(features))
        columns = np.ascontiguousarray(features.T)
        leaf = np.zeros((len(self.feature), len(features)), np.uint16)
        for level, asked in enumerate(self.feature.T):
            larger = columns[asked] > self.threshold[:, level, None]
            leaf |= larger.astype(np.uint16) << level
        answers = np.take_along_axis(self.answer, leaf.astype(np.intp), axis=1).sum(axis=0)
        beyond = np.maximum(self.low - features, features - self.high).max(axis=1)
        found: Floats = answers * 0.5 ** np.maximum(beyond, 0.0)
        return found

    def and_then(self, more: Forest) -> Forest:
        """With more trees of the same depth, which were grown on the same rows."""
        if not len(more.feature) or not len(self.feature):
            return more if len(more.feature) else self
        return replace(
            self,
            feature=np.concatenate([self.feature, more.feature]),
            threshold=np.concatenate([self.threshold, more.threshold]),
            answer=np.concatenate([self.answer, more.answer]),
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a file keeps of it."""
        return {
            "feature": self.feature.astype(np.int16),
            "threshold": self.threshold.astype(np.float32),
            "answer": self.answer.astype(np.float16),
            "low": self.low.astype(np.float32),
            "high": self.high.astype(np.float32),
            "sorts": self.sorts.astype(np.float32),
            "worth": np.array(self.worth, np.float32),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Forest:
        """The forest of what `arrays` gave."""
        numbers = {
            name: arrays[name].astype(np.float64)
            for name in ("threshold", "answer", "low", "high", "sorts")
        }
        return cls(arrays["feature"].astype(np.int64), **numbers, worth=float(arrays["worth"]))


NOTHING = Forest(
    np.zeros((0, 1), np.int64), np.zeros((0, 1)), np.zeros((0, 2)), np.zeros(0), np.zeros(0)
)
"""Answers zero."""
