"""Runs of three networks with many batch sizes and lengths, timed on our H200.

The batches are those of Gianniti et al. 2019 (section 4.3); the lengths are our own.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from pathlib import Path

from wavecast.runs.regression.end_to_end import BATCHES, NETS

ITERATIONS = (10, 12, 15, 17, 20, *range(25, 96, 5))
"""What was measured before section 4.3 of the paper was read to its end. 13 of these 20 are a tenth
of the printed ones (`wavecast.runs.regression.end_to_end.ITERATIONS`), which
measurements/h200/run_grid.csv has."""
__all__ = ["BATCHES", "ITERATIONS", "NETS", "VARIANTS", "GridRow", "Variant", "layer_key", "read"]
SHORT = 5
"""How many of the shortest lengths are separate runs."""
PASSES = 2
"""How often the grid is gone through; each pass has its own start-ups."""
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
    """The number of its start-up. Rows of one start-up and one run share their noise."""
    order: int
    """The position of the run among all runs of its variant."""
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
    """How many of the shortest lengths are separate runs."""

    @property
    def name(self) -> str:
        """The phase, the mode and the precision in one line."""
        return f"{self.phase} {self.mode} {self.precision}"


VARIANTS = (
    Variant("training", "graph", "tf32", PASSES, SHORT),
    Variant("training", "eager", "tf32", 1, 0),
    Variant("testing", "graph", "tf32", 1, 0),
    Variant("training", "graph", "fp32", 1, SHORT),
    Variant("testing", "graph", "fp32", 1, 0),
)


def read(path: Path) -> list[GridRow]:
    """The rows of a table. No rows if the file does not exist."""
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
