"""Does advice help? Measures steps before and after the changes of `lab.steps.advice` on a GPU.

    python -m lab collect advice OUT

Needs a GPU and torch, and takes about two minutes. Writes OUT/advice.csv: for each pair the seconds
of an iteration and the peak of allocated memory, before and after. `lab.score.advice` compares the
gains with those that were predicted.
"""

from __future__ import annotations

import csv
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from lab import needs
from lab.collect.gpu_steps import release_memory, steady_s
from lab.steps.advice import PAIRS

FIELDS = ("name", "change", "before_s", "after_s", "before_bytes", "after_bytes")
_ENOUGH_S = 0.8
"""How long one block of iterations runs."""


def measured(make: Callable[[], Callable[[], Any]]) -> tuple[float, int]:
    """The seconds of an iteration, the best of three blocks, and the peak of allocated memory."""
    torch._dynamo.reset()
    release_memory()
    step = make()
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    once_s = steady_s(step, 3)
    repeats = max(5, min(200, int(_ENOUGH_S / once_s)))
    seconds = sorted(steady_s(step, repeats) for _ in range(3))[1]
    peak = torch.cuda.max_memory_allocated()
    del step
    gc.collect()
    return seconds, peak


def main(given: Sequence[str] = ()) -> None:
    """Measure all pairs into a folder."""
    parser = needs.parser(__doc__)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write into")
    out: Path = parser.parse_args(given).out
    out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    with (out / "advice.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        for pair in PAIRS:
            (before_s, before_bytes), (after_s, after_bytes) = map(
                measured, (pair.before, pair.after)
            )
            before_s, after_s = before_s / pair.samples[0], after_s / pair.samples[1]
            row = (pair.name, pair.change, before_s, after_s, before_bytes, after_bytes)
            writer.writerow(row)
            file.flush()
            spent = time.perf_counter() - begin
            print(f"{pair.name}: {before_s:.6f} -> {after_s:.6f} s ({spent:.0f} s)", flush=True)
