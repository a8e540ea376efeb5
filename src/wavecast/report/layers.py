"""Per-layer models: their lines, and the times that they give a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rich.console import RenderableType

from wavecast.regression.layers.complexities import Category, Pass
from wavecast.regression.layers.layer_file import lines_as_records
from wavecast.regression.layers.per_layer import Key, LayerModel, NetworkTime
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


class _CategoryTime(NamedTuple):
    """The time of a category, of the layers without a line, or of all."""

    name: str
    forward_s: float | None
    backward_s: float | None
    measured_s: float

    @property
    def seconds(self) -> float | None:
        """The time of both passes; None if that of one is not known."""
        if self.forward_s is None or self.backward_s is None:
            return None
        return self.forward_s + self.backward_s


_NO_LINE, _SUM = "no line", "sum"


def network_time(
    title: str, predicted: NetworkTime, source: str, measured: NetworkTime | None = None
) -> RenderableType:
    """The time of a network by category, next to the measured time if there is one.

    Layers without a line have a row of their own, whose time only a measurement can tell.
    """
    rows = list(_rows(predicted, {} if measured is None else measured.parts))
    lost = [row.measured_s for row in rows if row.name == _NO_LINE]
    covered = None if lost and measured is None else 1 - sum(lost) / (rows[-1].measured_s or 1.0)
    columns = [
        Column("category", [row.name for row in rows], left=True),
        Column("forward", [_time(row.forward_s) for row in rows]),
        Column("backward", [_time(row.backward_s) for row in rows]),
        Column("both", [_time(row.seconds) for row in rows]),
        Column("share", [_share(row, predicted.seconds, covered) for row in rows]),
    ]
    if measured is not None:
        errors = [
            f"{row.seconds / row.measured_s - 1:+.0%}"
            if row.seconds is not None and row.measured_s
            else UNKNOWN
            for row in rows
        ]
        columns += [Column("measured", [_time(row.measured_s) for row in rows])]
        columns += [Column("error", errors)]
    missing = [line(f"not predicted: {listed(predicted.unpredicted)}", "yellow")]
    said = [f"lines: {source}"]
    if covered is None:
        said.append("shares: of the time of layers that have a line")
    return titled(
        title,
        table(columns),
        "",
        *remarks(said),
        *(missing if predicted.unpredicted else []),
    )


def _rows(predicted: NetworkTime, measured: Mapping[Key, float]) -> Iterator[_CategoryTime]:
    """The categories, what has no line if something has none, and the sum."""
    for category in dict.fromkeys(category for category, _ in predicted.parts):
        keys = [(category, which) for which in Pass]
        forward_s, backward_s = (predicted.parts.get(key) for key in keys)
        theirs = sum(measured.get(key, 0.0) for key in keys if key in predicted.parts)
        yield _CategoryTime(str(category), forward_s, backward_s, theirs)
    others = sum(seconds for key, seconds in measured.items() if key not in predicted.parts)
    if predicted.unpredicted or others:
        yield _CategoryTime(_NO_LINE, None, None, others)
    yield _CategoryTime(_SUM, predicted.forward_s, predicted.backward_s, sum(measured.values()))


def _share(row: _CategoryTime, whole_s: float, covered: float | None) -> str:
    """The share of a row in the time of all layers, or of those with a line if that is unknown."""
    if row.name == _SUM:
        return UNKNOWN if covered is None else percent(1.0)
    if row.name == _NO_LINE:
        return UNKNOWN if covered is None else percent(1.0 - covered)
    if row.seconds is None:
        return UNKNOWN
    return percent(row.seconds / whole_s * (1.0 if covered is None else covered))


def _time(seconds: float | None) -> str:
    return UNKNOWN if seconds is None else long_duration(seconds) if seconds else "0"
