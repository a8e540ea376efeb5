"""At which noise would the paper's Table 4 arise? A simulation of its fits.

    python -m lab.score.table_4

Table 4 of Gianniti et al. 2019 prints the error of fits on 6, 12 and 20 short runs, and section 4.3
that of fits on all 160. The measured times are not published. Here runs are made from a law with
coefficients like those of the paper's networks, with independent relative noise. The noise is
chosen so that a fit on all runs has the printed error. Writes a table of
docs/appendix/runs-whole.md. All of it is synthetic; only the printed errors are the paper's.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from lab.measured.run_grid import BATCHES, ITERATIONS, NETS
from lab.score import pages
from lab.score.run_models import BETAS, SPLITS, TABLE_4
from wavecast.regression.end_to_end import FULL, rows_of
from wavecast.regression.least_squares import Array, Method, fit, mape

PAGE = pages.APPENDIX / "runs-whole.md"
MARK = "begin: python -m lab.score.table_4"
LIKE = dict(zip(NETS, BETAS, strict=True))
"""The made-up coefficients for each network of the paper."""
REPLICATES = 300
TENFOLD = 10
"""The paper has ten times as many iterations as our grid."""


@cache
def grid() -> tuple[Array, Array, Array]:
    """The features, batches and iterations of the 160 runs."""
    points = [(b, TENFOLD * i) for b in BATCHES for i in ITERATIONS]
    batch, iterations = np.array(points, dtype=float).T
    return rows_of(FULL, batch, iterations), batch, iterations


@cache
def draws() -> Array:
    """Standard normal numbers, one for each run of each replicate."""
    return np.random.default_rng(4).standard_normal((REPLICATES, len(grid()[0])))


def times(net: str, noise: float) -> Array:
    """The times of all runs in each replicate."""
    truth = grid()[0] @ np.array(BETAS[LIKE[net]])
    drawn: Array = truth * np.exp(noise * draws() - noise**2 / 2)
    return drawn


def errors(net: str, noise: float, count: int | None, method: Method) -> Array:
    """The error of each replicate: on all runs, or on the 140 unseen ones from `count` short."""
    rows, batch, iterations = grid()
    seen, judged = np.ones(len(rows), dtype=bool), np.ones(len(rows), dtype=bool)
    if count is not None:
        seen = _short(batch, iterations, count)
        judged = ~_short(batch, iterations, max(SPLITS))
    shares = [
        mape(fit(rows[seen], took[seen], method).predict(rows[judged]), took[judged])
        for took in times(net, noise)
    ]
    return np.array(shares)


def _short(
    batch: Array, iterations: Array, count: int
) -> np.ndarray[tuple[int], np.dtype[np.bool]]:
    most_batch, most_iterations = SPLITS[count]
    return (batch <= most_batch) & (iterations <= TENFOLD * most_iterations)


def noise_of(net: str) -> float:
    """The relative noise at which a fit on all runs has the printed error."""
    low, high = 0.0, 0.1
    printed = TABLE_4[net][0] / 100
    for _ in range(12):
        middle = (low + high) / 2
        if errors(net, middle, None, Method.ORDINARY).mean() < printed:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def table() -> str:
    """For each network and split: the printed error, and the simulated ones at its noise."""
    lines = [
        "| net | noise | fitted on | printed | ordinary: mean | share at or below the print "
        "| default: mean |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for net in NETS:
        noise = noise_of(net)
        for count, printed in zip((None, *SPLITS), TABLE_4[net], strict=True):
            ordinary = errors(net, noise, count, Method.ORDINARY)
            default = errors(net, noise, count, Method.RELATIVE_NON_NEGATIVE)
            below = (ordinary <= printed / 100).mean()
            lines.append(
                f"| {net} | {noise:.2%} | {count or 160} | {printed:.2f} "
                f"| {100 * ordinary.mean():.2f} | {'' if count is None else f'{below:.0%}'} "
                f"| {100 * default.mean():.2f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Write the table, and print it."""
    shown = table()
    pages.write(PAGE, MARK, shown)
    print(shown)


if __name__ == "__main__":
    main()
