"""The time of whole runs: from the first to the last stamp of a log.

The end-to-end models of Gianniti et al. regress this time. It includes start-up, warm-up, tests and
checkpoints, which the time of single iterations leaves out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wavecast.runs.readers.doubts import Doubts

if TYPE_CHECKING:
    from wavecast.runs.readers.timing import Training

MOST_PAUSED = 0.5
"""If pauses are more than this share of a run, its total says nothing about other runs."""


@dataclass(frozen=True, slots=True)
class LogSpan:
    """The first and last stamp of a run in its log, and the tests in between."""

    begin_s: float
    end_s: float
    tests: tuple[tuple[float, float], ...] | None = None
    """When each test began and ended. None if the log does not say."""
    iterations: int | None = None
    """All iterations of the run, if the log says more than its logged iterations do."""


@dataclass(frozen=True, slots=True)
class RunTotals:
    """The iterations and times of a whole run. None when unknown."""

    total_iterations: int | None = None
    total_s: float | None = None
    training_s: float | None = None
    testing_s: float | None = None

    def known(self) -> dict[str, Any]:
        """The known values by name."""
        values = {name: getattr(self, name) for name in RunTotals.__slots__}
        return {name: value for name, value in values.items() if value is not None}


def totals_of(span: LogSpan, training: Training, paused_s: float, doubts: Doubts) -> RunTotals:
    """The times of a whole run; unknown, with a warning, if its time stamps do not agree.

    Args:
        span: its first and last stamp.
        training: its logged iterations.
        paused_s: the seconds of pauses in it.
        doubts: takes the warning if the times are unknown.
    """
    first, last = training.first, training.last
    total_s = span.end_s - span.begin_s
    if not (span.begin_s <= first.time_s <= last.time_s <= span.end_s and total_s > 0):
        doubts.tell(
            first.place,
            "the time of the whole run is unknown: the first stamp of the log is "
            f"{first.time_s - span.begin_s:.6g} s before its first iteration, and the last stamp "
            f"{span.end_s - last.time_s:.6g} s after its last iteration",
            "the time of the whole run is unknown",
        )
        return RunTotals()
    if paused_s > MOST_PAUSED * total_s:
        doubts.tell(
            first.place,
            f"the time of the whole run is unknown: {paused_s:.4g} s of its {total_s:.4g} s are "
            "pauses, or its clock was set",
            "the time of the whole run is unknown",
        )
        return RunTotals()
    iterations = span.iterations or training.iterations
    if span.tests is None:
        return RunTotals(iterations, total_s)
    within = (end - begin for begin, end in span.tests if first.time_s <= begin <= last.time_s)
    training_s = last.time_s - first.time_s - math.fsum(within)
    testing_s = math.fsum(end - begin for begin, end in span.tests)
    return RunTotals(iterations, total_s, max(0.0, training_s), testing_s)
