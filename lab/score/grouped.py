"""How well are the grouped matrix products of mixtures of experts predicted?

    python -m lab score grouped [--write]

Reads measurements/h200/grouped.json. Prints the errors of
each predictor by kind of product and by model. For `learned`, the model of the grouped kernel is
fitted without the rows of the network that it predicts. `--write` puts the tables into
docs/appendix/accuracy-ops.md.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from lab import pages
from lab.figures import Figures, figures, percent
from lab.fit.grouped import GPU, ExpertRow, measured_s, op_of, read
from lab.pages import heading
from lab.scores import ScoreTable
from wavecast import Predictor, device
from wavecast.predictors.attainable import Attainable, Roofline
from wavecast.predictors.learned.model import OpModel
from wavecast.predictors.learned.predictor import Learned

MARK = "begin: python -m lab score grouped"


def figures_of(rows: Sequence[ExpertRow], predictor: Callable[[ExpertRow], Predictor]) -> Figures:
    """The five figures of a predictor, which may differ from row to row."""
    gpu = device(GPU)
    errors, within = [], []
    for row in rows:
        estimate, seconds = predictor(row).predict(op_of(row), gpu), measured_s(row)
        assert estimate is not None
        errors.append(estimate.seconds / seconds - 1)
        within.append(estimate.low_s <= seconds <= estimate.high_s)
    return figures(errors, within)


def cell(scores: Figures) -> str:
    """Mean / median / worst error, as a cell of a table."""
    return " / ".join(map(percent, (scores.mean, scores.median, scores.worst)))


def fitted_without(rows: Sequence[ExpertRow]) -> dict[str, Learned]:
    """By network: `learned` with its grouped kernel fitted on the other networks."""
    from lab.fit.grouped import fit, in_one_kernel

    shipped, one_kernel = Learned.shipped(), in_one_kernel(rows)
    fitted = {}
    for model in {row.model for row in rows}:
        kernel = OpModel("grouped", fit([row for row in one_kernel if row.model != model]))
        models = {**shipped.models, "grouped": kernel}
        fitted[model] = replace(shipped, models=models)
    return fitted


def line_of(row: ExpertRow) -> str:
    """The kind of product of a row, as the first cell of its line in the table."""
    if row.op != "aten._grouped_mm":
        return {"aten.bmm": "equal groups as a batch (bmm)"}.get(row.op, "fp8, forward")
    if row.events_s is None:
        return f"one by one ({row.inputs[0].dtype})"
    return f"bfloat16, {row.turn}, {row.routing} groups"


def table(
    rows: Sequence[ExpertRow], key: Callable[[ExpertRow], str], learned: Mapping[str, Learned]
) -> str:
    """Errors of three predictors, with one line for each value of the key."""
    roofline, attainable = Roofline(), Attainable.shipped()
    lines = [*heading("products | count | roofline | attainable | in range | learned | in range")]
    for name in sorted({key(row) for row in rows}):
        chosen = [row for row in rows if key(row) == name]
        bound = figures_of(chosen, lambda _: roofline)
        constant = figures_of(chosen, lambda _: attainable)
        fitted = figures_of(chosen, lambda row: learned[row.model])
        lines.append(
            f"| {name} | {len(chosen)} | {cell(bound)} | {cell(constant)} "
            f"| {percent(constant.in_range)} | {cell(fitted)} | {percent(fitted.in_range)} |"
        )
    return "\n".join(lines)


def unequal(rows: Sequence[ExpertRow]) -> str:
    """How much longer products with unequal groups take than those with equal groups."""
    times: dict[tuple[object, ...], dict[str, float]] = {}
    for row in rows:
        key = row.model, row.matrix, row.turn, row.tokens
        times.setdefault(key, {})[row.routing] = measured_s(row)
    ratios = [both["uneven"] / both["even"] for both in times.values()]
    return (
        f"Unequal groups took {min(ratios):.2f} to {max(ratios):.2f} times as long as equal ones, "
        f"{statistics.median(ratios):.2f} times at the median."
    )


def report() -> str:
    """The table by kind of product."""
    from lab.fit.grouped import in_one_kernel

    rows = read()
    learned, one_kernel = fitted_without(rows), in_one_kernel(rows)
    whole = table(one_kernel, lambda _: "all in one kernel", learned).splitlines()[-1]
    return f"{table(rows, line_of, learned)}\n{whole}\n\n{unequal(one_kernel)}"


def by_model() -> str:
    """The table of products in one kernel by model."""
    from lab.fit.grouped import in_one_kernel

    rows = read()
    return table(in_one_kernel(rows), lambda row: row.model, fitted_without(rows))


def recorded_figures() -> dict[str, Figures]:
    """The five figures of products in one kernel, each network left out of the fit."""
    from lab.fit.grouped import in_one_kernel

    rows = read()
    learned = fitted_without(rows)
    one_kernel = in_one_kernel(rows)
    return {"op grouped products": figures_of(one_kernel, lambda row: learned[row.model])}


def tables() -> Iterator[ScoreTable]:
    """The table of the page, and one by model."""
    yield ScoreTable(report(), pages.APPENDIX / "accuracy-ops.md", MARK, recorded_figures())
    yield ScoreTable(by_model())
