"""The answers as parts of the page: the same drawings and tables as in a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wavecast.planning.cost import Ranged
from wavecast.planning.prices import price_book
from wavecast.report.html.compared import ComparedStep, most_wanted, of_parallel, of_prediction
from wavecast.report.html.comparison import comparison, tiles, verdict
from wavecast.report.html.documents import Report, document
from wavecast.report.html.markup import Html, table
from wavecast.report.html.reports import parallel_report, prediction_report
from wavecast.report.prices import price_lines
from wavecast.report.tables import Column
from wavecast.report.units import UNKNOWN, count, long_duration, three_digits
from wavecast.server.rows import PredictedRow
from wavecast.steps.parallel_prediction import ParallelPrediction
from wavecast.steps.prediction import Prediction

_COMPARISON = "comparison"
"""The section of a report that the page has in a place of its own."""


def summary_parts(rows: Sequence[PredictedRow]) -> dict[str, str | list[str]]:
    """The verdict, the main figures and the table that compares the GPUs, as HTML."""
    compared = [_compared(row) for row in rows]
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


def _compared(row: PredictedRow) -> ComparedStep:
    if isinstance(row.step, Prediction):
        return of_prediction(row.step, price_book())
    return of_parallel(row.step, row.memory, price_book())


def _training(rows: Sequence[PredictedRow]) -> Html:
    """What the whole training takes on each GPU; nothing if it was not asked for."""
    asked = [(row, row.cost) for row in rows if row.cost is not None]
    if not asked:
        return Html()
    names = [
        row.device.id if cost.gpus == 1 else f"{cost.gpus} x {row.device.id}" for row, cost in asked
    ]
    columns = [
        Column("GPU", names, left=True),
        Column("time", [long_duration(cost.seconds.value) for _, cost in asked]),
        Column("range", [_range(cost.seconds, long_duration) for _, cost in asked], left=True),
        Column("cost", [_money(cost.usd) for _, cost in asked]),
        Column("range of cost", [_range(cost.usd, _dollars) for _, cost in asked], left=True),
        Column("energy, at most", [_energy(cost.energy_kwh) for _, cost in asked]),
        Column("steps", [count(cost.steps) for _, cost in asked]),
    ]
    return table(columns, caption="The whole training on each GPU", sorts=len(asked) > 1)


def _money(usd: Ranged | None) -> str:
    return UNKNOWN if usd is None else _dollars(usd.value)


def _dollars(usd: float) -> str:
    return f"${count(usd)}" if usd >= 100 else f"${usd:.2f}"


def _energy(kwh: Ranged | None) -> str:
    return UNKNOWN if kwh is None else f"{three_digits(kwh.value)} kWh"


def _range(value: Ranged | None, show: Any) -> str:
    if value is None or value.low is None or value.high is None:
        return UNKNOWN
    return f"{show(value.low)} - {show(value.high)}"


def detail_parts(title: str, row: PredictedRow) -> dict[str, Any]:
    """Where time and memory go on one GPU: sections as HTML, and the data of their script."""
    report = whole_report(title, [row])
    kept = [section for section in report.sections if section.identity != _COMPARISON]
    return {"sections": [section.drawn() for section in kept], "data": report.data}


def whole_report(title: str, rows: Sequence[PredictedRow]) -> Report:
    """The report of all rows."""
    alone = [row.step for row in rows if isinstance(row.step, Prediction)]
    if alone:
        return prediction_report(title, alone)
    spread = [(row.step, row.memory) for row in rows if isinstance(row.step, ParallelPrediction)]
    return parallel_report(title, spread)


def report_page(title: str, rows: Sequence[PredictedRow]) -> str:
    """The report of all rows, as one self-contained page."""
    return document(whole_report(title, rows))
