"""Extrapolation on Lambda's public benchmark: to more GPUs, and to stronger ones.

    python -m lab.score.lambda_runs --data FOLDER

reads the public set lambda (docs/sources.md) and writes the tables of docs/appendix/runs-gpus.md.
No predicted run is in a fit:

- more GPUs: for each GPU, interconnect, software, task, precision and batch, fit on 1 and 2 GPUs,
  predict 4;
- stronger GPUs: for each task, precision and software generation, fit on all GPUs but the strongest
  by its data sheet, predict that one. Batches follow the GPUs' memory, so both change at once.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lab import needs
from lab.measured.public_steps.lambda_steps import GPUS
from lab.score import pages
from wavecast.hardware.devices import device
from wavecast.regression.extrapolation import Extrapolation
from wavecast.regression.laws import power_of
from wavecast.runs.run import Run

PAGE = pages.APPENDIX / "runs-gpus.md"
MARK = "begin: python -m lab.score.lambda_runs"
ALLOWED_FLAGS = {"", "reported_above_steady", "reported_below_steady"}
TASKS = ("resnet50", "ssd", "bert_base_squad", "bert_large_squad", "gnmt")
"""Those whose times mean what they say (the data's own README)."""
PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "amp_fp16": "fp16", "fp16_static_scale": "fp16"}
PUBLISHED = {
    "more GPUs": "13.27 mean, 24.75 worst (18 cells)",
    "stronger GPUs": "10.39 mean, 18.09 worst (4 cells)",
}
"""What the slides of Gianniti et al. print, on other GPUs and networks."""

Error = tuple[str, float]
"""The task, and the signed relative error of one prediction."""


def more_gpus(folder: Path) -> Iterator[Error]:
    """From 1 and 2 GPUs to 4."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    keys = ("gpu", "interconnect", "base_torch", "task", "precision_effective", "batch_per_gpu")
    for row in _rows(folder / "lambda" / "lambda_scaling.csv"):
        if row["clean"] != "True" or row["task"] not in TASKS:
            continue
        runs = groups[tuple(row[key] for key in keys)]
        batch, count = round(float(row["batch_per_gpu"])), int(row["n_gpu"])
        runs.append(_run(row, batch, 1, float(row["throughput_1"])))
        runs.append(_run(row, batch * count, count, float(row["throughput_n"])))
    for runs in groups.values():
        seen = list(dict.fromkeys(run for run in runs if run.gpus < 4))
        if {run.gpus for run in runs} != {1, 2, 4}:
            continue
        model = Extrapolation("gpus").fit(seen)
        for run in runs:
            if run.gpus == 4:
                found = model.predict(batch=run.batch, gpus=4)
                yield run.model, found.seconds / run.seconds - 1


def stronger_gpus(folder: Path) -> Iterator[Error]:
    """From weaker GPUs to the strongest."""
    groups: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    keys = ("task", "precision_effective", "image_version")
    for row in _rows(folder / "lambda" / "lambda_throughput.csv"):
        fine = row["n_gpu"] == "1" and row["flags"] in ALLOWED_FLAGS
        if fine and row["task"] in TASKS and row["data"] in ("synthetic", "real"):
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
                found = model.predict(batch=run.batch, gpu=run.gpu)
                yield run.model, found.seconds / run.seconds - 1


def table(found: Sequence[Error]) -> str:
    """One row for each task."""
    lines = ["| task | predictions | mean error | median | worst |", "|---|---:|---:|---:|---:|"]
    by_task: dict[str, list[float]] = defaultdict(list)
    for task, error in found:
        by_task[task].append(abs(error))
    for task in TASKS:
        if task in by_task:
            lines.append(_line(task, by_task[task]))
    lines.append(_line("**all**", [abs(error) for _, error in found]))
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


def main() -> None:
    """Write both tables, and print them."""
    parser = argparse.ArgumentParser(description="Extrapolation on Lambda's public benchmark.")
    needs.add_data(parser, "lambda")
    arguments = parser.parse_args()
    for name, errors in (
        ("more GPUs", more_gpus(arguments.data)),
        ("stronger GPUs", stronger_gpus(arguments.data)),
    ):
        shown = f"{table(list(errors))}\n\nPrinted in the slides, in percent: {PUBLISHED[name]}."
        pages.write(PAGE, f"{MARK} '{name}'", shown)
        print(f"{name}\n\n{shown}\n")


if __name__ == "__main__":
    main()
