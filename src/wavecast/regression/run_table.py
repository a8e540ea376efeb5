"""Runs as columns of numbers, which is what fits need and what a million of them fit in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.regression.least_squares import Array
from wavecast.runs.run import PHASES, Run

_LABELS = ("model", "gpu", "gpus", "precision", "framework", "inner_modules")
_MOST_LABELS = 1000


@dataclass(frozen=True)
class RunTable:
    """Runs of one phase, a column for each number; and what they are runs of."""

    phase: str
    batch: Array
    iterations: Array
    seconds: Array
    labels: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Of each of these, the different values there are."""

    def __len__(self) -> int:
        return len(self.seconds)

    def require_one(self, *names: str) -> None:
        """Refuse runs that differ in what one model cannot tell apart."""
        for name in names:
            values = self.labels.get(name, ())
            if len(values) > 1:
                shown = ", ".join(str(value) or "(not said)" for value in values[:5])
                more = f" and {len(values) - 5} more" if len(values) > 5 else ""
                raise InvalidInput(
                    f"these runs differ in {name}: {shown}{more}; choose those of one, or fit an "
                    "Extrapolation if they are runs of one network"
                )


def tabulate(runs: Iterable[Run], phase: str) -> RunTable:
    """The runs of a phase as columns, read once from first to last.

    Raises:
        InvalidInput: there are none, or one is no run; says which.
    """
    if phase not in PHASES:
        raise InvalidInput(f'a phase is {" or ".join(PHASES)}, not "{phase}"')
    others: set[str] = set()
    labels: dict[str, dict[object, None]] = {name: {} for name in _LABELS}
    chosen = _of_phase(runs, phase, others, labels)
    dtype = np.dtype([(name, np.float64) for name in ("batch", "iterations", "seconds")])
    table = np.fromiter(chosen, dtype=dtype)
    if not len(table):
        there = f"; there are runs of {', '.join(sorted(others))}" if others else ""
        raise InvalidInput(f"no run of {phase} to learn from{there}")
    return RunTable(
        phase=phase,
        batch=np.ascontiguousarray(table["batch"]),
        iterations=np.ascontiguousarray(table["iterations"]),
        seconds=np.ascontiguousarray(table["seconds"]),
        labels={name: tuple(values) for name, values in labels.items()},
    )


def check_run(number: int, run: Run) -> Run:
    """The run itself, if it is one that can be learned from."""
    if not isinstance(run, Run):
        raise InvalidInput(f"run {number} is a {type(run).__name__}, not a wavecast.runs.run.Run")
    where = run.source or f"run {number}"
    if run.batch < 1 or run.iterations < 1 or run.gpus < 1:
        raise InvalidInput(f"{where}: batch, iterations and gpus must be at least 1")
    if not 0 < run.seconds < math.inf:
        raise InvalidInput(f"{where}: it took {run.seconds} s; that is no time")
    return run


def _of_phase(
    runs: Iterable[Run], phase: str, others: set[str], labels: dict[str, dict[object, None]]
) -> Iterable[tuple[float, float, float]]:
    for number, each in enumerate(runs, start=1):
        run = check_run(number, each)
        if run.phase != phase:
            others.add(run.phase)
            continue
        for name, values in labels.items():
            if len(values) < _MOST_LABELS:
                values[getattr(run, name)] = None
        yield run.batch, run.iterations, run.seconds
