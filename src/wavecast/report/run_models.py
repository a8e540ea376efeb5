"""Models fitted to past runs, forecasts and designs, and a plot."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType

from wavecast.predictors.base import Estimate
from wavecast.regression.runs.design import Configuration, Design
from wavecast.regression.runs.end_to_end import RunModel
from wavecast.regression.runs.extrapolation import ScalingModel, Trial
from wavecast.regression.runs.run_table import RunTime
from wavecast.regression.runs.splits import SplitScore
from wavecast.report.characters import one_line
from wavecast.report.fields import Field, describe, output
from wavecast.report.tables import Column, from_rows, table, titled
from wavecast.report.units import long_duration, percent

_SIDE, _MARGIN = 480, 56
_MOST_POINTS = 2000
ITERATIONS = RunTime.ITERATIONS.words
"""The time that laws of other GPUs, GPU counts, depths and batches predict."""


def _errors(model: RunModel) -> Sequence[float]:
    """(predicted - actual) / actual of each run of the fit; negative if too short."""
    return list(map(float, model.errors))


def _count(model: RunModel) -> int:
    """The number of runs of the fit."""
    return len(model.table)


describe(
    RunModel,
    Field("features", title="features", meaning="What the time depends on."),
    Field("method", "fit.method", title="method", meaning="What the fit minimises."),
    Field("phase", "table.phase", title="phase", meaning="training or testing."),
    Field("time", "table.time", title="time", meaning="Which time of a run was learned."),
    Field("runs", _count, title="runs"),
    Field("mape", title="mean error"),
    "coefficients",
    Field("errors", _errors),
    Field("longest_mape", title="mean error on the longest fifth, left out"),
    parts="coefficients",
)


describe(
    ScalingModel,
    Field("axes", title="along"),
    Field("law", "law.name", title="law", meaning="The name of the law."),
    Field("features", title="features"),
    Field("reason", title="why"),
    "trials",
    parts="trials",
)
describe(
    Configuration,
    Field("gpus", title="GPUs", text=str),
    Field("batch", title="batch", text=str),
    Field("iterations", title="iterations", text=str),
    Field("seconds", title="takes about", text=long_duration),
)
describe(
    Design,
    Field("criterion", title="criterion"),
    "runs",
    Field("cost_s", title="GPU time", text=long_duration),
    Field("budget_s", title="budget", text=long_duration),
    Field("efficiency", title="efficiency"),
    Field("spread", title="spread", text="{:.2g}%".format),
    parts="runs",
)


FITTED = output(
    "A model of past runs, fitted by several methods.",
    Field("", "model", kind=RunModel, inline=True),
    Field("other_fits", kind=Sequence[RunModel], meaning="The fits of the same by other methods."),
    Field(
        "splits",
        kind=Sequence[SplitScore],
        optional=True,
        meaning="With --split: the errors of fits on small runs on the larger ones.",
    ),
)
describe(
    Trial,
    Field("law", "law.name", title="law", meaning="The name of the law."),
    Field("error", title="error", text=percent),
    Field("left_out", title="runs left out"),
)


FORECAST = output(
    "The predicted time of a run, and the model that it comes from.",
    Field("", "estimate", kind=Estimate, inline=True),
    Field("time", kind=RunTime, meaning="Which time of a run is predicted."),
    Field("mape", kind=float, optional=True, meaning="The mean error on the runs of the fit."),
    Field("axes", kind=Sequence[str], optional=True, meaning="What the law extrapolates along."),
    Field("law", kind=str, optional=True, meaning="The name of the law."),
    Field("reason", kind=str, optional=True, meaning="Why the law was chosen."),
    Field("laws", kind=Sequence[Trial], optional=True, meaning="All laws that were tried."),
)


def forecast_record(estimate: Estimate, model: RunModel | ScalingModel) -> dict[str, Any]:
    """The predicted time of a run as plain data, with what is known of its model."""
    about: dict[str, Any] = {"estimate": estimate, "time": RunTime.ITERATIONS}
    if isinstance(model, ScalingModel):
        about |= {"axes": model.axes, "law": model.law.name}
        return FORECAST.record(about | {"reason": model.reason, "laws": model.trials})
    return FORECAST.record(about | {"time": model.table.time, "mape": model.mape})


def run_model(title: str, models: Sequence[RunModel]) -> RenderableType:
    """The coefficients of fits with their ranges, and the errors of each, side by side.

    Args:
        title: the title.
        models: the same model, fitted on the same runs by several methods.
    """
    coefficients = [model.coefficients for model in models]
    columns = [Column("seconds per", [c.feature for c in coefficients[0]], left=True)]
    for model, values in zip(models, coefficients, strict=True):
        columns.append(Column(str(model.fit.method), [f"{c.value:.4g}" for c in values]))
        columns.append(Column("90% range", [f"{c.low:.3g} to {c.high:.3g}" for c in values]))
    worst = [model.errors[np.argmax(np.abs(model.errors))] for model in models]
    unseen = [model.longest_mape for model in models]
    count = len(models[0].table)
    rows = [
        (
            str(model.fit.method),
            percent(model.mape, 1),
            f"{error:+.1%}",
            "unknown" if left_out is None else percent(left_out, 1),
        )
        for model, error, left_out in zip(models, worst, unseen, strict=True)
    ]
    longest = "mean error on the longest fifth, left out"
    errors = from_rows(rows, "<fit", "mean error", "largest", longest)
    return titled(
        title,
        table(columns),
        "",
        table(errors),
        "",
        f"on {count} runs; a positive error means predicted longer than it took",
        *time_lines(models[0]),
    )


def time_lines(model: RunModel) -> list[str]:
    """Which time a model learned, and why."""
    runs = model.table
    lines = [f"time: {runs.time.words}"]
    if runs.time is RunTime.ITERATIONS and 0 < runs.whole < len(runs):
        lines.append(f"only {runs.whole} of {len(runs)} runs say the time of the whole run")
    return lines


def forecast(title: str, estimate: Estimate, notes: Sequence[str] = ()) -> RenderableType:
    """The predicted time of a run."""
    low, high = long_duration(estimate.low_s), long_duration(estimate.high_s)
    return titled(
        title,
        f"{long_duration(estimate.seconds)}, 90% range {low} to {high}",
        f"from {estimate.source}",
        *notes,
    )


def design(chosen: Design) -> RenderableType:
    """The runs that a design asks for, and how much they tell."""
    runs = sorted(set(chosen.runs), key=lambda run: (run.gpus, run.batch, run.iterations))
    several = any(run.gpus > 1 for run in runs)
    rows = [
        (run.gpus, run.batch, run.iterations, chosen.runs.count(run), long_duration(run.seconds))
        for run in runs
    ]
    headings = ("GPUs", "batch", "iterations", "repeats", "takes about")
    columns = from_rows([tuple(map(str, row)) for row in rows], *headings)[0 if several else 1 :]
    return Group(
        table(columns),
        "",
        f"{len(chosen.runs)} runs, about {long_duration(chosen.cost_s)} of GPU time; "
        f"the budget is {long_duration(chosen.budget_s)}",
        f"{chosen.criterion}-efficiency {percent(chosen.efficiency)} "
        "(100%: as good as any choice within the budget can be)",
        "if single runs scatter by 1%, predictions over these batches and iterations scatter by "
        f"{chosen.spread:.2g}% on average",
    )


def scatter_plot(title: str, model: RunModel) -> str:
    """Actual against predicted seconds of the runs, as an SVG picture with logarithmic axes."""
    actual, predicted = model.table.seconds, np.maximum(model.predicted, 1e-12)
    step = -(-len(actual) // _MOST_POINTS)
    pairs = list(zip(actual[::step], predicted[::step], strict=True))
    low = math.floor(math.log10(min(min(pair) for pair in pairs)))
    high = math.ceil(math.log10(max(max(pair) for pair in pairs)))
    high = max(high, low + 1)
    unit = (_SIDE - 2 * _MARGIN) / (high - low)
    shown = html.escape(one_line(title))

    def place(seconds: float) -> float:
        return _MARGIN + unit * (math.log10(seconds) - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE} {_SIDE}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{shown}</title>",
        f'<rect width="{_SIDE}" height="{_SIDE}" fill="white"/>',
        f'<text x="{_SIDE / 2}" y="24" text-anchor="middle">{shown}: mean error '
        f"{percent(model.mape, 1)}</text>",
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
        f'<circle cx="{place(x):.1f}" cy="{_SIDE - place(y):.1f}" r="3" fill="#3f51b5" '
        'fill-opacity="0.6"/>'
        for x, y in pairs
    ]
    parts.append(
        f'<text x="{_SIDE / 2}" y="{_SIDE - 12}" text-anchor="middle">actual seconds</text>'
        f'<text transform="translate(14 {_SIDE / 2}) rotate(-90)" text-anchor="middle">'
        "predicted seconds</text></svg>"
    )
    return "\n".join(parts) + "\n"
