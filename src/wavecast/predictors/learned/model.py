"""One op model: physics with fitted constants, times learned factors that are bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast.predictors.learned.features import FEATURES, sorts_of
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.convolutions import (
    CONVOLUTION_PARAMETERS,
    DEPTHWISE_PARAMETERS,
    convolution_s,
    depthwise_limits,
)
from wavecast.predictors.learned.physics.groups import GROUPED_PARAMETERS, grouped_s
from wavecast.predictors.learned.physics.sequences import (
    ATTENTION_PARAMETERS,
    RECURRENT_PARAMETERS,
    attention_s,
    recurrent_s,
)
from wavecast.predictors.learned.physics.streams import STREAM_PARAMETERS, stream_limits
from wavecast.predictors.learned.physics.tiles import (
    PRODUCT_PARAMETERS,
    Bounds,
    Columns,
    Theta,
    TimeLimits,
    product_s,
)
from wavecast.predictors.learned.trees import NOTHING, Forest

Physics = Callable[[Columns, GpuFacts, Theta], TimeLimits]


def _alone(seconds: Callable[[Columns, GpuFacts, Theta], Floats]) -> Physics:
    """Physics whose learned factor is of all of it, memory and launch included."""

    def limits(columns: Columns, gpu: GpuFacts, theta: Theta) -> TimeLimits:
        return TimeLimits(0.0, 0.0, seconds(columns, gpu, theta))

    return limits


PHYSICS: Mapping[str, tuple[Physics, Mapping[str, Bounds]]] = {
    "stream": (stream_limits, STREAM_PARAMETERS),
    "product": (_alone(product_s), PRODUCT_PARAMETERS),
    "convolution": (_alone(convolution_s), CONVOLUTION_PARAMETERS),
    "depthwise": (depthwise_limits, DEPTHWISE_PARAMETERS),
    "attention": (_alone(attention_s), ATTENTION_PARAMETERS),
    "recurrent": (_alone(recurrent_s), RECURRENT_PARAMETERS),
    "grouped": (_alone(grouped_s), GROUPED_PARAMETERS),
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
    """By the op's name: what to add to the logarithm of the learned factor."""
    generations: Mapping[str, float] = field(default_factory=dict)
    """By unit class and architecture ("cores.Pascal"): the same, where its GPUs have something in
    common that physics does not say."""
    chips: Mapping[str, Forest] = field(default_factory=dict)
    """By unit class and chip ("tensor.Hopper.132"): the same, where enough ops were measured on the
    very chip to know what its libraries do with which shapes."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """By unit class and generation ("cores.7"): the same on chips of which less is known, as whole
    steps show it."""

    def seconds(self, columns: Columns, gpu: GpuFacts, added: Floats | float = 0.0) -> Floats:
        """The time of each part; `added` is its family's."""
        physics, _ = PHYSICS[self.name]
        features = FEATURES[self.name](columns, gpu)
        classes = classes_of(columns, gpu)
        learned = self.forest(features) + added
        learned = learned + _looked_up(self.generations, _joined(classes, gpu.architecture))
        factor = np.exp(np.clip(learned, -REACH, REACH))
        seconds = physics(columns, gpu, self.theta).seconds(factor)
        found: Floats = seconds * np.exp(self.chip(features, classes, gpu))
        return found

    def chip(self, features: Floats, classes: Strings, gpu: GpuFacts) -> Floats:
        """What each row's chip adds or, where too little is known of it, its generation.

        What a chip's libraries do with 3 x 3 filters says little of what they do with 4 x 4.
        """
        found = _looked_up(self.steps, _joined(classes, gpu.generation))
        keys = chips_of(classes, gpu)
        for key in np.unique(keys) if self.chips else ():
            if str(key) in self.chips:
                here = keys == key
                forest = self.chips[str(key)]
                held = forest.holds(sorts_of(self.name, features[here]))
                own = np.clip(forest(features[here]), -REACH, REACH)
                found[here] = held * own + (1.0 - held) * found[here]
        return found


Strings = NDArray[np.str_]


def classes_of(columns: Columns, gpu: GpuFacts) -> Strings:
    """Which of its units each row keeps busy: tensor cores, plain ones, or none but memory."""
    if "unit" not in columns:
        return np.full(len(next(iter(columns.values()))), "memory")
    return np.where(gpu.on_tensor_cores(columns["unit"].astype(np.int64)), "tensor", "cores")


def chips_of(classes: Strings, gpu: GpuFacts) -> Strings:
    """Each row's key in `OpModel.chips`."""
    count = np.asarray(gpu.sm).astype(np.int64).astype(str)
    return _joined(_joined(classes, gpu.architecture), count)


def _joined(classes: Strings, name: Any) -> Strings:
    found: Strings = np.strings.add(np.strings.add(classes, "."), name)
    return found


def _looked_up(offsets: Mapping[str, float], keys: Strings) -> Floats:
    if not offsets:
        return np.zeros(len(keys))
    known, which = np.unique(keys, return_inverse=True)
    found: Floats = np.array([offsets.get(str(key), 0.0) for key in known])[which]
    return found


def generation_of(columns: Columns, gpu: GpuFacts) -> Strings:
    """Each row's key in `OpModel.generations`."""
    return _joined(classes_of(columns, gpu), gpu.architecture)
