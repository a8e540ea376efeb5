"""Logs of NVIDIA's DeepLearningExamples (dllogger): one line `DLLL {...}` for each iteration.

Each line has a time, a step and data. The step is [epoch, iteration] (in some scripts followed by
the number of all iterations) or [iteration]; "PARAMETER" for settings; [] or [epoch] for summaries.
The stretch between two epochs is not timed, because other work happens there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.runs.readers.doubts import Doubts
from wavecast.runs.readers.facts import Given, find_facts
from wavecast.runs.readers.text import number_of, parse_json, read_lines, whole_of
from wavecast.runs.readers.timing import Mark, runs_of, trainings
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


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of a dllogger file.

    Raises:
        InvalidInput: the log has no times, or does not say the model or batch; says where.
    """
    settings: dict[str, object] = {}
    steps: list[_Step | None] = []  # None for a line about something other than training
    clock = ""  # the same field for the whole file, because the two clocks differ
    for number, line in read_lines(path, doubts):
        if not line.startswith(_PREFIX):
            continue  # other output of the script
        entry = _entry(f"line {number}", line.removeprefix(_PREFIX), doubts)
        data = entry.get("data")
        if not isinstance(data, dict):
            continue
        if entry.get("step") == "PARAMETER":
            settings |= data
            continue
        clock = clock or ("timestamp" if "timestamp" in entry else "elapsedtime")
        steps.append(_step(number, entry, clock, doubts))
    facts = find_facts(settings, given, None)
    yield from runs_of(trainings(_marks(steps), doubts), facts, given, doubts)


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
