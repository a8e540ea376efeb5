"""Fit one op model: the constants of its physics by least squares, then trees on the residuals."""

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
from wavecast.predictors.learned.gpus import Floats
from wavecast.predictors.learned.model import (
    FEATURES,
    PHYSICS,
    REACH,
    Forest,
    OpModel,
    chips_of,
    classes_of,
    filter_families,
    generation_of,
    in_groups,
)
from wavecast.predictors.learned.tiles import Bounds, Theta, TimeLimits

SAMPLE = 2500
"""The most rows for the fit of the physics; a dozen constants need no more."""
MOST = 4.0
"""The largest weight of a row relative to the median row of its GPU; the smallest is 1 / MOST."""
SCALE = 0.15
"""Errors of the logarithm above this are weighted linearly, smaller ones quadratically."""
PRIOR = 8.0
"""How strongly a constant is pulled to its physical guess. Without measurements it stays there."""
GPU_ROWS = 8.0
"""The weight of a GPU's mean error, as the square root of a number of rows. The effect of shapes is
learned from differences between ops on one GPU. The level of a GPU is learned from differences
between GPUs, which all have the same weight."""
ALIKE = ("stream", "depthwise")
"""Models without that weight: on some GPUs a single such op was measured, whose error would be
taken for the error of the GPU."""
GENERATIONS = ("product", "convolution", "recurrent")
"""Models with a constant for each architecture."""
LEAST_SHARE = 0.02
"""The smallest factor on the weight of a row that says little about the chip (`_telling`)."""
FAMILY_ROWS = 4.0
"""A family's factor is its mean, shrunk as if this many more rows had a factor of one."""
CHIP_TREES: Mapping[int, dict[str, Any]] = {
    200: {"trees": 150, "depth": 5, "rate": 0.08, "least": 10.0},
    400: {"trees": 150, "depth": 6, "rate": 0.2, "least": 5.0},
    3000: {"trees": 200, "depth": 7, "rate": 0.2, "least": 3.0},
}
"""The size of a chip's own trees by its number of rows. Below the first number it gets none."""
IN_GROUPS: Mapping[str, Any] = {"trees": 200, "rate": 0.2, "least": 5.0}
"""The size of the trees for grouped convolutions. These were measured on one chip only; more trees
would learn what is special about that chip."""
FURTHER: Mapping[str, Any] = {"trees": 100, "rate": 0.08, "least": 10.0}
"""The size of the trees that are grown further on the rows of a later campaign."""
LEAST_SEEN = 10
"""The fewest rows of a family for which a chip's trees are trusted."""
FOLDS = 4
"""The folds of the cross-validation over families."""
MOST_ELEMENTWISE = 0.1
"""The largest offset of an elementwise op. On the GPUs where all of them were measured (NeuSight)
they take the same time. Differences on one GPU come from the contents of its L2 cache."""


def weights(table: OpTable) -> Floats:
    """The weight of each row.

    A GPU's total weight grows with the square root of its number of rows. On one GPU, long ops
    weigh more, by the square root of their time: short ops are many but a small part of a step.
    """
    weight = np.zeros(len(table))
    for gpu in np.unique(table.gpu):
        rows = table.gpu == gpu
        longer = np.sqrt(table.seconds[rows] / np.median(table.seconds[rows]))
        weight[rows] = np.clip(longer, 1 / MOST, MOST)
        weight[rows] *= np.sqrt(rows.sum()) / weight[rows].sum()
    scaled: Floats = weight / weight.mean()
    return scaled


def middle(values: Floats, weight: Floats) -> float:
    """The weighted median."""
    order = np.argsort(values)
    below = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])


def fit(name: str, table: OpTable, others: Mapping[str, OpModel], *, chips: bool = True) -> OpModel:
    """The fitted model of a name.

    Args:
        name: the model, such as "product".
        table: the measured ops.
        others: fitted models, which predict the parts of these ops that belong to other models.
        chips: whether to grow trees for the chips of these rows; other chips do not use them.
    """
    model = OpModel(name, _constants(name, table, others))
    if name == "stream":
        model = replace(model, families=_families(table, model))
    if name in GENERATIONS:
        model = replace(model, generations=_generations(table, model, others))
    part = table.parts[name]
    residual = _left(table, model, others)
    features = FEATURES[name](part.columns, table.facts(name))
    weight = _telling(table, model)[part.row]
    families = filter_families(name, features)
    model = replace(model, forest=shared_trees(features, residual[part.row], weight, families))
    return replace(model, chips=_chips(table, model, others)) if chips else model


