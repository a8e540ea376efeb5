"""Logs of trackers and trainers: MLflow, Hugging Face, Lightning, dllogger, and our own suite."""

from __future__ import annotations

import csv
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from wavecast.errors import InvalidInput
from wavecast.runs.readers.text import (
    Doubts,
    number,
    number_of,
    parse_json,
    read_flat,
    read_lines,
    read_whole,
    whole,
    whole_of,
)
from wavecast.runs.readers.timing import (
    Facts,
    Given,
    LogSpan,
    Mark,
    RunTotals,
    find_facts,
    is_test,
    make_run,
    runs_of,
    test_spans,
    training_marks,
    trainings,
)
from wavecast.runs.run import Run
from wavecast.runs.suite_results import read_results

_MOST_BYTES = 1 << 20


# MLflow's file stores: `mlruns/EXPERIMENT/RUN/` with `meta.yaml`, `params/` and `metrics/`. The
# file of a metric has lines of `time in milliseconds, value, step`.


def is_mlflow(path: Path, head: bytes) -> bool:
    """Whether a file is the `meta.yaml` of an MLflow run."""
    return path.name == "meta.yaml" and (b"run_id:" in head or b"run_uuid:" in head)


def read_mlflow(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of an MLflow run, by its `meta.yaml`.

    Raises:
        InvalidInput: the run has no times, or does not say the model or batch; says where.
    """
    folder = path.parent
    meta = read_flat(read_whole(path, _MOST_BYTES).splitlines())
    if meta.get("lifecycle_stage") == "deleted":
        doubts.tell("", "the run was deleted in MLflow and is left out")
        return
    if meta.get("status") in ("1", "4", "5", "RUNNING", "FAILED", "KILLED"):
        doubts.tell("", "the run did not finish; what it recorded is used")
    marks = {
        file.relative_to(folder / "metrics").as_posix(): list(_mlflow_marks(file, doubts))
        for file in sorted((folder / "metrics").rglob("*"))
        if file.is_file()
    }
    if not marks:
        raise InvalidInput(f"{path}: the run has no metrics, so its speed is unknown")
    facts = find_facts(_parameters(folder / "params"), given, None)
    chosen = training_marks(folder / "metrics", marks, given)
    begin_ms, end_ms = (whole(str(meta.get(name, ""))) for name in ("start_time", "end_time"))
    span = None
    if begin_ms is not None and end_ms is not None:  # a run that did not finish has no end
        span = LogSpan(begin_ms / 1000, end_ms / 1000, test_spans(marks, chosen))
    yield from runs_of(trainings(chosen, doubts), facts, given, doubts, span)


def _mlflow_marks(file: Path, doubts: Doubts) -> Iterator[Mark]:
    for line_number, line in read_lines(file, Doubts(file, doubts.told, doubts.counts)):
        place = f"{file.parent.name}/{file.name}: line {line_number}"
        parts = line.split()
        if len(parts) not in (2, 3, 5):  # newer versions add the name and digest of a data set
            doubts.tell(place, "is not of the form 'time value step' and is left out")
            continue
        time_ms, step = whole(parts[0]), whole(parts[2]) if len(parts) > 2 else None
        if time_ms is None or step is None or time_ms < 0 or step < 0:
            doubts.tell(place, "has an impossible time or step and is left out")
            continue
        yield Mark(step, time_ms / 1000, place)


def _parameters(folder: Path) -> dict[str, object]:
    parameters: dict[str, object] = {}
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if file.is_file():
            parameters[file.relative_to(folder).as_posix()] = read_whole(file, _MOST_BYTES).strip()
    return parameters


# `trainer_state.json` of Hugging Face's Trainer: the time of the whole training.
#
# It has no times of single steps, so warm-up cannot be dropped; a warning says so. The callback
# `wavecast.integrations.huggingface.TrainerRunRecorder` records runs without their warm-up.


_MOST_STATE_BYTES = 256 << 20


def is_trainer(path: Path, head: bytes) -> bool:
    """Whether a file is the saved state of a Trainer."""
    return path.name == "trainer_state.json" or (
        path.suffix == ".json" and b'"log_history"' in head and b'"global_step"' in head
    )


def read_trainer(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training in the saved state of a Trainer.

    Raises:
        InvalidInput: the training had not ended, or the model or batch is unknown; says where.
    """
    state = parse_json(read_whole(path, _MOST_STATE_BYTES), str(path))
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise InvalidInput(f"{path}: is not the state of a Trainer: it has no log_history")
    ends = [
        (place, entry)
        for place, entry in enumerate(history)
        if isinstance(entry, dict) and "train_runtime" in entry
    ]
    if not ends:
        raise InvalidInput(
            f"{path}: has no train_runtime: it was saved before the training ended; call "
            "trainer.save_state() after trainer.train()"
        )
    if len(ends) > 1:
        doubts.tell("", f"holds the ends of {len(ends)} trainings; only the last one is used")
    place, entry = ends[-1]
    where = f"log_history[{place}]"
    steps = whole_of(entry.get("step", state.get("global_step")))
    whole_s = number_of(entry.get("train_runtime"))
    tests_s = _trainer_tests_s(history[:place])
    if steps is None or whole_s is None or tests_s is None or steps < 1 or whole_s <= tests_s:
        raise InvalidInput(
            f"{path}: {where}: {entry.get('step')} steps in {entry.get('train_runtime')} s, less "
            f"{tests_s} s of evaluations, is impossible"
        )
    rate = number_of(entry.get("train_steps_per_second"))
    if rate is not None and steps > 1.1 * (rate + 0.0005) * whole_s + 1:
        raise InvalidInput(
            f"{path}: {where}: {steps} steps in {whole_s:.6g} s contradict its "
            f"train_steps_per_second of {rate:g}; one of these numbers is wrong"
        )
    doubts.tell(
        where,
        "has no times of single steps, so the time includes warm-up, and after a resumed training "
        "covers only the last part; wavecast's callback for the Trainer avoids both",
    )
    facts = Facts(_trainer_model(path), _trainer_batch(entry, state), framework="pytorch")
    totals = RunTotals(steps, whole_s, whole_s - tests_s, tests_s)
    yield make_run(facts, given, steps, whole_s - tests_s, f"{path}: {where}", totals=totals)


def _trainer_tests_s(history: list[Any]) -> float | None:
    """The seconds of evaluations, which the training time includes. None if one is unreadable."""
    times = [e["eval_runtime"] for e in history if isinstance(e, dict) and "eval_runtime" in e]
    seconds = [number_of(time) for time in times]
    valid = [value for value in seconds if value is not None and value >= 0]
    return sum(valid) if len(valid) == len(times) else None


def _trainer_batch(entry: dict[str, Any], state: dict[str, Any]) -> int | None:
    """The samples of one step on all GPUs, computed from two rounded rates in the file."""
    samples = number_of(entry.get("train_samples_per_second"))
    steps = number_of(entry.get("train_steps_per_second"))
    batch_of_a_process = whole_of(state.get("train_batch_size"))
    if samples is None or steps is None or samples <= 0 or steps <= 0.0005:
        return None
    ratio = samples / steps
    slack = ratio * (0.0005 / steps + 0.0005 / samples)  # both have three decimals
    if batch_of_a_process is not None and batch_of_a_process > 0:
        # A multiple of the batch of one process: times processes, times accumulation. A short
        # last batch of an epoch makes the ratio a little smaller.
        multiple = max(1, round(ratio / batch_of_a_process)) * batch_of_a_process
        return multiple if abs(multiple - ratio) <= slack + 0.02 * multiple else None
    return round(ratio) if slack < 0.5 and abs(round(ratio) - ratio) <= slack else None


def _trainer_model(path: Path) -> str | None:
    """The model's name in the configuration that the Trainer saves next to its state."""
    beside = path.parent / "config.json"
    if not beside.is_file():
        return None
    try:
        config = parse_json(read_whole(beside, 1 << 20), str(beside))
    except InvalidInput:
        return None
    if not isinstance(config, dict):
        return None
    kinds = config.get("architectures")
    names = [config.get("_name_or_path"), *(kinds if isinstance(kinds, list) else [])]
    return next((name for name in names if isinstance(name, str) and name.strip()), None)


# Lightning's `metrics.csv`: the times of iterations, if something recorded them.
#
# `CSVLogger` itself writes no times. The callback `ThroughputMonitor` adds `train/time`, in
# seconds of training, and `train/batches`; or the module logs the time itself, as `time` or
# `timestamp`. Hyperparameters are in `hparams.yaml`, next to it.


CLOCKS = (
    ("train/time", "train/batches"),
    *((name, "step") for name in ("timestamp", "wall_time", "time", "train_time", "created_at")),
)
"""Pairs of columns, for seconds and iterations, in the order in which they are tried."""
MOST_LINES = 1_000_000
"""The most lines of a table: all of them are in memory at once."""


def is_lightning(path: Path, head: bytes) -> bool:
    """Whether a file is a table of metrics by Lightning."""
    names = head.split(b"\n", 1)[0].decode(errors="replace").strip().split(",")
    return path.suffix == ".csv" and ("step" in names or "train/batches" in names)


def read_lightning(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of a table of metrics.

    Raises:
        InvalidInput: the table has no times, or the model or batch is unknown; says where.
    """
    rows = list(_metric_rows(path, doubts))
    names = rows[0][1].keys() if rows else ()
    clock = next((pair for pair in CLOCKS if set(pair) <= set(names)), None)
    if clock is None:
        raise InvalidInput(
            f"{path}: has no times; log them: with Lightning's ThroughputMonitor, as a metric "
            '"timestamp", or record runs with wavecast.integrations.lightning.LightningRunRecorder'
        )
    facts = _lightning_facts(path, rows, given)
    marks = list(_metric_marks(rows, clock, doubts))
    yield from runs_of(trainings(marks, doubts), facts, given, doubts)


def _metric_rows(path: Path, doubts: Doubts) -> Iterator[tuple[int, dict[str, str]]]:
    lines = (line + "\n" for _, line in read_lines(path, doubts))
    reader = csv.reader(lines, strict=True)
    try:
        names = next(reader, [])
        for row in reader if names else ():
            if reader.line_num > MOST_LINES:
                raise InvalidInput(
                    f"{path}: has more than {MOST_LINES:,} lines; log less often, or give a part"
                )
            if len(row) != len(names):
                doubts.tell(
                    f"line {reader.line_num}",
                    f"has {len(row)} values instead of {len(names)} and is left out",
                    "has another number of values",
                )
                continue
            yield reader.line_num, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InvalidInput(f"{path}: line {reader.line_num}: is not CSV: {error}") from None


def _metric_marks(
    rows: Iterable[tuple[int, dict[str, str]]], clock: tuple[str, str], doubts: Doubts
) -> Iterator[Mark]:
    time_name, step_name = clock
    broken = False
    for line, row in rows:
        if not row[time_name]:
            # `train/time` does not count tests; a clock does.
            broken = broken or (
                step_name == "step" and any(is_test(name) and row[name] for name in row)
            )
            continue
        time_s, step = number(row[time_name]), whole(row[step_name])
        if time_s is None or step is None or time_s < 0 or step < 0:
            doubts.tell(
                f"line {line}",
                f"{time_name} {row[time_name][:40]} or {step_name} {row[step_name][:40]} is"
                " impossible; left out",
                "has an impossible time or step",
            )
            continue
        yield Mark(step, time_s, f"line {line}", broken)
        broken = False


def _lightning_facts(path: Path, rows: Iterable[tuple[int, dict[str, str]]], given: Given) -> Facts:
    beside = path.parent / "hparams.yaml"
    settings: dict[str, object] = {}
    if beside.is_file():
        settings |= read_flat(read_whole(beside, _MOST_BYTES).splitlines())
    facts = find_facts(settings, given, "pytorch")
    sample = next((row for _, row in reversed(list(rows)) if row.get("train/samples")), None)
    if sample is None:
        return facts
    samples, batches = whole(sample["train/samples"]), whole(sample.get("train/batches", ""))
    if not samples or not batches or samples % batches:
        return facts
    gpus = given.gpus or _lightning_gpus(rows) or facts.gpus or 1
    return replace(facts, batch=samples // batches * gpus, gpus=gpus)


def _lightning_gpus(rows: Iterable[tuple[int, dict[str, str]]]) -> int | None:
    """The number of GPUs, from the rates of all and of one. None if only one rate is logged."""
    for _, row in rows:
        both = [number(row.get(f"train/{of}samples_per_sec", "")) for of in ("", "device/")]
        if both[0] and both[1] and both[1] > 0 and both[0] / both[1] < 1e6:
            return max(1, round(both[0] / both[1]))
    return None


# Logs of NVIDIA's DeepLearningExamples (dllogger): one line `DLLL {...}` for each iteration.
#
# Each line has a time, a step and data. The step is [epoch, iteration] (in some scripts followed
# by the number of all iterations) or [iteration]; "PARAMETER" for settings; [] or [epoch] for
# summaries. The stretch between two epochs is not timed, because other work happens there. The
# whole run lasts from the first line to the last, and a test from the last training step before it
# to its last line.


_PREFIX = "DLLL "
_TESTING = ("val", "eval", "test", "infer")


def is_dllogger(path: Path, head: bytes) -> bool:
    """Whether a file begins like a dllogger log."""
    return any(line.startswith(b"DLLL {") for line in head.splitlines())


@dataclass(frozen=True, slots=True)
class _Step:
    line: int
    time_s: float
    numbers: tuple[int, ...]


@dataclass
class _DlloggerClock:
    """The stamps of a log, as far as it has been read."""

    name: str = ""
    """The field with the time: the same for the whole file, because the two clocks differ."""
    first_s: float | None = None
    last_s: float = 0.0
    tests_s: list[float] = field(default_factory=list)
    """The times of lines about tests."""

    def take(self, entry: dict[str, Any]) -> None:
        """Take the time of a line."""
        self.name = self.name or ("timestamp" if "timestamp" in entry else "elapsedtime")
        time_s = number_of(entry.get(self.name))
        if time_s is None or time_s < 0:
            return
        self.first_s = time_s if self.first_s is None else self.first_s
        self.last_s = max(time_s, self.last_s)
        if _is_test(entry["data"]):
            self.tests_s.append(time_s)


def read_dllogger(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of a dllogger file.

    Raises:
        InvalidInput: the log has no times, or does not say the model or batch; says where.
    """
    settings: dict[str, object] = {}
    steps: list[_Step | None] = []  # None for a line about something other than training
    clock = _DlloggerClock()
    for line_number, line in read_lines(path, doubts):
        if not line.startswith(_PREFIX):
            continue  # other output of the script
        entry = _entry(f"line {line_number}", line.removeprefix(_PREFIX), doubts)
        data = entry.get("data")
        if not isinstance(data, dict):
            continue
        if {"timestamp", "elapsedtime"} & entry.keys():
            clock.take(entry)
        if entry.get("step") == "PARAMETER":
            settings |= data
            continue
        steps.append(_step(line_number, entry, clock.name or "elapsedtime", doubts))
    facts = find_facts(settings, given, None)
    marks = list(_step_marks(steps))
    timed = trainings(marks, doubts)
    yield from runs_of(timed, facts, given, doubts, _dllogger_span(clock, marks))


def _dllogger_span(clock: _DlloggerClock, marks: list[Mark]) -> LogSpan | None:
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


def _step_marks(steps: list[_Step | None]) -> Iterator[Mark]:
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


# Files of `wavecast suite run`: one row for each step, with its median stable iteration.


_HEAD = b"model,batch,precision,gpu,status,unit,seconds,throughput_per_s,"


def is_suite(path: Path, head: bytes) -> bool:
    """Whether a file begins like a table of suite results."""
    return head.startswith(_HEAD)


def read_suite(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """One run for each measured step: its stable iterations, each with their median time.

    Raises:
        InvalidInput: a row is damaged; says which line and why.
    """
    for row in read_results(path):
        if row.status != "ok" or row.seconds is None or not row.iterations:
            step = f"{row.model}, batch {row.batch}, {row.precision}"
            doubts.tell(step, f"has status {row.status}: left out", "not measured: left out")
            continue
        facts = Facts(
            model=row.model,
            batch=row.batch,
            gpu=row.gpu,
            gpus=1,
            precision=row.precision,
            framework=row.software.partition(",")[0],
        )
        yield make_run(facts, given, row.iterations, row.seconds * row.iterations, str(path))


class Reader(NamedTuple):
    """A reader of one format."""

    recognises: Callable[[Path, bytes], bool]
    read: Callable[[Path, Given, Doubts], Iterator[Run]]


MLFLOW = Reader(is_mlflow, read_mlflow)
HUGGING_FACE = Reader(is_trainer, read_trainer)
LIGHTNING = Reader(is_lightning, read_lightning)
DLLOGGER = Reader(is_dllogger, read_dllogger)
SUITE = Reader(is_suite, read_suite)
