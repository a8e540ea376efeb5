"""Logs of NVIDIA's DeepLearningExamples (dllogger): one line `DLLL {...}` for each iteration.

Each line has a time, a step and data. The step is [epoch, iteration] (in some scripts followed by
the number of all iterations) or [iteration]; "PARAMETER" for settings; [] or [epoch] for summaries.
The stretch between two epochs is not timed, because other work happens there. The whole run lasts
from the first line to the last, and a test from the last training step before it to its last line.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.runs.readers.text import Doubts, number_of, parse_json, read_lines, whole_of
from wavecast.runs.readers.timing import Given, LogSpan, Mark, find_facts, runs_of, trainings
from wavecast.runs.run import Run

_PREFIX = "DLLL "
_TESTING = ("val", "eval", "test", "infer")


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file begins like a dllogger log."""
    return any(line.startswith(b"DLLL {") for line in head.splitlines())


@dataclass(frozen=True, slots=True)
class _Step:
    line: int
    time_s: float
    numbers: tuple[int, ...]


@dataclass
class _Clock:
    """The stamps of a log, as far as it has been read."""

    name: str = ""
    """The field with the time: the same for the whole file, because the two clocks differ."""
    first_s: float | None = None
    last_s: float = 0.0
    tests_s: list[float] = field(default_factory=list)
    """The times of lines about tests."""

    def read(self, entry: dict[str, Any]) -> None:
        """Take the time of a line."""
        self.name = self.name or ("timestamp" if "timestamp" in entry else "elapsedtime")
        time_s = number_of(entry.get(self.name))
        if time_s is None or time_s < 0:
            return
        self.first_s = time_s if self.first_s is None else self.first_s
        self.last_s = max(time_s, self.last_s)
        if _is_test(entry["data"]):
            self.tests_s.append(time_s)


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of a dllogger file.

    Raises:
        InvalidInput: the log has no times, or does not say the model or batch; says where.
    """
    settings: dict[str, object] = {}
    steps: list[_Step | None] = []  # None for a line about something other than training
    clock = _Clock()
    for number, line in read_lines(path, doubts):
        if not line.startswith(_PREFIX):
            continue  # other output of the script
        entry = _entry(f"line {number}", line.removeprefix(_PREFIX), doubts)
        data = entry.get("data")
        if not isinstance(data, dict):
            continue
        if {"timestamp", "elapsedtime"} & entry.keys():
            clock.read(entry)
        if entry.get("step") == "PARAMETER":
            settings |= data
            continue
        steps.append(_step(number, entry, clock.name or "elapsedtime", doubts))
    facts = find_facts(settings, given, None)
    marks = list(_marks(steps))
    timed = trainings(marks, doubts)
    yield from runs_of(timed, facts, given, doubts, _span(clock, marks))


def _span(clock: _Clock, marks: list[Mark]) -> LogSpan | None:
    if clock.first_s is None or not marks:
        return None
    times = sorted(mark.time_s for mark in marks)
    ends: dict[float, float] = {}
    for test_s in sorted(clock.tests_s):
        before = bisect_left(times, test_s) - 1
        ends[times[max(0, before)]] = test_s
    # Steps are logged after their iteration. If they count from 0, one more was done.
    started = min(mark.iteration for mark in marks) == 0
    done = max(mark.iteration for mark in marks) + 1 if started else None
    return LogSpan(clock.first_s, clock.last_s, tuple(ends.items()), done)


def _entry(place: str, text: str, doubts: Doubts) -> dict[str, Any]:
    try:
        entry = parse_json(text, place)
    except InvalidInput:
        entry = None
    if not isinstance(entry, dict):
        doubts.tell(place, "is not a complete dllogger line and is left out")
        return {}
    return entry


def _step(line: int, entry: dict[str, Any], clock: str, doubts: Doubts) -> _Step | None:
    """The training step of a log line. None if the line is about something else."""
    step = entry.get("step")
    parts = step if isinstance(step, list) else [step]
    numbers = tuple(n for part in parts if (n := whole_of(part)) is not None)
    if len(numbers) < len(parts) or not numbers or _is_test(entry["data"]):
        return None
    time_s = number_of(entry.get(clock))
    if time_s is not None and time_s >= 0:
        return _Step(line, time_s, numbers)
    doubts.tell(f"line {line}", "has no readable time and is left out")
    return None


def _is_test(data: dict[str, Any]) -> bool:
    return bool(data) and all(str(name).lower().startswith(_TESTING) for name in data)


def _marks(steps: list[_Step | None]) -> Iterator[Mark]:
    """The times of iterations, numbered through all epochs."""
    numbers = [len(step.numbers) for step in steps if step is not None]
    if not numbers:
        return
    # Summaries of epochs have fewer numbers than iterations.
    most = max(numbers)
    before: _Step | None = None
    done, broken = 0, False
    for step in steps:
        if step is None or len(step.numbers) < most:
            broken = True
            continue
        epoch, iteration = (step.numbers[0], step.numbers[1]) if most > 1 else (0, step.numbers[0])
        if before is not None and most > 1 and epoch != before.numbers[0]:
            broken = True
            if epoch < before.numbers[0]:  # the training started again
                done = 0
            elif iteration <= before.numbers[1]:  # some scripts restart the count in each epoch
                done += before.numbers[1] + 1 - iteration
        yield Mark(done + iteration, step.time_s, f"line {step.line}", broken)
        before, broken = step, False
