"""Measured layers as arrays, from public tables and our own GPU, for Habitat's networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab.measured.published_gpus import DEEPBENCH, NEUSIGHT
from lab.measured.tables import read_frame
from wavecast.campaigns.layer_times import read_rows
from wavecast.predictors.mlp.layers import (
    KINDS,
    Layer,
    LayerStatus,
    layer,
    layer_type,
)

Array = NDArray[Any]
Floats = NDArray[np.float64]

NEUSIGHT_LEAST_S = 2e-4
"""NeuSight timed each call alone; a shorter time shows the host and not the GPU."""
DEEPBENCH_LEAST_S = 2e-5
"""Shorter rows are left out, because DeepBench rounds to whole microseconds."""
SLOWEST_S = 0.1
"""Layers that took longer on any GPU are not measured on ours."""


@dataclass(frozen=True, eq=False)
class Table:
    """Measured layers of one kind; a time is NaN where it was not measured."""

    layers: Array
    gpu: Array
    forward_s: Floats
    backward_s: Floats

    def __len__(self) -> int:
        return len(self.gpu)

    def where(self, chosen: Array) -> Table:
        """The rows that a mask or a list of positions selects."""
        return Table(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def seconds(self, target: str) -> Floats:
        """The times of a target: "forward", "backward" or "forward+backward"."""
        both = {"forward": self.forward_s, "backward": self.backward_s}
        return both[target] if target in both else self.forward_s + self.backward_s


def table(rows: Iterable[tuple[Sequence[int], str, float, float]], kind: str) -> Table:
    """A table made of rows (features, GPU, forward seconds, backward seconds)."""
    rows = list(rows)
    names = layer_type(kind).names()
    layers = np.array([row[0] for row in rows], dtype=np.int32).reshape(-1, len(names))
    columns = [np.array([row[i] for row in rows]) for i in (1, 2, 3)]
    return Table(layers, columns[0].astype(str), *(c.astype(np.float64) for c in columns[1:]))


def joined(tables: Sequence[Table]) -> Table:
    """One table with the rows of all tables."""
    return Table(*(np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(Table)))


# Public tables.


def prepare(folder: Path, out: Path) -> None:
    """Write the usable layers of NeuSight and DeepBench to a file of arrays."""
    arrays: dict[str, Any] = {}
    for kind in KINDS:
        layers_of_kind = table([*_neusight(folder, kind), *_deepbench(folder, kind)], kind)
        for field in fields(Table):
            arrays[f"{kind}.{field.name}"] = getattr(layers_of_kind, field.name)
        gpus, counts = np.unique(layers_of_kind.gpu, return_counts=True)
        print(kind, len(layers_of_kind), dict(zip(gpus.tolist(), counts.tolist(), strict=True)))
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **arrays)


def _neusight(folder: Path, kind: str) -> Iterator[tuple[tuple[int, ...], str, float, float]]:
    names = {"linear": "linear", "bmm": "bmm", "conv2d": "conv"}
    dimensions = {"linear": "b m n k", "bmm": "b m n k", "conv2d": "b in_size c_in c_out"}
    if kind not in names:
        return
    frame = read_frame(folder / "neusight" / "ops.parquet")
    frame = frame[(frame.op == names[kind]) & (frame.latency_ms >= NEUSIGHT_LEAST_S * 1e3)]
    extra = ["ksize", "stride", "pad"] if kind == "conv2d" else []
    columns = [*dimensions[kind].split(), *extra]
    for *sizes, gpu, ms in frame[[*columns, "gpu", "latency_ms"]].itertuples(index=False):
        sizes = [int(size) for size in sizes]
        if kind == "linear":  # with bias, the batch in two dimensions
            sizes = [1, sizes[0] * sizes[1], *sizes[2:]]
        elif kind == "conv2d":
            sizes = [0, *sizes]
        yield tuple(sizes), NEUSIGHT[gpu], ms * 1e-3, float("nan")


def _deepbench(folder: Path, kind: str) -> Iterator[tuple[tuple[int, ...], str, float, float]]:
    """Square convolutions, and LSTMs. The LSTMs skip the product with the input, so they get an
    input of width 1."""
    names = {"conv2d": "conv", "lstm": "rnn"}
    if kind not in names:
        return
    frame = read_frame(folder / "deepbench" / "ops.parquet")
    bad = frame.qc.fillna("").astype(str).str.contains("coarse|cross_gpu_outlier")
    frame = frame[(frame.kind == names[kind]) & (frame.input_type == "fp32") & ~bad]
    times: dict[tuple[tuple[int, ...], str], dict[str, float]] = {}
    sizes: tuple[int, ...]
    for row in frame.to_dict("records"):
        if kind == "lstm" and row["cell"] == "lstm":
            sizes = (1, 0, row["batch"], row["timesteps"], 1, row["hidden"], 1)
        elif kind == "conv2d" and all(
            row[a] == row[b]
            for a, b in (("w", "h"), *((f"{n}_w", f"{n}_h") for n in ("filter", "stride", "pad")))
        ):
            shape = row["batch"], row["w"], row["c"], row["filters"]
            sizes = (0, *shape, row["filter_w"], row["stride_w"], row["pad_w"])
        else:
            continue
        key = tuple(int(size) for size in sizes), DEEPBENCH[row["gpu"]]
        times.setdefault(key, {})[row["pass"]] = row["latency_ms"] * 1e-3
    for (sizes, gpu), passes in times.items():
        forward_s = passes.get("fw", float("nan"))
        backward_s = passes.get("bw_input", float("nan")) + passes.get("bw_weight", float("nan"))
        if forward_s >= DEEPBENCH_LEAST_S:
            yield sizes, gpu, forward_s, backward_s


def public(path: Path, kind: str) -> Table:
    """The layers of a kind that `prepare` wrote."""
    with np.load(path, allow_pickle=False) as stored:
        return Table(*(stored[f"{kind}.{field.name}"] for field in fields(Table)))


# Our own measurements.


def shared_layers(public_layers: Table, kind: str) -> list[Layer]:
    """The layers of public tables, those on the most GPUs first, ties in a random order."""
    if not len(public_layers):
        return []
    configurations, which = np.unique(public_layers.layers, axis=0, return_inverse=True)
    gpus = np.bincount(which.reshape(-1))
    slowest = np.zeros(len(configurations))
    np.maximum.at(slowest, which.reshape(-1), public_layers.forward_s)
    order = np.random.default_rng(0).permutation(len(configurations))
    order = order[np.argsort(-gpus[order], kind="stable")]
    return [layer(kind, configurations[i].tolist()) for i in order if slowest[i] <= SLOWEST_S]


def collected(paths: Sequence[Path], kind: str) -> Table:
    """The rows of a kind in files of measurements/h200/layers."""
    rows = [row for path in paths for row in read_rows(path) if kind == row.layer.KIND]
    done = [row for row in rows if row.time.status is LayerStatus.OK]
    times = [(row.time.forward_s or np.nan, row.time.backward_s or np.nan) for row in done]
    return table(
        [(row.layer.features(), row.gpu, *t) for row, t in zip(done, times, strict=True)], kind
    )
