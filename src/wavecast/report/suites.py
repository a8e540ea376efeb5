"""The suite and its results: tables for a terminal, and one page of HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from importlib import resources

from rich.console import Group, RenderableType
from rich.text import Text

from wavecast.report.tables import Column, fitting, table
from wavecast.report.units import count, duration, memory, quantity
from wavecast.runs.suite_results import SuiteResult
from wavecast.suite import Benchmark


def suite(found: Sequence[Benchmark], width: int) -> RenderableType:
    """The models of the suite, by domain."""
    columns = [
        Column("name", [each.name for each in found], left=True),
        Column("domain", [each.domain for each in found], 1, left=True),
        Column("parameters", [quantity(each.published_parameters) for each in found], 2),
        Column("batch", [str(each.default_batch) for each in found], 3),
        Column("counted in", [each.unit for each in found], 4, left=True),
        Column("reference", [each.reference for each in found], 5, left=True),
    ]
    return table(fitting(columns, width))


def results(title: str, found: Sequence[SuiteResult], width: int) -> RenderableType:
    """One row for each step."""
    return Group(Text(title, style="bold"), "", table(fitting(_columns(found), width)))


def _columns(found: Sequence[SuiteResult]) -> list[Column]:
    return [
        Column("model", [each.model for each in found], left=True),
        Column("batch", [str(each.batch) for each in found]),
        Column("precision", [each.precision for each in found], left=True),
        Column("step", [_shown(each.seconds, duration, each.status) for each in found]),
        Column("throughput", [_throughput(each) for each in found], 1),
        Column("GPU", [_percent(each.gpu_utilisation) for each in found], 2),
        Column("FP32", [_percent(each.fp32_utilisation) for each in found], 3),
        Column("tensor", [_percent(each.tensor_utilisation) for each in found], 3),
        Column("CPU", [_percent(each.cpu_utilisation) for each in found], 7),
        Column("weights", [_shown(each.weights_bytes, memory) for each in found], 5),
        Column("gradients", [_shown(each.weight_gradients_bytes, memory) for each in found], 6),
        Column("feature maps", [_shown(each.feature_maps_bytes, memory) for each in found], 4),
        Column("workspace", [_shown(each.workspace_bytes, memory) for each in found], 6),
        Column("dynamic", [_shown(each.dynamic_bytes, memory) for each in found], 6),
        Column("peak", [_shown(each.peak_bytes, memory) for each in found], 4),
    ]


def _shown(value: float | None, show: object, otherwise: str = "?") -> str:
    return otherwise if value is None else str(show(value))  # type: ignore[operator]


def _throughput(each: SuiteResult) -> str:
    rate = each.throughput_per_s
    return "?" if rate is None else f"{count(rate)} {each.unit}/s"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"


def page(title: str, found: Sequence[SuiteResult], notes: Sequence[str] = ()) -> str:
    """The results as one page of HTML that needs nothing else."""
    columns = fitting(_columns(found), 10**6)
    heads = "".join(f"<th>{html.escape(column.name)}</th>" for column in columns)
    rows = []
    for index, each in enumerate(found):
        cells = "".join(_cell(column, index, each) for column in columns)
        rows.append(f"<tr>{cells}</tr>")
    template = (
        resources.files("wavecast.report").joinpath("templates/suite.html").read_text("utf-8")
    )
    paragraphs = "".join(f"<p>{html.escape(note)}</p>" for note in notes)
    return (
        template.replace("{{title}}", html.escape(title))
        .replace("{{notes}}", paragraphs)
        .replace("{{heads}}", heads)
        .replace("{{rows}}", "\n".join(rows))
    )


_BARS = {"GPU": "gpu_utilisation", "FP32": "fp32_utilisation", "tensor": "tensor_utilisation"}


def _cell(column: Column, index: int, each: SuiteResult) -> str:
    shown = html.escape(column.cells[index])
    share = getattr(each, _BARS[column.name]) if column.name in _BARS else None
    if share is None:
        return f'<td class="{"text" if column.left else "number"}">{shown}</td>'
    width = min(100.0, 100 * share)
    return f'<td class="number bar" style="--share:{width:.1f}%">{shown}</td>'
