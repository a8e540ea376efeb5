"""Which of the metrics that a tracker keeps tells how fast the training was.

The one with the most steps that is neither of a test nor one an epoch. A test in between takes time
that is not training's: the stretch in which one was recorded is not timed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.facts import Given
from wavecast.runs.readers.stretches import Mark

_TEST = re.compile(r"(val|valid|validation|eval|evaluation|test|testing)\d*([_\-. ].*)?")
_EPOCH = re.compile(r"(.*[_\- ])?epoch([_\- ].*)?|hp_metric")


def training_marks(path: Path, marks: Mapping[str, Sequence[Mark]], given: Given) -> list[Mark]:
    """The moments of the chosen metric, broken where a test was.

    Raises:
        InvalidInput: the one asked for is not there, or none will do.
    """
    chosen = _choose(path, marks, given)
    tests = sorted(
        mark.time_s
        for name, each in marks.items()
        if is_test(name) and name != chosen
        for mark in each
    )
    return list(_broken(marks[chosen], tests))


def is_test(name: str) -> bool:
    """Whether a metric is one of a test."""
    return any(_TEST.fullmatch(part) for part in name.lower().split("/"))


def is_training(name: str) -> bool:
    """Whether a metric is recorded at iterations of a training, as far as its name tells."""
    return not is_test(name) and not any(_EPOCH.fullmatch(p) for p in name.lower().split("/"))


def _choose(path: Path, marks: Mapping[str, Sequence[Mark]], given: Given) -> str:
    if given.metric is not None:
        if given.metric not in marks:
            known = ", ".join(sorted(marks)[:10]) or "none"
            raise InvalidInput(f'{path}: has no metric "{given.metric}"; those it has: {known}')
        return given.metric
    able = [name for name in marks if is_training(name)]
    if not able:
        known = f" (those it has: {', '.join(sorted(marks)[:10])})" if marks else ""
        raise InvalidInput(
            f"{path}: has no metric of training steps{known}; name one whose steps are "
            "iterations: metric=..., or --metric on the command line"
        )
    return max(able, key=lambda name: (len(marks[name]), name))


def _broken(marks: Iterable[Mark], tests: Sequence[float]) -> Iterable[Mark]:
    """Marks, of which those after a test say so."""
    passed = 0
    for mark in marks:
        before = passed
        while passed < len(tests) and tests[passed] <= mark.time_s:
            passed += 1
        yield replace(mark, after_break=mark.after_break or passed > before)
