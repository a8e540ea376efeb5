"""The networks as published: sizes of a layer and numbers of a GPU go in, milliseconds come out.

Each has nine ReLU layers of one width (Habitat, section 4.3) and is trained by `lab/fit/mlp.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.mlp.features import DEVICE_FEATURES, Features

Floats = NDArray[np.float64]

DEVICE_MARGIN = 2.0
"""A network answers for GPUs whose numbers lie within its training data, widened by this factor.
Every new GPU exceeds the training data in some number, but far beyond it an answer is arbitrary."""
LEAST_GPUS = 2
"""On how many GPUs such layers must have been measured before a network answers for another."""


@dataclass(frozen=True, eq=False)
class MlpNetwork:
    """The weights of a trained network, and how its inputs are standardised."""

    mean: Floats
    """The mean of each feature in the training data."""
    scale: Floats
    """The factor of each feature after its mean is subtracted; 0 if it never varied."""
    weights: tuple[tuple[NDArray[Any], NDArray[Any]], ...]
    """Matrix (out, in) and bias of each layer."""

    def milliseconds(self, features: Floats) -> Floats:
        """The output for each row of features, independent of the other rows."""
        # One matrix with one row for each: a matmul of all rows at once is rounded differently
        # depending on how many rows there are.
        # An answer that is not finite does not count (`predictor`), so an overflow is no warning.
        with np.errstate(over="ignore", invalid="ignore"):
            rows = ((features - self.mean) * self.scale).astype(np.float32)[:, None, :]
            last = len(self.weights) - 1
            for number, (matrix, bias) in enumerate(self.weights):
                rows = rows @ matrix.T + bias
                if number < last:
                    rows = np.maximum(rows, 0)
        outputs: Floats = rows[:, 0, 0].astype(np.float64)
        return outputs


@dataclass(frozen=True, eq=False)
class MlpModel:
    """A network with the facts of its card: what it predicts, and on what it was trained."""

    kind: str
    """The kind of layer, such as "conv2d"."""
    target: str
    """The pass it predicts: "forward", "backward" or "forward+backward"."""
    network: MlpNetwork
    low: float
    """On GPUs left out of the fit, most layers took `low` to `high` times the answer."""
    high: float
    ranges: Mapping[str, tuple[float, float]]
    """The range of each feature in the training data, in the order of the network's inputs."""
    least_s: float = 0.0
    """The shortest time in the training data. A shorter answer is discarded."""
    vendors: tuple[str, ...] = ("NVIDIA",)
    by_gpu: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    """The ranges of the layers that were measured on each GPU; empty if the card has none. A layer
    that was measured on one GPU only says nothing about the others."""
    _computed: dict[Features, float] = field(default_factory=dict, repr=False)

    def covers(self, features: Features, gpu: str = "") -> bool:
        """Whether the network was trained on such layers and such GPUs.

        Where the card has ranges by GPU, such layers must have been measured on this GPU, or on at
        least two others. Otherwise the network knows nothing of how they differ between GPUs.
        """
        named = [*zip(self.ranges, features, strict=True)]
        layer = {name: value for name, value in named if name not in DEVICE_FEATURES}
        if not (self.knows_gpu(features) and _within(layer, self.ranges)):
            return False
        if not self.by_gpu:
            return True
        measured = {name for name, ranges in self.by_gpu.items() if _within(dict(named), ranges)}
        return gpu in measured or len(measured) >= LEAST_GPUS

    def knows_gpu(self, features: Features) -> bool:
        """Whether the network was trained on such GPUs, whatever the layer."""
        numbers = dict(zip(self.ranges, features, strict=True))
        ranges = {
            name: (low / DEVICE_MARGIN, high * DEVICE_MARGIN)
            for name, (low, high) in self.ranges.items()
            if name in DEVICE_FEATURES
        }
        enough = not self.by_gpu or len(self.by_gpu) >= LEAST_GPUS
        return enough and _within(numbers, ranges)

    def seconds(self, rows: Sequence[Features]) -> list[float]:
        """The network's raw answers, which may even be negative. Each row is computed once."""
        new = [row for row in dict.fromkeys(rows) if row not in self._computed]
        if new:
            answers = self.network.milliseconds(np.array(new, dtype=np.float64)) * 1e-3
            self._computed.update(zip(new, answers.tolist(), strict=True))
        return [self._computed[row] for row in rows]


def _within(values: Mapping[str, float], ranges: Mapping[str, tuple[float, float]]) -> bool:
    """Whether each value that has a range lies in it."""
    return all(
        low <= values[name] <= high for name, (low, high) in ranges.items() if name in values
    )
