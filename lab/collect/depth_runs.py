"""How long do iterations of deeper networks and larger batches take? Times them on this GPU.

    python -m lab.collect.depth_runs OUT [--seconds 300]

Needs a GPU and only torch. Writes OUT/depth_runs.csv, a table of runs (`wavecast runs add` reads
it). It holds the experiments of the slides of Gianniti et al. that one GPU can make: residual
networks with 1 to 10 blocks (inner modules) in each of their four stages, and three networks at
batches 16 to 256. Training in fp32 and plain PyTorch, after three warm-up iterations.
"""

from __future__ import annotations

import argparse
import csv
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from lab.collect.gpu_steps import release_memory, steady_s
from wavecast.runs.run import Run
from wavecast.suite import benchmark
from wavecast.suite.vision import ResNet, classifier_step

DEPTHS = range(1, 11)
DEPTH_BATCHES = (32, 64, 96, 128)
NETS = ("alexnet", "resnet50", "vgg16")
BATCHES = (16, 32, 48, 64, 96, 128, 160, 192, 256)
WARM_UP, ITERATIONS = 3, 20

Made = Callable[[], Any]


def wanted() -> list[tuple[str, int, int | None, Made]]:
    """The runs: the name of the network, its batch, its inner modules, and how its step is made."""

    def deep(depth: int, batch: int) -> Made:
        return lambda: classifier_step(
            ResNet((depth,) * 4), (batch, 3, 224, 224), "fp32", "cuda", 1000
        )

    def named(net: str, batch: int) -> Made:
        return lambda: benchmark(net).make_step(batch, "fp32")

    runs = [
        *(("resnet", b, n, deep(n, b)) for n in DEPTHS for b in DEPTH_BATCHES),
        *((net, b, None, named(net, b)) for net in NETS for b in BATCHES),
    ]
    random.Random(7).shuffle(runs)
    return runs


def measured(until: float) -> Iterator[Run]:
    """The runs, in random order, until the time is up."""
    software = f"torch {torch.__version__}"
    for net, batch, depth, make in wanted():
        if time.monotonic() > until:
            print("the time is up", flush=True)
            return
        release_memory()
        step = make()
        steady_s(step, WARM_UP)
        seconds = ITERATIONS * steady_s(step, ITERATIONS)
        del step
        yield Run(
            *(net, batch, ITERATIONS, round(seconds, 6)),
            gpu="h200-sxm",
            precision="fp32",
            framework=software,
            inner_modules=depth,
            source="lab.collect.depth_runs",
        )


def main() -> None:
    """Time the runs, and write them row by row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300, help="start no run after this time")
    arguments = parser.parse_args()
    names = [field.name for field in fields(Run)][:11]
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "depth_runs.csv"
    with path.open("w", buffering=1, newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(names)
        for run in measured(time.monotonic() + arguments.seconds):
            values = [getattr(run, name) for name in names]
            rows.writerow("" if value is None else value for value in values)


if __name__ == "__main__":
    main()
