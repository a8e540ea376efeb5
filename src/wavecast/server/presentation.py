"""The answers as parts of the page: the same drawings and tables as in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wavecast.planning.cost import TrainingPlan
from wavecast.planning.prices import price_book
from wavecast.report.costs import WholeTraining
from wavecast.report.fields import columns
from wavecast.report.html.compared import ComparedStep, most_wanted, of_prediction
from wavecast.report.html.comparison import comparison, tiles, verdict
from wavecast.report.html.documents import document
from wavecast.report.html.markup import Html, table
from wavecast.report.html.reports import prediction_report
from wavecast.report.prices import price_lines
from wavecast.report.tables import ANY_WIDTH, fitting
from wavecast.server.rows import PredictedRow

_COMPARISON = "comparison"
"""The section of a report that the page has in a place of its own."""


def summary_parts(rows: Sequence[PredictedRow]) -> dict[str, str | list[str]]:
    """The verdict, the main figures and the table that compares the GPUs, as HTML."""
    compared = [of_prediction(row.step, price_book(), row.cost) for row in rows]
    best = most_wanted(compared)[0]
    return {
        "verdict": verdict(compared),
        "tiles": tiles(best),
        "comparison": comparison(compared),
        "prices": _price_lines(compared),
        "training": _training(rows),
        "best": best.device.id,
    }


def _price_lines(compared: Sequence[ComparedStep]) -> list[str]:
    """What the prices in the table mean, and how old they are."""
    offers = [one.offer for one in compared]
    lines = price_lines(offers)
    if lines and compared[0].gpus > 1:
        dates = sorted(offer.date for offer in offers if offer is not None)
        whole = f"$/h: whole machines for {compared[0].gpus} GPUs, cheapest offers on demand in USD"
        return [f"{whole}, prices of {dates[0]} to {dates[-1]}"]
    return lines


def _training(rows: Sequence[PredictedRow]) -> Html:
    """What the whole training takes on each GPU; nothing if it was not asked for."""
    costs = [row.cost for row in rows if row.cost is not None]
    if not costs:
        return Html()
    told = fitting(columns(costs), ANY_WIDTH)
    return table(told, caption="The whole training on each GPU", sorts=len(costs) > 1)


def detail_parts(title: str, row: PredictedRow) -> dict[str, Any]:
    """Where time and memory go on one GPU: sections as HTML, and the data of their script."""
    report = prediction_report(title, [row.step])
    kept = [section for section in report.sections if section.identity != _COMPARISON]
    return {"sections": [section.drawn() for section in kept], "data": report.data}


def report_page(title: str, rows: Sequence[PredictedRow], plan: TrainingPlan | None) -> str:
    """The report of all rows, as one self-contained page, with the whole training if asked for."""
    whole = None if plan is None else WholeTraining(plan, [row.cost for row in rows])
    return document(prediction_report(title, [row.step for row in rows], training=whole))
