"""Rows of later campaigns of one chip: which of them help, and its trees grown further on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lab.fit.op_fit import further_trees
from lab.fit.op_table import tables
from lab.measured.op_row import OpRow
from wavecast.ops.registry import integer
from wavecast.predictors.learned.model import OpModel

FURTHER = ("stream", "product", "depthwise")
"""Models whose trees of our chip are grown further on the campaign `newer`."""


def with_rows_of_a_chip(
    models: Mapping[str, OpModel], rows: Sequence[OpRow], more: Sequence[OpRow]
) -> dict[str, OpModel]:
    """The models with the trees of chips grown further on more rows; all else stays as it is.

    `rows` are those that the models were fitted on.
    """
    gpus, added = {row.gpu for row in more}, set(map(id, more))
    both = tables([*(row for row in rows if row.gpu in gpus), *more])
    grown, names = dict(models), list(models)
    for name in tables(more):
        new = np.array([id(row) in added for row in both[name].rows])
        others = {key: models[key] for key in names[: names.index(name)]}
        chips = further_trees(both[name], new, models[name], others)
        grown[name] = replace(models[name], chips=chips)
    return grown


def telling_rows(more: Sequence[OpRow]) -> list[OpRow]:
    """The rows of `newer` with half of which the other half is predicted better.

    Recurrent layers and convolutions without groups were predicted worse.
    """
    return [
        row
        for name, table in tables(more).items()
        for row in table.rows
        if name in FURTHER or (name == "convolution" and integer(row.ops[0], "groups", 1) > 1)
    ]
