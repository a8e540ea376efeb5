"""Logs of NVIDIA's DeepLearningExamples (dllogger): a line `DLLL {...}` an iteration.

Each line has the time, a step, and data. Steps are [epoch, iteration] (a third number, of all
iterations, in some scripts), [iteration] alone, "PARAMETER" for the settings, and [] or [epoch]
for summaries. Between two epochs lies what is not training, so that stretch is not timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wavecast.errors import InvalidInput
from wavecast.runs.readers.facts import Given, find_facts
from wavecast.runs.readers.stretches import Mark, runs_of, trainings
from wavecast.runs.readers.text import Doubts, number_of, parse_json, read_lines, whole_of
from wavecast.runs.run import Run

_PREFIX = "DLLL "
_TESTING = ("val", "eval", "test", "infer")


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file begins as one of dllogger does."""
    return any(line.startswith(b"DLLL {") for line in head.splitlines())


@dataclass(frozen=True, slots=True)
class _Step:
    line: int
    time_s: float
    numbers: tuple[int, ...]


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of a dllogger file.

    Raises:
        InvalidInput: nothing in it is timed, or what must be known is not; says where.
    """
    settings: dict[str, object] = {}
    steps: list[_Step | None] = []  # None: something else was done
    clock = ""  # one for the whole file: they begin at different moments
    for number, line in read_lines(path, doubts):
        if not line.startswith(_PREFIX):
            continue  # what the script prints among them
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
        doubts.tell(place, "is not a whole line of dllogger, and is left out")
        return {}
    return entry


def _step(line: int, entry: dict[str, Any], clock: str, doubts: Doubts) -> _Step | None:
    """The step of a training; None if it is something else."""
    found = entry.get("step")
    steps = found if isinstance(found, list) else [found]
    numbers = tuple(n for each in steps if (n := whole_of(each)) is not None)
    if len(numbers) < len(steps) or not numbers or _is_test(entry["data"]):
        return None
    time_s = number_of(entry.get(clock))
    if time_s is not None and time_s >= 0:
        return _Step(line, time_s, numbers)
    doubts.tell(f"line {line}", "has no time that can be read, and is left out")
    return None


def _is_test(data: dict[str, Any]) -> bool:
    return bool(data) and all(str(name).lower().startswith(_TESTING) for name in data)


def _marks(steps: list[_Step | None]) -> Iterator[Mark]:
    """Moments of iterations, counted on over the epochs."""
    numbers = [len(each.numbers) for each in steps if each is not None]
    if not numbers:
        return
    # Summaries of epochs have fewer numbers than iterations.
    most = max(numbers)
    before: _Step | None = None
    done, broken = 0, False
    for each in steps:
        if each is None or len(each.numbers) < most:
            broken = True
            continue
        epoch, iteration = (each.numbers[0], each.numbers[1]) if most > 1 else (0, each.numbers[0])
        if before is not None and most > 1 and epoch != before.numbers[0]:
            broken = True
            if epoch < before.numbers[0]:  # begun again
                done = 0
            elif iteration <= before.numbers[1]:  # some scripts count anew in each epoch
                done += before.numbers[1] + 1 - iteration
        yield Mark(done + iteration, each.time_s, f"line {each.line}", broken)
        before, broken = each, False
