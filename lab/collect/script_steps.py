"""Time real training scripts on this machine's GPU, beside what is predicted for them.

The scripts are those of `tests/scripts`, run unchanged and for real. CUDA events at the ends of
the optimizer steps give the time of a step; torch.profiler gives the time that kernels run. Before
that, `wavecast.run_script` runs the same script without the GPU, on the same machine, so that both
are of the same torch. One process for each script:

    python -m lab.collect.script_steps OUT          # all scripts; writes OUT/scripts.csv
    python -m lab.collect.script_steps OUT A B C    # some of them
    python -m lab.collect.script_steps OUT NAME     # one, in this process
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import wavecast
from lab.steps.scripts import CASES, prepare
from wavecast.frameworks.pytorch.scripts.boundaries import EnoughSteps, OptimizerSteps
from wavecast.frameworks.pytorch.scripts.periods import pattern_length
from wavecast.frameworks.pytorch.scripts.program import Program

STEPS = 40
PROFILED = 4
"""Steps whose kernels are recorded, after the timed ones."""
EXTRA = {"nanogpt": ("--compile=False",)}
"""Arguments beside those of the tests: what is traced as eager must run as eager."""
LONGEST_S = 120
"""A script that takes longer is given up."""
COLUMNS = (
    *("script", "measured_s", "fastest_s", "slowest_s", "kernel_s", "predicted_s"),
    *("predicted_gpu_s", "predicted_low_s", "predicted_high_s", "steps", "error"),
)


class _Timer:
    """Marks the ends of optimizer steps, and stops the script when there are enough."""

    def __init__(self) -> None:
        self.marks: list[tuple[Any, Any]] = []
        self.kernel_s: float | None = None
        self._profiler: Any = None
        self._profiled_from = 0

    def at_step(self, optimizer: int, line: str) -> None:
        """Take the time of one optimizer step."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.marks.append(((optimizer, line), event))
        length = pattern_length([place for place, _ in self.marks], waiting=False) or 1
        count = len(self.marks)
        if count == STEPS * length:
            torch.cuda.synchronize()
            activities = [torch.profiler.ProfilerActivity.CUDA]
            self._profiler = torch.profiler.profile(activities=activities)
            self._profiler.start()
            self._profiled_from = count
        elif self._profiler is not None and count == self._profiled_from + PROFILED * length:
            torch.cuda.synchronize()
            self._profiler.stop()
            kernels = [e for e in self._profiler.events() if e.device_type.name == "CUDA"]
            total_us = sum(e.time_range.elapsed_us() for e in kernels)
            self.kernel_s = total_us * 1e-6 / PROFILED
            raise EnoughSteps

    def row(self) -> dict[str, Any]:
        """The median, fastest and slowest step, without the first quarter of the steps."""
        torch.cuda.synchronize()
        timed = self.marks[: self._profiled_from or len(self.marks)]
        length = pattern_length([place for place, _ in timed], waiting=False) or 1
        ends = [event for _, event in timed][(len(timed) - 1) % length :: length]
        steps_s = [a.elapsed_time(b) * 1e-3 for a, b in pairwise(ends)]
        steps_s = steps_s[len(steps_s) // 4 :]
        return {
            "steps": len(steps_s),
            "measured_s": statistics.median(steps_s),
            "fastest_s": min(steps_s),
            "slowest_s": max(steps_s),
            "kernel_s": self.kernel_s,
        }


def time_script(name: str, out: Path) -> None:
    """Predict one script, run it for real, and write its row."""
    case = next(case for case in CASES if case.name == name)
    arguments = (*case.arguments, *EXTRA.get(name, ()))
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        os.chdir(folder)
        gpu = wavecast.device(torch.cuda.get_device_name())
        run = wavecast.run_script(str(case.script), arguments, gpu=gpu)
        prediction = wavecast.predict(run.trace, gpu)
        timer = _Timer()
        try:
            with OptimizerSteps(timer.at_step).watched():
                Program(str(case.script), arguments).run()
        except (EnoughSteps, SystemExit):
            pass
        row = {
            "script": name,
            **timer.row(),
            "predicted_s": prediction.seconds,
            "predicted_gpu_s": prediction.gpu_s,
            "predicted_low_s": prediction.low_s,
            "predicted_high_s": prediction.high_s,
        }
    with (out / f"{name}.csv").open("w", newline="") as file:
        csv.DictWriter(file, COLUMNS).writerow(row)


def time_all(out: Path, names: list[str]) -> None:
    """Time some scripts or all, each in a process of its own; one that fails leaves its error."""
    with (out / "scripts.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for case in (case for case in CASES if not names or case.name in names):
            command = [sys.executable, "-m", "lab.collect.script_steps", str(out), case.name]
            part = out / f"{case.name}.csv"
            try:
                ended = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
                lines = ended.stderr.replace("\r", "\n").strip().splitlines() or ["no message"]
                error = next((x for x in reversed(lines) if "Error" in x), lines[-1])
            except subprocess.TimeoutExpired:
                error = f"longer than {LONGEST_S} s"
            file.flush()
            if part.exists():
                file.write(part.read_text())
                part.unlink()
            else:
                writer.writerow({"script": case.name, "error": error[:200]})
            file.flush()


def main() -> None:
    """Time one script, or all of them."""
    out = Path(sys.argv[1]).resolve()
    out.mkdir(parents=True, exist_ok=True)
    if len(sys.argv) == 3:
        time_script(sys.argv[2], out)
    else:
        time_all(out, sys.argv[2:])
        print((out / "scripts.csv").read_text())


if __name__ == "__main__":
    main()
