"""The choice of the metric whose times show how fast a training was.

Trackers keep many metrics. The one with the most steps is chosen, among those that belong neither
to a test nor to whole epochs. Time spent in a test is not training time, so a stretch in which a
test was recorded is not timed.
"""

from __future__ import annotations

import re
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.facts import Given
from wavecast.runs.readers.timing import Mark
from wavecast.runs.readers.totals import LogSpan

_TEST = re.compile(r"(val|valid|validation|eval|evaluation|test|testing)\d*([_\-. ].*)?")
_EPOCH = re.compile(r"(.*[_\- ])?epoch([_\- ].*)?|hp_metric")


def training_marks(path: Path, marks: Mapping[str, Sequence[Mark]], given: Given) -> list[Mark]:
    """The times of the chosen metric; marks after a test say so.

    Raises:
        InvalidInput: the file lacks the given metric, or has no metric of training steps.
    """
    chosen = _choose(path, marks, given)
    tests = sorted(
        mark.time_s
        for name, its_marks in marks.items()
        if is_test(name) and name != chosen
        for mark in its_marks
    )
    return list(_broken(marks[chosen], tests))


def test_spans(
    marks: Mapping[str, Sequence[Mark]], chosen: Sequence[Mark]
) -> tuple[tuple[float, float], ...] | None:
    """When each test began and ended. None if it is unknown.

    A tracker writes the metrics of a test at its end. The test began when the training reached the
    step of these metrics, which follows from the last logged step and the usual time of a step.

    Args:
        marks: the times of all metrics.
        chosen: the times of the metric of training steps.
    """
    steps = sorted(chosen, key=lambda mark: mark.time_s)
    pairs = [(a, b) for a, b in pairwise(steps) if b.iteration > a.iteration]
    tests = sorted(
        (m for name, its in marks.items() if is_test(name) for m in its), key=lambda m: m.time_s
    )
    if not tests:
        return ()
    if not pairs:
        return None
    usual = statistics.median(b.iteration - a.iteration for a, b in pairs)
    usual_s = statistics.median(
        (b.time_s - a.time_s) / (b.iteration - a.iteration) for a, b in pairs
    )
    spans: dict[float, tuple[float, float]] = {}
    times = [mark.time_s for mark in steps]
    for test in tests:
        # At the end of a test, trackers may write a training step with the same time.
        before = bisect_left(times, test.time_s) - 1
        if before < 0:
            return None
        ahead = test.iteration - steps[before].iteration
        if not 0 <= ahead <= 2 * usual:
            return None  # the steps of the test count something else
        begin_s = times[before] + ahead * usual_s
        spans[times[before]] = (min(begin_s, test.time_s), test.time_s)
    return tuple(spans.values())


def whole_span(
    times: Sequence[float], marks: Mapping[str, Sequence[Mark]], chosen: Sequence[Mark]
) -> LogSpan | None:
    """The first and last of all stamps, with the tests. None if there are no stamps."""
    if not times:
        return None
    return LogSpan(times[0], max(times), test_spans(marks, chosen))


def is_test(name: str) -> bool:
    """Whether a metric belongs to a test or validation, by its name."""
    return any(_TEST.fullmatch(part) for part in name.lower().split("/"))


def is_training(name: str) -> bool:
    """Whether a metric is recorded at training iterations, by its name."""
    return not is_test(name) and not any(_EPOCH.fullmatch(p) for p in name.lower().split("/"))


def _choose(path: Path, marks: Mapping[str, Sequence[Mark]], given: Given) -> str:
    if given.metric is not None:
        if given.metric not in marks:
            metrics = ", ".join(sorted(marks)[:10]) or "none"
            raise InvalidInput(f'{path}: has no metric "{given.metric}"; it has {metrics}')
        return given.metric
    candidates = [name for name in marks if is_training(name)]
    if not candidates:
        metrics = f" (it has {', '.join(sorted(marks)[:10])})" if marks else ""
        raise InvalidInput(
            f"{path}: has no metric of training steps{metrics}; name one whose steps are "
            "iterations: metric=..., or --metric on the command line"
        )
    return max(candidates, key=lambda name: (len(marks[name]), name))


def _broken(marks: Iterable[Mark], tests: Sequence[float]) -> Iterable[Mark]:
    """The marks; those after a test are marked as after a break."""
    passed = 0
    for mark in marks:
        before = passed
        while passed < len(tests) and tests[passed] <= mark.time_s:
            passed += 1
        yield replace(mark, after_break=mark.after_break or passed > before)
