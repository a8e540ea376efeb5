"""The page of the benchmark suite."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from wavecast.report.characters import one_line
from wavecast.report.suites import result_columns
from wavecast.report.tables import ANY_WIDTH, Column, fitting
from wavecast.report.templates import filled, template
from wavecast.runs.suite_results import SuiteResult

_BARS = {
    "GPU use": "gpu_utilisation",
    "FP32 use": "fp32_utilisation",
    "tensor-core use": "tensor_utilisation",
}
"""The columns of suite results that are drawn as bars, and the values that they show."""


def suite_page(title: str, results: Sequence[SuiteResult]) -> str:
    """The results of the benchmark suite as a table that sorts by any column."""
    columns = fitting(result_columns(results), ANY_WIDTH)

    def share(column: Column, row: int) -> float | None:
        name = _BARS.get(column.name)
        return getattr(results[row], name) if name else None

    values = {"title": html.escape(one_line(title)), "table": _table(columns, share)}
    return filled("suite.html", {**values, "style": template("style.css")})


def _table(
    columns: Sequence[Column],
    share: Callable[[Column, int], float | None] = lambda column, row: None,
) -> str:
    """The columns as a table of HTML; cells with a share get a bar of that length."""

    def cell(column: Column, row: int) -> str:
        text, part = html.escape(column.cells[row]), share(column, row)
        if part is None:
            return f'<td class="{_side(column)}">{text}</td>'
        return f'<td class="number bar" style="--share:{min(100.0, 100 * part):.1f}%">{text}</td>'

    head = "".join(f'<th class="{_side(c)}">{html.escape(c.name)}</th>' for c in columns)
    body = "\n".join(
        f"<tr>{''.join(cell(column, row) for column in columns)}</tr>"
        for row in range(len(columns[0].cells) if columns else 0)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _side(column: Column) -> str:
    return "text" if column.left else "number"
