"""How well are whole runs of the printed grid predicted from the short ones?

    python -m lab score run_grid

Fits measurements/h200/run_grid.csv, which has a tenth of the iterations that section 4.3 of
Gianniti, Zhang and Ardagna 2019 prints, and writes the sums
into docs/appendix/runs-whole.md. A network of which not all 160 runs were measured is not judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import cache

from lab import pages
from lab.pages import heading
from lab.places import H200
from lab.scores import ScoreTable
from wavecast.campaigns.run_grids import scaled, scaled_split
from wavecast.runs.readers import read_runs
from wavecast.runs.regression import end_to_end as end_to_end
from wavecast.runs.regression.end_to_end import RunTime
from wavecast.runs.regression.least_squares import Method
from wavecast.runs.run import Run

MARK = "begin: python -m lab score run_grid"
MEASURED = H200 / "run_grid.csv"
PAGE = pages.APPENDIX / "runs-whole.md"
SHARE = 0.1
"""The measured share of the printed iterations."""
PRECISIONS = ("tf32", "fp32")
TIMES = {RunTime.TOTAL: "with start-up", RunTime.ITERATIONS: "iterations alone"}
METHODS = {
    Method.RELATIVE_NON_NEGATIVE: "relative, non-negative (default)",
    Method.ORDINARY: "ordinary least squares",
}


@cache
def measured(net: str, precision: str) -> tuple[Run, ...]:
    """The measured runs of a network."""
    every = read_runs(MEASURED)
    return tuple(run for run in every if (run.model, run.precision) == (net, precision))


def missing(net: str, precision: str) -> int:
    """How many runs of the grid were not measured."""
    lengths = scaled(end_to_end.ITERATIONS, SHARE)
    grid = {(batch, length) for batch in end_to_end.BATCHES for length in lengths}
    return len(grid - {(run.batch, run.iterations) for run in measured(net, precision)})


def errors(net: str, precision: str, time: RunTime, method: Method) -> list[float]:
    """The mean error in percent, fitted on all runs, then up to each threshold of table 4."""
    thresholds = [scaled_split(split, SHARE) for split in end_to_end.SPLITS]
    scores = end_to_end.judge(measured(net, precision), thresholds, [method], time=time)
    return [100 * score.mape for score in scores]


def judged() -> Iterator[tuple[str, str]]:
    """The networks and precisions of which every run was measured."""
    for precision in PRECISIONS:
        yield from ((net, precision) for net in end_to_end.NETS if not missing(net, precision))


def summary(time: RunTime, method: Method) -> tuple[float, float, int]:
    """The mean and the worst error over thresholds, and how many are at or below the print."""
    pairs = [
        (ours, 100 * printed)
        for net, precision in judged()
        for ours, printed in zip(
            errors(net, precision, time, method)[1:], end_to_end.PUBLISHED[net][1:], strict=True
        )
    ]
    sizes = [ours for ours, _ in pairs]
    return statistics.mean(sizes), max(sizes), sum(ours <= printed for ours, printed in pairs)


def table() -> str:
    """The errors of each network, beside the printed ones."""
    titles = "net | time | method | all 160 runs | from 6 | from 12 | from 20"
    lines = [*heading(titles, "lll")]
    for net, precision in judged():
        for time, method in ((time, method) for time in TIMES for method in METHODS):
            cells = " | ".join(f"{cell:.2f}" for cell in errors(net, precision, time, method))
            lines.append(f"| {net}, {precision} | {TIMES[time]} | {METHODS[method]} | {cells} |")
        cells = " | ".join(f"{100 * cell:.2f}" for cell in end_to_end.PUBLISHED[net])
        lines.append(f"| *{net}, printed: Caffe on a P100* | with start-up | ordinary | {cells} |")
    count = 3 * len([*judged()])
    for time, method in ((time, method) for time in TIMES for method in METHODS):
        mean, worst, good = summary(time, method)
        lines.append(
            f"| **{count} splits** | {TIMES[time]} | {METHODS[method]} | | mean {mean:.2f}, "
            f"worst {worst:.2f} | {good} of {count} at or below the print | |"
        )
    lacking = [
        f"{net} in {precision} ({160 - lacks} of 160 measured)"
        for precision in PRECISIONS
        for net in end_to_end.NETS
        if (lacks := missing(net, precision))
    ]
    return "\n".join((*lines, "", f"Not judged: {', '.join(lacking)}.") if lacking else lines)


def tables() -> Iterator[ScoreTable]:
    """The table, of which the page has the sums."""
    text = table()
    yield ScoreTable(text, PAGE, MARK, on_page=pages.sums(text))