def shared_trees(features: Floats, left: Floats, weight: Floats, row_families: Floats) -> Forest:
    """Trees for all chips, and more trees for the errors that remain on grouped convolutions.

    `row_families` is the filter family of each row.
    """
    forest = grow(features, left, weight)
    grouped = row_families[:, -1] > 0 if row_families.shape[1] else np.zeros(len(left), bool)
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
    """The constants with the least robust squared error.

    Args:
        parameters: the start and the bounds of each constant.
        missed: the errors of the logarithm for given constants.
        prior: how strongly a constant is pulled to its start.
        calls: the most evaluations of `missed`.
    """
    names = list(parameters)
    start, low, high = np.array([parameters[name] for name in names]).T

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
    return {name: float(f"{value:.5g}") for name, value in zip(names, best.x, strict=True)}


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
    """The errors of the logarithm that remain for the trees, less the median error of each GPU.

    A GPU's median error says nothing about the next GPU. If it stayed in, the trees would learn to
    tell GPUs apart.
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
    """The weight of each row, reduced where memory or the launch bounds the op and not the chip."""
    weight: Floats = weights(table) * np.maximum(_limits(table, model).share(), LEAST_SHARE)
    return weight


def _missed(table: OpTable, model: OpModel, others: Mapping[str, OpModel]) -> Floats:
    """The logarithm of the factor on the chip's time that would make the prediction exact.

    The offsets of families and generations that the model has already learned are subtracted.
    """
    own_s = np.maximum(table.seconds - table.predicted(others), 0.2 * table.seconds)
    part, places = table.parts[model.name], _places(table, model.name)
    learned = np.array([model.families.get(family, 0.0) for family in part.family])
    keys = generation_of(part.columns, table.facts(model.name))
    learned += np.array([model.generations.get(str(key), 0.0) for key in keys])
    missed: Floats = np.log(_limits(table, model).factor(own_s, np.exp(-REACH))) - learned[places]
    return missed


def _limits(table: OpTable, model: OpModel) -> TimeLimits:
    """The physical limits of each row, summed over its parts of this model."""
    part = table.parts[model.name]
    of_parts = PHYSICS[model.name][0](part.columns, table.facts(model.name), model.theta)
    return TimeLimits(
        *(table.sum_of(model.name, np.broadcast_to(s, part.row.shape)) for s in of_parts)
    )


def _shared(table: OpTable, model: str) -> Floats:
    """The trust in an op's factor: n / (n + 1) if the op was measured on n GPUs."""
    family = table.parts[model].family[_places(table, model)]
    gpus: dict[str, set[str]] = {}
    for name, gpu in zip(family, table.gpu, strict=True):
        gpus.setdefault(name, set()).add(gpu)
    trust: Floats = np.array([len(gpus[name]) / (len(gpus[name]) + 1) for name in family])
    return trust


def _chips(table: OpTable, model: OpModel, others: Mapping[str, OpModel]) -> dict[str, Forest]:
    """Trees on the model's errors, for each chip and class of units with enough rows.

    GPUs that differ only in memory or cooling count as one chip.
    """
    forests = {}
    chips = _chip_of_rows(table, model.name)
    for chip in np.unique(chips):
        here = table.where((chips == chip) & ~_in_groups(table, model.name))
        sizes = [size for rows, size in CHIP_TREES.items() if len(here) >= rows]
        if not sizes:
            continue
        residual = _chip_errors(here, model, others)
        part = here.parts[model.name]
        features = FEATURES[model.name](part.columns, here.facts(model.name))
        weight = weights(here)[part.row]
        families = filter_families(model.name, features)
        forests[str(chip)] = trusted(features, residual[part.row], weight, families, sizes[-1])
    return forests


def further_trees(
    table: OpTable,
    new: NDArray[np.bool_],
    model: OpModel,
    others: Mapping[str, OpModel],
    share: float = 1.0,
) -> dict[str, Forest]:
    """The trees of chips, and more trees on the errors that remain with new rows.

    The new rows of a chip weigh `share` of what all its others do together. The others keep the
    trees from changing elsewhere.
    """
    forests = dict(model.chips)
    chips = _chip_of_rows(table, model.name)
    for chip in set(np.unique(chips[new])) & set(model.chips):
        rows = (chips == chip) & ~_in_groups(table, model.name)
        here, is_new = table.where(rows), new[rows]
        part = here.parts[model.name]
        weight = weights(here)
        weight[is_new] *= share * weight[~is_new].sum() / weight[is_new].sum()
        features = FEATURES[model.name](part.columns, here.facts(model.name))
        left = _chip_errors(here, model, others)[part.row]
        depth = model.chips[chip].feature.shape[1]
        more = grow(features, left, weight[part.row], depth=depth, **FURTHER)
        forests[chip] = model.chips[chip].and_then(more)
    return forests


