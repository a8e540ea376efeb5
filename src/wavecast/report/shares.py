"""The parts of a step's GPU time, and ops with their numbers of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Group, RenderableType

from wavecast.report.tables import from_rows, table, titled
from wavecast.report.units import count, duration, percent
from wavecast.steps.shares import Share


def shares(title: str, parts: Iterable[Share], total_s: float, limit: int = 15) -> RenderableType:
    """The parts of the GPU's time, longest first; parts beyond the limit are added up."""
    rows = list(parts)
    rest = rows[limit:]
    if len(rest) > 1:
        calls, seconds = sum(part.calls for part in rest), sum(part.gpu_s for part in rest)
        rows = [*rows[:limit], Share(f"{len(rest)} others", calls, seconds)]
    cells = [
        (
            part.name,
            count(part.calls),
            duration(part.gpu_s),
            percent(part.gpu_s / total_s if total_s else 0.0, 1),
        )
        for part in rows
    ]
    return Group("", titled(title, table(from_rows(cells, "<...", "calls", "GPU time", "share"))))


def counted_ops(calls: Mapping[str, int]) -> str:
    """Names of ops with their number of calls: `aten.mm (2 calls)`."""
    return ", ".join(
        f"{name} ({number} call{'' if number == 1 else 's'})" for name, number in calls.items()
    )
