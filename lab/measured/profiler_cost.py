"""Steps timed before and after a profiler has run, as `lab.collect.profiler_cost` measured them."""

from __future__ import annotations

import json
import statistics

from lab.places import H200

FILE = H200 / "profiler.json"
STEPS = ("googlenet b8 tf32", "bert-base b8 fp16", "transformer b16 bf16", "a3c b16 fp32")
FRESH = "fresh"
"""The stage before any profiler."""


def before_and_after_s(step: str) -> tuple[float, float]:
    """The median seconds of an iteration in a fresh process, and after a profiler has run."""
    rows = [row for row in json.loads(FILE.read_text(encoding="utf-8")) if row["step"] == step]
    before_s, after_s = (
        statistics.median(
            seconds
            for row in rows
            if (row["stage"] == FRESH) is fresh
            for seconds in row["seconds"]
        )
        for fresh in (True, False)
    )
    return before_s, after_s
