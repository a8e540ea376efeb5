"""Logs of `caffe train`: trainings and the tests in between (Gianniti et al., section 4.1).

Caffe writes through glog: `I1102 10:12:11.123456  1234 solver.cpp:228] Iteration 20, loss = 6.9`,
and between such lines the text of solver and nets. A test or a snapshot between two lines of
iterations takes time that is not training's, so that stretch is not timed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.facts import Facts, Given, make_run
from wavecast.runs.readers.stretches import Mark, runs_of, trainings
from wavecast.runs.readers.text import Doubts, read_lines, whole
from wavecast.runs.run import Run

_LINE = re.compile(
    r"[IWEF](\d{4})?(\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})\s+\d+ [^\]\s]+:\d+\] ?(.*)", re.ASCII
)
_LIKE_A_LINE = re.compile(r"[IWEF]\d{4,8} |.*\bIteration \d", re.ASCII)
_CREATED = re.compile(r"Log file created at: (\d{4})/", re.ASCII)
_TRAINED = re.compile(r"Iteration (\d{1,18})( \([^)]*\))?, loss = ", re.ASCII)
_TESTING = re.compile(r"Iteration \d+, Testing net \(#(\d{1,3})\)", re.ASCII)
_GPUS = re.compile(r"Using GPUs ((?:\d+(?:, )?)+)", re.ASCII)
_GPU_NAME = re.compile(r"GPU \d+: (.+)", re.ASCII)
_BATCH = re.compile(r"\s*batch_size: (\d{1,18})\s*", re.ASCII)
_SETTING = re.compile(r"(\w+): (\S+)\s*", re.ASCII)
_NAME = re.compile(r'name: "([^"]*)"')
_MOST_TEXT = 100_000
"""Lines of a net that are kept; the text of the largest has a tenth of that."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file begins as a Caffe log does."""
    lines = head.decode(errors="replace").splitlines()
    return any(_LINE.match(line) for line in lines) or bool(_CREATED.match("".join(lines[:1])))


@dataclass(frozen=True)
class _Entry:
    """A line of the log with the text below it."""

    line: int
    time_s: float
    message: str
    text: list[str] = field(default_factory=list)


