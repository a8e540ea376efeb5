"""Per-layer models: their lines, and the times that they give a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType

from wavecast.regression.layers.complexities import Category, Pass
from wavecast.regression.layers.layer_file import lines_as_records
from wavecast.regression.layers.per_layer import LayerModel, NetworkTime
from wavecast.report.fields import Field, describe, output
from wavecast.report.tables import Column, line, listed, notes, remarks, table, titled
from wavecast.report.units import UNKNOWN, duration, long_duration, percent

LINES = output(
    "The line of one category of layers and one pass.",
    Field("category", kind=Category, title="category", meaning="The kind of layer."),
    Field("pass", kind=Pass, title="pass", meaning="The forward or the backward pass."),
    Field("layers", kind=int | None, title="layers", meaning="The layers that it was fitted on."),
    Field("fixed_s", kind=float, title="fixed", meaning="The time of a layer without work."),
    Field("per_unit_s", kind=float, meaning="The time of one unit of work."),
    Field("error", kind=float | None, title="mean error", text=percent, meaning="The mean error."),
)
describe(
    LayerModel,
    Field("source", title="source"),
    Field("unit", title="unit of work"),
    Field("lines", lines_as_records, kind=[LINES], meaning="The line of each category."),
    Field("left_out", title="left out"),
)
describe(
    NetworkTime,
    *(Field(name, title=name) for name in ("network", "batch", "iterations")),
    Field("forward_s", title="forward", text=long_duration),
    Field("backward_s", title="backward", text=long_duration),
    Field("seconds", title="both", text=long_duration),
    Field("unpredicted", title="not predicted"),
)


def fitted_lines(title: str, model: LayerModel) -> RenderableType:
    """The lines of a model, with the errors on the layers that they were fitted on."""
    rows = lines_as_records(model)
    columns = LINES.columns(rows)
    per_unit = [row["per_unit_s"] for row in rows]
    if model.unit == "operations":
        slope = Column("per G operations", [duration(one * 1e9) for one in per_unit])
    else:
        slope = Column("per predicted s", [f"{one:.3f} s" for one in per_unit])
    columns.insert(-1, slope)
    return titled(
        title, table(columns), "", *notes([f"left out: {reason}" for reason in model.left_out])
    )


_PART = output(
    "The time of one category of layers in one pass.",
    Field("category", kind=Category, meaning="The kind of layer."),
    Field("pass", kind=Pass, meaning="The forward or the backward pass."),
    Field("seconds", kind=float, meaning="The time of all iterations, in seconds."),
)


def _parts(network: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The time by category and pass."""
    times = network["predicted"].parts.items()
    return [{"category": key[0], "pass": key[1], "seconds": seconds} for key, seconds in times]


_MEASURED = "The measured time; null when it was not measured."
PREDICTED = output(
    "The time of a network by a per-layer model, beside the measured time.",
    Field("", "predicted", kind=NetworkTime, inline=True),
    Field("parts", _parts, kind=[_PART]),
    Field("source", kind=str, meaning="Where the lines of the model are from."),
    Field("measured_forward_s", "measured.forward_s", kind=float | None, meaning=_MEASURED),
    Field("measured_backward_s", "measured.backward_s", kind=float | None, meaning=_MEASURED),
)


def network_time(
    title: str, predicted: NetworkTime, source: str, measured: NetworkTime | None = None
) -> RenderableType:
    """The time of a network by category, next to the measured time if there is one."""
    categories = list(dict.fromkeys(category for category, _ in predicted.parts))
    rows = [
        [predicted.parts.get((category, which)) for which in Pass] for category in categories
    ] + [[predicted.forward_s, predicted.backward_s]]
    sums = [sum(part or 0.0 for part in row) for row in rows]
    columns = [
        Column("category", [*map(str, categories), "sum"], left=True),
        Column("forward", [_time(row[0]) for row in rows]),
        Column("backward", [_time(row[1]) for row in rows]),
        Column("both", [_time(seconds) for seconds in sums]),
        Column("share", [percent(seconds / sums[-1]) for seconds in sums]),
    ]
    if measured is not None:
        actual = [
            sum(measured.parts.get((category, which), 0.0) for which in Pass)
            for category in categories
        ]
        actual.append(sum(actual))
        pairs = zip(sums, actual, strict=True)
        errors = [f"{ours / theirs - 1:+.0%}" if theirs else UNKNOWN for ours, theirs in pairs]
        columns += [Column("measured", [_time(one) for one in actual]), Column("error", errors)]
    missing = [line(f"not predicted: {listed(predicted.unpredicted)}", "yellow")]
    return titled(
        title,
        table(columns),
        "",
        *remarks([f"lines: {source}"]),
        *(missing if predicted.unpredicted else []),
    )


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else long_duration(seconds) if seconds else "0"
