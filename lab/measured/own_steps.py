"""Our own measurements as cases: the steps and the suite on our H200."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lab.measured.public_steps.case import Case
from lab.places import H200
from wavecast import suite
from wavecast.runs.suite_results import read_results


def cases(folder: Path = H200) -> Iterator[Case]:
    """The cases of all files that the folder has."""
    if (folder / "steps.csv").exists():
        yield from _steps(folder / "steps.csv")
    for name in ("suite.csv", "suite-half.csv"):
        if (folder / name).exists():
            yield from _suite(folder / name)


def _steps(path: Path) -> Iterator[Case]:
    """Each step once: the mean of its runs. Runs of host-bound steps differ by 18% (median)."""
    runs: dict[tuple[str, str, int], list[dict[str, str]]] = {}
    for row in csv.DictReader(path.open()):
        runs.setdefault((row["model"], row["precision"], int(row["batch"])), []).append(row)
    for (model, precision, batch), rows in runs.items():
        yield Case(
            set="h200 steps",
            gpu="h200-sxm",
            model=model,
            family=model,
            precision=precision,
            batch=batch,
            layout="",
            measured_s=statistics.mean(float(row["steady_s"]) for row in rows),
            make_step=partial(_make_step, model, batch, precision),
            gpu_s=statistics.mean(float(row["gpu_busy_s"]) for row in rows),
        )


def _make_step(model: str, batch: int, precision: str) -> Any:
    from lab.steps.reality import STEPS

    return STEPS[model][0](batch, precision)


def _suite(path: Path) -> Iterator[Case]:
    """The steps of the suite. Each file is a set: their hosts differ in speed by 1.5 times."""
    for row in read_results(path):
        if row.status == "ok" and row.seconds:
            benchmark = suite.benchmark(row.model)
            yield Case(
                set=f"h200 {path.stem}",
                gpu=row.gpu,
                model=row.model,
                family=benchmark.domain,
                precision=row.precision,
                batch=row.batch,
                layout="",
                measured_s=row.seconds,
                make_step=partial(benchmark.make_step, row.batch, row.precision),
                software=row.software,
                gpu_s=row.gpu_s,
            )
