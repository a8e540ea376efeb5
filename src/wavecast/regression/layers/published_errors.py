"""The published errors of multi-GPU models, cell by cell (slides of Gianniti et al. 2019).

    mean_error("gpu_number")  # 0.1327, over 18 cells

The slides extrapolate along four axes, and print a mean absolute relative error for each network,
framework and GPU. They do not publish the times. `SOURCE` says where each table stands.
"""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from wavecast.errors import UnknownName
from wavecast.files import shipped

EXPERIMENTS: Mapping[str, str] = {
    "power": "power",
    "gpu_number": "gpus",
    "inner_modules": "inner_modules",
    "batch_size": "batch",
}
"""The experiments of the slides, and the axis of `wavecast.Extrapolation` for each."""
SOURCE = (
    "slides of E. Gianniti, L. Zhang, D. Ardagna, Performance Prediction of GPU-based Deep "
    "Learning Applications, CLOSER 2019: the four multi-GPU tables at their end"
)
FILE = "published/multi_gpu.csv"


@dataclass(frozen=True, slots=True)
class PublishedError:
    """One cell of the slides' tables."""

    experiment: str
    network: str
    framework: str
    gpu: str
    """The GPU; empty if the cell is about all of them."""
    gpus: int | None
    """The number of GPUs; None if the cell is about all of them."""
    most_modules: int | None
    """The largest number of inner modules in the fit; None in the other experiments."""
    error: float
    """The mean absolute relative error."""


@functools.cache
def published_errors() -> tuple[PublishedError, ...]:
    """All cells that have a value. VGG-19 was not run on the P600, so two cells have none."""
    with shipped(FILE).open(newline="", encoding="utf-8") as file:
        return tuple(
            PublishedError(
                row["experiment"],
                row["network"],
                row["framework"],
                row["gpu_type"],
                int(row["n_gpus"]) if row["n_gpus"] else None,
                int(row["max_inner_modules"]) if row["max_inner_modules"] else None,
                float(row["mape_pct"]) / 100,
            )
            for row in csv.DictReader(file)
            if row["mape_pct"]
        )


def errors_of(experiment: str) -> tuple[float, ...]:
    """The errors of one experiment.

    Raises:
        UnknownName: there is no such experiment.
    """
    if experiment not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise UnknownName(f'there is no experiment "{experiment}"; the slides have {known}')
    return tuple(cell.error for cell in published_errors() if cell.experiment == experiment)


def mean_error(experiment: str) -> float:
    """The mean of an experiment's cells."""
    return statistics.mean(errors_of(experiment))
