"""Times of sampled layers in a CSV file that outlives any interruption.

One row is one write of one whole line at the end of the file, so a killed collector leaves at
most one torn line, which the next one cuts off. The index of a row in the sample says what is
done: nothing is lost and nothing is measured twice, not even what did not fit into memory.
"""

from __future__ import annotations

import csv
import os
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

from wavecast.append_file import append, appending, line_of
from wavecast.errors import InvalidInput
from wavecast.layers import KINDS, Layer, layer, layer_type, sample


class Status(StrEnum):
    """How the measurement of a layer ended."""

    OK = "ok"
    OOM = "oom"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Mean times of a layer, forwards and backwards; None when the status is not ok."""

    forward_s: float | None
    backward_s: float | None
    status: Status = Status.OK


@dataclass(frozen=True, slots=True)
class Row:
    """One measured layer: `index` is its place in the sample of its seed."""

    index: int
    layer: Layer
    gpu: str
    time: LayerTime
    seed: str
    software: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a collection is."""

    done: int
    total: int
    remaining_s: float


def collect(
    kind: str,
    seed: int | str,
    count: int,
    path: Path,
    time: Callable[[Layer], LayerTime],
    *,
    gpu: str,
    software: str = "",
    layers: Iterable[Layer] | None = None,
    limit_s: float | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> int:
    """Measure the first `count` layers of a sample, those that the file does not have yet.

    Args:
        kind: of the layers.
        seed: of the sample, or the name of the list of `layers`.
        count: how many layers the file should have in the end.
        path: the CSV file; made when missing, continued when it is of this kind, seed and GPU.
        time: measures a layer.
        gpu: the id of the GPU that measures.
        software: what measures: versions and settings.
        layers: what to measure instead of the sample of a seed; the same at each call.
        limit_s: begin no further layer after so many seconds.
        progress: told after each layer.

    Returns:
        How many rows the file has now.

    Raises:
        InvalidInput: the file is of something else, or another process is writing it.
    """
    wanted = islice(_sampled(kind, seed) if layers is None else layers, count)
    columns = _columns(kind)
    began = clock.monotonic()
    with appending(path) as file:
        done = _resume(file, path, kind, str(seed), gpu)
        measured, rows = 0, len(done)
        total = max(count, rows)
        for index, each in enumerate(wanted):
            if index in done:
                continue
            if limit_s is not None and clock.monotonic() - began >= limit_s:
                break
            row = Row(index, each, gpu, time(each), str(seed), software)
            append(file, line_of(_values(row, columns)))
            measured, rows = measured + 1, rows + 1
            if progress is not None:
                spent_s = clock.monotonic() - began
                progress(Progress(rows, total, spent_s / measured * (total - rows)))
    return rows


def read_rows(path: Path) -> tuple[Row, ...]:
    """The rows of a file in the order of their index; a torn last line does not count.

    Raises:
        InvalidInput: the file is not one that `collect` wrote; says which line and why.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read ({error})") from None
    return _rows(text[: text.rfind("\n") + 1], path)


def join(tables: Iterable[Sequence[Row]]) -> dict[Layer, dict[str, LayerTime]]:
    """The times of each layer by GPU, of the layers that all the tables have measured."""
    by_table: list[dict[Layer, dict[str, LayerTime]]] = []
    for rows in tables:
        measured: dict[Layer, dict[str, LayerTime]] = {}
        for row in rows:
            if row.time.status is Status.OK:
                measured.setdefault(row.layer, {})[row.gpu] = row.time
        by_table.append(measured)
    if not by_table:
        return {}
    first, *others = by_table
    common = [each for each in first if all(each in other for other in others)]
    return {
        each: {gpu: time for table in by_table for gpu, time in table[each].items()}
        for each in common
    }


# The file.


def _sampled(kind: str, seed: int | str) -> Iterator[Layer]:
    if not isinstance(seed, int):
        raise InvalidInput(f'"{seed}" is the name of no sample; give the layers, or a whole number')
    return sample(kind, seed)


def _columns(kind: str) -> tuple[str, ...]:
    measured = ("gpu", "forward_s", "backward_s", "status", "seed", "software")
    return ("index", "kind", *layer_type(kind).names(), *measured)


def _values(row: Row, columns: Sequence[str]) -> list[str]:
    dimensions = dict(zip(row.layer.names(), map(str, row.layer.features()), strict=True))
    times = {name: getattr(row.time, name) for name in ("forward_s", "backward_s")}
    values = dimensions | {
        "index": str(row.index),
        "kind": row.layer.KIND,
        "gpu": row.gpu,
        "status": str(row.time.status),
        "seed": row.seed,
        "software": row.software,
        **{name: "" if value is None else f"{value:.6e}" for name, value in times.items()},
    }
    return [values[name] for name in columns]


def _resume(file: int, path: Path, kind: str, seed: str, gpu: str) -> set[int]:
    """The indices that the file has, after its torn line was cut off and its header is there."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if not whole:
        _refuse_foreign(content, path, kind)
        os.ftruncate(file, 0)
        append(file, line_of(_columns(kind)))
        return set()
    try:
        rows = _rows(content[:whole].decode(), path)
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}: is not a collection of layers (no UTF-8)") from None
    expected = ",".join(_columns(kind))
    if content.partition(b"\n")[0].decode() != expected:
        raise InvalidInput(f"{path}: is not a collection of {kind} layers; choose another file")
    for row in rows:
        if (row.seed, row.gpu) != (seed, gpu):
            raise InvalidInput(
                f"{path}: has layers of seed {row.seed} measured on {row.gpu}, "
                f"not of seed {seed} on {gpu}; choose another file"
            )
    os.ftruncate(file, whole)  # only now: a file that is refused stays as it is
    return {row.index for row in rows}


def _refuse_foreign(content: bytes, path: Path, kind: str) -> None:
    """A single torn line is cut off only if it is the beginning of our header."""
    if not line_of(_columns(kind)).startswith(content):
        raise InvalidInput(f"{path}: is not a collection of {kind} layers; choose another file")


def _rows(text: str, path: Path) -> tuple[Row, ...]:
    if not text:
        return ()
    rows: dict[int, Row] = {}
    # Line by line: no value of ours has a line end, so what follows a damaged line stays readable.
    lines = text.split("\n")[:-1]
    names = next(csv.reader([lines[0]]), [])
    for number, line in enumerate(lines[1:], start=2):
        values = next(csv.reader([line]), [])
        try:
            row = _row(dict(zip(names, values, strict=True)))
        except (KeyError, ValueError, InvalidInput) as error:
            raise InvalidInput(f"{path}: line {number} is not a measured layer: {error}") from None
        if row.index in rows:
            raise InvalidInput(f"{path}: line {number} repeats index {row.index}")
        rows[row.index] = row
    if not rows and tuple(names) not in map(_columns, KINDS):
        raise InvalidInput(f"{path}: is not a collection of layers; its first line has other names")
    return tuple(rows[index] for index in sorted(rows))


def _row(values: Mapping[str, str]) -> Row:
    names = layer_type(values["kind"]).names()
    times = [float(values[name]) if values[name] else None for name in ("forward_s", "backward_s")]
    return Row(
        index=int(values["index"]),
        layer=layer(values["kind"], [int(values[name]) for name in names]),
        gpu=values["gpu"],
        time=LayerTime(times[0], times[1], Status(values["status"])),
        seed=values["seed"],
        software=values["software"],
    )
