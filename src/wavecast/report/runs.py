"""Past runs as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.report.tables import Column, fitting, table
from wavecast.report.units import count, duration
from wavecast.runs.run import Run


def runs(found: Sequence[Run], width: int) -> RenderableType:
    """One row for each run."""
    columns = [
        Column("model", [each.model for each in found], left=True),
        Column("phase", [each.phase for each in found], 4, left=True),
        Column("GPU", [each.gpu for each in found], 1, left=True),
        Column("GPUs", [str(each.gpus) for each in found], 3),
        Column("batch", [count(each.batch) for each in found]),
        Column("precision", [each.precision for each in found], 5, left=True),
        Column("modules", [_shown(each.inner_modules) for each in found], 7),
        Column("iterations", [count(each.iterations) for each in found]),
        Column("took", [duration(each.seconds) for each in found], 2),
        Column("one", [duration(each.seconds / each.iterations) for each in found]),
        Column("framework", [each.framework for each in found], 8, left=True),
        Column("read from", [each.source for each in found], 6, left=True),
    ]
    return table(fitting(columns, width))


def _shown(value: int | None) -> str:
    return "" if value is None else str(value)
