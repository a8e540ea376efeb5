"""Habitat's MLPs as a predictor (Yu et al., ATC 2021, section 4.3).

The networks know no physics. Their answers are not below the physical bound, but a better GPU may
be predicted slower, and a larger layer faster. Outside of the layers, GPUs and times on which a
network was trained, it does not answer, unless it may go beyond its layers as the paper's do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from wavecast import ops
from wavecast.errors import prefixed
from wavecast.files import shipped
from wavecast.hardware.device import Device
from wavecast.hardware.rates import available
from wavecast.ops import Unit
from wavecast.predictors.base import Estimate, Predictor
from wavecast.predictors.mlp.features import (
    Features,
    computes_all,
    device_features,
    features_of,
    layer_of,
)
from wavecast.predictors.mlp.file import read_model
from wavecast.predictors.mlp.network import MlpModel
from wavecast.predictors.roofline import bound
from wavecast.traces.step import Op


@dataclass(frozen=True, eq=False)
class Mlp(Predictor):
    """Predicts float32 layers (without TF32) of sizes on which its networks were trained.

    Example:
        >>> Mlp.shipped().predict(op, wavecast.device("v100-sxm-16gb"))
    """

    models: Mapping[tuple[str, str], MlpModel]
    """The networks, by kind of layer and pass ("forward", "backward" or "forward+backward")."""
    beyond: bool = False
    """Whether they also answer for layers beyond the sizes that they were trained on. The paper's
    do: its DCGAN has batches of 96 and 128, and its convolutions were sampled up to 64."""

    @classmethod
    @cache
    def shipped(cls) -> Mlp:
        """The shipped networks, which are narrower than published and stored in half precision."""
        return cls.of(map(read_model, sorted(shipped("models").glob("mlp-*.npz"))))

    @classmethod
    def of(cls, models: Iterable[MlpModel]) -> Mlp:
        """A predictor with these networks."""
        return cls({(model.kind, model.target): model for model in models})

    @classmethod
    def read(cls, paths: Iterable[Path]) -> Mlp:
        """A predictor with the networks of these .npz files, each with its card beside it.

        Raises:
            InvalidInput: A file is missing, or is not a network.
        """
        models = []
        for path in paths:
            with prefixed(f"{path}: "):
                models.append(read_model(path))
        return cls.of(models)

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The network's time for the op's layer, at least the physical bound."""
        return self.predict_all((op,), device)[0]

    def predict_all(self, given: Sequence[Op], device: Device) -> list[Estimate | None]:
        """The time of each op; each network computes all its answers at once."""
        questions = [self._question(op, device, _pass(op)) for op in given]
        for model in self.models.values():
            model.seconds(
                [question[1] for question in questions if question and question[0] is model]
            )
        return [
            _estimate(op, device, *question) if question and computes_all(op) else None
            for op, question in zip(given, questions, strict=True)
        ]

    def ratios(self, ops: Sequence[Op], origin: Device, target: Device) -> Sequence[float | None]:
        """How many times as long the target takes for each op, by Habitat's rule (`ratio`)."""
        return [self.ratio(op, origin, target) for op in ops]

    def ratio(self, op: Op, origin: Device, destination: Device) -> float | None:
        """How many times as long an op takes on another GPU; None if the networks do not cover it.

        Habitat's code multiplies a measured time by this ratio of two raw answers. Forward and
        backward have the same ratio if only one of them was trained: the published network has one
        output for both.
        """
        for target in (_pass(op), "forward+backward", "forward"):
            here = self._question(op, origin, target)
            there = self._question(op, destination, target)
            if here is None or there is None:
                continue
            model = here[0]
            before, after = model.seconds([here[1], there[1]])
            if model.least_s < before < math.inf and model.least_s < after < math.inf:
                return after / before
        return None

    def _question(self, op: Op, device: Device, target: str) -> tuple[MlpModel, Features] | None:
        """The network for a pass of an op on a GPU, and its inputs; None if there is none."""
        layer = layer_of(op) if op.inputs and op.inputs[0].dtype == "float32" else None
        if layer is None or available(ops.unit(op), device) is not Unit.FP32:
            return None
        model = self.models.get((layer.KIND, target))
        numbers = device_features(device)
        if model is None or numbers is None or device.vendor not in model.vendors:
            return None
        features = features_of(layer, numbers)
        known = model.knows_gpu(features) if self.beyond else model.covers(features, device.id)
        return (model, features) if known else None


def _pass(op: Op) -> str:
    return "backward" if "backward" in op.base else "forward"


def _estimate(op: Op, device: Device, model: MlpModel, features: Features) -> Estimate | None:
    least = bound(op, device)
    if least is None or least.seconds <= 0:
        return None
    (answer_s,) = model.seconds([features])
    if not model.least_s < answer_s < math.inf:
        return None
    seconds = max(answer_s, least.seconds)
    return Estimate(
        seconds=seconds,
        low_s=max(seconds * model.low, least.seconds),
        high_s=seconds * model.high,
        source="mlp",
    )
