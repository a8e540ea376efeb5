"""Runs made up from a law: synthetic, and called so wherever shown."""

from __future__ import annotations

import numpy as np

from wavecast.runs.regression.end_to_end import BATCHES, ITERATIONS
from wavecast.runs.run import Run

__all__ = ["BATCHES", "BETAS", "ITERATIONS", "SPLITS", "grid_runs", "seconds", "seen", "unseen"]

SPLITS = {6: (16, 150), 12: (24, 170), 20: (32, 200)}
"""By the number of runs to fit on: the largest batch and number of iterations."""
BETAS = {
    "AlexNet-like": (2.0, 0.02, 0.02, 0.002),
    "GoogLeNet-like": (5.0, 0.05, 0.04, 0.0045),
    "VGG-like": (5.0, 0.05, 0.05, 0.016),
}


def seconds(beta: tuple[float, ...], batch: float, iterations: float) -> float:
    one, by_batch, by_iteration, both = beta
    return one + by_batch * batch + by_iteration * iterations + both * batch * iterations


def grid_runs(
    beta: tuple[float, ...], sigma: float = 0.0, seed: int = 0, phase: str = "training"
) -> list[Run]:
    """All 160 runs, with independent multiplicative noise of mean 1."""
    rng = np.random.default_rng(seed)
    return [
        Run(
            "made",
            batch,
            iterations,
            seconds(beta, batch, iterations)
            * float(np.exp(sigma * rng.standard_normal() - sigma**2 / 2)),
            phase=phase,
        )
        for batch in BATCHES
        for iterations in ITERATIONS
    ]


def seen(runs: list[Run], count: int) -> list[Run]:
    """The short runs at small batches that a split fits on."""
    batch, iterations = SPLITS[count]
    return [run for run in runs if run.batch <= batch and run.iterations <= iterations]


def unseen(runs: list[Run]) -> list[Run]:
    """The runs in none of the splits."""
    short = seen(runs, 20)
    return [run for run in runs if run not in short]
