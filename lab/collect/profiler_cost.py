"""Do steps take longer after a profiler has run? Times steps before and after one.

    python -m lab.collect.profiler_cost OUT

Needs a GPU and transformers; takes a minute. Four steps of the suite are timed in a process in
which no profiler has run, and again after torch.profiler has recorded a few tiny kernels. Writes
OUT/profiler.json, which becomes measurements/h200/profiler.json; `lab.score.profiler_cost` prints
the table.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from lab.collect.gpu_steps import iteration_s
from lab.measured.profiler_cost import FILE, FRESH, STEPS
from lab.steps.by_name import suite_steps
from wavecast.frameworks.pytorch.measurement import profiling

ROUNDS = 2
TIMED_S = 0.5


def measure(out: Path) -> None:
    """Time the steps, let a profiler run, and time them again."""
    makers = dict(suite_steps())
    built = {name: makers[name]() for name in STEPS}
    rows: list[dict[str, Any]] = []

    def stage(title: str) -> None:
        for _ in range(ROUNDS):
            for name, step in built.items():
                seconds = [iteration_s(step, TIMED_S) for _ in range(3)]
                rows.append({"process": "one", "stage": title, "step": name, "seconds": seconds})

    for step in built.values():
        for _ in range(5):
            step()
    stage(FRESH)
    x = torch.ones(8, device="cuda")
    profiling.gpu_activity(lambda: x.add_(1), 2)
    stage("torch.profiler has run")
    out.mkdir(parents=True, exist_ok=True)
    (out / FILE.name).write_text(json.dumps(rows), encoding="utf-8")


def main() -> None:
    """Measure into a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    measure(parser.parse_args().out)


if __name__ == "__main__":
    main()
