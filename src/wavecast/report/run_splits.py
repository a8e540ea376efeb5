"""How well models fitted on small runs predict larger ones: a table like the paper's table 4."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType

from wavecast.regression.least_squares import Method
from wavecast.regression.runs.run_table import RunTime
from wavecast.regression.runs.splits import Split, SplitScore
from wavecast.report.fields import Field, describe, output
from wavecast.report.tables import from_rows, table, titled
from wavecast.report.units import percent

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
    found = {(score.model, score.split, score.method): score for score in scores}
    printed = any(score.published is not None for score in scores)
    rows = []
    for model, split in dict.fromkeys((score.model, score.split) for score in scores):
        of = [found[model, split, method] for method in methods]
        upto = "all runs" if split is None else f"batch {split.batch}, {split.iterations}"
        row = [model, upto, str(of[0].fitted), str(of[0].judged)]
        row += [text for one in of for text in (percent(one.mape, 2), f"{one.worst:+.1%}")]
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
        errors = [one.mape for one in scores if one.method is method and one.split is not None]
        if len(errors) > 1:
            mean, worst = sum(errors) / len(errors), max(errors)
            lines.append(f"{method}, {len(errors)} splits: mean {mean:.2%}, worst {worst:.2%}")
    return lines
