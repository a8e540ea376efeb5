"""How long do steps take, and what does the host do meanwhile? Measures sets of steps on this GPU.

    python -m lab collect step_times (host | blind_3) OUT [--seconds 250] [--workers 14] [--trace]
                                     [--only NAME ...]

Needs a GPU, torch with Triton, torchvision and transformers. The sets are in
`lab.steps.timed_sets`, what is measured of a step in `lab.collect.step_worker`, and how processes
take turns in `lab.collect.turns`. With --trace, every step is first traced without the GPU, with
the software of this machine, and predicted (OUT/predictions.json). Writes OUT/rows.jsonl.gz (a line
for each step), OUT/traces.tar (recorded eager steps, and traced ones) and OUT/about.json.
"""

from __future__ import annotations

import gzip
import json
import os
import platform
import shutil
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from lab import needs
from lab.collect.turns import Turns
from lab.steps.timed_sets import NAMES, names_of

LIBRARIES = ("torch", "triton", "torchvision", "transformers", "numpy")
TRACES_S = 130.0
"""Traces that are not done by then are given up."""
HOST_TIMES = 3
"""How often the host benchmark runs between the steps."""


def about() -> dict[str, Any]:
    """The machine and its software."""
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "none"
    return {**versions, "python": platform.python_version(), "cores": os.cpu_count()}


def tasks_of(names: Sequence[str]) -> deque[str]:
    """The tasks in order, with the host benchmark between the steps."""
    steps = [f"step {name}" for name in names]
    every = max(len(steps) // HOST_TIMES, 1)
    for number in range(HOST_TIMES):
        steps.insert(number * (every + 1), f"host {number}")
    return deque(steps)


def rows_in(folder: Path, kind: str) -> list[Any]:
    """What was written of the tasks of a kind so far."""
    paths = sorted(folder.glob(f"{kind}-*.row.gz"))
    return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]


def collect(out: Path, seconds: float, count: int, names: Sequence[str], traced: bool) -> None:
    """Measure into a folder until the time is up; predictions are written before."""
    begin = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="step-times-"))
    command = ("-m", "lab.collect.step_worker", str(folder))
    turns = Turns(command, folder, tasks_of(names), count, begin + seconds)
    try:
        if traced:
            tasks = deque(f"trace {name}" for name in names)
            tracing = Turns(command, folder, tasks, count, begin + TRACES_S)
            untraced = tracing.run()
            said = {"predictions": rows_in(folder, "trace"), "failures": tracing.failures,
                        "unfinished": untraced}  # fmt: skip
            (out / "predictions.json").write_text(json.dumps(said, indent=1), encoding="utf-8")
        unfinished = turns.run()
        with gzip.open(out / "rows.jsonl.gz", "wb") as file:
            for path in sorted(folder.glob("*.row.gz")):
                file.write(gzip.decompress(path.read_bytes()) + b"\n")
        with tarfile.open(out / "traces.tar", "w") as archive:
            for path in sorted(folder.glob("*.json.gz")):
                archive.add(path, path.name)
        document = {
            "about": about(),
            "seconds": round(time.monotonic() - begin, 1),
            "done": turns.done,
            "failures": turns.failures,
            "unfinished": unfinished,
        }
        (out / "about.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{len(turns.done)} tasks in {document['seconds']} s; {len(turns.failures)} failed; "
          f"unfinished: {unfinished}")  # fmt: skip


def main(given: Sequence[str] = ()) -> None:
    """Measure a set of steps into a folder."""
    parser = needs.parser(__doc__)
    parser.add_argument("which", choices=NAMES, help="the set of steps")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("--seconds", type=float, default=250.0)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--trace", action="store_true", help="trace and predict the steps first")
    parser.add_argument("--only", nargs="*", default=[], help="names of steps")
    args = parser.parse_args(given)
    names = args.only or names_of(args.which)
    collect(args.out, args.seconds, args.workers, names, args.trace)
