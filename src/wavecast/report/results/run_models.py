"""Models fitted to past runs, forecasts and designs, and a plot."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType

from wavecast.predictors.base import Estimate
from wavecast.report.fields import Field, columns, describe, output
from wavecast.report.tables import (
    Column,
    from_rows,
    line,
    listed,
    notes,
    remarks,
    shown,
    table,
    titled,
)
from wavecast.report.units import UNKNOWN, duration, long_duration, one_line, percent, runs
from wavecast.runs.regression.complexities import Category, Pass
from wavecast.runs.regression.design import Configuration, Design
from wavecast.runs.regression.end_to_end import RunModel, RunTime, Split, SplitScore
from wavecast.runs.regression.extrapolation import ScalingModel, Trial
from wavecast.runs.regression.least_squares import Method
from wavecast.runs.regression.per_layer import Key, LayerModel, NetworkTime, lines_as_records
from wavecast.runs.run import Run

if TYPE_CHECKING:  # the store needs SQLAlchemy, a table of runs does not
    from wavecast.runs.run import Imported


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
    """The coefficients of fits with their ranges, and the errors of each, side by side."""
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


# Past runs, and what importing them did.


def _per_iteration(run: Run) -> float:
    return run.seconds / run.iterations


def _whole(seconds: float) -> str:
    return duration(seconds) if seconds else "0 s"


describe(
    Run,
    Field("model", title="model"),
    Field("phase", title="phase", rank=4),
    Field("gpu", title="GPU", rank=1),
    Field("gpus", title="GPUs", rank=3, text=str),
    Field("batch", title="batch"),
    Field("precision", title="precision", rank=5),
    Field("inner_modules", title="inner modules", rank=7, text=str, absent=""),
    Field("iterations", title="iterations"),
    Field("seconds", title="timed", rank=2),
    Field("", _per_iteration, title="per iteration", text=duration),
    Field("total_iterations", title="all iterations", rank=4, text=str, absent=""),
    Field("total_s", title="whole run", rank=2, text=_whole, absent=""),
    Field("testing_s", title="in tests", rank=4, text=_whole, absent=""),
    "training_s",
    Field("framework", title="framework", rank=8),
    Field("source", title="read from", rank=6),
)


def past_runs(rows: Sequence[Run], width: int) -> RenderableType:
    """One row for each run."""
    return Group(*shown(columns(rows), width))


def imported_file(imported: Imported) -> str:
    """What importing one file did, in one line."""
    resumed = (
        f", resumed after {imported.resumed_at:,}"
        if 0 < imported.resumed_at < imported.runs
        else ""
    )
    return f"{imported.file}: {runs(imported.runs)}, {imported.new:,} new{resumed}"


def imported_files(files: Sequence[Imported], store: str) -> str:
    """What importing several files did, in one line."""
    new, read = sum(file.new for file in files), sum(file.runs for file in files)
    return f"{new:,} new of {runs(read)}, in {store}"


# How well models fitted on small runs predict larger ones: a table like the paper's table 4.


describe(Split, "batch", "iterations")
describe(
    SplitScore,
    Field("model", title="model"),
    Field("split", title="fitted up to", meaning="The threshold; null for all runs."),
    Field("method", title="method"),
    Field("fitted", title="runs fitted", text=str),
    Field("judged", title="runs judged", text=str),
    Field("mape", title="mean error", text=percent),
    Field("worst", title="worst", text=percent),
    Field("published", title="the paper's"),
)
CAMPAIGN = output(
    "A grid of runs that was measured, and how well its small runs predict its large ones.",
    Field("file", kind=str, meaning="The file with the runs."),
    Field("runs", kind=int, meaning="How many runs it has."),
    Field("time", kind=RunTime, meaning="Which time of a run was learned."),
    Field("scores", kind=Sequence[SplitScore], meaning="The errors below and beyond thresholds."),
    Field("failed", kind=Sequence[str], meaning="What could not be measured, and why."),
)


def split_scores(title: str, scores: Sequence[SplitScore], time: RunTime) -> RenderableType:
    """One row for each model and threshold: the errors of each method, and the paper's."""
    methods = list(dict.fromkeys(score.method for score in scores))
    by_key = {(score.model, score.split, score.method): score for score in scores}
    printed = any(score.published is not None for score in scores)
    rows = []
    for model, split in dict.fromkeys((score.model, score.split) for score in scores):
        of = [by_key[model, split, method] for method in methods]
        upto = "all runs" if split is None else f"batch {split.batch}, {split.iterations}"
        row = [model, upto, str(of[0].fitted), str(of[0].judged)]
        row += [text for score in of for text in (percent(score.mape, 2), f"{score.worst:+.1%}")]
        paper = of[0].published
        rows.append((*row, *(("" if paper is None else percent(paper, 2),) if printed else ())))
    titles = [name for method in methods for name in (f"{method}: mean error", "worst")]
    last = ("the paper: mean error",) if printed else ()
    headings = ("<model", "<fitted up to (batch, iterations)", "runs fitted", "judged")
    return titled(
        title,
        table(from_rows(rows, *headings, *titles, *last)),
        "",
        *_means(scores, methods),
        f"time: {time.words}",
        *(("the paper: Caffe on a P100, ordinary (Gianniti et al. 2019, table 4)",) * printed),
    )


def _means(scores: Sequence[SplitScore], methods: Sequence[Method]) -> list[str]:
    """The mean over all thresholds of each method, if there are several."""
    lines = []
    for method in methods:
        errors = [
            score.mape for score in scores if score.method is method and score.split is not None
        ]
        if len(errors) > 1:
            mean, worst = sum(errors) / len(errors), max(errors)
            lines.append(f"{method}, {len(errors)} splits: mean {mean:.2%}, worst {worst:.2%}")
    return lines


# Per-layer models: their lines, and the times that they give a network.


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
        slope = Column("per G operations", [duration(slope_s * 1e9) for slope_s in per_unit])
    else:
        slope = Column("per predicted s", [f"{slope_s:.3f} s" for slope_s in per_unit])
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
    lines = [f"lines: {source}"]
    if covered is None:
        lines.append("shares: of the time of layers that have a line")
    return titled(
        title,
        table(columns),
        "",
        *remarks(lines),
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
