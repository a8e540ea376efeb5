"""How long do the iterations of unchanged scripts take on this machine's GPU, and as predicted?

    python -m lab collect unchanged_scripts OUT              # on the GPU machine, below 200 s
    python -m lab collect unchanged_scripts OUT --predict    # anywhere: adds what is predicted

Each script of `tests/scripts` runs in a clean process and an empty folder, and is stopped after 40
optimizer steps. An iteration is the time between the ends of two optimizer steps by CUDA events,
with which nothing waits; the median of the last 30 is kept. Several optimizers that take turns
count together. Scripts whose packages are missing are left out. Writes OUT/unchanged_scripts.csv.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import itertools
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab import needs
from lab.places import ROOT
from lab.steps.scripts import CASES, ScriptCase, prepare

GPU = "h200-sxm"
_STEPS, _KEPT = 40, 30
_LIMIT_S = 60
_COLUMNS = ("script", "measured_s", "predicted_s", "low_s", "high_s", "note")
_CHILD = "--child"


class _EnoughSteps(BaseException):
    """Stops a script. It is no `Exception`, so that scripts do not catch it."""


def time_script(script: str, arguments: Sequence[str]) -> list[float]:
    """The seconds of each iteration of a script, which runs in this process."""
    import torch
    from torch.optim import optimizer as hooks

    ends: list[tuple[int, Any]] = []

    def note(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        ends.append((id(optimizer), event))
        if len(ends) >= _STEPS * len({which for which, _ in ends}):
            raise _EnoughSteps

    hooks.register_optimizer_step_post_hook(note)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    with contextlib.suppress(_EnoughSteps):
        runpy.run_path(script, run_name="__main__")
    torch.cuda.synchronize()
    last = [event for which, event in ends if which == ends[-1][0]]
    return [1e-3 * a.elapsed_time(b) for a, b in itertools.pairwise(last)]


def measure(case: ScriptCase) -> dict[str, object]:
    """The row of a script, measured in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        command = [sys.executable, "-m", "lab.collect.unchanged_scripts", _CHILD, str(case.script)]
        path = os.pathsep.join(map(str, (ROOT / "src", ROOT)))
        try:
            done = subprocess.run(
                [*command, *case.arguments],
                cwd=name,
                env=os.environ | {"PYTHONPATH": path, "WANDB_MODE": "disabled"},
                capture_output=True,
                text=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"script": case.name, "note": f"not over after {_LIMIT_S} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"script": case.name, "note": (done.stderr.splitlines() or ["no output"])[-1][:200]}
    return {"script": case.name, "measured_s": lines[-1]}


def predict(case: ScriptCase) -> dict[str, object]:
    """What is predicted for a script."""
    import wavecast

    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        before = Path.cwd()
        os.chdir(name)
        try:
            run = wavecast.run_script(case.script, case.arguments, gpu=GPU)
        finally:
            os.chdir(before)
    found = wavecast.predict(run.trace, GPU)
    return {"predicted_s": found.seconds, "low_s": found.low_s, "high_s": found.high_s}


def main(given: Sequence[str] = ()) -> None:
    """Measure the scripts, or add what is predicted for those that were measured."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--predict", action="store_true", help="add predictions to the table")
    args = parser.parse_args(given)
    path = args.out / "unchanged_scripts.csv"
    rows: list[dict[str, object]] = []
    if args.predict:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [dict(row) for row in csv.DictReader(file)]
    else:
        args.out.mkdir(parents=True, exist_ok=True)
    by_name = {case.name: case for case in CASES}
    if args.predict:
        for row in rows:
            if row["measured_s"]:
                row |= predict(by_name[str(row["script"])])
                _write(path, rows)
                print(row, flush=True)
        return
    for case in CASES:
        if all(importlib.util.find_spec(package) for package in case.needs):
            rows.append(measure(case))
            _write(path, rows)
            print(rows[-1], flush=True)


def _write(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, _COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    _, _, script, *arguments = sys.argv
    print(statistics.median(time_script(script, arguments)[-_KEPT:]))
