"""Past runs as a table in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from wavecast.report.tables import Column, fitting, table
from wavecast.report.units import count, duration, runs
from wavecast.runs.run import Run

if TYPE_CHECKING:  # the store needs SQLAlchemy, a table of runs does not
    from wavecast.runs.store.imports import Imported


def past_runs(rows: Sequence[Run], width: int) -> RenderableType:
    """One row for each run."""
    columns = [
        Column("model", [run.model for run in rows], left=True),
        Column("phase", [run.phase for run in rows], 4, left=True),
        Column("GPU", [run.gpu for run in rows], 1, left=True),
        Column("GPUs", [str(run.gpus) for run in rows], 3),
        Column("batch", [count(run.batch) for run in rows]),
        Column("precision", [run.precision for run in rows], 5, left=True),
        Column("inner modules", [_or_empty(run.inner_modules) for run in rows], 7),
        Column("iterations", [count(run.iterations) for run in rows]),
        Column("timed", [duration(run.seconds) for run in rows], 2),
        Column("per iteration", [duration(run.seconds / run.iterations) for run in rows]),
        *_wholes(rows),
        Column("framework", [run.framework for run in rows], 8, left=True),
        Column("read from", [run.source for run in rows], 6, left=True),
    ]
    return table(fitting(columns, width))


def _wholes(rows: Sequence[Run]) -> list[Column]:
    """The columns about whole runs, if any run says something about it."""
    if not any(run.total_s is not None for run in rows):
        return []
    return [
        Column("all iterations", [_or_empty(run.total_iterations) for run in rows], 4),
        Column("whole run", [_time(run.total_s) for run in rows], 2),
        Column("in tests", [_time(run.testing_s) for run in rows], 4),
    ]


def _time(seconds: float | None) -> str:
    return "" if seconds is None else "0 s" if seconds == 0 else duration(seconds)


def imported_file(imported: Imported) -> str:
    """What importing one file did, in one line."""
    resumed = (
        f", resumed after {imported.resumed_at:,}"
        if 0 < imported.resumed_at < imported.runs
        else ""
    )
    return f"{imported.file}: {runs(imported.runs)}, {imported.new:,} new{resumed}"


def imported_files(files: Sequence[Imported], store: str) -> str:
    """What importing several files did, in one line."""
    new, read = sum(file.new for file in files), sum(file.runs for file in files)
    return f"{new:,} new of {runs(read)}, in {store}"


def _or_empty(value: int | None) -> str:
    return "" if value is None else str(value)
