"""Fit one op model: constants of the physics by least squares, then trees on what is left."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from lab.fit.boosting import grow
from lab.fit.op_table import OpTable
from wavecast.ops import registry as ops
from wavecast.ops.registry import Kind
from wavecast.predictors.learned.features import FEATURES, filter_families
from wavecast.predictors.learned.gpus import Floats
from wavecast.predictors.learned.model import (
    PHYSICS,
    REACH,
    OpModel,
    chips_of,
    classes_of,
    generation_of,
)
from wavecast.predictors.learned.physics.tiles import Bounds, Theta, TimeLimits
from wavecast.predictors.learned.trees import Forest

SAMPLE = 2500
"""Rows for the physics: a dozen constants need no more."""
MOST = 4.0
"""A row counts at most this many times as much as a usual one of its GPU."""
SCALE = 0.15
"""Errors (in the logarithm) from here on count by their size, no longer by its square."""
PRIOR = 8.0
"""How strongly a constant is held at its physical guess; one without measurements stays there."""
GPU_ROWS = 8.0
"""How much a GPU's mean error counts, as the root of a number of rows. Shapes are learned from how
ops differ on one GPU, and the level of a GPU from how GPUs differ, each counting once."""
ALIKE = ("stream", "depthwise")
"""Models without that weight: some GPUs have one such op, whose error would pass for the GPU's."""
GENERATIONS = ("product", "convolution", "recurrent")
"""Models with a constant for each architecture."""
LEAST_SHARE = 0.02
FAMILY_ROWS = 4.0
"""A family's factor is its mean, shrunk as if so many more rows had a factor of one."""
CHIP_TREES: Mapping[int, dict[str, Any]] = {
    200: {"trees": 150, "depth": 5, "rate": 0.08, "least": 10.0},
    400: {"trees": 150, "depth": 6, "rate": 0.2, "least": 5.0},
    3000: {"trees": 200, "depth": 7, "rate": 0.2, "least": 3.0},
}
"""The fewest rows for which a chip gets its own trees, and the size of those trees."""
IN_GROUPS: Mapping[str, Any] = {"trees": 200, "rate": 0.2, "least": 5.0}
"""Trees for convolutions in groups. They were measured on one chip only, so that few trees must
keep the fit from learning what is special about that chip."""
LEAST_SEEN = 10
"""The fewest rows of a family for which a chip's trees are trusted."""
FOLDS = 4
"""Parts that families are dealt into; each part is left out of the trees once."""
MOST_ELEMENTWISE = 0.1
"""Elementwise ops are alike on the GPUs where all were measured (NeuSight). Differences on one GPU
come from what its L2 cache holds."""


def weights(table: OpTable) -> Floats:
    """The weight of each row: between every row and every GPU counting the same.

    On one GPU long ops count more, by the root of their time: the short ones are many, and what
    they take of a step is little.
    """
    found = np.zeros(len(table))
    for gpu in np.unique(table.gpu):
        rows = table.gpu == gpu
        longer = np.sqrt(table.seconds[rows] / np.median(table.seconds[rows]))
        found[rows] = np.clip(longer, 1 / MOST, MOST)
        found[rows] *= np.sqrt(rows.sum()) / found[rows].sum()
    scaled: Floats = found / found.mean()
    return scaled


def middle(values: Floats, weight: Floats) -> float:
    """The weighted median."""
    order = np.argsort(values)
    below = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def fit(name: str, table: OpTable, others: Mapping[str, OpModel], *, chips: bool = True) -> OpModel:
    """The model of a name, on rows of which `others` predict the parts that are not its.

    `chips`: with trees for the chips of these rows; of no use for others.
    """
    model = OpModel(name, _constants(name, table, others))
    if name == "stream":
        model = replace(model, families=_families(table, model))
    if name in GENERATIONS:
        model = replace(model, generations=_generations(table, model, others))
    part = table.parts[name]
    left = _left(table, model, others)
    features = FEATURES[name](part.columns, table.facts(name))
    weight = _telling(table, model)[part.row]
    sorts = filter_families(name, features)
    model = replace(model, forest=shared_trees(features, left[part.row], weight, sorts))
    return replace(model, chips=_chips(table, model, others)) if chips else model


def shared_trees(features: Floats, left: Floats, weight: Floats, sorts: Floats) -> Forest:
    """Trees for all chips, and more trees for the errors left on convolutions in groups."""
    forest = grow(features, left, weight)
    grouped = sorts[:, -1] > 0 if sorts.shape[1] else np.zeros(len(left), bool)
    if grouped.sum() < min(CHIP_TREES):
        return forest
    missed = np.where(grouped, left - forest(features), 0.0)
    return forest.and_then(grow(features, missed, weight, **IN_GROUPS))


