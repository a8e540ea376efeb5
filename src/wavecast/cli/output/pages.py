"""The options `--html` and `--chrome-trace`, and the files that they write."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavecast.cli.options.groups import grouped
from wavecast.errors import InvalidInput
from wavecast.files import write_whole
from wavecast.traces.file import SUFFIXES

if TYPE_CHECKING:
    from wavecast import Prediction
    from wavecast.advice.proposals import StepAdvice
    from wavecast.analysis.generation import TextGeneration
    from wavecast.report.html.documents import Report
    from wavecast.report.results.costs import WholeTraining
    from wavecast.report.views import View

HtmlOption = Annotated[
    Path | None,
    typer.Option("--html", metavar="FILE", help="Also write a report as one page of HTML."),
]
ChromeTraceOption = Annotated[
    Path | None,
    typer.Option(
        "--chrome-trace",
        metavar="FILE",
        help="Also write the predicted timeline as JSON for Perfetto or chrome://tracing.",
    ),
]


@dataclass(frozen=True)
class ReportFiles:
    """The files that a prediction is written to; None for those that were not asked for."""

    html: Path | None = None
    chrome_trace: Path | None = None

    def refuse_bad_places(self) -> None:
        """Refuse files that cannot be written at once, before tracing takes its time."""
        refuse_bad_places(self.html, self.chrome_trace)


NO_FILES = ReportFiles()


def report_files(command: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that gives a command the options of `ReportFiles`, as its parameter `files`."""
    annotations = {"html": HtmlOption, "chrome_trace": ChromeTraceOption}
    return grouped(command, "files", ReportFiles, annotations)


def refuse_bad_places(*paths: Path | None) -> None:
    """Refuse files that cannot be written at once, before tracing takes its time."""
    for path in paths:
        if path is None:
            continue
        if "\0" in str(path):
            raise InvalidInput(f"cannot write {path}: a path holds no null characters")
        if os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises for a name that is too long)
            raise InvalidInput(f"cannot write {path}: it is a directory; name a file in it")
        if not os.path.isdir(path.parent):  # noqa: PTH112
            raise InvalidInput(
                f"cannot write {path}: there is no directory {path.parent}; make it first, or "
                "choose another place"
            )


def refuse_unwritable(out: Path) -> None:
    """Refuse a bad path for a trace at once, before tracing or measuring takes its time."""
    if not out.name.endswith(SUFFIXES):
        raise InvalidInput(f"a trace is saved as FILE.json.gz, not {out} (FILE.trace works, too)")
    refuse_bad_places(out)


def write_page(path: Path | None, make: Callable[[], Report]) -> None:
    """Write a report as a page, if it was asked for."""
    if path is not None:
        from wavecast.report.html.documents import document

        write_whole(path, document(make()))


def write_view(path: Path | None, view: View) -> None:
    """Write a view as a page, if it was asked for."""
    if path is not None:
        from wavecast.report.html.documents import document, report_of

        write_whole(path, document(report_of(view)))


def write_prediction_files(
    files: ReportFiles,
    title: str,
    rows: Sequence[Prediction],
    setup: str | None = None,
    training: WholeTraining | None = None,
    *,
    several: bool = False,
    advice: StepAdvice | None = None,
    generation: Sequence[TextGeneration] = (),
) -> None:
    """Write the report and the timelines of predictions, where they were asked for."""

    def page() -> Report:
        from wavecast.planning.prices import price_book
        from wavecast.report.html.documents import report_of
        from wavecast.report.html.reports import generation_sections, prediction_report
        from wavecast.report.results.advice import advice_view

        report = prediction_report(title, rows, None if several else price_book(setup), training)
        more = () if advice is None else report_of(advice_view(advice)).sections
        served = generation_sections(generation)
        return replace(report, sections=(*served, *report.sections, *more))

    write_page(files.html, page)
    if files.chrome_trace is not None:
        from wavecast.steps.player import chrome_trace

        tables = {name: t for row in rows for name, t in row.named_timetables().items()}
        write_whole(files.chrome_trace, chrome_trace(tables))
