"""Scaling of data parallel training, predicted and measured by Lambda on 2 and 4 GPUs.

    python -m lab.score.scaling DATA_FOLDER

The table is `lambda/lambda_scaling.csv` of the public measurements. Efficiency is the speed of n
GPUs, divided by n times that of one. Clean rows of ResNet-50, BERT and GNMT are predicted with DDP.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

import wavecast
from wavecast.errors import WavecastError
from wavecast.frameworks.targets import resolve
from wavecast.hardware.families import family
from wavecast.traces.step import Trace

MODELS = {
    "resnet50": "resnet50",
    "bert_base_squad": "bert-base",
    "bert_large_squad": "bert-large",
    "gnmt": "gnmt",
}
"""The models of the suite, by Lambda's tasks. SSD is not in the suite."""

PRECISIONS = {"amp_fp16": "fp16", "tf32": "tf32", "fp32": "fp32"}
CLUSTERS = {"pcie": "lambda-pcie", "nvlink_bridge_pairs": "lambda-bridges", "nvlink_sxm": None}
"""The machines, by Lambda's interconnects; None for the usual machine of the GPU."""


@dataclass(frozen=True)
class ScaledRow:
    """One measured speed on several GPUs, relative to one."""

    task: str
    gpu: str
    interconnect: str
    precision: str
    gpus: int
    batch: int
    efficiency: float


def read_rows(folder: Path) -> Iterator[ScaledRow]:
    """The clean rows of the tasks in the suite."""
    with (folder / "lambda" / "lambda_scaling.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            precision = PRECISIONS.get(row["precision_effective"])
            known = row["task"] in MODELS and row["interconnect"] in CLUSTERS
            if row["clean"] == "True" and known and precision:
                yield ScaledRow(
                    task=row["task"],
                    gpu=row["gpu"],
                    interconnect=row["interconnect"],
                    precision=precision,
                    gpus=int(row["n_gpu"]),
                    batch=round(float(row["batch_per_gpu"])),
                    efficiency=float(row["efficiency"]),
                )


@cache
def _trace(task: str, batch: int, precision: str, capability: tuple[int, int]) -> Trace:
    target = resolve(MODELS[task], batch, precision)
    assert target.make_step is not None
    return wavecast.trace(target.make_step, capability=capability, samples=target.samples)


def predicted(row: ScaledRow) -> float:
    """The predicted efficiency of a row."""
    device = wavecast.device(row.gpu)
    trace = _trace(row.task, row.batch, row.precision, family(device))
    cluster = CLUSTERS[row.interconnect]
    one, many = (
        wavecast.predict(trace, device, parallel=wavecast.Parallel(data=count, cluster=cluster))
        for count in (1, row.gpus)
    )
    return one.seconds / many.seconds


def score(rows: Iterable[ScaledRow]) -> tuple[list[str], list[str]]:
    """The table's lines, and what could not be predicted."""
    errors: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    failed: dict[str, None] = {}
    for row in rows:
        try:
            efficiency = predicted(row)
        except WavecastError as error:
            failed.setdefault(str(error)[:160])
            continue
        errors[MODELS[row.task], row.interconnect].append((efficiency, row.efficiency))
    lines = ["| model | link | rows | measured | predicted | mean error, points |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for (model, link), pairs in sorted(errors.items()):
        found, real = (fmean(values) for values in zip(*pairs, strict=True))
        points = 100 * fmean(abs(a - b) for a, b in pairs)
        lines.append(
            f"| {model} | {link} | {len(pairs)} | {real:.2f} | {found:.2f} | {points:.1f} |"
        )
    return lines, list(failed)


def main(given: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="the folder of the public measurements")
    options = parser.parse_args(given)
    lines, failed = score(read_rows(options.data))
    print("\n".join([*lines, *(f"not predicted: {reason}" for reason in failed)]))


if __name__ == "__main__":
    main()
