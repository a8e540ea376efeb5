"""What ops that the user measured say about the predictions of other ops on the same GPU.

Logarithms of measured over predicted time are taken as a Gaussian process (Rasmussen and Williams,
"Gaussian Processes for Machine Learning", 2006, equation 2.23). Ops err alike if the op model sees
them alike, and more so if they are the same op: the features of its trees (`learned.features`) are
the places of the process. Ops without features err alike if they are of one kind and take about as
long. The correction of an op is the mean of the process, given what was measured. So an op that is
like none that was measured keeps its prediction, and what a single op says is shrunk.
`lab.score.corrections` says what this is worth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.files import shipped_toml
from wavecast.predictors.learned.batch import readable_parts
from wavecast.predictors.learned.features import FEATURES
from wavecast.predictors.learned.gpus import Floats, GpuFacts
from wavecast.predictors.learned.physics.columns import Row, columns_of
from wavecast.traces.step import Op

MODEL_SPREAD, NAME_SPREAD = 0.35, 0.2
"""How much ops of one model, and the same op, err alike where their features are equal: standard
deviations of logarithms. These and the constants below were fitted by maximum likelihood on swept
layers, and noise and times then chosen on steps that `lab.score.corrections` does not score."""
FEATURE_LENGTH = 4.5
"""The distance between features at which ops are no longer alike. Each feature counts in units of
its standard deviation over swept layers (`data/models/corrections.toml`)."""
KIND_SPREAD, OP_SPREAD = 0.15, 0.1
"""How much ops without features of one kind, and the same op, err alike if they take equally
long."""
TIME_LENGTH = 2.5
"""The difference of the logarithms of times at which they no longer do."""
NOISE = 0.2
"""What a single op is off by chance."""
SHORT_S = 3e-6
"""An op that takes this long has twice the variance of a long one."""
MOST_OFF = 1.0
"""Logarithms beyond this are cut off: such an op was not understood."""


@dataclass(frozen=True)
class OpPlace:
    """What the correction of an op depends on."""

    kind: str
    """Its kind and unit ("matmul/bf16_tensor")."""
    name: str
    model: str
    """The op model of its first part ("convolution"); empty if no sweep has such ops."""
    features: tuple[float, ...]
    """The features by which the trees of that model know it."""
    seconds: float
    """Its predicted time. The measured one would not do: of two ops that were predicted alike, the
    slower would count as the larger, and corrections would be too long."""


@dataclass(frozen=True)
class OpOff:
    """How far off the prediction of a measured op was."""

    place: OpPlace
    off: float
    """The logarithm of measured over predicted time."""


def places(given: Sequence[Op], seconds: Sequence[float], gpu: GpuFacts | None) -> list[OpPlace]:
    """What the corrections of ops depend on, given their predicted times on a GPU."""
    known = {} if gpu is None else features_of(given, gpu)
    found = []
    for number, (op, predicted) in enumerate(zip(given, seconds, strict=True)):
        model, features = known.get(number, ("", ()))
        if model not in scales():
            model, features = "", ()
        found.append(OpPlace(f"{ops.kind(op)}/{ops.unit(op)}", op.base, model, features, predicted))
    return found


def features_of(given: Sequence[Op], gpu: GpuFacts) -> dict[int, tuple[str, tuple[float, ...]]]:
    """The op model of the first part of each op, and its features there, by the op's position."""
    rows: dict[str, dict[int, Row]] = {}
    for number, op in enumerate(given):
        parts = readable_parts(op) if ops.launches(op) else None
        if parts:
            rows.setdefault(parts[0].model, {})[number] = parts[0].row
    found: dict[int, tuple[str, tuple[float, ...]]] = {}
    for model, of_model in rows.items():
        with np.errstate(all="ignore"):
            features = FEATURES[model](columns_of(list(of_model.values())), gpu)
        values = np.nan_to_num(features).round(2).tolist()
        found |= {n: (model, tuple(row)) for n, row in zip(of_model, values, strict=True)}
    return found


