"""Predicted memory against the real allocator and nvidia-smi on our H200.

    python -m lab score memory steps         # allocated, reserved, process (a few minutes)
    python -m lab score memory batches       # the largest batch under a limit (half an hour)
    python -m lab score memory workspaces    # library workspaces, each model left out (a minute)

What was measured is in measurements/h200/memory. Every step is traced here. The commands print a
line for each step, search or model, and write the sums into docs/memory.md; the table of workspaces
is in docs/appendix/memory-workspaces.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import wavecast
from lab import needs, pages
from lab.figures import figures
from lab.pages import heading
from lab.places import DOCS, H200
from lab.score import workspaces
from lab.steps.memory import GROWING, STEPS
from wavecast.footprint.largest_batch import largest_batch
from wavecast.traces.step import Trace

MEASURED = H200 / "memory"
PAGE = DOCS / "memory.md"
MARK = "begin: python -m lab score memory"
GPU = "h200-sxm"
LARGE_BYTES = 2e9
"""The memory of a process is compared only above this size."""


@dataclass(frozen=True)
class MemoryRow:
    """The measured peak of a step, and the relative errors of its predicted memory."""

    name: str
    allocated_bytes: int
    allocated: float
    reserved: float
    process: float | None


def measured_steps() -> dict[str, dict[str, Any]]:
    """The measured memory of each step, by its name."""
    return {row["name"]: row for row in _rows("steps.jsonl") if row["status"] == "ok"}


def _rows(file: str) -> Iterator[dict[str, Any]]:
    for line in (MEASURED / file).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def compare_steps() -> list[MemoryRow]:
    """Every measured step, traced and predicted."""
    return [_compared(name, row) for name, row in measured_steps().items() if name in STEPS]


def _compared(name: str, row: dict[str, Any]) -> MemoryRow:
    memory = wavecast.memory(wavecast.trace(STEPS[name].make, gpu=GPU), GPU)
    process = row["process_bytes"]
    return MemoryRow(
        name,
        row["allocated_bytes"],
        memory.peak_bytes / row["allocated_bytes"] - 1,
        memory.reserved_bytes / row["reserved_bytes"] - 1,
        (memory.process_bytes or 0) / process - 1 if process > LARGE_BYTES else None,
    )


def steps_summary(rows: Sequence[MemoryRow]) -> str:
    """The figures of all steps, and of the steps whose models are in no fit."""
    others = [row for row in rows if not row.name.startswith("suite ")]
    lines = [*heading("memory | steps | mean error | median | bias | worst")]
    for chosen, which in ((rows, ""), (others, ", models in no fit")):
        for name, errors in (
            ("allocated at the peak", [row.allocated for row in chosen]),
            ("reserved", [row.reserved for row in chosen]),
            ("process above 2 GB", [row.process for row in chosen if row.process is not None]),
        ):
            if errors:
                scores = figures(errors)
                cells = " | ".join(scores.cells(1, worst_digits=1))
                lines.append(f"| {name}{which} | {scores.count} | {cells} |")
    return "\n".join(lines)


def steps_table(rows: Sequence[MemoryRow]) -> str:
    """A line for each step."""
    lines = [*heading("step | allocated | error | reserved | process")]
    for row in rows:
        process = "" if row.process is None else f"{row.process:+.1%}"
        lines.append(
            f"| {row.name} | {row.allocated_bytes / 2**30:.2f} GiB | {row.allocated:+.1%} "
            f"| {row.reserved:+.1%} | {process} |"
        )
    return "\n".join(lines)


def batches_tables() -> tuple[str, str]:
    """A summary, and a table of predicted and true largest batches under each memory limit."""
    lines = [*heading("step | limit | largest batch | predicted | error")]
    errors = []
    for row in _rows("growing.jsonl"):
        if row["status"] != "ok":
            continue
        predicted = predicted_batch(row["model"], row["gib"], max(1, row["fits"]))
        error = _error(predicted, row["fits"], row["too_large"])
        errors.append(error)
        true = row["fits"] if row["too_large"] == row["fits"] + 1 else f"{row['fits']} or more"
        lines.append(f"| {row['model']} | {row['gib']} GiB | {true} | {predicted} | {error:+.1%} |")
        print(lines[-1], flush=True)
    return batches_summary(errors), "\n".join(lines)


def batches_summary(errors: Sequence[float]) -> str:
    """One sentence on all searches."""
    return (
        f"{len(errors)} largest batches: mean error {figures(errors).mean:.1%}, at worst "
        f"{max(errors):+.1%} too large and {min(errors):+.1%} too small."
    )


def _error(predicted: int, fits: int, too_large: int) -> float:
    """The relative error against the nearest batch that may be the largest.

    The measured search stopped early, so the largest batch is only known to be from `fits` to
    `too_large` - 1.
    """
    if predicted < fits:
        return predicted / fits - 1
    return 0.0 if predicted < too_large else predicted / (too_large - 1) - 1


def predicted_batch(model: str, gib: int, start: int) -> int:
    """The largest batch that is predicted to fit.

    The search begins at `start`, near the true batch, so that few traces are needed.
    """
    return largest_batch(
        partial(_traced, model), wavecast.device(GPU), gib << 30, start=start
    ).batch


@cache
def _traced(model: str, batch: int) -> Trace:
    return wavecast.trace(lambda: GROWING[model](batch), gpu=GPU)


def main(given: Sequence[str] = ()) -> None:
    """Print the table of one command, and write what the pages have of it."""
    parser = needs.parser(__doc__)
    kinds = ("steps", "batches", "workspaces")
    parser.add_argument("what", nargs="?", default="steps", choices=kinds)
    what = parser.parse_args(given).what
    mark = f"{MARK} {what}"
    if what == "workspaces":
        shown = workspaces.table(workspaces.compare())
        pages.write(pages.APPENDIX / "memory-workspaces.md", mark, shown)
    else:
        if what == "steps":
            rows = compare_steps()
            summary, shown = steps_summary(rows), steps_table(rows)
        else:
            summary, shown = batches_tables()
        pages.write(PAGE, mark, summary)
        print(summary, end="\n\n")
    print(shown)
