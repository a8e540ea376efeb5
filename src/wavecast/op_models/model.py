"""One op model: physics with fitted constants, times learned factors that are bounded."""

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
"""The learned factor lies between exp(-REACH) and exp(REACH), and so does a chip's own."""


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
    chips: Mapping[str, Forest] = field(default_factory=dict)
    """By chip ("Hopper.132"): the same, where enough ops were measured on the very chip to know
    what its libraries do with which shapes."""

    def seconds(self, columns: Columns, gpu: Gpu, added: Floats | float = 0.0) -> Floats:
        """The time of each part; `added` is its family's."""
        physics, _ = PHYSICS[self.name]
        features = FEATURES[self.name](columns, gpu)
        learned = self.forest(features) + added + self.generation(columns, gpu)
        factor = np.clip(learned, -REACH, REACH) + self.chip(features, gpu)
        found: Floats = physics(columns, gpu, self.theta) * np.exp(factor)
        return found

    def chip(self, features: Floats, gpu: Gpu) -> Floats | float:
        """What each row's chip adds."""
        if not self.chips:
            return 0.0
        keys = chip_of(gpu)
        if not isinstance(keys, np.ndarray):
            own = self.chips.get(str(keys))
            return 0.0 if own is None else np.clip(own(features), -REACH, REACH)
        found = np.zeros(len(features))
        for key in np.unique(keys):
            if str(key) in self.chips:
                here = keys == key
                found[here] = np.clip(self.chips[str(key)](features[here]), -REACH, REACH)
        return found

    def generation(self, columns: Columns, gpu: Gpu) -> Floats | float:
        """What each row's architecture adds."""
        if not self.generations:
            return 0.0
        keys = generation_of(columns, gpu)
        known, which = np.unique(keys, return_inverse=True)
        offsets = np.array([self.generations.get(str(key), 0.0) for key in known])
        return offsets[which]


def chip_of(gpu: Gpu) -> Any:
    """The key in `OpModel.chips`, or each row's."""
    if not isinstance(gpu.sm, np.ndarray):
        return f"{gpu.architecture}.{gpu.sm:.0f}"
    of_sm = gpu.sm.astype(np.int64).astype(str)
    return np.strings.add(np.strings.add(gpu.architecture, "."), of_sm)


def generation_of(columns: Columns, gpu: Gpu) -> Any:
    """Each row's key in `OpModel.generations`."""
    kind: Any = "cores"
    if "unit" in columns:
        tensor = gpu.on_tensor_cores(columns["unit"].astype(np.int64))
        kind = np.where(tensor, "tensor", "cores")
    else:
        kind = np.full(len(next(iter(columns.values()))), "memory")
    return np.strings.add(np.strings.add(kind, "."), gpu.architecture)