@dataclass
class _Training:
    """What the log says of one training, as it goes on."""

    facts: Facts
    batches: dict[str, int] = field(default_factory=dict)
    """Of one GPU, by phase."""
    accumulated: int = 1
    tested: list[int] = field(default_factory=list)
    """Iterations of a test, by net."""
    marks: list[Mark] = field(default_factory=list)
    tests: list[tuple[int, float, str]] = field(default_factory=list)
    """Net, seconds and place of each."""
    testing: tuple[int, float] | None = None
    """The net, and since when."""
    broken: bool = False


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The runs of a Caffe log: its trainings, and each of their tests but the first.

    Raises:
        InvalidInput: nothing in it is timed, or what must be known is not; says where.
    """
    found = [_Training(Facts(framework="caffe"))]
    for entry in _entries(read_lines(path, doubts), doubts):
        if entry.message.startswith("Initializing solver from parameters") and found[-1].marks:
            found.append(_Training(replace(found[-1].facts, model=None, batch=None)))
        _take(entry, found[-1], doubts)
    timed = [each for each in found if each.marks]
    if not timed:
        raise InvalidInput(
            f"{path}: has no line of an iteration, such as 'Iteration 20, loss = 1'; what "
            "`caffe time` writes is of layers, not of runs"
        )
    for each in timed:
        yield from _training_runs(each, given, doubts)
        yield from _testing_runs(each, given, doubts)


def _training_runs(each: _Training, given: Given, doubts: Doubts) -> list[Run]:
    batch = each.batches.get("TRAIN")
    gpus = given.gpus or each.facts.gpus or 1
    if batch is not None:  # in Caffe each GPU takes a whole batch
        batch *= each.accumulated * gpus
    facts = replace(each.facts, batch=batch)
    return runs_of(trainings(each.marks, doubts), facts, given, doubts)


def _testing_runs(each: _Training, given: Given, doubts: Doubts) -> Iterator[Run]:
    if each.tests and not (each.tested and "TEST" in each.batches):
        doubts.tell(
            each.tests[0][2],
            "tests are left out: the log does not say test_iter, or their batch_size",
        )
        return
    if len(each.tests) == 1:
        doubts.tell(each.tests[0][2], "the only test is left out: it warms up")
    # The batch that a user gives is the training's; tests run on one GPU, with a batch of theirs.
    facts = replace(each.facts.corrected(given), batch=each.batches.get("TEST"), gpus=1)
    for net, seconds, place in each.tests[1:]:
        iterations = each.tested[net] if net < len(each.tested) else each.tested[-1]
        yield make_run(
            facts, Given(), iterations, seconds, f"{doubts.path}: {place}", phase="testing"
        )


def _take(entry: _Entry, to: _Training, doubts: Doubts) -> None:
    message = entry.message
    place = f"line {entry.line}"
    if found := _TRAINED.match(message):
        to.marks.append(Mark(int(found[1]), entry.time_s, place, to.broken))
        to.broken = False
    elif found := _TESTING.match(message):
        to.testing = (int(found[1]), entry.time_s)
        to.broken = True
    elif "Test net output" in message and to.testing is not None:
        net, since_s = to.testing
        to.testing = None
        if entry.time_s <= since_s:
            doubts.tell(place, "the clock went back during the test, which is left out")
        else:
            to.tests.append((net, entry.time_s - since_s, place))
    elif message.startswith(("Snapshotting", "Restoring")):
        to.broken = True
    else:
        _take_settings(entry, to)


def _take_settings(entry: _Entry, to: _Training) -> None:
    message = entry.message
    if message.startswith("Initializing solver from parameters"):
        settings = [found for line in entry.text if (found := _SETTING.fullmatch(line))]
        to.tested = [int(s[2]) for s in settings if s[1] == "test_iter" and whole(s[2])]
        to.accumulated = next(
            (int(s[2]) for s in settings if s[1] == "iter_size" and whole(s[2])), 1
        )
    elif message.startswith("Initializing net from parameters"):
        _take_net(entry.text, to)
    elif found := _GPUS.match(message):
        to.facts = replace(to.facts, gpus=len(found[1].split(", ")))
    elif found := _GPU_NAME.match(message):
        to.facts = replace(to.facts, gpu=found[1].strip())


def _take_net(text: Iterable[str], to: _Training) -> None:
    lines = list(text)
    phase = next(
        (word for line in lines for word in ("TRAIN", "TEST") if line.strip() == f"phase: {word}"),
        "TRAIN",
    )
    batches = {int(found[1]) for line in lines if (found := _BATCH.fullmatch(line))}
    if len(batches) == 1:  # of several, nobody knows which one is the batch
        to.batches[phase] = batches.pop()
    name = next((found[1] for line in lines if (found := _NAME.match(line))), "")
    if phase == "TRAIN" and name.strip():
        to.facts = replace(to.facts, model=name.strip())


def _entries(lines: Iterable[tuple[int, str]], doubts: Doubts) -> Iterator[_Entry]:
    """The lines of the log, each with the text below it."""
    year, month = 2000, 0  # a leap year, until the log says its own
    entry: _Entry | None = None
    for number, line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            if created := _CREATED.match(line):
                year = int(created[1])
            elif _LIKE_A_LINE.match(line):
                doubts.tell(f"line {number}", "is not a whole line of a log, and is left out")
            elif entry is not None and len(entry.text) < _MOST_TEXT:
                entry.text.append(line)
            continue
        if entry is not None:
            yield entry
        if found[1]:
            year = int(found[1])
        elif month == 12 and int(found[2]) == 1:
            year += 1
        month = int(found[2])
        entry = _entry(number, year, found, doubts)
    if entry is not None:
        yield entry


def _entry(number: int, year: int, found: re.Match[str], doubts: Doubts) -> _Entry | None:
    month, day, hour, minute, second, micros = (int(found[group]) for group in range(2, 8))
    try:
        time = datetime(year, month, day, hour, minute, second, micros)
    except ValueError:
        doubts.tell(f"line {number}", "has a time that no clock shows, and is left out")
        return None
    time_s = (time - datetime(2000, 1, 1)).total_seconds()
    return _Entry(number, time_s, found[8])