def constants(
    parameters: Mapping[str, Bounds],
    missed: Callable[[Theta], Floats],
    prior: float,
    calls: int | None = None,
) -> dict[str, float]:
    """Those that leave least of what is missed (in the logarithm), within their bounds and not far
    from where they begin."""
    names = list(parameters)
    start, low, high = np.array([parameters[each] for each in names]).T

    def off(x: Floats) -> Floats:
        theta = dict(zip(names, x.tolist(), strict=True))
        return np.concatenate([missed(theta), prior * (x - start) / (high - low)])

    best = least_squares(
        off,
        start,
        bounds=(low, high),
        loss="soft_l1",
        f_scale=SCALE,
        x_scale=(high - low) / 3,
        diff_step=1e-3,
        max_nfev=calls,
    )
    return {each: float(f"{value:.5g}") for each, value in zip(names, best.x, strict=True)}


def _constants(name: str, table: OpTable, others: Mapping[str, OpModel]) -> dict[str, float]:
    weight = weights(table)
    if len(table) > SAMPLE:
        drawn = np.random.default_rng(0).choice(
            len(table), SAMPLE, replace=False, p=weight / weight.sum()
        )
        table = table.where(np.isin(np.arange(len(table)), drawn))
        weight = np.ones(len(table))
    fixed = table.predicted(others)
    root, gpus = np.sqrt(weight), len(table.gpus)
    total = np.maximum(np.bincount(table.which, weights=weight, minlength=gpus), 1e-9)

    def missed(theta: Theta) -> Floats:
        left = np.log((fixed + table.predicted({name: OpModel(name, theta)})) / table.seconds)
        if name in ALIKE:
            return root * left
        of_gpu = np.bincount(table.which, weights=weight * left, minlength=gpus) / total
        return np.concatenate([root * (left - of_gpu[table.which]), GPU_ROWS * of_gpu])

    return constants(PHYSICS[name][1], missed, PRIOR, calls=25)


def _left(table: OpTable, model: OpModel, others: Mapping[str, OpModel]) -> Floats:
    """What the model's parts miss, in the logarithm, less what all rows of a GPU miss.

    A GPU's own share cannot be known of the next one; left in, trees would learn to tell GPUs.
    """
    left = np.clip(_missed(table, model, others), -REACH, REACH)
    weight = _telling(table, model)
    for gpu in np.unique(table.gpu):
        rows = table.gpu == gpu
        left[rows] -= middle(left[rows], weight[rows])
    if model.name == "stream":
        left *= _shared(table, model.name)
    return left


def _telling(table: OpTable, model: OpModel) -> Floats:
    """How much each row says about a model: little where memory or the launch bounds the op."""
    found: Floats = weights(table) * np.maximum(_limits(table, model).share(), LEAST_SHARE)
    return found


def _missed(table: OpTable, model: OpModel, others: Mapping[str, OpModel]) -> Floats:
    """By what the chip's time would have to be multiplied, in the logarithm, beyond what the model
    has learned already: of families and generations."""
    own = np.maximum(table.seconds - table.predicted(others), 0.2 * table.seconds)
    part, last = table.parts[model.name], _places(table, model.name)
    known = np.array([model.families.get(each, 0.0) for each in part.family])
    keys = generation_of(part.columns, table.facts(model.name))
    known += np.array([model.generations.get(str(key), 0.0) for key in keys])
    found: Floats = np.log(_limits(table, model).factor(own, np.exp(-REACH))) - known[last]
    return found


def _limits(table: OpTable, model: OpModel) -> TimeLimits:
    """The sum over the parts of each row."""
    part = table.parts[model.name]
    of_parts = PHYSICS[model.name][0](part.columns, table.facts(model.name), model.theta)
    return TimeLimits(
        *(table.sum_of(model.name, np.broadcast_to(s, part.row.shape)) for s in of_parts)
    )


def _shared(table: OpTable, model: str) -> Floats:
    """How far an op's factor holds for all GPUs: the more GPUs show it, the further."""
    family = table.parts[model].family[_places(table, model)]
    gpus: dict[str, set[str]] = {}
    for name, gpu in zip(family, table.gpu, strict=True):
        gpus.setdefault(name, set()).add(gpu)
    found: Floats = np.array([len(gpus[name]) / (len(gpus[name]) + 1) for name in family])
    return found


