"""The choice of the metric whose times show how fast a training was.

Trackers keep many metrics. The one with the most steps is chosen, among those that belong neither
to a test nor to whole epochs. Time spent in a test is not training time, so a stretch in which a
test was recorded is not timed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.facts import Given
from wavecast.runs.readers.timing import Mark

_TEST = re.compile(r"(val|valid|validation|eval|evaluation|test|testing)\d*([_\-. ].*)?")
_EPOCH = re.compile(r"(.*[_\- ])?epoch([_\- ].*)?|hp_metric")


def training_marks(path: Path, marks: Mapping[str, Sequence[Mark]], given: Given) -> list[Mark]:
    """The times of the chosen metric; marks after a test say so.

    Raises:
        InvalidInput: the file lacks the metric that was asked for, or has none of training steps.
    """
    chosen = _choose(path, marks, given)
    tests = sorted(
        mark.time_s
        for name, its_marks in marks.items()
        if is_test(name) and name != chosen
        for mark in its_marks
    )
    return list(_broken(marks[chosen], tests))


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
