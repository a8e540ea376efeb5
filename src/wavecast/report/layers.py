"""Per-layer models: their lines, and the times that they give a network."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType

from wavecast.regression.complexities import Pass
from wavecast.regression.layer_file import lines_as_records
from wavecast.regression.per_layer import LayerModel, NetworkTime
from wavecast.report.tables import Column, line, listed, notes, remarks, table, titled
from wavecast.report.units import UNKNOWN, count, duration, long_duration, or_unknown, percent


def fitted_lines(title: str, model: LayerModel) -> RenderableType:
    """The lines of a model, with the errors on the layers that they were fitted on."""
    rows = [(*key, fitted) for key, fitted in model.lines.items()]
    operations = model.unit == "operations"
    columns = [
        Column("category", [str(category) for category, _, _ in rows], left=True),
        Column("pass", [str(which) for _, which, _ in rows], left=True),
        Column("layers", [or_unknown(fitted.layers, count) for _, _, fitted in rows]),
        Column("fixed", [duration(fitted.fixed_s) for _, _, fitted in rows]),
        Column(
            "per G operations" if operations else "per predicted s",
            [
                duration(fitted.per_unit_s * 1e9) if operations else f"{fitted.per_unit_s:.3f} s"
                for _, _, fitted in rows
            ],
        ),
        Column("mean error", [or_unknown(fitted.error, percent) for _, _, fitted in rows]),
    ]
    return titled(
        title, table(columns), "", *notes([f"left out: {reason}" for reason in model.left_out])
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
        columns += [
            Column("measured", [_time(seconds) for seconds in actual]),
            Column(
                "error",
                [
                    f"{ours / theirs - 1:+.0%}" if theirs else UNKNOWN
                    for ours, theirs in zip(sums, actual, strict=True)
                ],
            ),
        ]
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


def lines_record(model: LayerModel) -> dict[str, Any]:
    """A model as plain data."""
    return {
        "source": model.source,
        "unit": model.unit,
        "lines": lines_as_records(model),
        "left_out": list(model.left_out),
    }


def time_record(
    predicted: NetworkTime, source: str, measured: NetworkTime | None = None
) -> dict[str, Any]:
    """The time of a network as plain data."""
    return {
        "network": predicted.network,
        "batch": predicted.batch,
        "iterations": predicted.iterations,
        "forward_s": predicted.forward_s,
        "backward_s": predicted.backward_s,
        "seconds": predicted.seconds,
        "parts": [
            {"category": str(category), "pass": str(which), "seconds": seconds}
            for (category, which), seconds in predicted.parts.items()
        ],
        "unpredicted": list(predicted.unpredicted),
        "source": source,
        "measured_forward_s": None if measured is None else measured.forward_s,
        "measured_backward_s": None if measured is None else measured.backward_s,
    }
