"""How well do runs of Lambda's public benchmark predict more GPUs, or a stronger GPU?

    python -m lab score lambda_runs --data FOLDER

Reads the public set lambda (docs/sources.md) and writes the tables of docs/appendix/runs-gpus.md.
No predicted run is in the fit that predicts it:

- more GPUs: for each GPU, interconnect, software, task, precision and batch, fit the
  runs on 1 and 2 GPUs, and predict those on 4.
- stronger GPUs: for each task, precision and software generation, fit the runs on all GPUs but the
  strongest by its data sheet, and predict those on it. The batch sizes were chosen by the GPUs'
  memory, so GPU and batch change together.
"""

from __future__ import annotations

import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lab import pages
from lab.measured.public_steps.lambda_steps import GPUS
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast.hardware.devices import device
from wavecast.predictors.base import Estimate
from wavecast.runs.regression.extrapolation import Extrapolation, power_of
from wavecast.runs.run import Run

PAGE = pages.APPENDIX / "runs-gpus.md"
MARK = "begin: python -m lab score lambda_runs"
ALLOWED_FLAGS = {"", "reported_above_steady", "reported_below_steady"}
TASKS = ("resnet50", "ssd", "bert_base_squad", "bert_large_squad", "gnmt")
"""The tasks whose times can be trusted, according to the README of the data."""
PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "amp_fp16": "fp16", "fp16_static_scale": "fp16"}
PUBLISHED = {
    "more GPUs": "a mean error of 13.27% and a worst error of 24.75% (18 cells)",
    "stronger GPUs": "a mean error of 10.39% and a worst error of 18.09% (4 cells)",
}
"""The errors that the slides of Gianniti et al. report, on other GPUs and networks."""

Error = tuple[str, float]
"""The task, and the signed relative error of one prediction."""


def more_gpus(folder: Path) -> Iterator[Error]:
    """The errors on 4 GPUs of fits on runs with 1 and 2 GPUs."""
    for run, estimate in beyond(scaled_runs(folder), at_least=4):
        yield run.model, estimate.seconds / run.seconds - 1


def beyond(groups: Iterable[Sequence[Run]], at_least: int) -> Iterator[tuple[Run, Estimate]]:
    """Each run on so many GPUs, and what the runs of its group on fewer say.

    At least two smaller numbers of GPUs are needed.
    """
    for runs in groups:
        for count in sorted({run.gpus for run in runs if run.gpus >= at_least}):
            seen = list(dict.fromkeys(run for run in runs if run.gpus < count))
            if len({run.gpus for run in seen}) < 2:
                continue
            model = Extrapolation("gpus").fit(seen)
            for run in runs:
                if run.gpus == count:
                    yield run, model.predict(batch=run.batch, gpus=count)


def scaled_runs(folder: Path) -> Iterable[list[Run]]:
    """The clean runs on 1, 2 and 4 GPUs, those alike together."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    keys = ("gpu", "interconnect", "base_torch", "task", "precision_effective", "batch_per_gpu")
    for row in _rows(folder / "lambda" / "lambda_scaling.csv"):
        if row["clean"] != "True" or row["task"] not in TASKS:
            continue
        runs = groups[tuple(row[key] for key in keys)]
        batch, count = round(float(row["batch_per_gpu"])), int(row["n_gpu"])
        runs.append(_run(row, batch, 1, float(row["throughput_1"])))
        runs.append(_run(row, batch * count, count, float(row["throughput_n"])))
    return groups.values()


def stronger_gpus(folder: Path) -> Iterator[Error]:
    """The errors on the strongest GPU of fits on runs on weaker GPUs."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    keys = ("task", "precision_effective", "image_version")
    for row in _rows(folder / "lambda" / "lambda_throughput.csv"):
        clean = row["n_gpu"] == "1" and row["flags"] in ALLOWED_FLAGS
        if clean and row["task"] in TASKS and row["data"] in ("synthetic", "real"):
            batch = round(float(row["batch_global"]))
            groups[tuple(row[key] for key in keys)].append(
                _run(row, batch, 1, float(row["throughput"]))
            )
    for runs in groups.values():
        powers = {run.gpu: power_of(device(run.gpu), run.precision) for run in runs}
        seen = [run for run in runs if powers[run.gpu] < max(powers.values())]
        if len({powers[run.gpu] for run in seen}) < 3:
            continue
        model = Extrapolation("power").fit(seen)
        for run in runs:
            if run not in seen:
                estimate = model.predict(batch=run.batch, gpu=run.gpu)
                yield run.model, estimate.seconds / run.seconds - 1


def table(errors: Sequence[Error]) -> str:
    """A line for each task, and one for all."""
    lines = [*heading("task | predictions | mean error | median | worst")]
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, error in errors:
        by_task[task].append(abs(error))
    for task in TASKS:
        if task in by_task:
            lines.append(_line(task, by_task[task]))
    lines.append(_line("**all**", [abs(error) for _, error in errors]))
    return "\n".join(lines)


def _line(name: str, errors: Iterable[float]) -> str:
    sizes = list(errors)
    return (
        f"| {name} | {len(sizes)} | {statistics.mean(sizes):.1%} "
        f"| {statistics.median(sizes):.1%} | {max(sizes):.1%} |"
    )


def _run(row: dict[str, str], batch: int, gpus: int, throughput: float) -> Run:
    return Run(
        *(row["task"], batch, 1, batch / throughput),
        gpu=GPUS.get(row["gpu"], row["gpu"]),
        gpus=gpus,
        precision=PRECISIONS[row["precision_effective"]],
    )


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)


def tables(data: Path) -> Iterator[ScoreTable]:
    """The errors on more GPUs and on stronger ones."""
    for name, errors in (("more GPUs", more_gpus(data)), ("stronger GPUs", stronger_gpus(data))):
        text = f"{table(list(errors))}\n\nThe slides of Gianniti et al. report {PUBLISHED[name]}."
        yield ScoreTable(text, PAGE, f"{MARK} '{name}'", title=name)
