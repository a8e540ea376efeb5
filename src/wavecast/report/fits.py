"""Fitted models of runs and chosen runs: tables for a terminal, records for JSON, a plot."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from wavecast.predictors.base import Estimate
from wavecast.regression.design import Design
from wavecast.regression.end_to_end import RunModel
from wavecast.regression.extrapolation import ScalingModel
from wavecast.report.tables import Column, table
from wavecast.report.units import duration, three_digits

_SIDE, _MARGIN = 480, 56
_MOST_POINTS = 2000


def run_model(title: str, model: RunModel) -> RenderableType:
    """Coefficients with their ranges, and how well the runs are met."""
    found = model.coefficients
    columns = [
        Column("feature", [each.feature for each in found], left=True),
        Column("seconds each", [f"{each.value:.4g}" for each in found]),
        Column("90% range", [f"{each.low:.3g} to {each.high:.3g}" for each in found]),
    ]
    errors = model.errors
    worst = errors[np.argmax(np.abs(errors))]
    return Group(
        Text(title, style="bold"),
        "",
        table(columns),
        "",
        f"mean error on these {len(errors)} runs {model.mape:.1%}, largest {worst:+.1%} "
        "(above 0: predicted too long)",
    )


def run_record(model: RunModel) -> dict[str, Any]:
    """A fitted model as JSON has it."""
    return {
        "features": list(model.features),
        "method": str(model.fit.method),
        "phase": model.table.phase,
        "runs": len(model.table),
        "coefficients": [asdict(each) for each in model.coefficients],
        "mape": model.mape,
        "errors": [float(error) for error in model.errors],
    }


def forecast(title: str, found: Estimate, notes: Sequence[str] = ()) -> RenderableType:
    """The predicted time of a run."""
    lines: list[RenderableType] = [
        Text(title, style="bold"),
        "",
        f"{span(found.seconds)}, 90% range {span(found.low_s)} to {span(found.high_s)}",
        f"from {found.source}",
    ]
    return Group(*lines, *notes)


def forecast_record(found: Estimate, model: RunModel | ScalingModel) -> dict[str, Any]:
    """The same as JSON has it."""
    record = asdict(found)
    if isinstance(model, ScalingModel):
        record["law"] = model.law.name
        record["reason"] = model.reason
        record["laws"] = [
            {"law": trial.law.name, "error": trial.error, "left_out": trial.left_out}
            for trial in model.trials
        ]
    else:
        record["mape"] = model.mape
    return record


def designed(found: Design) -> RenderableType:
    """The runs to make."""
    runs = sorted(set(found.runs), key=lambda run: (run.gpus, run.batch, run.iterations))
    several = any(run.gpus > 1 for run in runs)
    columns = [
        *([Column("gpus", [str(run.gpus) for run in runs])] if several else []),
        Column("batch", [str(run.batch) for run in runs]),
        Column("iterations", [str(run.iterations) for run in runs]),
        Column("times", [str(found.runs.count(run)) for run in runs]),
        Column("about", [span(run.seconds) for run in runs]),
    ]
    return Group(
        table(columns),
        "",
        f"{len(found.runs)} runs, {span(found.cost_s)} of GPU time of {span(found.budget_s)}; "
        f"{found.criterion}-efficiency {found.efficiency:.0%}",
        f"where a run scatters by 1%, predictions over the whole space do by {found.spread:.2g}%",
    )


def design_record(found: Design) -> dict[str, Any]:
    """The same as JSON has it."""
    return asdict(found)


def span(seconds: float) -> str:
    """A time in the unit that fits, up to days."""
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{three_digits(seconds / size)} {unit}"
    return duration(seconds)


def scatter(title: str, model: RunModel) -> str:
    """Actual against predicted seconds of the runs, as an SVG picture with logarithmic axes."""
    actual, predicted = model.table.seconds, np.maximum(model.predicted, 1e-12)
    # A picture needs no more points than these.
    step = -(-len(actual) // _MOST_POINTS)
    pairs = list(zip(actual[::step], predicted[::step], strict=True))
    low = math.floor(math.log10(min(min(pair) for pair in pairs)))
    high = math.ceil(math.log10(max(max(pair) for pair in pairs)))
    high = max(high, low + 1)
    unit = (_SIDE - 2 * _MARGIN) / (high - low)

    def place(seconds: float) -> float:
        return _MARGIN + unit * (math.log10(seconds) - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE} {_SIDE}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{html.escape(title)}</title>",
        f'<rect width="{_SIDE}" height="{_SIDE}" fill="white"/>',
        f'<text x="{_SIDE / 2}" y="24" text-anchor="middle">{html.escape(title)}: mean error '
        f"{model.mape:.1%}</text>",
        f'<path d="M{_MARGIN} {_SIDE - _MARGIN}L{_SIDE - _MARGIN} {_MARGIN}" stroke="#999"/>',
    ]
    for power in range(low, high + 1):
        at, label = place(10.0**power), f"{10.0**power:g}"
        parts.append(
            f'<path d="M{at:.1f} {_SIDE - _MARGIN}V{_MARGIN}M{_MARGIN} {_SIDE - at:.1f}'
            f'H{_SIDE - _MARGIN}" stroke="#ddd"/>'
            f'<text x="{at:.1f}" y="{_SIDE - _MARGIN + 16}" text-anchor="middle">{label}</text>'
            f'<text x="{_MARGIN - 6}" y="{_SIDE - at + 4:.1f}" text-anchor="end">{label}</text>'
        )
    parts += [
        f'<circle cx="{place(one):.1f}" cy="{_SIDE - place(other):.1f}" r="3" fill="#3f51b5" '
        'fill-opacity="0.6"/>'
        for one, other in pairs
    ]
    parts.append(
        f'<text x="{_SIDE / 2}" y="{_SIDE - 12}" text-anchor="middle">actual seconds</text>'
        f'<text transform="translate(14 {_SIDE / 2}) rotate(-90)" text-anchor="middle">'
        "predicted seconds</text></svg>"
    )
    return "\n".join(parts) + "\n"
