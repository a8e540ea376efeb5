"""Runs divided at a batch and a length: fitted on the small ones, judged on the others.

This is how Gianniti, Zhang and Ardagna 2019 judge their models of whole runs (section 4.3 and
table 4): a model is fitted on the runs up to a threshold, and all models are judged on the same
runs, which are those beyond every threshold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.regression.least_squares import Method
from wavecast.regression.runs.end_to_end import EndToEnd
from wavecast.regression.runs.run_table import RunTime, tabulate
from wavecast.runs.run import Run
from wavecast.showing import Shown


@dataclass(frozen=True, slots=True)
class Split:
    """The runs to fit: those with at most this batch and this many iterations."""

    batch: int
    iterations: int

    def has(self, run: Run, time: RunTime | str | None = None) -> bool:
        """Whether a run is one to fit."""
        length = run.total_iterations if time == RunTime.TOTAL else run.iterations
        return run.batch <= self.batch and (length or run.iterations) <= self.iterations


BATCHES = tuple(range(8, 65, 8))
ITERATIONS = (
    *(100, 120, 150, 170, 200, 230, 250, 300, 350, 400, 500, 700, 800, 950, 1000, 1100, 1400),
    *(1600, 2000, 2300),
)
"""The published grid: every number of section 4.3."""
SPLITS = (Split(16, 150), Split(24, 170), Split(32, 200))
"""The thresholds of table 4: they leave 6, 12 and 20 runs to fit, and 140 to judge by."""
NETS = ("alexnet", "googlenet", "vgg16")
PUBLISHED = {
    "alexnet": (0.0294, 0.0318, 0.0643, 0.0301),
    "googlenet": (0.0097, 0.0579, 0.0109, 0.0243),
    "vgg16": (0.0153, 0.0370, 0.0220, 0.0341),
}
"""The paper's mean errors (Caffe on a P100, ordinary least squares): fitted and judged on all
runs, then fitted up to each of `SPLITS` and judged beyond them."""


@dataclass(frozen=True)
class SplitScore(Shown):
    """How well a model fitted on small runs predicts the larger ones."""

    model: str
    split: Split | None
    """The threshold; None if the model was fitted and judged on all runs."""
    method: Method
    """What the fit minimises."""
    fitted: int
    """How many runs it was fitted on."""
    judged: int
    """How many runs it was judged by."""
    mape: float
    """The mean absolute relative error on these."""
    worst: float
    """The signed relative error that is furthest from 0; negative if too short."""
    published: float | None = None
    """The mean error that the paper printed for this network and threshold; None if none."""


def judge(
    runs: Iterable[Run],
    splits: Sequence[Split],
    methods: Sequence[Method | str] = (Method.RELATIVE_NON_NEGATIVE, Method.ORDINARY),
    *,
    phase: str = "training",
    time: RunTime | str | None = None,
) -> tuple[SplitScore, ...]:
    """The errors of models fitted below each threshold on the runs beyond all of them.

    Args:
        runs: runs of one network on one machine.
        splits: the thresholds.
        methods: the least-squares fits to compare.
        phase: "training" or "testing".
        time: the time to learn; by default that of whole runs if every run says it.

    Returns:
        For each method a score on all runs, then one for each threshold.

    Raises:
        InvalidInput: the runs below a threshold do not determine the model, or no run is beyond
            all thresholds.
    """
    every = [run for run in runs if run.phase == phase]
    learned = tabulate(every, phase, time).time
    beyond = [run for run in every if not any(split.has(run, learned) for split in splits)]
    if not beyond:
        largest = max(splits, key=lambda split: (split.batch, split.iterations))
        raise InvalidInput(
            f"no run is beyond a batch of {largest.batch} and {largest.iterations} iterations; "
            "give smaller thresholds, or add larger runs"
        )
    name = every[0].model
    printed: Sequence[float | None] = (None,) * (1 + len(splits))
    if tuple(splits) == SPLITS and phase == "training":
        printed = PUBLISHED.get(name, printed)
    scores = []
    for method in map(Method, methods):
        way = EndToEnd(method, phase, time=learned)
        for split, value in zip((None, *splits), printed, strict=True):
            small = every if split is None else [run for run in every if split.has(run, learned)]
            model = way.fit(small)
            judged = every if split is None else beyond
            errors = np.asarray(model.errors_on(judged))
            scores.append(
                SplitScore(
                    *(name, split, method, len(small), len(judged)),
                    *(float(np.abs(errors).mean()), float(errors[np.abs(errors).argmax()]), value),
                )
            )
    return tuple(scores)
