"""The run of a training script as lines and a table in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from wavecast.report.tables import Column, line, table
from wavecast.report.units import count, quantity
from wavecast.traces.script import ScriptRun


def script_run(run: ScriptRun) -> RenderableType:
    """Which step was traced and why, and what ran outside of it."""
    step = line(f"{run.script}: {run.summary}", "bold")
    if not run.once:
        return Group(step, "")
    columns = [
        Column("outside of the step", [part.name for part in run.once], left=True),
        Column("calls", [count(part.calls) for part in run.once]),
        Column("FLOPs", [quantity(part.flops, "FLOP") for part in run.once]),
    ]
    return Group(step, "", table(columns), "")
