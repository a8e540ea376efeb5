"""How long do the iterations of unchanged scripts take on this machine's GPU, and as predicted?

    python -m lab collect unchanged_scripts OUT --predict             # anywhere, before measuring
    python -m lab collect unchanged_scripts OUT [--seconds 120]       # on the GPU machine

The scripts are those of `lab.steps.large_scripts`, and small ones of `lab.steps.scripts`. Each runs
in a clean process and an empty folder. It pauses after ten optimizer steps until it has the machine
to itself (`lab.collect.turns`), and is stopped after 40 more, or 5 s of them. An iteration is the
time between the ends of two optimizer steps by CUDA events, with which nothing waits; the median of
the second half is kept, since batches that were loaded during the pause come first. Several
optimizers that take turns count together. Then three more iterations are profiled, for the time in
which the GPU is busy. Writes OUT/unchanged_scripts.csv, or with --predict
OUT/unchanged_predictions.csv.
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
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import needs
from lab.collect.turns import Turn, Turns, in_new_process
from lab.steps.large_scripts import LARGE
from lab.steps.scripts import CASES, ScriptCase, prepare

GPU = "h200-sxm"
WORKERS = 12
"""How many scripts get ready at once."""
_SMALL = ("mnist", "cifar_amp", "accumulate", "gan", "nanogpt", "hf_trainer")
SCRIPTS = (*LARGE, *(case for case in CASES if case.name in _SMALL))
_WARM_UP, _STEPS, _PROFILED = 10, 40, 3
_ENOUGH_S = 5.0
_MEASURED = ("script", "measured_s", "fastest_s", "slowest_s", "gpu_s", "steps", "note")
_PREDICTED = (
    *("script", "predicted_s", "low_s", "high_s", "gpu_s", "loading_s", "with_loader_s", "step"),
    "note",
)
_CORES = 16
"""The cores of the GPU machine."""


class _EnoughSteps(BaseException):
    """Stops a script. It is no `Exception`, so that scripts do not catch it."""


@dataclass
class Watch:
    """Follows the optimizer steps of a script, which runs in this process."""

    ready: Callable[[], None]
    """Says that the script is warm, and waits for its turn."""
    ends: list[tuple[int, Any]] = field(default_factory=list)
    profiler: Any = None
    until: int = 0
    """How many optimizer steps to profile up to."""
    begun: float = 0.0
    """When its turn came; 0 before."""

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
        if not self.begun and len(self.ends) == _WARM_UP * turns:
            torch.cuda.synchronize()
            self.ready()
            self.begun, self.ends = time.monotonic(), []
            return
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
        kept = times[len(times) // 2 :]
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


def time_script(case: ScriptCase, ready: Callable[[], None]) -> dict[str, object]:
    """The times of a script, which runs in this process."""
    import torch
    from torch.optim import optimizer as hooks

    missing = [package for package in case.needs if importlib.util.find_spec(package) is None]
    if missing:
        return {"note": f"needs {', '.join(missing)}"}
    watch = Watch(ready)
    hooks.register_optimizer_step_post_hook(watch.note)
    sys.argv = [str(case.script), *case.arguments]
    sys.path.insert(0, str(case.script.parent))
    with contextlib.suppress(_EnoughSteps):
        runpy.run_path(str(case.script), run_name="__main__")
    torch.cuda.synchronize()
    return watch.results()


def measure(seconds: float, names: Sequence[str]) -> dict[str, dict[str, object]]:
    """The rows of scripts, measured in processes of their own, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ("-m", "lab.collect.unchanged_scripts", name)
        until = time.monotonic() + seconds
        turns = Turns(in_new_process(*command), folder, deque(names), WORKERS, until)
        unfinished = turns.run()
        rows = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
    rows |= {name: {"note": words.splitlines()[0][:200]} for name, words in turns.failures.items()}
    rows |= {name: {"note": f"not measured after {seconds:g} s"} for name in unfinished}
    return {name: {"script": name} | row for name, row in rows.items()}


def predict(case: ScriptCase) -> dict[str, object]:
    """What is predicted for a script."""
    import wavecast

    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        before = Path.cwd()
        os.chdir(name)
        try:
            run = wavecast.run_script(case.script, case.arguments, gpu=GPU, loader=True)
        except wavecast.WavecastError as error:
            return {"script": case.name, "note": str(error).splitlines()[0][:200]}
        finally:
            os.chdir(before)
    found = wavecast.predict(run.trace, GPU)
    loading = run.loading and run.loading.on_cores(_CORES)
    waits = bool(run.trace.arrays.syncs)
    return {
        "script": case.name,
        "predicted_s": found.seconds,
        "low_s": found.low_s,
        "high_s": found.high_s,
        "gpu_s": found.gpu_s,
        "loading_s": loading.step_s if loading else "",
        "with_loader_s": (
            loading.iteration_s(found.seconds, found.host_s, waits=waits)
            if loading and loading.timed
            else found.seconds
        ),
        "step": run.choice,
    }


def main(given: Sequence[str] = ()) -> None:
    """Measure the scripts, or predict them."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--predict", action="store_true", help="write predictions instead")
    parser.add_argument("--seconds", type=float, default=120.0, help="the time to measure")
    parser.add_argument("--only", nargs="*", help="these scripts; other rows stay as they are")
    args = parser.parse_args(given)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / ("unchanged_predictions.csv" if args.predict else "unchanged_scripts.csv")
    rows: dict[str, dict[str, object]] = {}
    if args.only and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = {row["script"]: dict(row) for row in csv.DictReader(file)}
    cases = [case for case in SCRIPTS if not args.only or case.name in args.only]
    if args.predict:
        for case in cases:
            rows[case.name] = predict(case)
            print(rows[case.name], flush=True)
    else:
        rows |= measure(args.seconds, [case.name for case in cases])
    with path.open("w", newline="", encoding="utf-8") as file:
        columns = _PREDICTED if args.predict else _MEASURED
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows[case.name] for case in SCRIPTS if case.name in rows)


def work() -> None:
    """Measure one script when it is told to: FOLDER NAME DESCRIPTOR."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    turn = Turn(name, int(sys.argv[3]))
    case = next(case for case in SCRIPTS if case.name == name)
    own = folder / f"run-{name}"
    own.mkdir()
    prepare(own)
    os.chdir(own)
    try:
        row = time_script(case, turn.wait)
        (folder / f"{name}.json").write_text(json.dumps(row), encoding="utf-8")
        turn.say(done=str(row.get("measured_s", row.get("note"))))
    except BaseException as error:  # a script may end itself
        turn.say(failed=f"{type(error).__name__}: {str(error)[:300]}")


if __name__ == "__main__":
    work()
