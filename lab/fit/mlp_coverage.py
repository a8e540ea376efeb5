"""Which measured layers a network answers for, when it was trained on some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.mlp import DEVICE_FEATURES, MlpModel, MlpNetwork, layer_type

Ranges = dict[str, tuple[float, float]]
Floats = NDArray[np.float64]


def ranges_by_gpu(kind: str, features: Floats, gpu: NDArray[Any]) -> dict[str, Ranges]:
    """The range of each size of the layers that were measured on each GPU."""
    names = layer_type(kind).names()
    gpus = np.unique(gpu).tolist()
    return {name: _ranges(names, features[gpu == name]) for name in gpus}


def answered(
    kind: str, features: Floats, gpu: NDArray[Any], train: NDArray[Any]
) -> NDArray[np.bool_]:
    """A mask of the rows for which a network that was trained on the rows `train` answers."""
    of_training = features[train]
    model = MlpModel(
        kind,
        "forward",
        MlpNetwork(of_training[0], of_training[0], ()),
        low=1.0,
        high=1.0,
        ranges=_ranges((*layer_type(kind).names(), *DEVICE_FEATURES), of_training),
        by_gpu=ranges_by_gpu(kind, of_training, gpu[train]),
    )
    rows = zip(features.tolist(), gpu.tolist(), strict=True)
    return np.array([model.covers(tuple(row), name) for row, name in rows])


def _ranges(names: tuple[str, ...], features: Floats) -> Ranges:
    """The lowest and highest value of each named column, which are the first ones."""
    low, high = features.min(0).tolist(), features.max(0).tolist()
    return {name: (low[i], high[i]) for i, name in enumerate(names)}
