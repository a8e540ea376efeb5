"""How long do the iterations of unchanged scripts take on this machine's GPU, and as predicted?

    python -m lab collect unchanged_scripts OUT --predict    # anywhere, before measuring
    python -m lab collect unchanged_scripts OUT              # on the GPU machine, below 420 s

The scripts are those of `lab.steps.large_scripts`, and small ones of `lab.steps.scripts`. Each runs
in a clean process and an empty folder, and is stopped after 40 optimizer steps, or 12 s of them. An
iteration is the time between the ends of two optimizer steps by CUDA events, with which nothing
waits; the median of those after the tenth is kept. Several optimizers that take turns count
together. Then five more iterations are profiled, for the time in which the GPU is busy. Writes
OUT/unchanged_scripts.csv, or with --predict OUT/unchanged_predictions.csv.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import itertools
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import needs
from lab.places import ROOT
from lab.steps.large_scripts import LARGE
from lab.steps.scripts import CASES, ScriptCase, prepare

GPU = "h200-sxm"
_SMALL = ("mnist", "cifar_amp", "accumulate", "gan", "nanogpt", "hf_trainer")
SCRIPTS = (*LARGE, *(case for case in CASES if case.name in _SMALL))
_STEPS, _WARM_UP, _PROFILED = 40, 10, 5
_ENOUGH_S = 12
_LIMIT_S = 90
_TOTAL_S = 400
_MEASURED = ("script", "measured_s", "fastest_s", "slowest_s", "gpu_s", "steps", "run_s", "note")
_PREDICTED = ("script", "predicted_s", "low_s", "high_s", "gpu_s", "loading_s", "step", "note")
_CHILD = "--child"


class _EnoughSteps(BaseException):
    """Stops a script. It is no `Exception`, so that scripts do not catch it."""


@dataclass
class Watch:
    """Follows the optimizer steps of a script, which runs in this process."""

    ends: list[tuple[int, Any]] = field(default_factory=list)
    profiler: Any = None
    until: int = 0
    """How many optimizer steps to profile up to."""
    begun: float = 0.0

    def note(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """The hook of optimizer steps."""
        import torch

        if self.profiler is not None:
            self.until -= 1
            if not self.until:
                torch.cuda.synchronize()
                self.profiler.stop()
                raise _EnoughSteps
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.ends.append((id(optimizer), event))
        turns = len({which for which, _ in self.ends})
        if len(self.ends) == _WARM_UP * turns:
            self.begun = time.monotonic()
        long = self.begun and time.monotonic() - self.begun > _ENOUGH_S
        if len(self.ends) % turns == 0 and (len(self.ends) >= _STEPS * turns or long):
            torch.cuda.synchronize()
            self.until = _PROFILED * turns
            self.profiler = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CUDA]
            )
            self.profiler.start()

    def results(self) -> dict[str, object]:
        """The times of an iteration: by CUDA events, and in which the GPU is busy."""
        last = [event for which, event in self.ends if which == self.ends[-1][0]]
        times = [1e-3 * a.elapsed_time(b) for a, b in itertools.pairwise(last)]
        kept = times[_WARM_UP:] or times
        return {
            "measured_s": statistics.median(kept),
            "fastest_s": min(kept),
            "slowest_s": max(kept),
            "gpu_s": _busy_s(self.profiler) / _PROFILED if self.profiler else "",
            "steps": len(kept),
        }


def _busy_s(profiler: Any) -> float:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "profile.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    busy, until = 0.0, 0.0
    spans = (
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    for begin, end in sorted(spans):
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    return 1e-6 * busy


def time_script(script: str, arguments: Sequence[str]) -> dict[str, object]:
    """The times of a script, which runs in this process."""
    import torch
    from torch.optim import optimizer as hooks

    watch = Watch()
    hooks.register_optimizer_step_post_hook(watch.note)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    with contextlib.suppress(_EnoughSteps):
        runpy.run_path(script, run_name="__main__")
    torch.cuda.synchronize()
    return watch.results()


def measure(case: ScriptCase) -> dict[str, object]:
    """The row of a script, measured in a process of its own."""
    row: dict[str, object] = {"script": case.name}
    missing = [package for package in case.needs if importlib.util.find_spec(package) is None]
    if missing:
        return row | {"note": f"needs {', '.join(missing)}"}
    begin = time.monotonic()
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
            return row | {"note": f"not over after {_LIMIT_S} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return row | {"note": (done.stderr.splitlines() or ["no output"])[-1][:200]}
    times: dict[str, object] = json.loads(lines[-1])
    return row | {"run_s": f"{time.monotonic() - begin:.1f}"} | times


def predict(case: ScriptCase) -> dict[str, object]:
    """What is predicted for a script."""
    import wavecast

    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        before = Path.cwd()
        os.chdir(name)
        try:
            run = wavecast.run_script(case.script, case.arguments, gpu=GPU)
        except wavecast.WavecastError as error:
            return {"script": case.name, "note": str(error).splitlines()[0][:200]}
        finally:
            os.chdir(before)
    found = wavecast.predict(run.trace, GPU)
    return {
        "script": case.name,
        "predicted_s": found.seconds,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "gpu_s": found.gpu_s,
        "loading_s": run.loading.step_s if run.loading else "",
        "step": run.choice,
    }


def main(given: Sequence[str] = ()) -> None:
    """Measure the scripts, or predict them."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--predict", action="store_true", help="write predictions instead")
    parser.add_argument("--only", nargs="*", help="these scripts; other rows stay as they are")
    args = parser.parse_args(given)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / ("unchanged_predictions.csv" if args.predict else "unchanged_scripts.csv")
    columns = _PREDICTED if args.predict else _MEASURED
    rows: dict[str, dict[str, object]] = {}
    if args.only and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = {row["script"]: dict(row) for row in csv.DictReader(file)}
    begin = time.monotonic()
    for case in SCRIPTS:
        if args.only and case.name not in args.only:
            continue
        if args.predict:
            row = predict(case)
        elif time.monotonic() - begin > _TOTAL_S:
            row = {"script": case.name, "note": f"not begun after {_TOTAL_S} s"}
        else:
            row = measure(case)
        rows[case.name] = row
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[case.name] for case in SCRIPTS if case.name in rows)
        print(row, flush=True)


if __name__ == "__main__":
    _, _, script, *arguments = sys.argv
    print("\n" + json.dumps(time_script(script, arguments)))
