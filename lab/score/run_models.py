"""Models of runs and layers, fitted on our measurements.

    python -m lab.score.run_models

fits measurements/h200/runs.csv (no GPU needed; some minutes) and writes the tables of
docs/appendix/runs-whole.md and runs-layers.md. Names of tables make only those:
python -m lab.score.run_models "per layer".
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Protocol

import numpy as np

import wavecast
from lab.measured.run_grid import BATCHES, ITERATIONS, NETS, VARIANTS, GridRow, Variant, read
from lab.places import H200
from lab.score import layer_models, pages
from lab.score.layer_models import GPU
from wavecast.predictors.learned.predictor import Learned
from wavecast.regression.design import configurations, design
from wavecast.regression.end_to_end import BatchWork, EndToEnd
from wavecast.regression.least_squares import Method
from wavecast.runs.run import Run
from wavecast.suite import benchmark
from wavecast.traces.step import Phase

MARK = "begin: python -m lab.score.run_models"
MEASURED = H200 / "runs.csv"
MAIN = "training graph tf32"
SPLITS = {6: (16, 15), 12: (24, 17), 20: (32, 20)}
"""Table 4: how many runs to fit on, their largest batch and number of iterations (a tenth)."""
TABLE_4 = {
    "alexnet": (2.94, 3.18, 6.43, 3.01),
    "googlenet": (0.97, 5.79, 1.09, 2.43),
    "vgg16": (1.53, 3.70, 2.20, 3.41),
}
"""MAPE in percent as printed (P100, Caffe): on the full data, then with 6, 12 and 20 runs."""
BETAS = {
    "AlexNet-like": (2.0, 0.02, 0.02, 0.002),
    "GoogLeNet-like": (5.0, 0.05, 0.04, 0.0045),
    "VGG-like": (5.0, 0.05, 0.05, 0.016),
}
REPLICATES = 200
NOISE = 0.01


def measured_runs(net: str, variant: str = MAIN, startup: bool = False) -> list[Run]:
    """The measured runs of a net, with or without the start-up before their iterations."""
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
    """The 6, 12 or 20 shortest runs at the smallest batches, which a model is fitted on."""
    batch, iterations = SPLITS[count]
    return [run for run in runs if run.batch <= batch and run.iterations <= iterations]


def unseen(runs: Sequence[Run]) -> list[Run]:
    """The 140 runs that no fit has seen."""
    short = set(seen(runs, 20))
    return [run for run in runs if run not in short]


def errors(
    runs: Sequence[Run],
    method: Method = Method.RELATIVE_NON_NEGATIVE,
    work: BatchWork | None = None,
) -> list[float]:
    """MAPE in percent: on the full data, then with 6, 12 and 20 runs on the 140 others."""
    way = EndToEnd(method, runs[0].phase, work=work)
    found = [way.fit(runs).mape]
    for count in SPLITS:
        model = way.fit(seen(runs, count))
        found.append(float(np.abs(model.errors_on(unseen(runs))).mean()))
    return [100 * error for error in found]


def noise(runs: Sequence[Run]) -> float:
    """MAPE in percent of a line for each batch by itself: no model of batches can be nearer."""
    by_batch = [[run for run in runs if run.batch == batch] for batch in BATCHES]
    return 100 * statistics.mean(EndToEnd(phase=each[0].phase).fit(each).mape for each in by_batch)


@cache
def predicted_s(net: str, batch: int, precision: str, phase: str) -> float:
    """The GPU time that the op models predict for an iteration."""
    gpu, predictor = wavecast.device(GPU), Learned.shipped()
    trace = wavecast.trace(lambda: benchmark(net).make_step(batch, precision), samples=batch)
    calls = [call for call in trace if phase == "training" or call.phase is Phase.FORWARD]
    return sum(found.seconds for call in calls if (found := predictor.predict(call.op, gpu)))


def variants(by_work: bool = False) -> str:
    """Errors of every measured variant: on all runs, and on the three splits."""
    last = "" if by_work else "a line for each batch | "
    lines = [
        f"| variant | net | all 160 runs | from 6 | from 12 | from 20 | {last}".rstrip(),
        f"|---|---|---:|---:|---:|---:|{'' if by_work else '---:|'}",
    ]
    for variant in VARIANTS:
        if by_work and variant.mode != "graph":
            continue  # what waits for the host does not follow the GPU's work
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
    """Table 4 of the paper on our GPU, beside the printed values."""
    lines = [
        "| net | method | all 160 runs | from 6 | from 12 | from 20 |",
        "|---|---|---:|---:|---:|---:|",
    ]
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
    """Errors of four ways to fit, on made-up runs with noise."""
    methods = [each for each in Method if each is not Method.PROPORTIONAL]  # as the relative one
    lines = [
        f"| runs like | noise | fitted on | {' | '.join(methods)} |",
        f"|---|---:|---:|{'---:|' * len(methods)}",
    ]
    best = 0
    for name, beta in BETAS.items():
        _, drawn = _synthetic(beta)
        for noise in (0.01, 0.03, 0.05):
            for count in SPLITS:
                found = [_simulated_error(drawn, noise, count, method) for method in methods]
                best += found[-1] <= min(found) + 5e-5
                cells = " | ".join(f"{100 * error:.2f}" for error in found)
                lines.append(f"| {name} | {noise:.0%} | {count} | {cells} |")
    lines += ["", f"The last is the least, or ties with it at two digits, in {best} of 27 rows."]
    return "\n".join(lines)


def _simulated_error(drawn: RunDraw, noise: float, count: int, method: Method) -> float:
    errors = []
    for seed in range(REPLICATES):
        runs = [Run("made", b, i, s) for (b, i), s in drawn(seed, noise).items()]
        model = EndToEnd(method).fit(seen(runs, count))
        errors.append(float(np.abs(model.errors_on(unseen(runs))).mean()))
    return statistics.mean(errors)


def designs() -> Iterator[str]:
    """The error of designs against the grids at the same cost, synthetic and measured."""
    yield "| runs | grid of | error | D-optimal | A-optimal | I-optimal |"
    yield "|---|---:|---:|---:|---:|---:|"
    for name, beta in BETAS.items():
        yield from _design_rows(f"{name} (synthetic)", *_synthetic(beta))
    for net in NETS:
        yield from _design_rows(f"{net} (H200)", *_measured(net))


Times = Callable[[int, int], float]


class RunDraw(Protocol):
    """Makes the times of all runs from a seed and a noise."""

    def __call__(self, seed: int, noise: float = NOISE) -> Mapping[tuple[int, int], float]: ...


def _synthetic(
    beta: Sequence[float],
) -> tuple[Times, RunDraw]:
    def seconds(batch: int, iterations: int) -> float:
        one, by_batch, by_iteration, both = beta
        i = 10 * iterations
        return one + by_batch * batch + by_iteration * i + both * batch * i

    def drawn(seed: int, noise: float = NOISE) -> Mapping[tuple[int, int], float]:
        rng = np.random.default_rng(seed)
        normal = rng.standard_normal((len(BATCHES), len(ITERATIONS)))
        factor = np.exp(noise * normal - noise**2 / 2)
        return {
            (b, i): seconds(b, i) * float(factor[x, y])
            for x, b in enumerate(BATCHES)
            for y, i in enumerate(ITERATIONS)
        }

    return seconds, drawn


def _measured(net: str) -> tuple[Times, RunDraw]:
    runs = measured_runs(net)
    times = {(run.batch, run.iterations): run.seconds for run in runs}
    # The cost of a run is guessed from the two cheapest batches: the others were not run yet.
    pilot = EndToEnd().fit(seen(runs, 6))
    return lambda b, i: pilot.predict(b, i).seconds, lambda seed, noise=NOISE: times


def _design_rows(name: str, seconds: Times, drawn: RunDraw) -> Iterator[str]:
    space = configurations(BATCHES, ITERATIONS, seconds)
    for count, (batch, iterations) in SPLITS.items():
        grid = [each for each in space if each.batch <= batch and each.iterations <= iterations]
        budget = sum(each.cost_s for each in grid)
        chosen = {"grid": grid} | {
            each: design(space, budget, criterion=each, most_runs=count).runs for each in "DAI"
        }
        test = [each for each in space if each.batch > 32 or each.iterations > 20]
        cells = []
        for runs in chosen.values():
            found = []
            for seed in range(REPLICATES if "synthetic" in name else 1):
                times = drawn(seed)
                made = [
                    Run(name, each.batch, each.iterations, times[each.batch, each.iterations])
                    for each in runs
                ]
                model = EndToEnd().fit(made)
                left = [each for each in test if each not in runs]
                found.append(
                    np.abs(
                        model.errors_on(
                            Run(name, x.batch, x.iterations, times[x.batch, x.iterations])
                            for x in left
                        )
                    ).mean()
                )
            cells.append(f"{100 * np.mean(found):.2f} ({len(runs)})")
        yield f"| {name} | {count} | {' | '.join(cells)} |"


TABLES: dict[str, Callable[[], str]] = {
    "end to end": end_to_end,
    "end to end with start-up": lambda: end_to_end(startup=True),
    "variants": variants,
    "variants by predicted work": lambda: variants(by_work=True),
    "per layer": lambda: layer_models.per_layer("tf32"),
    "per layer in fp32": lambda: layer_models.per_layer("fp32"),
    "rates": layer_models.rates,
    "features": layer_models.features,
    "simulated": simulated,
    "designs": lambda: "\n".join(designs()),
}


LAYER_TABLES = ("per layer", "per layer in fp32", "rates", "features")


def main() -> None:
    """Make the tables that were asked for, and write them."""
    for name in sys.argv[1:] or TABLES:
        shown = TABLES[name]()
        print(f"{name}\n\n{shown}\n", flush=True)
        page = "runs-layers.md" if name in LAYER_TABLES else "runs-whole.md"
        pages.write(pages.APPENDIX / page, f"{MARK} '{name}'", shown)


if __name__ == "__main__":
    main()
