"""Lightning's `metrics.csv`: the times of iterations, if something recorded them.

`CSVLogger` itself writes no times. The callback `ThroughputMonitor` adds `train/time`, in seconds
of training, and `train/batches`; or the module logs the time itself, as `time` or `timestamp`.
Hyperparameters are in `hparams.yaml`, next to it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.runs.readers.text import Doubts, number, read_flat, read_lines, read_whole, whole
from wavecast.runs.readers.timing import Facts, Given, Mark, find_facts, is_test, runs_of, trainings
from wavecast.runs.run import Run

CLOCKS = (
    ("train/time", "train/batches"),
    *((name, "step") for name in ("timestamp", "wall_time", "time", "train_time", "created_at")),
)
"""Pairs of columns, for seconds and iterations, in the order in which they are tried."""
_MOST_BYTES = 1 << 20


MOST_LINES = 1_000_000
"""The most lines of a table: all of them are in memory at once."""


def recognises(path: Path, head: bytes) -> bool:
    """Whether a file is a table of metrics by Lightning."""
    names = head.split(b"\n", 1)[0].decode(errors="replace").strip().split(",")
    return path.suffix == ".csv" and ("step" in names or "train/batches" in names)


def read(path: Path, given: Given, doubts: Doubts) -> Iterator[Run]:
    """The training of a table of metrics.

    Raises:
        InvalidInput: the table has no times, or the model or batch is unknown; says where.
    """
    rows = list(_rows(path, doubts))
    names = rows[0][1].keys() if rows else ()
    clock = next((pair for pair in CLOCKS if set(pair) <= set(names)), None)
    if clock is None:
        raise InvalidInput(
            f"{path}: has no times; log them: with Lightning's ThroughputMonitor, as a metric "
            '"timestamp", or record runs with wavecast.integrations.lightning.LightningRunRecorder'
        )
    facts = _facts(path, rows, given)
    marks = list(_marks(rows, clock, doubts))
    yield from runs_of(trainings(marks, doubts), facts, given, doubts)


def _rows(path: Path, doubts: Doubts) -> Iterator[tuple[int, dict[str, str]]]:
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


def _marks(
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


def _facts(path: Path, rows: Iterable[tuple[int, dict[str, str]]], given: Given) -> Facts:
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
    gpus = given.gpus or _gpus(rows) or facts.gpus or 1
    return replace(facts, batch=samples // batches * gpus, gpus=gpus)


def _gpus(rows: Iterable[tuple[int, dict[str, str]]]) -> int | None:
    """The number of GPUs, from the rates of all and of one. None if only one rate is logged."""
    for _, row in rows:
        both = [number(row.get(f"train/{of}samples_per_sec", "")) for of in ("", "device/")]
        if both[0] and both[1] and both[1] > 0 and both[0] / both[1] < 1e6:
            return max(1, round(both[0] / both[1]))
    return None
