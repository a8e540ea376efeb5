"""Predicted memory against the real allocator and nvidia-smi on our H200: tables of docs/memory.md.

    python -m lab.score.memory steps         # allocated, reserved, process (a few minutes)
    python -m lab.score.memory batches       # the largest batch under a limit (half an hour)
    python -m lab.score.memory workspaces    # libraries' own, models left out (a minute)

Measured by lab/collect/memory_reality.py (measurements/h200/memory); every step is traced here.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import wavecast
from lab.places import DOCS, H200
from lab.score import pages, workspaces
from lab.steps.memory import GROWING, STEPS
from wavecast.footprint.largest_batch import largest_batch
from wavecast.traces.step import Trace

MEASURED = H200 / "memory"
PAGE = DOCS / "memory.md"
GPU = "h200-sxm"
LARGE_BYTES = 2e9
"""Whole processes are compared from here on."""


@dataclass(frozen=True)
class MemoryRow:
    """A step: what was measured, and how far the predictions are off."""

    name: str
    allocated_bytes: int
    allocated: float
    reserved: float
    process: float | None


def measured_steps() -> dict[str, dict[str, Any]]:
    """What was measured of each step."""
    return {row["name"]: row for row in _rows("steps.jsonl") if row["status"] == "ok"}


def _rows(file: str) -> Iterator[dict[str, Any]]:
    for line in (MEASURED / file).read_text(encoding="utf-8").splitlines():
        yield json.loads(line)


def compare_steps() -> list[MemoryRow]:
    """Every measured step, traced and predicted."""
    return [_compared(name, row) for name, row in measured_steps().items() if name in STEPS]


def _compared(name: str, row: dict[str, Any]) -> MemoryRow:
    found = wavecast.memory(wavecast.trace(STEPS[name].make, gpu=GPU), GPU)
    process = row["process_bytes"]
    return MemoryRow(
        name,
        row["allocated_bytes"],
        found.peak_bytes / row["allocated_bytes"] - 1,
        found.reserved_bytes / row["reserved_bytes"] - 1,
        (found.process_bytes or 0) / process - 1 if process > LARGE_BYTES else None,
    )


def steps_table(rows: Sequence[MemoryRow]) -> str:
    """The summary, then a line for each step."""
    others = [row for row in rows if not row.name.startswith("suite ")]
    lines = ["| | steps | mean error | median | worst |", "|---|---:|---:|---:|---:|"]
    for chosen, of in ((rows, ""), (others, ", models in no fit")):
        for name, errors in (
            ("allocated at the peak", [row.allocated for row in chosen]),
            ("reserved", [row.reserved for row in chosen]),
            ("process above 2 GB", [row.process for row in chosen if row.process is not None]),
        ):
            if errors:
                lines.append(_summary(f"{name}{of}", errors))
    lines += ["", "| step | allocated | error | reserved | process |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        process = "" if row.process is None else f"{row.process:+.1%}"
        lines.append(
            f"| {row.name} | {row.allocated_bytes / 2**30:.2f} GiB | {row.allocated:+.1%} "
            f"| {row.reserved:+.1%} | {process} |"
        )
    return "\n".join(lines)


def _summary(name: str, errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    cells = (statistics.mean(sizes), statistics.median(sizes), max(sizes))
    return f"| {name} | {len(sizes)} | {' | '.join(f'{cell:.1%}' for cell in cells)} |"


def batches_table() -> str:
    """Predicted and true largest batches under each limit."""
    lines = [
        "| step | limit | largest batch | predicted | error |",
        "|---|---:|---:|---:|---:|",
    ]
    errors = []
    for row in _rows("growing.jsonl"):
        if row["status"] != "ok":
            continue
        found = predicted_batch(row["model"], row["gib"], max(1, row["fits"]))
        error = _error(found, row["fits"], row["too_large"])
        errors.append(error)
        true = row["fits"] if row["too_large"] == row["fits"] + 1 else f"{row['fits']} or more"
        lines.append(f"| {row['model']} | {row['gib']} GiB | {true} | {found} | {error:+.1%} |")
        print(lines[-1], flush=True)
    too_large, too_small = max(errors), min(errors)
    summary = (
        f"{len(errors)} largest batches: mean error {statistics.mean(map(abs, errors)):.1%}, at "
        f"worst {too_large:+.1%} too large and {too_small:+.1%} too small."
    )
    return "\n".join([summary, "", *lines])


def _error(predicted: int, fits: int, too_large: int) -> float:
    """Against the nearest batch that may be the largest one: the search stopped near it."""
    if predicted < fits:
        return predicted / fits - 1
    return 0.0 if predicted < too_large else predicted / (too_large - 1) - 1


def predicted_batch(model: str, gib: int, start: int) -> int:
    """The largest batch that should fit; the search begins near the truth to need few traces."""
    return largest_batch(
        partial(_traced, model), wavecast.device(GPU), gib << 30, start=start
    ).batch


@cache
def _traced(model: str, batch: int) -> Trace:
    return wavecast.trace(lambda: GROWING[model](batch), gpu=GPU)


def main(what: str) -> None:
    """Write one table, and print it."""
    if what == "steps":
        content = steps_table(compare_steps())
    elif what == "batches":
        content = batches_table()
    else:
        content = workspaces.table(workspaces.compare())
    pages.write(PAGE, what, content)
    print(content)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "steps")