def _chips(table: OpTable, model: OpModel, others: Mapping[str, OpModel]) -> dict[str, Forest]:
    """Trees on the model's errors for each chip and class of units with enough rows.

    GPUs that differ in memory or cooling only count as one chip.
    """
    part, facts = table.parts[model.name], table.facts(model.name)
    chips = chips_of(classes_of(part.columns, facts), facts)[_places(table, model.name)]
    found = {}
    for chip in np.unique(chips):
        here = table.where(chips == chip)
        sizes = [size for rows, size in CHIP_TREES.items() if len(here) >= rows]
        if not sizes:
            continue
        own = np.maximum(here.seconds - here.predicted(others), 0.2 * here.seconds)
        left = np.clip(np.log(own / here.predicted({model.name: model})), -REACH, REACH)
        part = here.parts[model.name]
        features = FEATURES[model.name](part.columns, here.facts(model.name))
        weight = weights(here)[part.row]
        sorts = filter_families(model.name, features)
        found[str(chip)] = trusted(features, left[part.row], weight, sorts, sizes[-1])
    return found


def trusted(
    features: Floats, left: Floats, weight: Floats, sorts: Floats, size: Mapping[str, Any]
) -> Forest:
    """Trees, the families of rows that they were trained on, and their worth for other families.

    The worth is the slope of the errors over the trees' answers, each family answered by trees that
    were grown without it.
    """
    forest = grow(features, left, weight, **size)
    if not sorts.shape[1]:
        return forest
    known, which, count = np.unique(sorts, axis=0, return_inverse=True, return_counts=True)
    which = which.ravel()
    folds = np.random.default_rng(0).permutation(len(known))[which] % FOLDS
    said = np.zeros(len(left))
    for fold in range(FOLDS):
        out = folds == fold
        if out.any() and not out.all():
            said[out] = grow(features[~out], left[~out], weight[~out], **size)(features[out])
    said = np.clip(said, -REACH, REACH)
    worth = (weight * said * left).sum() / max((weight * said**2).sum(), 1e-9)
    return replace(
        forest, families=known[count >= LEAST_SEEN], trust=float(f"{np.clip(worth, 0, 1):.3f}")
    )


def _places(table: OpTable, model: str) -> NDArray[np.int64]:
    """The position of each row's part; of several parts, the last."""
    part = table.parts[model]
    found = np.zeros(len(table), np.int64)
    found[part.row] = np.arange(len(part.row))
    return found


def _generations(table: OpTable, model: OpModel, others: Mapping[str, OpModel]) -> dict[str, float]:
    """The mean error of an architecture's GPUs, each counting once.

    It is shrunk as if one more GPU had no error.
    """
    part = table.parts[model.name]
    key = generation_of(part.columns, table.facts(model.name))[_places(table, model.name)]
    said = table.predicted(dict(others) | {model.name: model})
    left = np.clip(np.log(table.seconds / said), -REACH, REACH)
    found, weight = {}, weights(table)
    for each in np.unique(key):
        groups = [(key == each) & (table.gpu == gpu) for gpu in np.unique(table.gpu[key == each])]
        medians = [middle(left[here], weight[here]) for here in groups if here.sum() >= 10]
        if medians:
            found[str(each)] = float(f"{sum(medians) / (len(medians) + 1):.4f}")
    return found


def _families(table: OpTable, model: OpModel) -> dict[str, float]:
    """How much longer ops of a name take than similar ops on the same GPU, each GPU counting once.

    It is shrunk as if one more GPU showed no difference, because one GPU may be special.
    """
    family = table.parts[model.name].family[_places(table, model.name)]
    left = np.clip(_missed(table, model, {}), -REACH, REACH)
    found, weight = {}, _telling(table, model)
    for name in np.unique(family):
        of_gpus, rows = [], 0
        for gpu in np.unique(table.gpu[family == name]):
            here = (family == name) & (table.gpu == gpu)
            of_gpus.append(middle(left[here], weight[here]))
            rows += int(here.sum())
        shrunk = sum(of_gpus) / (len(of_gpus) + 1) * rows / (rows + FAMILY_ROWS)
        if ops.kind_of(str(name)) is Kind.ELEMENTWISE:
            shrunk = min(max(shrunk, -MOST_ELEMENTWISE), MOST_ELEMENTWISE)
        found[str(name)] = float(f"{shrunk:.4f}")
    return found
