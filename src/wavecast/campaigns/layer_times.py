"""Measured times of sampled layers, in a CSV file that survives any interruption.

Each row is appended in one write. A collector that is killed leaves at most one incomplete line,
which the next run cuts off. Each row has the layer's index in the sample, so the next run knows
which layers are done. No layer is lost and none is measured twice, not even one that did not fit
into memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wavecast.campaigns.progress import Progress, refuse_another_gpu, work_off
from wavecast.errors import InvalidInput
from wavecast.files import GrowingTable, csv_line
from wavecast.hardware.devices import device
from wavecast.predictors.mlp import (
    DEVICE_FEATURES,
    KINDS,
    Layer,
    LayerStatus,
    MlpNetwork,
    PassTimes,
    device_features,
    features_of,
    layer,
    layer_type,
    sample,
)
from wavecast.reading import open_file

if TYPE_CHECKING:
    from wavecast.frameworks.pytorch.layers.mlp_fit import Recipe


_LONGEST_HEAD = 4096
"""More bytes than the first line of any such file has."""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """One measured layer. `index` is its position in the sample of its seed."""

    index: int
    layer: Layer
    gpu: str
    time: PassTimes
    seed: str
    software: str = ""


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
    """Measure the first `count` layers of a sample, except those that the file already has.

    Args:
        kind: the kind of the layers, one of `KINDS`.
        seed: the seed of the sample, or a name for the list of `layers`.
        count: how many layers the file should have in the end.
        path: the CSV file. It is created if missing, and continued if it has the same kind of
            layers, the same seed and the same GPU.
        software: versions and settings of the software that measures.
        layers: layers to measure instead of a sample. Pass the same list at each call.
        limit_s: start no layer after this many seconds.

    Returns:
        The number of rows that the file has now.

    Raises:
        InvalidInput: the file holds something else, or another process is writing it.
    """
    chosen = islice(_sampled(kind, seed) if layers is None else layers, count)
    check = partial(_refuse_another_campaign, path, str(seed), gpu)
    with table_of(kind).growing(path, check) as (existing, add):
        done = {row.index for row in existing}
        missing = [(index, layer) for index, layer in enumerate(chosen) if index not in done]
        rows = len(done)

        def work(drawn: tuple[int, Layer]) -> None:
            nonlocal rows
            index, layer = drawn
            add(LayerRow(index, layer, gpu, time(layer), str(seed), software))
            rows += 1

        work_off(missing, work, already_done=rows, report=progress, limit_s=limit_s)
    return rows


def read_rows(path: Path) -> tuple[LayerRow, ...]:
    """The rows of a file, ordered by index. An incomplete last line is ignored.

    Raises:
        InvalidInput: `collect` did not write this file. The message says which line is wrong.
    """
    rows = _table_in(path).read(path)
    _refuse_repeated(path, rows)
    return tuple(sorted(rows, key=lambda row: row.index))


def table_of(kind: str) -> GrowingTable[LayerRow]:
    """The format of a file of measured layers of one kind."""
    measured = ("gpu", "forward_s", "backward_s", "status", "seed", "software")
    columns = ("index", "kind", *layer_type(kind).names(), *measured)
    return GrowingTable(f"measured {kind} layers", columns, _to_texts, _from_texts)


def _table_in(path: Path) -> GrowingTable[LayerRow]:
    """The format of a file, by the columns in its first line, which may be incomplete."""
    with open_file(path, prefix=f"cannot read {path}: it ") as file:
        first_line = file.readline(_LONGEST_HEAD)
    for table in map(table_of, KINDS):
        if csv_line(table.columns).startswith(first_line):
            return table
    raise InvalidInput(
        f"{path} has no measured layers: its first line does not name the columns of "
        f"{', '.join(KINDS)} layers; wavecast collect writes such files"
    )


def _sampled(kind: str, seed: int | str) -> Iterator[Layer]:
    if not isinstance(seed, int):
        raise InvalidInput(
            f'there is no sample named "{seed}"; give a whole number as seed, or the layers'
        )
    return sample(kind, seed)


def _refuse_another_campaign(path: Path, seed: str, gpu: str, rows: Sequence[LayerRow]) -> None:
    _refuse_repeated(path, rows)
    refuse_another_gpu(path, gpu, rows)
    for row in rows:
        if row.seed != seed:
            raise InvalidInput(
                f"{path} has layers of seed {row.seed}, and seed {seed} was asked for; "
                "choose another file"
            )


def _refuse_repeated(path: Path, rows: Sequence[LayerRow]) -> None:
    seen: set[int] = set()
    for line, row in enumerate(rows, start=2):
        if row.index in seen:
            raise InvalidInput(f"{path}: line {line} repeats index {row.index}; remove one of them")
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


def _seconds(name: str, text: str) -> float | None:
    if not text:
        return None
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} is {text}, but must be a finite number above 0")
    return seconds


def _from_texts(texts: Mapping[str, str]) -> LayerRow:
    names = layer_type(texts["kind"]).names()
    times = [_seconds(name, texts[name]) for name in ("forward_s", "backward_s")]
    return LayerRow(
        index=int(texts["index"]),
        layer=layer(texts["kind"], [int(texts[name]) for name in names]),
        gpu=texts["gpu"],
        time=PassTimes(times[0], times[1], LayerStatus(texts["status"])),
        seed=texts["seed"],
        software=texts["software"],
    )


# Habitat's networks, fitted on collected layer times, each with a card of its errors.


Floats = NDArray[np.float64]

TARGETS = ("forward", "backward", "forward+backward")
FEWEST = 50
"""The fewest rows to fit on. A network of a thousand neurons would only memorise fewer."""


@dataclass(frozen=True)
class FittedNetwork:
    """A fitted network, and the card that says on what it was fitted and how wrong it is."""

    network: MlpNetwork
    card: Mapping[str, Any]


def fit(
    rows: Sequence[LayerRow],
    target: str = "forward+backward",
    recipe: Recipe | None = None,
    *,
    on: str = "cpu",
    progress: Callable[[str], None] = lambda line: None,
) -> FittedNetwork:
    """Fit a network as Habitat does (section 4.3), and measure its errors.

    The errors come from fits that leave data out: one leaves out a fifth of the configurations,
    and if there are several GPUs, one fit per GPU leaves that GPU out. The network that is
    returned was trained on all rows.

    Args:
        rows: measured layers of one kind, from `wavecast collect` on one or several GPUs.
        target: the time to predict, one of `TARGETS`.
        recipe: width, number of epochs and so on. None for Habitat's published values.
        on: where to train, "cpu" or "cuda".
        progress: called with a line of text when each fit begins.
    """
    from wavecast.frameworks.pytorch.layers import mlp_fit

    recipe = recipe or mlp_fit.Recipe()
    table = _table(rows, target)

    def trained(chosen: NDArray[np.bool_]) -> Any:
        return mlp_fit.fit(table.features[chosen], table.milliseconds[chosen], recipe, device=on)

    def error(fitted: Any, chosen: NDArray[np.bool_]) -> float:
        predicted = mlp_fit.milliseconds(fitted, table.features[chosen], on)
        return float(np.abs(predicted / table.milliseconds[chosen] - 1).mean() * 100)

    layers = table.features[:, : -len(DEVICE_FEATURES)]
    seen = mlp_fit.split_by_configuration(layers)
    progress(f"{len(layers)} {table.kind} layers, a fifth of them left out")
    held_out = error(trained(seen), ~seen)
    left_out = {}
    for gpu in table.gpus if len(table.gpus) > 1 else ():
        progress(f"{gpu} left out")
        on_gpu = table.gpu == gpu
        left_out[gpu] = error(trained(~on_gpu), on_gpu)
    progress("all rows")
    everything = np.ones(len(layers), dtype=bool)
    final = trained(everything)
    network = MlpNetwork(final.mean, final.scale, final.weights)
    scores = {
        "train_error": round(error(final, everything), 2),
        "configuration_error": round(held_out, 2),
        "left_out": {gpu: round(percent, 2) for gpu, percent in left_out.items()},
    }
    return FittedNetwork(network, _card(table, target, recipe, scores))


@dataclass(frozen=True)
class _LayerTable:
    kind: str
    features: Floats
    milliseconds: Floats
    gpu: NDArray[np.str_]
    names: tuple[str, ...]

    @property
    def gpus(self) -> list[str]:
        return sorted(set(self.gpu.tolist()))


def _table(rows: Sequence[LayerRow], target: str) -> _LayerTable:
    if target not in TARGETS:
        raise InvalidInput(f"unknown target {target!r}; known: {', '.join(TARGETS)}")
    kinds = {row.layer.KIND for row in rows}
    if len(kinds) > 1:
        raise InvalidInput(
            f"these files have layers of several kinds ({', '.join(sorted(kinds))}); give files of "
            "one kind"
        )
    measured = [row for row in rows if row.time.status is LayerStatus.OK]
    if len(measured) < FEWEST:
        raise InvalidInput(
            f"{len(measured)} measured layers are too few to fit a network; collect {FEWEST} or "
            "more"
        )
    numbers = {gpu: device_features(device(gpu)) for gpu in {row.gpu for row in measured}}
    if unknown := [gpu for gpu, values in numbers.items() if values is None]:
        raise InvalidInput(
            f"the number of SMs of {', '.join(unknown)} is not known; leave out its rows"
        )
    features = [features_of(row.layer, numbers[row.gpu] or ()) for row in measured]
    return _LayerTable(
        kind=kinds.pop(),
        features=np.array(features, dtype=np.float64),
        milliseconds=np.array([_fit_seconds(row, target) for row in measured]) * 1e3,
        gpu=np.array([row.gpu for row in measured]),
        names=(*type(measured[0].layer).names(), *DEVICE_FEATURES),
    )


def _fit_seconds(row: LayerRow, target: str) -> float:
    passes = {"forward": row.time.forward_s, "backward": row.time.backward_s}
    return sum(passes[name] or 0.0 for name in target.split("+"))


def _card(
    table: _LayerTable, target: str, recipe: Recipe, scores: Mapping[str, Any]
) -> dict[str, Any]:
    # The range of the predictions: the worst mean error on data that was left out, in both
    # directions.
    worst = max(scores["left_out"].values(), default=scores["configuration_error"]) / 100
    ends = zip(table.features.min(0).tolist(), table.features.max(0).tolist(), strict=True)
    return {
        "kind": table.kind,
        "target": target,
        "fitted": date.today().isoformat(),
        "data": "collected by wavecast collect",
        "rows": len(table.features),
        "gpus": table.gpus,
        "vendors": sorted({device(gpu).vendor for gpu in table.gpus}),
        **asdict(recipe),
        "least_s": float(table.milliseconds.min()) * 1e-3,
        "low": round(1 / (1 + worst), 3),
        "high": round(1 + worst, 3),
        **scores,
        "ranges": {
            name: list(least_most) for name, least_most in zip(table.names, ends, strict=True)
        },
    }
