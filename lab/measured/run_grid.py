"""Runs of three networks over batches and iterations, as `lab.collect.run_grid` timed them.

The grid is that of Gianniti et al. 2019 (section 4.3), its iterations divided by ten.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

NETS = ("alexnet", "googlenet", "vgg16")
BATCHES = tuple(range(8, 65, 8))
ITERATIONS = (10, 12, 15, 17, 20, *range(25, 96, 5))
"""A tenth of the paper's 20 values. We know its thresholds (150, 170, 200) and the condition
numbers of its designs, which leave 100 and 120 as the first two; the 15 above 200 are our own."""
SHORT = 5
PASSES = 2
LAYER_BATCHES = (16, 64)
LAYER_PRECISIONS = ("tf32", "fp32")


@dataclass(frozen=True)
class GridRow:
    """One timed run."""

    net: str
    phase: str
    mode: str
    precision: str
    batch: int
    iterations: int
    seconds: float
    startup_s: float
    start: int
    """Which start-up it belongs to; rows of one start-up and one run share its noise."""
    order: int
    gpu: str
    software: str


@dataclass(frozen=True)
class Variant:
    """A way to run the whole grid."""

    phase: str
    mode: str
    precision: str
    passes: int
    short: int
    """So many of the shortest lengths are runs of their own."""

    @property
    def name(self) -> str:
        return f"{self.phase} {self.mode} {self.precision}"


VARIANTS = (
    Variant("training", "graph", "tf32", PASSES, SHORT),
    Variant("training", "eager", "tf32", 1, 0),
    Variant("testing", "graph", "tf32", 1, 0),
    Variant("training", "graph", "fp32", 1, SHORT),
    Variant("testing", "graph", "fp32", 1, 0),
)


def read(path: Path) -> list[GridRow]:
    """The rows of a table that was begun; none if it was not."""
    if not path.exists():
        return []
    kinds = {"int": int, "float": float, "str": str}
    with path.open(newline="", encoding="utf-8") as file:
        return [
            GridRow(*(kinds[str(field.type)](row[field.name]) for field in fields(GridRow)))
            for row in csv.DictReader(file)
        ]


def layer_key(name: str, batch: int, precision: str) -> str:
    """The key of a net's trace in the campaign `runs`."""
    return f"{name}-b{batch}-{precision}"
