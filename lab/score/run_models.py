"""How well do models of runs and layers, fitted on our measurements, predict longer runs?

    python -m lab score run_models

Fits measurements/h200/runs.csv, prints all tables, and writes those of docs/appendix/runs-whole.md
and runs-layers.md. That takes some minutes and needs no GPU. To make only some tables, name them:
python -m lab score run_models "per layer".
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np

import wavecast
from lab import pages
from lab.measured.run_grid import BATCHES, NETS, VARIANTS, GridRow, Variant, read
from lab.pages import heading
from lab.places import H200
from lab.score import layer_models, net_transfers
from lab.score.layer_models import GPU
from lab.scores import ScoreTable
from wavecast.campaigns.run_grids import scaled
from wavecast.predictors.learned.predictor import Learned
from wavecast.runs.regression import end_to_end as splits
from wavecast.runs.regression.design import configurations, design
from wavecast.runs.regression.end_to_end import BatchWork, EndToEnd
from wavecast.runs.regression.least_squares import Method
from wavecast.runs.run import Run
from wavecast.suite import benchmark
from wavecast.traces.step import Phase

MARK = "begin: python -m lab score run_models"
MEASURED = H200 / "runs.csv"
MAIN = "training graph tf32"
SPLITS = {6: (16, 15), 12: (24, 17), 20: (32, 20)}
"""The splits of the paper's table 4: the number of runs to fit, and their largest batch and
number of iterations (a tenth of the paper's)."""
TABLE_4 = {net: tuple(100 * error for error in errors) for net, errors in splits.PUBLISHED.items()}
"""The paper's MAPE in percent (P100, Caffe): fitted on all runs, then on 6, 12 and 20 runs."""
BETAS = {
    "AlexNet-like": (2.0, 0.02, 0.02, 0.002),
    "GoogLeNet-like": (5.0, 0.05, 0.04, 0.0045),
    "VGG-like": (5.0, 0.05, 0.05, 0.016),
}
"""Coefficients of made-up runs: of 1, the batch, the iterations, and the product of the two."""
REPLICATES = 200
"""Over how many random draws simulated errors are averaged."""
NOISE = 0.01
"""The relative noise of made-up runs, unless given."""


def measured_runs(net: str, variant: str = MAIN, startup: bool = False) -> list[Run]:
    """The measured runs of a net in one variant, with or without their start-up time."""
    phase, mode, precision = variant.split()
    return [
        Run(
            model=net,
            batch=row.batch,
            iterations=row.iterations,
            seconds=row.seconds + (row.startup_s if startup else 0.0),
            gpu=GPU,
            precision=precision,
            phase=phase,
        )
        for row in rows_measured()
        if (row.net, row.phase, row.mode, row.precision) == (net, phase, mode, precision)
    ]


@cache
def rows_measured() -> list[GridRow]:
    """All measured runs, read once."""
    return read(MEASURED)


def seen(runs: Sequence[Run], count: int) -> list[Run]:
    """The 6, 12 or 20 short runs at small batches that a model is fitted on."""
    batch, iterations = SPLITS[count]
    return [run for run in runs if run.batch <= batch and run.iterations <= iterations]


def unseen(runs: Sequence[Run]) -> list[Run]:
    """The 140 runs that are in none of the splits."""
    short = set(seen(runs, 20))
    return [run for run in runs if run not in short]


def errors(
    runs: Sequence[Run],
    method: Method = Method.RELATIVE_NON_NEGATIVE,
    work: BatchWork | None = None,
) -> list[float]:
    """MAPE in percent of a fit on all runs, then of fits on 6, 12 and 20 runs on the 140 others."""
    way = EndToEnd(method, runs[0].phase, work=work)
    shares = [way.fit(runs).mape]
    for count in SPLITS:
        model = way.fit(seen(runs, count))
        shares.append(float(np.abs(model.errors_on(unseen(runs))).mean()))
    return [100 * share for share in shares]


def noise(runs: Sequence[Run]) -> float:
    """MAPE in percent of a separate line for each batch: no model of batches can be better."""
    by_batch = [[run for run in runs if run.batch == batch] for batch in BATCHES]
    return 100 * statistics.mean(EndToEnd(phase=same[0].phase).fit(same).mape for same in by_batch)


@cache
def predicted_s(net: str, batch: int, precision: str, phase: str) -> float:
    """The GPU time that the op models predict for an iteration."""
    gpu, predictor = wavecast.device(GPU), Learned.shipped()
    trace = wavecast.trace(lambda: benchmark(net).make_step(batch, precision), samples=batch)
    calls = [call for call in trace if phase == "training" or call.phase is Phase.FORWARD]
    estimates = (predictor.predict(call.op, gpu) for call in calls)
    return sum(estimate.seconds for estimate in estimates if estimate)


def variants(by_work: bool = False) -> str:
    """Errors of every measured variant: fitted on all runs, and on the three splits."""
    last = "" if by_work else " | separate line per batch"
    lines = [*heading(f"variant | net | all 160 runs | from 6 | from 12 | from 20{last}", "ll")]
    for variant in VARIANTS:
        if by_work and variant.mode != "graph":
            continue  # steps that wait for the host do not follow the GPU's work
        splits = []
        for net in NETS:
            runs = measured_runs(net, variant.name)
            cells = errors(runs, work=_work(net, variant) if by_work else None)
            splits += [*zip(cells[1:], TABLE_4[net][1:], strict=True)]
            shown = [*cells, *([] if by_work else [noise(runs)])]
            shown_cells = " | ".join(f"{cell:.2f}" for cell in shown)
            lines.append(f"| {variant.name} | {net} | {shown_cells} |")
        mean, worst = statistics.mean(c for c, _ in splits), max(c for c, _ in splits)
        at_most = sum(cell <= printed for cell, printed in splits)
        lines.append(
            f"| **{variant.name}** | | | mean {mean:.2f}, worst {worst:.2f} "
            f"| {at_most} of 9 at or below the paper's | |{'' if by_work else ' |'}"
        )
    return "\n".join(lines)


def _work(net: str, variant: Variant) -> BatchWork:
    return lambda batch: predicted_s(net, batch, variant.precision, variant.phase)


def end_to_end(startup: bool = False) -> str:
    """ScoreTable 4 of the paper on our GPU, beside the printed values."""
    lines = [*heading("net | method | all 160 runs | from 6 | from 12 | from 20", "ll")]
    every: dict[str, list[float]] = {"default": [], "ordinary": [], "paper": []}
    for net in NETS:
        rows = {
            "default": errors(measured_runs(net, startup=startup), Method.RELATIVE_NON_NEGATIVE),
            "ordinary": errors(measured_runs(net, startup=startup), Method.ORDINARY),
            "paper": list(TABLE_4[net]),
        }
        for name, cells in rows.items():
            every[name] += cells[1:]
            shown = " | ".join(f"{cell:.2f}" for cell in cells)
            lines.append(f"| {net} | {_NAMES[name]} | {shown} |")
    for name, cells in every.items():
        mean = f"mean {statistics.mean(cells):.2f}, worst {max(cells):.2f}"
        lines.append(f"| **nine splits** | {_NAMES[name]} | | {mean} | | |")
    return "\n".join(lines)


_NAMES = {
    "default": "relative, non-negative (default)",
    "ordinary": "ordinary least squares",
    "paper": "*printed: ordinary, Caffe on a P100*",
}


def simulated() -> str:
    """Errors of four fitting methods on made-up runs with noise."""
    # The proportional method gives the same as the relative one here.
    methods = [method for method in Method if method is not Method.PROPORTIONAL]
    lines = [*heading(f"runs like | noise | fitted on | {' | '.join(methods)}")]
    best = 0
    for name, beta in BETAS.items():
        _, drawn = synthetic(beta)
        for noise in (0.01, 0.03, 0.05):
            for count in SPLITS:
                method_errors = [simulated_error(drawn, noise, count, method) for method in methods]
                best += method_errors[-1] <= min(method_errors) + 5e-5
                cells = " | ".join(f"{100 * error:.2f}" for error in method_errors)
                lines.append(f"| {name} | {noise:.0%} | {count} | {cells} |")
    lines += ["", f"The last column is the smallest, or ties at two digits, in {best} of 27 rows."]
    return "\n".join(lines)


def simulated_error(
    drawn: RunDraw, noise: float, count: int, method: Method | str, draws: int = REPLICATES
) -> float:
    """The mean error of fits on so many made-up runs, on the 140 others."""
    errors = []
    for seed in range(draws):
        runs = [Run("made", b, i, s) for (b, i), s in drawn(seed, noise).items()]
        model = EndToEnd(method).fit(seen(runs, count))
        errors.append(float(np.abs(model.errors_on(unseen(runs))).mean()))
    return statistics.mean(errors)


def designs() -> Iterator[str]:
    """Errors of optimal designs and of grids at the same cost, on made-up and measured runs."""
    yield from heading("runs | grid size | grid | D-optimal | A-optimal | I-optimal")
    for name, beta in BETAS.items():
        yield from _design_rows(f"{name} (synthetic)", *synthetic(beta))
    for net in NETS:
        yield from _design_rows(f"{net} (H200)", *_measured(net))


Times = Callable[[int, int], float]


class RunDraw(Protocol):
    """Draws the times of all runs from a seed and a relative noise."""

    def __call__(self, seed: int, noise: float = NOISE) -> Mapping[tuple[int, int], float]: ...


def synthetic(beta: Sequence[float]) -> tuple[Times, RunDraw]:
    """Runs of the printed grid that are made from a law: their true times, and noisy draws."""

    def seconds(batch: int, iterations: int) -> float:
        constant, by_batch, by_iteration, both = beta
        i = 10 * iterations
        return constant + by_batch * batch + by_iteration * i + both * batch * i

    lengths = scaled(splits.ITERATIONS, 0.1)

    def drawn(seed: int, noise: float = NOISE) -> Mapping[tuple[int, int], float]:
        rng = np.random.default_rng(seed)
        normal = rng.standard_normal((len(BATCHES), len(lengths)))
        factor = np.exp(noise * normal - noise**2 / 2)
        return {
            (b, i): seconds(b, i) * float(factor[x, y])
            for x, b in enumerate(BATCHES)
            for y, i in enumerate(lengths)
        }

    return seconds, drawn


def _measured(net: str) -> tuple[Times, RunDraw]:
    runs = measured_runs(net)
    times = {(run.batch, run.iterations): run.seconds for run in runs}
    # The cost of a run is estimated from the two smallest batches, as if no others had been run.
    pilot = EndToEnd().fit(seen(runs, 6))
    return lambda b, i: pilot.predict(b, i).seconds, lambda seed, noise=NOISE: times


def _design_rows(name: str, seconds: Times, drawn: RunDraw) -> Iterator[str]:
    space = configurations(BATCHES, sorted({i for _, i in drawn(0)}), seconds)
    for count, (batch, iterations) in SPLITS.items():
        grid = [run for run in space if run.batch <= batch and run.iterations <= iterations]
        budget = sum(run.cost_s for run in grid)
        chosen = {"grid": grid} | {
            criterion: design(space, budget, criterion=criterion, most_runs=count).runs
            for criterion in "DAI"
        }
        test = [run for run in space if run.batch > 32 or run.iterations > 20]
        cells = []
        for runs in chosen.values():
            mapes = []
            for seed in range(REPLICATES if "synthetic" in name else 1):
                times = drawn(seed)
                timed = [
                    Run(name, run.batch, run.iterations, times[run.batch, run.iterations])
                    for run in runs
                ]
                model = EndToEnd().fit(timed)
                left = [run for run in test if run not in runs]
                mapes.append(
                    np.abs(
                        model.errors_on(
                            Run(name, run.batch, run.iterations, times[run.batch, run.iterations])
                            for run in left
                        )
                    ).mean()
                )
            cells.append(f"{100 * np.mean(mapes):.2f} ({len(runs)})")
        yield f"| {name} | {count} | {' | '.join(cells)} |"


TABLES: dict[str, Callable[[], str]] = {
    "end to end": end_to_end,
    "end to end with start-up": lambda: end_to_end(startup=True),
    "variants": variants,
    "variants by predicted work": lambda: variants(by_work=True),
    "per layer": lambda: layer_models.per_layer("tf32"),
    "per layer in fp32": lambda: layer_models.per_layer("fp32"),
    "networks of today": lambda: net_transfers.table("fp32"),
    "networks of today in bf16": lambda: net_transfers.table("bf16"),
    "rates": layer_models.rates,
    "features": layer_models.features,
    "simulated": simulated,
    "designs": lambda: "\n".join(designs()),
}
"""The function that makes each table, by the table's name."""


SUMMED = ("per layer", "per layer in fp32", "networks of today", "networks of today in bf16")
"""The tables of which runs-layers.md has the sums alone."""
ON_PAGES = {
    **dict.fromkeys((*SUMMED, "rates"), "runs-layers.md"),
    **dict.fromkeys(("variants", "variants by predicted work"), "runs-whole.md"),
}
"""The page of each table; the others are printed only."""


LEFT_OUT = {"variants by predicted work": "testing", "rates": "googlenet"}
"""A word of the lines that the page of a table leaves out."""


def on_the_page(name: str, text: str) -> str:
    """What its page has of a table."""
    if name in LEFT_OUT:
        return "\n".join(line for line in text.splitlines() if LEFT_OUT[name] not in line)
    return pages.sums(text) if name in SUMMED else text


def tables(names: Sequence[str]) -> Iterator[ScoreTable]:
    """Make the tables that were asked for."""
    for name in names:
        text = TABLES[name]()
        page = pages.APPENDIX / ON_PAGES[name] if name in ON_PAGES else None
        shown = on_the_page(name, text)
        yield ScoreTable(text, page, f"{MARK} '{name}'", title=name, on_page=shown)
