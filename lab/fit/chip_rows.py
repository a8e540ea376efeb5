"""Rows of later campaigns of one chip: which of them help, and its trees grown further on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from lab.fit.op_fit import further_trees
from lab.fit.op_table import tables
from lab.measured.op_data import OF_A_CHIP, rows_of_a_chip
from lab.measured.op_row import OpRow
from wavecast.predictors.learned.batch import is_masked
from wavecast.predictors.learned.model import OpModel
from wavecast.predictors.learned.predictor import restored, stored
from wavecast.traces.step import Op

FURTHER = ("stream", "product", "depthwise")
"""Models whose trees of our chip are grown further on the campaign `newer`."""
SHARES = {"sounds": 0.3, "odd": 0.3}
"""The weight of a campaign's rows, relative to all rows before; 1 for others. With equal weight,
convolutions of the 84 blind steps were predicted worse."""


def with_rows_of_a_chip(
    models: Mapping[str, OpModel],
    rows: Sequence[OpRow],
    more: Sequence[OpRow],
    share: float = 1.0,
    only: Sequence[str] | None = None,
) -> dict[str, OpModel]:
    """The models with the trees of chips grown further on more rows; all else stays as it is.

    `rows` are those that the models were fitted on; `share` is what the others weigh beside them.
    Models that are not in `only` stay as they are; None stands for all.
    """
    gpus, added = {row.gpu for row in more}, set(map(id, more))
    both = tables([*(row for row in rows if row.gpu in gpus), *more])
    grown, names = dict(models), list(models)
    for name in set(tables(more)) & set(names if only is None else only):
        new = np.array([id(row) in added for row in both[name].rows])
        others = {key: models[key] for key in names[: names.index(name)]}
        chips = further_trees(both[name], new, models[name], others, share)
        grown[name] = replace(models[name], chips=chips)
    return grown


def with_later_rows(
    models: Mapping[str, OpModel], rows: Sequence[OpRow], only: Sequence[str]
) -> tuple[dict[str, OpModel], Sequence[OpRow]]:
    """The models with our chip's trees grown on its later campaigns, and all rows that they saw.

    Models that are not in `only` stay as they are.
    """
    grown, seen = restored(stored(models), list(models)), list(rows)
    for campaign in OF_A_CHIP:
        more = telling_rows(campaign, rows_of_a_chip(campaign))
        grown = with_rows_of_a_chip(grown, seen, more, SHARES.get(campaign, 1.0), only)
        seen += more
    return grown, seen


def telling_rows(campaign: str, more: Sequence[OpRow]) -> Sequence[OpRow]:
    """The rows of a campaign that help to predict others.

    Of `newer`, recurrent layers and convolutions made the other half worse. Of `sounds` and `odd`,
    passes over memory, plain and depthwise convolutions did so with the blind steps; matmuls gained
    nothing. Trees for convolutions in groups made those that were left out of `filters` worse.
    """
    if campaign == "channels-last":
        return more
    return [
        row
        for name, table in tables(more).items()
        for row in table.rows
        if _tells(campaign, name, row.ops[0])
    ]


def _tells(campaign: str, model: str, op: Op) -> bool:
    if model == "convolution":
        return False
    if campaign == "filters":
        return model in ("depthwise", "attention")
    if campaign == "newer":
        return model in FURTHER
    return model == "attention" and is_masked(op)
