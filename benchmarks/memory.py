"""The most memory that traced tensors hold at once, against torch's allocator on our H200.

    python -m benchmarks.memory

Workspaces of cuDNN and cuBLAS are not traced; memory has no predictor yet.
"""

from __future__ import annotations

import csv
from functools import partial

import wavecast
from benchmarks.own_steps import MEASURED
from benchmarks.steps import STEPS
from wavecast.columns import peak_bytes


def main() -> None:
    """A line for each step whose peak was measured."""
    for row in csv.DictReader((MEASURED / "steps.csv").open()):
        if row["peak_bytes"]:
            make, batch = STEPS[row["model"]][0], int(row["batch"])
            trace = wavecast.trace(partial(make, batch, row["precision"]))
            held, measured = peak_bytes(trace.allocations), float(row["peak_bytes"])
            print(
                f"{row['model']:14} {row['precision']} b{batch:<3} {measured / 1e6:7.0f} MB "
                f"{held / 1e6:7.0f} MB {held / measured - 1:+.1%}"
            )


if __name__ == "__main__":
    main()