def _chip_of_rows(table: OpTable, model: str) -> NDArray[np.str_]:
    """The key of each row in `OpModel.chips`."""
    facts = table.facts(model)
    return chips_of(classes_of(table.parts[model].columns, facts), facts)[_places(table, model)]


def _in_groups(table: OpTable, model: str) -> NDArray[np.bool_]:
    """Whether each row is a convolution in groups, of which trees of chips say nothing."""
    features = FEATURES[model](table.parts[model].columns, table.facts(model))
    return in_groups(model, features)[_places(table, model)]


def _chip_errors(table: OpTable, model: OpModel, others: Mapping[str, OpModel]) -> Floats:
    """The errors of the logarithm that the model leaves, within what trees may correct."""
    own_s = np.maximum(table.seconds - table.predicted(others), 0.2 * table.seconds)
    errors: Floats = np.clip(np.log(own_s / table.predicted({model.name: model})), -REACH, REACH)
    return errors


def trusted(
    features: Floats, left: Floats, weight: Floats, row_families: Floats, size: Mapping[str, Any]
) -> Forest:
    """Trees, the families that they were trained on, and the trust in them for other families.

    The trust is the slope of a regression of the errors on the trees' answers, where each family is
    answered by trees that were grown without it. `row_families` is the filter family of each row.
    """
    forest = grow(features, left, weight, **size)
    if not row_families.shape[1]:
        return forest
    families, which, count = np.unique(
        row_families, axis=0, return_inverse=True, return_counts=True
    )
    which = which.ravel()
    folds = np.random.default_rng(0).permutation(len(families))[which] % FOLDS
    answers = np.zeros(len(left))
    for fold in range(FOLDS):
        out = folds == fold
        if out.any() and not out.all():
            answers[out] = grow(features[~out], left[~out], weight[~out], **size)(features[out])
    answers = np.clip(answers, -REACH, REACH)
    slope = (weight * answers * left).sum() / max((weight * answers**2).sum(), 1e-9)
    return replace(
        forest, families=families[count >= LEAST_SEEN], trust=float(f"{np.clip(slope, 0, 1):.3f}")
    )


def _places(table: OpTable, model: str) -> NDArray[np.int64]:
    """The position of each row's part of this model; of several parts, the last."""
    part = table.parts[model]
    places = np.zeros(len(table), np.int64)
    places[part.row] = np.arange(len(part.row))
    return places


def _generations(table: OpTable, model: OpModel, others: Mapping[str, OpModel]) -> dict[str, float]:
    """The mean over each architecture's GPUs of their median error, by key of generation.

    It is shrunk as if one more GPU had no error.
    """
    part = table.parts[model.name]
    key = generation_of(part.columns, table.facts(model.name))[_places(table, model.name)]
    predicted_s = table.predicted(dict(others) | {model.name: model})
    left = np.clip(np.log(table.seconds / predicted_s), -REACH, REACH)
    offsets, weight = {}, weights(table)
    for generation in np.unique(key):
        groups = [
            (key == generation) & (table.gpu == gpu)
            for gpu in np.unique(table.gpu[key == generation])
        ]
        medians = [middle(left[here], weight[here]) for here in groups if here.sum() >= 10]
        if medians:
            offsets[str(generation)] = float(f"{sum(medians) / (len(medians) + 1):.4f}")
    return offsets


def _families(table: OpTable, model: OpModel) -> dict[str, float]:
    """The offset of each op name: how much longer it takes than similar ops on the same GPU.

    It is the mean over GPUs, shrunk as if one more GPU showed no difference, because one GPU may be
    special. A row counts as far as the chip bounds it: launches say nothing about an op's kernels.
    """
    family = table.parts[model.name].family[_places(table, model.name)]
    left = np.clip(_missed(table, model, {}), -REACH, REACH)
    share = _limits(table, model).share()
    offsets, weight = {}, _telling(table, model)
    for name in np.unique(family):
        of_gpus, rows = [], 0.0
        for gpu in np.unique(table.gpu[family == name]):
            here = (family == name) & (table.gpu == gpu)
            of_gpus.append(middle(left[here], weight[here]))
            rows += float(share[here].sum())
        shrunk = sum(of_gpus) / (len(of_gpus) + 1) * rows / (rows + FAMILY_ROWS)
        if ops.kind_of(str(name)) is Kind.ELEMENTWISE:
            shrunk = min(max(shrunk, -MOST_ELEMENTWISE), MOST_ELEMENTWISE)
        offsets[str(name)] = float(f"{shrunk:.4f}")
    return offsets
