"""One op model: physics with fitted constants, times a learned factor that is bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wavecast.op_models.convolutions import (
    CONVOLUTION_PARAMETERS,
    DEPTHWISE_PARAMETERS,
    convolution_s,
    depthwise_s,
)
from wavecast.op_models.features import FEATURES
from wavecast.op_models.gpus import Floats, Gpu
from wavecast.op_models.sequences import (
    ATTENTION_PARAMETERS,
    RECURRENT_PARAMETERS,
    attention_s,
    recurrent_s,
)
from wavecast.op_models.streams import STREAM_PARAMETERS, stream_s
from wavecast.op_models.tiles import PRODUCT_PARAMETERS, Bounds, Columns, Theta, product_s
from wavecast.op_models.trees import NOTHING, Forest

Physics = Callable[[Columns, Gpu, Theta], Floats]
PHYSICS: Mapping[str, tuple[Physics, Mapping[str, Bounds]]] = {
    "stream": (stream_s, STREAM_PARAMETERS),
    "product": (product_s, PRODUCT_PARAMETERS),
    "convolution": (convolution_s, CONVOLUTION_PARAMETERS),
    "depthwise": (depthwise_s, DEPTHWISE_PARAMETERS),
    "attention": (attention_s, ATTENTION_PARAMETERS),
    "recurrent": (recurrent_s, RECURRENT_PARAMETERS),
}
REACH = 1.0
"""The learned factor lies between exp(-REACH) and exp(REACH)."""


@dataclass(frozen=True, eq=False)
class OpModel:
    """The model of one sort of part."""

    name: str
    theta: Theta
    forest: Forest = NOTHING
    families: Mapping[str, float] = field(default_factory=dict)
    """By the op's name: what to add to the logarithm of its time."""
    generations: Mapping[str, float] = field(default_factory=dict)
    """By unit class and architecture ("cores.Pascal"): the same, where its GPUs have something in
    common that physics does not say."""

    def seconds(self, columns: Columns, gpu: Gpu, added: Floats | float = 0.0) -> Floats:
        """The time of each part; `added` is its family's."""
        physics, _ = PHYSICS[self.name]
        learned = self.forest(FEATURES[self.name](columns, gpu)) + added
        learned = learned + self.generation(columns, gpu)
        found: Floats = physics(columns, gpu, self.theta) * np.exp(np.clip(learned, -REACH, REACH))
        return found

    def generation(self, columns: Columns, gpu: Gpu) -> Floats | float:
        """What each row's architecture adds."""
        if not self.generations:
            return 0.0
        keys = generation_of(columns, gpu)
        known, which = np.unique(keys, return_inverse=True)
        offsets = np.array([self.generations.get(str(key), 0.0) for key in known])
        return offsets[which]


def generation_of(columns: Columns, gpu: Gpu) -> Any:
    """Each row's key in `OpModel.generations`."""
    kind: Any = "cores"
    if "unit" in columns:
        tensor = gpu.on_tensor_cores(columns["unit"].astype(np.int64))
        kind = np.where(tensor, "tensor", "cores")
    else:
        kind = np.full(len(next(iter(columns.values()))), "memory")
    return np.strings.add(np.strings.add(kind, "."), gpu.architecture)
