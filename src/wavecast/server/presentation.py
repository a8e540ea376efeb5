"""The answers as parts of the page: the same drawings and tables as in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wavecast.report.html.candidates import Candidate, of_parallel, of_prediction, ranked
from wavecast.report.html.comparison import comparison, tiles, verdict
from wavecast.report.html.details import details
from wavecast.report.html.documents import subjects_data
from wavecast.report.html.reports import parallel_page, prediction_page
from wavecast.server.rows import PredictedRow
from wavecast.steps.parallel_prediction import ParallelPrediction
from wavecast.steps.prediction import Prediction


def candidate(row: PredictedRow) -> Candidate:
    """A row as the report compares it."""
    if isinstance(row.step, Prediction):
        return of_prediction(row.step)
    return of_parallel(row.step, row.memory)


def summary_parts(rows: Sequence[PredictedRow]) -> dict[str, str]:
    """The verdict, the main figures and the table that compares the GPUs, as HTML."""
    compared = [candidate(row) for row in rows]
    best = next(iter(ranked(compared)), compared[0])
    return {
        "verdict": verdict(compared),
        "tiles": tiles(best),
        "comparison": comparison(compared),
        "best": best.device.id,
    }


def detail_parts(row: PredictedRow) -> dict[str, Any]:
    """Where time and memory go on one GPU: sections as HTML, and the data of their script."""
    shown = details([candidate(row)])
    return {
        "sections": [section.drawn() for section in shown.sections],
        "data": subjects_data(shown.subjects, shown.names),
    }


def whole_report(title: str, rows: Sequence[PredictedRow]) -> str:
    """The report of all rows, as one self-contained page."""
    alone = [row.step for row in rows if isinstance(row.step, Prediction)]
    if alone:
        return prediction_page(title, alone)
    spread = [(row.step, row.memory) for row in rows if isinstance(row.step, ParallelPrediction)]
    return parallel_page(title, spread)
