"""What a profiler leaves behind: steps that wait for the host, before and after one has run.

    python -m lab.collect.profiler_cost --measure OUT     on the GPU
    python -m lab.collect.profiler_cost                   the table, from the file

Four steps of the suite are timed in a process in which nothing has looked at the GPU, and again
after torch.profiler has looked at a few tiny kernels; a minute of GPU. What was measured is in
measurements/h200/profiler.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lab.places import H200

FILE = H200 / "profiler.json"
STEPS = ("googlenet b8 tf32", "bert-base b8 fp16", "transformer b16 bf16", "a3c b16 fp32")
FRESH = "fresh"
ROUNDS = 2
TIMED_S = 0.5


def measure(out: Path) -> None:
    """Time the steps, let a profiler look, and time them again."""
    import torch

    from lab.measured.timed import iteration_s
    from lab.score.iterations import steps
    from wavecast.frameworks.pytorch.measurement import profiling

    makers = dict(steps())
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


def table() -> Iterator[str]:
    """Each step in a fresh process, and after a profiler."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    yield "| step | nothing has looked | a profiler has run before | times as long |"
    yield "|---|---:|---:|---:|"
    for name in STEPS:
        before, after = (
            statistics.median(
                seconds
                for row in rows
                if row["step"] == name and (row["stage"] == FRESH) is fresh
                for seconds in row["seconds"]
            )
            for fresh in (True, False)
        )
        yield f"| {name} | {before * 1e3:.1f} ms | {after * 1e3:.1f} ms | {after / before:.2f} |"


def main() -> None:
    """Measure, or show."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", type=Path, metavar="OUT", help="on the GPU, into a folder")
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
    else:
        print("\n".join(table()))


if __name__ == "__main__":
    main()
