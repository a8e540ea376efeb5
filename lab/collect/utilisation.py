"""Do wavecast, nvidia-smi and torch.profiler agree on how busy the GPU is? Measures steps here.

    python -m lab.collect.utilisation OUT.csv

Needs an NVIDIA GPU and transformers. Measures steps of the suite, from host-bound to GPU-bound;
rows that the file already has are not measured again. nvidia-smi reports the share of its sampling
period in which a kernel ran; it is read ten times a second while the step repeats. torch.profiler's
table gives the sum of kernel times, which is divided by the time of an unprofiled iteration.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import wavecast
from wavecast import suite
from wavecast.steps.profiling import profile_measured

STEPS = (
    ("resnet50", 64, "fp32"),
    ("resnet50", 16, "bf16"),
    ("vgg16", 64, "bf16"),
    ("bert-base", 8, "bf16"),
    ("gpt2", 8, "fp32"),
    ("dcgan", 128, "fp32"),
    ("alexnet", 128, "bf16"),
    ("graphsage", 169343, "fp32"),
    ("a3c", 16, "fp32"),
    ("transformer", 64, "fp32"),
    ("vit", 16, "bf16"),
    ("bert-large", 8, "fp32"),
    ("gnmt", 64, "bf16"),
    ("inception-v3", 16, "fp32"),
)
SECONDS = 3.0
"""How long nvidia-smi is read for each step."""
SETTLING_S = 1.2
"""The first readings are dropped: nvidia-smi averages over up to a second before a reading."""
COLUMNS = ("model", "batch", "precision", "seconds", "wavecast", "nvidia_smi", "profiler")


@contextmanager
def _asking() -> Iterator[list[float]]:
    """The utilisations that nvidia-smi prints while the block runs."""
    query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
    tool = subprocess.Popen([*query, "-i", "0", "-lms", "100"], stdout=subprocess.PIPE, text=True)
    readings: list[float] = []

    def listen() -> None:
        for line in tool.stdout or ():
            readings.append(float(line) / 100)

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        yield readings
    finally:
        tool.terminate()
        listener.join()


def by_nvidia_smi(step: Callable[[], Any]) -> float:
    """The mean utilisation that nvidia-smi reports while the step repeats."""
    begin = time.perf_counter()
    count = 0
    dropped = 0
    with _asking() as readings:
        while time.perf_counter() - begin < SECONDS + SETTLING_S:
            step()
            count += 1
            if count % 10 == 0:
                torch.cuda.synchronize()
            if time.perf_counter() - begin < SETTLING_S:
                dropped = len(readings)
        torch.cuda.synchronize()
        settled = readings[dropped:]
    return statistics.mean(settled)


def by_profiler(step: Callable[[], Any], seconds: float, iterations: int = 5) -> float:
    """The sum of kernel times in torch.profiler's table, over the unprofiled iteration time."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(iterations):
            step()
        torch.cuda.synchronize()
    total_us = sum(float(row.self_device_time_total) for row in profiler.key_averages())
    return total_us * 1e-6 / iterations / seconds


def _rows(path: Path) -> list[tuple[str, ...]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def main() -> None:
    """Measure the steps that the table lacks, and print them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("table", type=Path, metavar="OUT.csv", help="table to write into")
    path = parser.parse_args().table
    measured = {row[:3] for row in _rows(path)}
    with path.open("a", newline="") as file:
        table = csv.writer(file)
        if not measured:
            table.writerow(COLUMNS)
        for model, batch, precision in STEPS:
            if (model, str(batch), precision) in measured:
                continue
            step = suite.benchmark(model).make_step(batch, precision)
            trace = wavecast.measure(step, warm_up=10, repeats=30, recordings=1)
            assert trace.measurement is not None
            own = profile_measured(model, trace, wavecast.device(trace.measurement.gpu))
            others = by_nvidia_smi(step), by_profiler(step, own.seconds)
            shares = (own.gpu_utilisation, *others)
            row = (model, batch, precision, f"{own.seconds:.6g}", *(f"{s:.4f}" for s in shares))
            table.writerow(row)
            file.flush()
            print(*row, flush=True)
            del step, trace
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
