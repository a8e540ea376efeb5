"""Boosted oblivious trees: every node of a level asks the same question.

A tree of depth d is d questions and 2^d answers (Prokhorenkova et al., "CatBoost", NeurIPS 2018),
so that a whole forest is evaluated with a few array operations. `training/boosting.py` grows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.op_models.gpus import Floats

FOREST = ("feature", "threshold", "answer", "low", "high")
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

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What a file keeps of it."""
        return {
            "feature": self.feature.astype(np.int16),
            "threshold": self.threshold.astype(np.float32),
            "answer": self.answer.astype(np.float16),
            "low": self.low.astype(np.float32),
            "high": self.high.astype(np.float32),
        }

    @classmethod
    def of(cls, arrays: Mapping[str, NDArray[Any]]) -> Forest:
        """The forest of what `arrays` gave."""
        return cls(
            arrays["feature"].astype(np.int64),
            arrays["threshold"].astype(np.float64),
            *(arrays[name].astype(np.float64) for name in ("answer", "low", "high")),
        )


NOTHING = Forest(
    np.zeros((0, 1), np.int64), np.zeros((0, 1)), np.zeros((0, 2)), np.zeros(0), np.zeros(0)
)
"""Answers zero."""
