"""Past runs, and what importing them did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType

from wavecast.report.fields import Field, columns, describe
from wavecast.report.tables import shown
from wavecast.report.units import duration, runs
from wavecast.runs.run import Run

if TYPE_CHECKING:  # the store needs SQLAlchemy, a table of runs does not
    from wavecast.runs.store.imported import Imported


def _per_iteration(run: Run) -> float:
    return run.seconds / run.iterations


def _whole(seconds: float) -> str:
    return duration(seconds) if seconds else "0 s"


describe(
    Run,
    Field("model", title="model"),
    Field("phase", title="phase", rank=4),
    Field("gpu", title="GPU", rank=1),
    Field("gpus", title="GPUs", rank=3, text=str),
    Field("batch", title="batch"),
    Field("precision", title="precision", rank=5),
    Field("inner_modules", title="inner modules", rank=7, text=str, absent=""),
    Field("iterations", title="iterations"),
    Field("seconds", title="timed", rank=2),
    Field("", _per_iteration, title="per iteration", text=duration),
    Field("total_iterations", title="all iterations", rank=4, text=str, absent=""),
    Field("total_s", title="whole run", rank=2, text=_whole, absent=""),
    Field("testing_s", title="in tests", rank=4, text=_whole, absent=""),
    "training_s",
    Field("framework", title="framework", rank=8),
    Field("source", title="read from", rank=6),
)


def past_runs(rows: Sequence[Run], width: int) -> RenderableType:
    """One row for each run."""
    return Group(*shown(columns(rows), width))


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
