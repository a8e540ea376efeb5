"""Times of sampled layers in a CSV file that outlives any interruption.

One row is one write of one whole line at the end of the file, so a killed collector leaves at
most one torn line, which the next one cuts off. The index of a row in the sample says what is
done: nothing is lost and nothing is measured twice, not even what did not fit into memory.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.files import GrowingTable
from wavecast.predictors.mlp.layers import (
    KINDS,
    Layer,
    LayerStatus,
    PassTimes,
    layer,
    layer_type,
)
from wavecast.predictors.mlp.samples import sample


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One measured layer: `index` is its place in the sample of its seed."""

    index: int
    layer: Layer
    gpu: str
    time: PassTimes
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
    time: Callable[[Layer], PassTimes],
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
    began = clock.monotonic()
    check = partial(_refuse_another_campaign, path, str(seed), gpu)
    with table_of(kind).growing(path, check) as (known, add):
        done = {row.index for row in known}
        measured, rows = 0, len(done)
        total = max(count, rows)
        for index, each in enumerate(wanted):
            if index in done:
                continue
            if limit_s is not None and clock.monotonic() - began >= limit_s:
                break
            add(LayerRow(index, each, gpu, time(each), str(seed), software))
            measured, rows = measured + 1, rows + 1
            if progress is not None:
                spent_s = clock.monotonic() - began
                progress(Progress(rows, total, spent_s / measured * (total - rows)))
    return rows


def read_rows(path: Path) -> tuple[LayerRow, ...]:
    """The rows of a file in the order of their index; a torn last line does not count.

    Raises:
        InvalidInput: the file is not one that `collect` wrote; says which line and why.
    """
    rows = _table_in(path).read(path)
    _refuse_repeated(path, rows)
    return tuple(sorted(rows, key=lambda row: row.index))


def join(tables: Iterable[Sequence[LayerRow]]) -> dict[Layer, dict[str, PassTimes]]:
    """The times of each layer by GPU, of the layers that all the tables have measured."""
    by_table: list[dict[Layer, dict[str, PassTimes]]] = []
    for rows in tables:
        measured: dict[Layer, dict[str, PassTimes]] = {}
        for row in rows:
            if row.time.status is LayerStatus.OK:
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


def table_of(kind: str) -> GrowingTable[LayerRow]:
    """The table of measured layers of a kind."""
    measured = ("gpu", "forward_s", "backward_s", "status", "seed", "software")
    columns = ("index", "kind", *layer_type(kind).names(), *measured)
    return GrowingTable(f"measured {kind} layers", columns, _to_texts, _from_texts)


def _table_in(path: Path) -> GrowingTable[LayerRow]:
    """The table that a file begins as; that of the first kind if it begins as none."""
    try:
        with path.open(encoding="utf-8") as file:
            header = file.readline().rstrip("\n").split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read ({error})") from None
    tables = [table_of(kind) for kind in KINDS]
    return next((table for table in tables if list(table.columns) == header), tables[0])


def _sampled(kind: str, seed: int | str) -> Iterator[Layer]:
    if not isinstance(seed, int):
        raise InvalidInput(f'"{seed}" is the name of no sample; give the layers, or a whole number')
    return sample(kind, seed)


def _refuse_another_campaign(path: Path, seed: str, gpu: str, rows: Sequence[LayerRow]) -> None:
    _refuse_repeated(path, rows)
    for row in rows:
        if (row.seed, row.gpu) != (seed, gpu):
            raise InvalidInput(
                f"{path}: has layers of seed {row.seed} measured on {row.gpu}, "
                f"not of seed {seed} on {gpu}; choose another file"
            )


def _refuse_repeated(path: Path, rows: Sequence[LayerRow]) -> None:
    seen: set[int] = set()
    for line, row in enumerate(rows, start=2):
        if row.index in seen:
            raise InvalidInput(f"{path}: line {line} repeats index {row.index}")
        seen.add(row.index)


def _to_texts(row: LayerRow) -> dict[str, str]:
    dimensions = dict(zip(row.layer.names(), map(str, row.layer.features()), strict=True))
    times = {name: getattr(row.time, name) for name in ("forward_s", "backward_s")}
    return dimensions | {
        "index": str(row.index),
        "kind": row.layer.KIND,
        "gpu": row.gpu,
        "status": str(row.time.status),
        "seed": row.seed,
        "software": row.software,
        **{name: "" if value is None else f"{value:.6e}" for name, value in times.items()},
    }


def _from_texts(texts: Mapping[str, str]) -> LayerRow:
    names = layer_type(texts["kind"]).names()
    times = [float(texts[name]) if texts[name] else None for name in ("forward_s", "backward_s")]
    return LayerRow(
        index=int(texts["index"]),
        layer=layer(texts["kind"], [int(texts[name]) for name in names]),
        gpu=texts["gpu"],
        time=PassTimes(times[0], times[1], LayerStatus(texts["status"])),
        seed=texts["seed"],
        software=texts["software"],
    )
