"""Measured ops as arrays: the parts of each op by model, with the properties of its GPU."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.measured.op_makers import OpRow
from wavecast.hardware.devices import device
from wavecast.predictors.learned.batch import Part, parts_of
from wavecast.predictors.learned.columns import Columns, Row, columns_of
from wavecast.predictors.learned.gpus import Floats, GpuFacts, gpu_of, joined
from wavecast.predictors.learned.model import OpModel
from wavecast.traces.step import Op


@dataclass(frozen=True, eq=False)
class PartTable:
    """All parts that one model predicts, with the measured op to which each belongs."""

    columns: Columns
    row: NDArray[np.int64]
    """The position of the measured op in the table."""
    family: NDArray[Any]
    """The name of the op."""


@dataclass(frozen=True, eq=False)
class OpTable:
    """Measured ops whose first part belongs to the same model."""

    rows: Sequence[OpRow]
    gpu: NDArray[Any]
    seconds: Floats
    parts: Mapping[str, PartTable]
    gpus: Sequence[GpuFacts]
    which: NDArray[np.int64]
    """The position of each row's GPU in `gpus`."""

    def __len__(self) -> int:
        return len(self.rows)

    def facts(self, model: str) -> GpuFacts:
        """The properties of the GPU of each part."""
        return joined(list(self.gpus), self.which[self.parts[model].row])

    def where(self, chosen: NDArray[np.bool_]) -> OpTable:
        """The measured ops that a mask selects."""
        kept = np.flatnonzero(chosen)
        place = np.full(len(self), -1)
        place[kept] = np.arange(len(kept))
        parts = {}
        for name, part in self.parts.items():
            stays = chosen[part.row]
            columns = {key: values[stays] for key, values in part.columns.items()}
            parts[name] = PartTable(columns, place[part.row[stays]], part.family[stays])
        rows = [self.rows[int(i)] for i in kept]
        return OpTable(rows, self.gpu[kept], self.seconds[kept], parts, self.gpus, self.which[kept])

    def sum_of(self, model: str, seconds: Floats) -> Floats:
        """The sum of the seconds of each measured op's parts."""
        sums: Floats = np.bincount(
            self.parts[model].row, weights=seconds, minlength=len(self)
        ).astype(np.float64)
        return sums

    def predicted(self, models: Mapping[str, OpModel]) -> Floats:
        """The time of each measured op by these models; parts of other models count as zero."""
        total = np.zeros(len(self))
        for name, model in models.items():
            if name in self.parts and len(self.parts[name].row):
                part = self.parts[name]
                added = np.array([model.families.get(family, 0.0) for family in part.family])
                total += self.sum_of(name, model.seconds(part.columns, self.facts(name), added))
        return total


_OpParts = tuple[OpRow, list[tuple[str, Part]]]
"""A measured op, and its parts with the names of their ops."""


def tables(rows: Iterable[OpRow]) -> dict[str, OpTable]:
    """A table for each model: the measured ops whose first part belongs to it."""
    by_model: dict[str, list[_OpParts]] = {}
    facts_of = functools.cache(lambda gpu: gpu_of(device(gpu)))
    for row in rows:
        parts = [(op.base, part) for op in row.ops for part in _parts(op)]
        if parts and facts_of(row.gpu) is not None:
            by_model.setdefault(parts[0][1].model, []).append((row, parts))
    return {model: _table(group) for model, group in by_model.items()}


@functools.cache
def _parts(op: Op) -> Sequence[Part]:
    """The parts of an op. Fits that leave something out share most of their ops."""
    return tuple(parts_of(op))


def _table(group: list[_OpParts]) -> OpTable:
    rows: dict[str, list[Row]] = {}
    owners: dict[str, list[int]] = {}
    families: dict[str, list[str]] = {}
    for position, (_, op_parts) in enumerate(group):
        for base, part in op_parts:
            rows.setdefault(part.model, []).append(part.row)
            owners.setdefault(part.model, []).append(position)
            families.setdefault(part.model, []).append(base)
    parts = {
        model: PartTable(columns_of(model_rows), np.array(owners[model]), np.array(families[model]))
        for model, model_rows in rows.items()
    }
    gpu = np.array([row.gpu for row, _ in group])
    names, which = np.unique(gpu, return_inverse=True)
    gpus = [gpu_of(device(str(name))) for name in names]
    return OpTable(
        [row for row, _ in group],
        gpu,
        np.array([row.seconds for row, _ in group]),
        parts,
        [facts for facts in gpus if facts is not None],
        which,
    )
