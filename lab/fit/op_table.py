"""Measured rows as arrays: the parts of their ops, by model, with the facts of their GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.measured.op_data import OpRow
from wavecast.hardware.devices import device
from wavecast.predictors.learned.gpus import Floats, GpuFacts, gpu_of, joined
from wavecast.predictors.learned.model import OpModel
from wavecast.predictors.learned.physics.parts import COLUMNS, parts_of


@dataclass(frozen=True, eq=False)
class PartTable:
    """All parts of one model: their numbers, the rows they belong to, and the op's name."""

    columns: Mapping[str, Floats]
    row: NDArray[np.int64]
    family: NDArray[Any]


@dataclass(frozen=True, eq=False)
class OpTable:
    """Rows of one main model (that of their first part)."""

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
        """Of the GPU of each part."""
        return joined(list(self.gpus), self.which[self.parts[model].row])

    def where(self, chosen: NDArray[np.bool_]) -> OpTable:
        """Those rows that a mask selects."""
        kept = np.flatnonzero(chosen)
        place = np.full(len(self), -1)
        place[kept] = np.arange(len(kept))
        parts = {}
        for name, each in self.parts.items():
            stays = chosen[each.row]
            columns = {key: values[stays] for key, values in each.columns.items()}
            parts[name] = PartTable(columns, place[each.row[stays]], each.family[stays])
        rows = [self.rows[int(i)] for i in kept]
        return OpTable(rows, self.gpu[kept], self.seconds[kept], parts, self.gpus, self.which[kept])

    def sum_of(self, model: str, seconds: Floats) -> Floats:
        """Each row's sum of its parts' seconds."""
        found: Floats = np.bincount(
            self.parts[model].row, weights=seconds, minlength=len(self)
        ).astype(np.float64)
        return found

    def predicted(self, models: Mapping[str, OpModel]) -> Floats:
        """Each row's time by these models; parts of other models take none."""
        total = np.zeros(len(self))
        for name, model in models.items():
            if name in self.parts and len(self.parts[name].row):
                part = self.parts[name]
                added = np.array([model.families.get(family, 0.0) for family in part.family])
                total += self.sum_of(name, model.seconds(part.columns, self.facts(name), added))
        return total


def tables(rows: Iterable[OpRow]) -> dict[str, OpTable]:
    """A table for each model, of the rows whose first part is its."""
    sorted_rows: dict[str, list[tuple[OpRow, list[tuple[str, str, tuple[float, ...]]]]]] = {}
    for row in rows:
        found = [(part.model, op.base, part.numbers) for op in row.ops for part in parts_of(op)]
        if found and gpu_of(device(row.gpu)) is not None:
            sorted_rows.setdefault(found[0][0], []).append((row, found))
    return {name: _table(group) for name, group in sorted_rows.items()}


def _table(group: list[tuple[OpRow, list[tuple[str, str, tuple[float, ...]]]]]) -> OpTable:
    numbers: dict[str, list[tuple[float, ...]]] = {}
    owners: dict[str, list[int]] = {}
    families: dict[str, list[str]] = {}
    for position, (_, found) in enumerate(group):
        for model, base, values in found:
            numbers.setdefault(model, []).append(values)
            owners.setdefault(model, []).append(position)
            families.setdefault(model, []).append(base)
    parts = {
        model: PartTable(
            dict(zip(COLUMNS[model], np.array(values).T.copy(), strict=True)),
            np.array(owners[model]),
            np.array(families[model]),
        )
        for model, values in numbers.items()
    }
    gpu = np.array([row.gpu for row, _ in group])
    names, which = np.unique(gpu, return_inverse=True)
    gpus = [gpu_of(device(str(name))) for name in names]
    return OpTable(
        [row for row, _ in group],
        gpu,
        np.array([row.seconds for row, _ in group]),
        parts,
        [each for each in gpus if each is not None],
        which,
    )