@dataclass(frozen=True)
class Corrections:
    """What measured ops say about the predictions for one GPU."""

    gpu: str
    """The id of the GPU."""
    day: date
    """The day on which they were learned."""
    steps: int
    """The number of measured steps."""
    errors: tuple[OpOff, ...] = field(repr=False)
    """The ops of these steps."""
    swept: tuple[OpOff, ...] = field(default=(), repr=False)
    """Ops of single layers that a sweep measured."""

    @property
    def counted(self) -> str:
        """What was measured, in words: "3 steps and 5000 single ops"."""
        counts = (self.steps, "step"), (len(self.swept), "single op")
        return " and ".join(f"{n} {what}{'s' * (n > 1)}" for n, what in counts if n)

    def factors(self, asked: Sequence[OpPlace]) -> Floats:
        """The time of each op over its predicted time."""
        factors = np.ones(len(asked))
        for model, (known, weights) in self._weights.items():
            rows = [n for n, place in enumerate(asked) if place.model == model]
            if rows:
                some = [asked[n] for n in rows]
                factors[rows] = np.exp(_alike(some, known) @ weights)
        return factors

    def __or__(self, other: Corrections) -> Corrections:
        """What both say of their GPU. What they have in common counts once."""
        common = bool(set(self.errors) & set(other.errors))
        return Corrections(
            self.gpu,
            max(self.day, other.day),
            max(self.steps, other.steps) if common else self.steps + other.steps,
            tuple(dict.fromkeys((*self.errors, *other.errors))),
            tuple(dict.fromkeys((*self.swept, *other.swept))),
        )

    @cached_property
    def _weights(self) -> dict[str, tuple[list[OpPlace], Floats]]:
        """The measured ops of each model, and by how much each of them counts."""
        return dict(self._solved())

    def _solved(self) -> Iterator[tuple[str, tuple[list[OpPlace], Floats]]]:
        every = (*self.errors, *self.swept)
        for model in dict.fromkeys(row.place.model for row in every):
            rows = [row for row in every if row.place.model == model]
            known = [row.place for row in rows]
            noise = [NOISE**2 * (1 + SHORT_S / place.seconds) for place in known]
            off = np.array([row.off for row in rows])
            yield model, (known, np.linalg.solve(_alike(known, known) + np.diag(noise), off))


def _alike(some: Sequence[OpPlace], others: Sequence[OpPlace]) -> Floats:
    """The covariance of the errors of ops of one model: a row for each of some."""
    name = _equal([one.name for one in some], [one.name for one in others])
    if some[0].features:
        near: Floats = np.exp(-_distance(some, others) / FEATURE_LENGTH)
        return near * (MODEL_SPREAD**2 + NAME_SPREAD**2 * name)
    kind = _equal([one.kind for one in some], [one.kind for one in others])
    left, right = (np.log([one.seconds for one in those]) for those in (some, others))
    timely: Floats = np.exp(-((left[:, None] - right[None]) ** 2) / (2 * TIME_LENGTH**2))
    return timely * (KIND_SPREAD**2 * kind + OP_SPREAD**2 * name)


def _equal(names: Sequence[str], with_names: Sequence[str]) -> NDArray[np.bool_]:
    numbers = {name: n for n, name in enumerate(dict.fromkeys((*names, *with_names)))}
    left, right = (np.array([numbers[name] for name in those]) for those in (names, with_names))
    same: NDArray[np.bool_] = left[:, None] == right[None]
    return same


def _distance(some: Sequence[OpPlace], others: Sequence[OpPlace]) -> Floats:
    """How far apart the features of ops are."""
    scale = scales()[some[0].model]
    left, right = (np.array([one.features for one in those]) / scale for those in (some, others))
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2 * left @ right.T
    distance: Floats = np.sqrt(np.maximum(squares, 0.0))
    return distance


@cache
def scales() -> Mapping[str, Floats]:
    """The standard deviation of each feature over swept layers, by op model.

    It is infinite for a feature that did not vary.
    """
    shipped = shipped_toml("models/corrections.toml")["scales"]
    return {
        model: np.array([scale if scale > 0 else math.inf for scale in known])
        for model, known in shipped.items()
    }
