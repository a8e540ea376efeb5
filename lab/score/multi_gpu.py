"""How well are deeper networks, larger batches, more and stronger GPUs predicted from past runs?

    python -m lab score multi_gpu

Writes the table of docs/appendix/runs-gpus.md that stands beside the four experiments of the slides
of Gianniti et al. Depth and batch are fitted on measurements/h200/depth_runs.csv (one H200, fp32).
More and stronger GPUs are those of Lambda's benchmark: their lines are read from the same page, on
which lab.score.lambda_runs writes them. No predicted run is in the fit that predicts it.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator, Sequence

from lab import pages
from lab.pages import heading
from lab.places import H200
from lab.score import lambda_runs
from lab.score.lambda_runs import PAGE
from lab.scores import ScoreTable
from wavecast.runs.readers import read_runs
from wavecast.runs.regression.extrapolation import Extrapolation
from wavecast.runs.regression.layer_times import errors_of, published_errors
from wavecast.runs.run import Run

MARK = "begin: python -m lab score multi_gpu"
MEASURED = H200 / "depth_runs.csv"
MOST_MODULES = (4, 5, 6, 8)
"""The largest numbers of inner modules in the fits of the slides."""
MOST_BATCH = 96
"""The largest batch in the fits: about half of the measured ones are larger."""
NAMES = {
    "power": "a stronger GPU",
    "gpu_number": "more GPUs",
    "inner_modules": "a deeper network",
    "batch_size": "a larger batch",
}
FROM_PAGE = {"power": "stronger GPUs", "gpu_number": "more GPUs"}


def deeper(most: int) -> list[float]:
    """The errors on networks with more inner modules, fitted on those with at most this many."""
    runs = [run for run in read_runs(MEASURED) if run.inner_modules is not None]
    seen = [run for run in runs if (run.inner_modules or 0) <= most]
    model = Extrapolation("inner_modules").fit(seen)
    return [
        abs(
            model.predict(
                batch=run.batch, iterations=run.iterations, inner_modules=run.inner_modules
            ).seconds
            / run.seconds
            - 1
        )
        for run in runs
        if run not in seen
    ]


def larger_batches() -> Iterator[tuple[str, list[float]]]:
    """For each network, the errors on larger batches than those that were fitted."""
    runs = [run for run in read_runs(MEASURED) if run.inner_modules is None]
    for net in sorted({run.model for run in runs}):
        of_net = [run for run in runs if run.model == net]
        model = Extrapolation("batch").fit([run for run in of_net if run.batch <= MOST_BATCH])
        yield net, [_error(model, run) for run in of_net if run.batch > MOST_BATCH]


def _error(model: object, run: Run) -> float:
    predicted = model.predict(batch=run.batch, iterations=run.iterations)  # type: ignore[attr-defined]
    return float(abs(predicted.seconds / run.seconds - 1))


def beside_the_slides() -> str:
    """The four experiments: the slides' errors, and ours."""
    ours = {
        **{name: _from_page(mark) for name, mark in FROM_PAGE.items()},
        "inner_modules": _cells([e for most in MOST_MODULES for e in deeper(most)]),
        "batch_size": _cells([e for _, errors in larger_batches() for e in errors]),
    }
    lines = [
        *heading(
            "to | the slides: cells | mean | median | worst | "
            "ours: predictions | mean | median | worst"
        ),
    ]
    for experiment, name in NAMES.items():
        printed = _cells(errors_of(experiment), digits=2)
        lines.append(f"| {name} | {' | '.join(printed)} | {' | '.join(ours[experiment])} |")
    return "\n".join(lines)


def modules() -> str:
    """Errors by the largest depth in the fit, beside those of the slides on one GPU."""
    lines = [
        *heading(
            "modules in the fit, at most | the slides: 1 M60 | 2 M60 | "
            "4 M60 | ours: predictions | mean | worst",
            "r",
        ),
    ]
    for most in MOST_MODULES:
        cells = {c.gpus: c.error for c in published_errors() if c.most_modules == most}
        printed = " | ".join(f"{cells[gpus]:.2%}" for gpus in (1, 2, 4))
        count, mean, _, worst = _cells(deeper(most))
        lines.append(f"| {most} | {printed} | {count} | {mean} | {worst} |")
    return "\n".join(lines)


def batches() -> str:
    """Errors on larger batches by network."""
    lines = [*heading("network | predictions | mean error | median | worst")]
    lines += [f"| {net} | {' | '.join(_cells(errors))} |" for net, errors in larger_batches()]
    return "\n".join(lines)


def _cells(errors: Sequence[float], digits: int = 1) -> list[str]:
    sizes = (statistics.mean(errors), statistics.median(errors), max(errors))
    return [str(len(errors)), *(f"{size:.{digits}%}" for size in sizes)]


def _from_page(mark: str) -> list[str]:
    text = pages.section(PAGE, f"{lambda_runs.MARK} '{mark}'")
    line = re.search(r"\| \*\*all\*\* \| (.*) \|", text)
    assert line is not None, f"{PAGE} has no line of all runs for {mark}"
    return line[1].split(" | ")


TABLES = {"beside the slides": beside_the_slides, "modules": modules, "batches": batches}


def tables() -> Iterator[ScoreTable]:
    """The tables of the page."""
    for name, table in TABLES.items():
        yield ScoreTable(table(), PAGE, f"{MARK} '{name}'", title=name)
