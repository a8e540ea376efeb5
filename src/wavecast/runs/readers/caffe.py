"""Logs of `caffe train`: trainings and the tests between them (Gianniti et al., section 4.1).

Caffe logs with glog: `I1102 10:12:11.123456  1234 solver.cpp:228] Iteration 20, loss = 6.9`.
Between such lines are the definitions of the solver and the nets. Two iterations with a test or a
snapshot between them are not timed. A whole run lasts from the first line of its process to the
last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.text import Doubts, read_lines, whole
from wavecast.runs.readers.timing import Facts, Given, LogSpan, Mark, make_run, runs_of, trainings
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
"""How many lines of a net are kept, ten times as many as the largest net has."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file begins like a Caffe log."""
    lines = head.decode(errors="replace").splitlines()
    return any(_LINE.match(line) for line in lines) or bool(_CREATED.match("".join(lines[:1])))


@dataclass(frozen=True)
class _Entry:
    """One line of the log, with the unmarked lines that follow it."""

    line: int
    time_s: float
    message: str
    text: list[str] = field(default_factory=list)


@dataclass
class _Training:
    """The facts and times of one training, as far as the log has been read."""

    facts: Facts
    batches: dict[str, int] = field(default_factory=dict)
    """The batch of one GPU, by phase."""
    accumulated: int = 1
    """How many batches are accumulated in one iteration."""
    most: int | None = None
    """The iterations after which the training ends (`max_iter`)."""
    tested: list[int] = field(default_factory=list)
    """The number of iterations of a test, for each test net."""
    marks: list[Mark] = field(default_factory=list)
    begin_s: float | None = None
    """The first stamp of this training."""
    end_s: float = 0.0
    """The last stamp so far."""
    finished: bool = False
    """Whether the log says that the training ended as planned."""
    tests: list[tuple[int, float, float, str]] = field(default_factory=list)
    """The net, begin, end and place of each test."""
    testing: tuple[int, float] | None = None
    """The net of the running test, and when it began. None when no test is running."""
    broken: bool = False
    """Whether something other than training happened since the last mark."""


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The runs of a Caffe log: its trainings, and their tests except the first, which warms up.

    If there is only one test, it is used with a warning.
    """
    trainings_read = [_Training(Facts(framework="caffe"))]
    for entry in _entries(read_lines(path, doubts), doubts):
        if (
            entry.message.startswith(("Using GPUs", "Use CPU", "Initializing solver from param"))
            and trainings_read[-1].marks
        ):
            facts = replace(trainings_read[-1].facts, model=None, batch=None)
            trainings_read.append(_Training(facts))
        now = trainings_read[-1]
        now.begin_s = entry.time_s if now.begin_s is None else now.begin_s
        now.end_s = entry.time_s
        _take(entry, now, doubts)
    timed = [training for training in trainings_read if training.marks]
    if not timed:
        raise InvalidInput(
            f"{path}: has no line of an iteration, such as 'Iteration 20, loss = 1'; a log of "
            "`caffe time` has times of layers, not of runs"
        )
    for training in timed:
        yield from _training_runs(training, given, doubts)
        yield from _testing_runs(training, given, doubts)


def _training_runs(training: _Training, given: Given, doubts: Doubts) -> list[Run]:
    batch = training.batches.get("TRAIN")
    gpus = given.gpus or training.facts.gpus or 1
    if batch is not None:  # in Caffe, batch_size is the batch of each GPU
        batch *= training.accumulated * gpus
    facts = replace(training.facts, batch=batch)
    timed = trainings(training.marks, doubts)
    return runs_of(timed, facts, given, doubts, _span(training))


def _span(training: _Training) -> LogSpan | None:
    if training.begin_s is None:
        return None
    iterations = None
    if training.finished and training.most is not None and len(training.marks) > 1:
        first, *_, before, last = [training.marks[0], *training.marks]
        left = training.most - last.iteration
        # A training that goes on from a snapshot does not begin with iteration 0.
        if first.iteration == 0 and 0 <= left <= last.iteration - before.iteration:
            iterations = training.most
    tests = tuple((begin_s, end_s) for _, begin_s, end_s, _ in training.tests)
    return LogSpan(training.begin_s, training.end_s, tests, iterations)


def _testing_runs(training: _Training, given: Given, doubts: Doubts) -> Iterator[Run]:
    if training.tests and not (training.tested and "TEST" in training.batches):
        doubts.tell(
            training.tests[0][3],
            "the tests are left out: the log does not say their test_iter or batch_size",
        )
        return
    tests = training.tests[1:] or training.tests
    if len(training.tests) == 1:
        doubts.tell(tests[0][3], "the only test is used, with its warm-up")
    # The user gives the batch of the training. Tests run on one GPU and have their own batch.
    facts = replace(training.facts.corrected(given), batch=training.batches.get("TEST"), gpus=1)
    for net, begin_s, end_s, place in tests:
        iterations = training.tested[net] if net < len(training.tested) else training.tested[-1]
        yield make_run(
            facts, Given(), iterations, end_s - begin_s, f"{doubts.path}: {place}", phase="testing"
        )


def _take(entry: _Entry, to: _Training, doubts: Doubts) -> None:
    message = entry.message
    place = f"line {entry.line}"
    if match := _TRAINED.match(message):
        if to.most is not None and int(match[1]) > to.most:
            doubts.tell(
                place,
                f"iteration {match[1]} is beyond the max_iter of {to.most}; left out",
                "an iteration is beyond max_iter",
            )
            return
        to.marks.append(Mark(int(match[1]), entry.time_s, place, to.broken))
        to.broken = False
    elif match := _TESTING.match(message):
        to.testing = (int(match[1]), entry.time_s)
        to.broken = True
    elif "Test net output" in message and to.testing is not None:
        net, since_s = to.testing
        to.testing = None
        if entry.time_s <= since_s:
            doubts.tell(place, "the clock went back during the test; the test is left out")
        else:
            to.tests.append((net, since_s, entry.time_s, place))
    elif message.startswith("Optimization Done"):
        to.finished = True
    elif message.startswith(("Snapshotting", "Restoring")):
        to.broken = True
    else:
        _take_settings(entry, to)


def _take_settings(entry: _Entry, to: _Training) -> None:
    message = entry.message
    if message.startswith("Initializing solver from parameters"):
        settings = [match for line in entry.text if (match := _SETTING.fullmatch(line))]
        to.tested = [int(s[2]) for s in settings if s[1] == "test_iter" and whole(s[2])]
        wholes = {s[1]: int(s[2]) for s in settings if whole(s[2])}
        to.accumulated = wholes.get("iter_size", 1)
        to.most = wholes.get("max_iter")
    elif message.startswith("Initializing net from parameters"):
        _take_net(entry.text, to)
    elif match := _GPUS.match(message):
        to.facts = replace(to.facts, gpus=len(match[1].split(", ")))
    elif match := _GPU_NAME.match(message):
        to.facts = replace(to.facts, gpu=match[1].strip())


def _take_net(text: Iterable[str], to: _Training) -> None:
    lines = list(text)
    phase = next(
        (word for line in lines for word in ("TRAIN", "TEST") if line.strip() == f"phase: {word}"),
        "TRAIN",
    )
    batches = {int(match[1]) for line in lines if (match := _BATCH.fullmatch(line))}
    if len(batches) == 1:  # with several values it is not clear which is the batch
        to.batches[phase] = batches.pop()
    name = next((match[1] for line in lines if (match := _NAME.match(line))), "")
    if phase == "TRAIN" and name.strip():
        to.facts = replace(to.facts, model=name.strip())


def _entries(lines: Iterable[tuple[int, str]], doubts: Doubts) -> Iterator[_Entry]:
    year, month = 2000, 0  # a leap year, until the log gives the real one
    entry: _Entry | None = None
    for number, line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            if created := _CREATED.match(line):
                year = int(created[1])
            elif _LIKE_A_LINE.match(line):
                doubts.tell(f"line {number}", "is not a complete log line and is left out")
            elif entry is not None and len(entry.text) < _MOST_TEXT:
                entry.text.append(line)
            continue
        if entry is not None:
            yield entry
        if match[1]:
            year = int(match[1])
        elif month == 12 and int(match[2]) == 1:
            year += 1
        month = int(match[2])
        entry = _entry(number, year, match, doubts)
    if entry is not None:
        yield entry


def _entry(number: int, year: int, match: re.Match[str], doubts: Doubts) -> _Entry | None:
    month, day, hour, minute, second, micros = (int(match[group]) for group in range(2, 8))
    try:
        time = datetime(year, month, day, hour, minute, second, micros)
    except ValueError:
        doubts.tell(f"line {number}", "has an impossible time and is left out")
        return None
    time_s = (time - datetime(2000, 1, 1)).total_seconds()
    return _Entry(number, time_s, match[8])
