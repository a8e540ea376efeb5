"""Runs as columns of numbers, so that a million runs fit into memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from wavecast.errors import InvalidInput
from wavecast.regression.least_squares import Array
from wavecast.runs.run import PHASES, Run

_LABELS = ("model", "gpu", "gpus", "precision", "framework", "inner_modules")
_MOST_LABELS = 1000
_NUMBERS = ("batch", "iterations", "seconds", "total_iterations", "total_s")


class RunTime(StrEnum):
    """The time of a run that a model learns."""

    ITERATIONS = "iterations"
    """`Run.seconds` of `Run.iterations`: the iterations that were timed."""
    TOTAL = "total"
    """`Run.total_s` of `Run.total_iterations`: the whole run, as in Gianniti et al. 2019."""

    @property
    def words(self) -> str:
        """What the time includes."""
        if self is RunTime.TOTAL:
            return "whole runs, with start-up, warm-up, tests and checkpoints"
        return "timed iterations, without start-up, warm-up, tests and checkpoints"


@dataclass(frozen=True)
class RunTable:
    """Runs of one phase, with a column for each number."""

    phase: str
    batch: Array
    iterations: Array
    seconds: Array
    labels: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """The distinct values of each property, such as "model" or "gpu"."""
    time: RunTime = RunTime.ITERATIONS
    """The time that `seconds` holds, of this many `iterations`."""
    whole: int = 0
    """How many of the runs say the time of the whole run."""

    def __len__(self) -> int:
        return len(self.seconds)

    def require_one(self, *names: str) -> None:
        """Check that all runs have the same value of each of these properties.

        Raises:
            InvalidInput: They differ.
        """
        for name in names:
            values = self.labels.get(name, ())
            if len(values) > 1:
                shown = ", ".join(str(value) or "(unknown)" for value in values[:5])
                more = f" and {len(values) - 5} more" if len(values) > 5 else ""
                raise InvalidInput(
                    f"these runs differ in {name}: {shown}{more}; choose runs with one value, or "
                    "fit an Extrapolation if they are runs of one network"
                )


def tabulate(runs: Iterable[Run], phase: str, time: RunTime | str | None = None) -> RunTable:
    """The runs of a phase as columns; the runs are read only once.

    Args:
        runs: the runs.
        phase: "training" or "testing".
        time: the time to learn; by default that of whole runs if all runs say it, else that of
            the timed iterations.

    Raises:
        InvalidInput: There are none, or one of them is not a valid run; the message says which.
    """
    if phase not in PHASES:
        raise InvalidInput(f'a phase is {" or ".join(PHASES)}, not "{phase}"')
    others: set[str] = set()
    labels: dict[str, dict[object, None]] = {name: {} for name in _LABELS}
    chosen = _of_phase(runs, phase, others, labels)
    if time is not None and time not in list(RunTime):
        raise InvalidInput(f'the time of a run is {" or ".join(RunTime)}, not "{time}"')
    dtype = np.dtype([(name, np.float64) for name in _NUMBERS])
    table = np.fromiter(chosen, dtype=dtype)
    if not len(table):
        hint = f"; there are runs of {', '.join(sorted(others))}" if others else ""
        raise InvalidInput(f"no run of {phase} to learn from{hint}")
    whole = int(np.isfinite(table["total_s"]).sum())
    if time == RunTime.TOTAL and whole < len(table):
        raise InvalidInput(
            f"{len(table) - whole} of {len(table)} runs do not say the time of the whole run "
            '(total_s); learn that of their iterations: time="iterations", or --time iterations'
        )
    chosen_time = RunTime(time or (RunTime.TOTAL if whole == len(table) else RunTime.ITERATIONS))
    total = chosen_time is RunTime.TOTAL
    return RunTable(
        phase=phase,
        batch=np.ascontiguousarray(table["batch"]),
        iterations=np.ascontiguousarray(table["total_iterations" if total else "iterations"]),
        seconds=np.ascontiguousarray(table["total_s" if total else "seconds"]),
        labels={name: tuple(values) for name, values in labels.items()},
        time=chosen_time,
        whole=whole,
    )


def check_run(number: int, run: Run) -> Run:
    """The run, unchanged, if its numbers are valid.

    Raises:
        InvalidInput: They are not.
    """
    if not isinstance(run, Run):
        raise InvalidInput(f"run {number} is a {type(run).__name__}, not a wavecast.runs.run.Run")
    where = run.source or f"run {number}"
    if run.batch < 1 or run.iterations < 1 or run.gpus < 1:
        raise InvalidInput(f"{where}: batch, iterations and gpus must be at least 1")
    if not 0 < run.seconds < math.inf:
        raise InvalidInput(f"{where}: {run.seconds} s is not a time")
    if run.total_s is not None and not (0 < run.total_s < math.inf and run.total_iterations):
        raise InvalidInput(f"{where}: {run.total_s} s is not the time of a whole run")
    return run


def _of_phase(
    runs: Iterable[Run], phase: str, others: set[str], labels: dict[str, dict[object, None]]
) -> Iterable[tuple[float, ...]]:
    for number, unchecked in enumerate(runs, start=1):
        run = check_run(number, unchecked)
        if run.phase != phase:
            others.add(run.phase)
            continue
        for name, values in labels.items():
            if len(values) < _MOST_LABELS:
                values[getattr(run, name)] = None
        total_s, iterations = run.total_s, run.total_iterations
        unknown = total_s is None or iterations is None
        totals = (math.nan, math.nan) if unknown else (iterations, total_s)
        yield (run.batch, run.iterations, run.seconds, *totals)
