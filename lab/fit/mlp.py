"""Fit Habitat's networks (MLPs) on layers of public tables and layers measured on our GPU.

    python -m lab fit mlp prepare FOLDER public.npz      the public layers as arrays
    python -m lab fit mlp fit public.npz measurements/h200/layers/*.csv --out RESULTS

`prepare` needs pandas and the public tables neusight and deepbench (docs/sources.md). `fit` needs
only torch and numpy, and runs on a GPU machine. `fit`
writes RESULTS/results.json. Of the narrowest width it also writes the networks with their cards,
which become src/wavecast/data/models/mlp-*; `--widths 1024 --bits 8` makes those of the published
size, which become src/wavecast/data/setups/habitat/mlp-*.

For each kind of layer, target and width it fits one network on 80% of the configurations, one
without each GPU, and one on everything. A left-out GPU is predicted directly, and also from each
other GPU: the time measured there times the ratio of the two predictions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lab import needs
from lab.measured.op_makers import op_of
from lab.measured.tables import DEEPBENCH, NEUSIGHT, read_frame
from wavecast.campaigns.layer_times import read_rows
from wavecast.hardware.devices import device
from wavecast.predictors.attainable import Attainable, Roofline
from wavecast.predictors.base import Predictor
from wavecast.predictors.mlp import (
    DEVICE_FEATURES,
    KINDS,
    LayerStatus,
    MlpModel,
    MlpNetwork,
    device_features,
    layer,
    layer_type,
    rounded,
    write_model,
)

Array = NDArray[Any]
Floats = NDArray[np.float64]

TARGETS = ("forward", "backward", "forward+backward")
LONG_MS = 0.2
"""Errors are also given for only the rows of at least this; all NeuSight rows are that long."""
LEAST_ROWS = 20
"""GPUs with fewer rows of a kind are not scored by themselves."""
SPREAD = (0.1, 0.9)
"""The quantiles of measured over predicted time on left-out GPUs that make a range."""

UNEVEN = {("lstm", "forward"), ("lstm", "backward")}
"""Layers measured in variety on the H200 alone: a network has seen most of them on no other GPU.
Without the H200 it has not seen them at all, and was off by 400 to 600 times."""

gpu_named = cache(device)


# The rows to fit.


@dataclass(frozen=True, eq=False)
class FitProblem:
    """Rows of one kind with one target, and what other predictors answer for them."""

    kind: str
    target: str
    layers: Array
    gpu: Array
    features: Floats
    ms: Floats
    others_ms: dict[str, Floats]
    """Predicted milliseconds of the predictors "roofline" and "attainable"."""

    @property
    def uneven(self) -> bool:
        """Whether the card needs ranges by GPU (`UNEVEN`)."""
        return (self.kind, self.target) in UNEVEN

    @property
    def trainable(self) -> Array:
        """A mask of the rows of NVIDIA GPUs; other vendors have too few rows to learn from."""
        nvidia = [gpu for gpu in np.unique(self.gpu) if gpu_named(str(gpu)).vendor == "NVIDIA"]
        return np.isin(self.gpu, nvidia)


def problem(
    rows: Table, kind: str, target: str, least_s: float = 0.0, limit: int | None = None
) -> FitProblem | None:
    """The rows to fit for a kind and a target; None if nothing was measured.

    Rows below `least_s` are left out: with a loss in per cent, the shortest rows would have nearly
    all the weight. Habitat had no such rows, because its times include the host.
    """
    rows = rows.where(rows.seconds(target) >= least_s)
    if limit is not None and len(rows) > limit:
        rows = rows.where(np.random.default_rng(0).permutation(len(rows))[:limit])
    if not len(rows):
        return None
    numbers = {str(gpu): device_features(gpu_named(str(gpu))) for gpu in np.unique(rows.gpu)}
    of_gpu = np.array([numbers[str(gpu)] for gpu in rows.gpu], dtype=np.float64)
    return FitProblem(
        kind,
        target,
        rows.layers,
        rows.gpu,
        np.hstack([rows.layers.astype(np.float64), of_gpu]),
        rows.seconds(target) * 1e3,
        _others_ms(rows, kind, target),
    )


def _others_ms(rows: Table, kind: str, target: str) -> dict[str, Floats]:
    """The milliseconds that other predictors give for the passes of the target.

    The backward pass of a product is two products, each with as many FLOPs and similar bytes.
    """
    predictors: dict[str, Predictor] = {
        "roofline": Roofline(),
        "attainable": Attainable.shipped(),
    }
    passes = [name for name in ("forward", "backward") if name in target]
    predicted_ms = {name: np.zeros(len(rows)) for name in predictors}
    ops_by_sizes: dict[tuple[int, ...], list[tuple[Any, int]]] = {}
    for i, (sizes, gpu) in enumerate(zip(rows.layers.tolist(), rows.gpu.tolist(), strict=True)):
        key = tuple(sizes)
        if key not in ops_by_sizes:
            times = [2 if p == "backward" and kind in ("linear", "bmm") else 1 for p in passes]
            layers = [op_of(layer(kind, sizes), p) for p in passes]
            ops_by_sizes[key] = list(zip(layers, times, strict=True))
        for name, predictor in predictors.items():
            answers = [(predictor.predict(op, gpu_named(gpu)), n) for op, n in ops_by_sizes[key]]
            predicted_ms[name][i] = sum(n * a.seconds if a else np.nan for a, n in answers) * 1e3
    return predicted_ms


Fit = Callable[[Array], Floats]
"""Trains on the rows of a mask and returns predictions of all rows, in milliseconds."""


def error(predicted_ms: Floats, ms: Floats) -> dict[str, float | int]:
    """The mean and median relative error in per cent, over all rows and over the long ones."""
    off = np.abs(predicted_ms / ms - 1) * 100
    long = ms >= LONG_MS
    scores: dict[str, float | int] = {"mean": _round(off.mean()), "median": _round(np.median(off))}
    if long.any():
        scores |= {"long_mean": _round(off[long].mean()), "long_rows": int(long.sum())}
    return scores


def _round(value: float) -> float:
    return round(float(value), 2)


def on_gpu(
    these: FitProblem, predicted_ms: Floats, gpu: str, here: Array | None = None
) -> dict[str, Any]:
    """The errors on one GPU, directly and from each other GPU, of all rows or those of a mask."""
    rows = int((these.gpu == gpu).sum())
    here = these.gpu == gpu if here is None else here
    if not here.any():
        return {"rows": rows, "unknown": rows, "from": {}}
    bounded_ms = {"mlp": np.maximum(predicted_ms, these.others_ms["roofline"]), **these.others_ms}
    scores: dict[str, Any] = {
        "rows": rows,
        "unknown": rows - int(here.sum()),
        "mlp_raw": error(predicted_ms[here], these.ms[here]),
    }
    scores |= {name: error(ms[here], these.ms[here]) for name, ms in bounded_ms.items()}
    scores["from"] = {}
    for origin in np.unique(these.gpu[these.trainable]).tolist():
        pairs = _pairs(these, origin, gpu, here)
        if origin == gpu or len(pairs) < LEAST_ROWS:
            continue
        o, d = pairs.T
        measured, target = these.ms[o], these.ms[d]
        peak = gpu_named(origin).fp32_flops / gpu_named(gpu).fp32_flops
        off = {name: error(measured * ms[d] / ms[o], target) for name, ms in bounded_ms.items()}
        off |= {"mlp, no origin": error(bounded_ms["mlp"][d], target)}
        scores["from"][origin] = {"rows": len(d), **off, "peak": error(measured * peak, target)}
    return scores


def _pairs(these: FitProblem, origin: str, gpu: str, scored: Array) -> NDArray[np.int64]:
    """The positions of rows with the same configuration on both GPUs, as (origin, gpu) pairs."""
    places: list[dict[tuple[int, ...], int]] = []
    for name in (origin, gpu):
        rows = np.flatnonzero((these.gpu == name) & (scored | (name == origin)))
        sizes = map(tuple, these.layers[rows].tolist())
        places.append(dict(zip(sizes, rows.tolist(), strict=True)))
    common = [key for key in places[0] if key in places[1]]
    return np.array([[p[key] for p in places] for key in common], dtype=np.int64).reshape(-1, 2)


def validate(these: FitProblem, fit: Fit) -> tuple[dict[str, Any], list[float]]:
    """Errors on configurations and on GPUs left out, and the range of measured over predicted."""
    from wavecast.frameworks.pytorch.layers.mlp_fit import split_by_configuration

    train = split_by_configuration(these.layers) & these.trainable
    rest = ~split_by_configuration(these.layers) & these.trainable
    scores: dict[str, Any] = {"left_out": {}}
    predicted_ms = fit(train)
    scores["train"] = error(predicted_ms[train], these.ms[train])
    scores["configurations"] = error(predicted_ms[rest], these.ms[rest])
    ratios: list[Floats] = []
    gpus, counts = np.unique(these.gpu[these.trainable], return_counts=True)
    if len(gpus) > 1:
        for gpu in gpus[counts >= LEAST_ROWS].tolist():
            out = these.gpu == gpu
            train = these.trainable & ~out
            predicted_ms = fit(train)
            rows = these.kind, these.features, these.gpu, train
            known = out & answered(*rows) if these.uneven else out
            scores["left_out"][gpu] = on_gpu(these, predicted_ms, gpu, known)
            bounded = np.maximum(predicted_ms, these.others_ms["roofline"])
            ratios.append(these.ms[known] / bounded[known])
    spread = np.quantile(np.concatenate(ratios), SPREAD) if ratios else (0.5, 2.0)
    return scores, [round(float(end), 3) for end in spread]


# The commands.


def fit_all(args: argparse.Namespace) -> None:
    """Fit every kind, target and width; write results and networks; print a table."""
    from wavecast.frameworks.pytorch.layers.mlp_fit import Recipe

    args.out.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for kind, target in _wanted(args):
        rows = joined([public(args.public, kind), collected(args.collected, kind)])
        these = problem(rows, kind, target, args.least_ms * 1e-3, args.rows)
        if these is None or these.trainable.sum() < LEAST_ROWS:
            continue
        for width in args.widths:
            print(f"{kind} {target}, width {width}", flush=True)
            recipe = Recipe.sized(width, args.epochs)
            scores = fit_one(these, recipe, args)
            results.append({"kind": kind, "target": target, "recipe": asdict(recipe), **scores})
            (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    print(summary(results))


def _wanted(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    for kind in args.kinds:
        for target in args.targets:
            # The backward pass of a product is two products, which the forward network knows.
            if target != "backward" or kind in ("conv2d", "lstm"):
                yield kind, target


def fit_one(these: FitProblem, recipe: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The errors of one kind, target and width; the narrowest network is written."""
    from wavecast.frameworks.pytorch.layers.mlp_fit import Fitted, fit, milliseconds

    shipped = recipe.width == min(args.widths)
    latest: list[Fitted] = []

    def fitted(train: Array) -> Floats:
        began = time.perf_counter()
        x, y = these.features[train], these.ms[train]
        new = fit(x, y, recipe, device=args.device, graph=not args.eager)
        if shipped:  # rounded as in the file, so that the errors are those of the shipped network
            kept = rounded(MlpNetwork(new.mean, new.scale, new.weights), args.bits)
            new = replace(new, weights=kept.weights)
        latest[:] = [new]
        spent_s = time.perf_counter() - began
        print(f"  {train.sum()} rows: {new.losses[-1]:.1%} in {spent_s:.1f} s", flush=True)
        return milliseconds(new, these.features, args.device)

    scores, spread = validate(these, fitted)
    predicted_ms = fitted(these.trainable)
    for gpu in np.unique(these.gpu[~these.trainable]).tolist():
        scores["left_out"][gpu] = on_gpu(these, predicted_ms, gpu)
    scores["all"] = error(predicted_ms[these.trainable], these.ms[these.trainable])
    if shipped:
        network = MlpNetwork(latest[0].mean, latest[0].scale, latest[0].weights)
        name = f"mlp-{these.kind}" + ("" if these.target == "forward" else f"-{these.target}")
        facts = card(these, recipe, scores, spread, args)
        write_model(args.out / f"{name}.npz", network, facts, args.bits)
    return scores


def card(
    these: FitProblem,
    recipe: Any,
    scores: dict[str, Any],
    spread: list[float],
    args: argparse.Namespace,
) -> dict[str, Any]:
    """The card of a network: its data, recipe, errors and ranges."""
    digest = hashlib.sha256()
    for path in (args.public, *sorted(args.collected)):
        digest.update(path.read_bytes())
    rows = these.trainable
    features = these.features[rows]
    names = (*layer_type(these.kind).names(), *DEVICE_FEATURES)
    ends = zip(names, features.min(0).tolist(), features.max(0).tolist(), strict=True)
    return {
        "kind": these.kind,
        "target": these.target,
        "fitted": args.date,
        "data": "layers in float32 published by NeuSight and DeepBench, and measured on our GPU",
        "data_sha256": digest.hexdigest(),
        "rows": int(rows.sum()),
        "gpus": np.unique(these.gpu[rows]).tolist(),
        "vendors": ["NVIDIA"],
        **asdict(recipe),
        "train_error": scores["all"]["mean"],
        "configuration_error": scores["configurations"]["mean"],
        "least_s": args.least_ms * 1e-3,
        "low": spread[0],
        "high": spread[1],
        "left_out": {
            gpu: errors["mlp"]["mean"] if "mlp" in errors else "unknown"
            for gpu, errors in scores["left_out"].items()
        },
        "by_gpu": ranges_by_gpu(these.kind, features, these.gpu[rows]) if these.uneven else {},
        "ranges": {name: [low, high] for name, low, high in ends},
    }


COLUMNS = ("mlp", "attainable", "roofline")


def summary(results: Sequence[dict[str, Any]]) -> str:
    """A table of mean errors in per cent, for new configurations and for each left-out GPU."""
    lines = [
        "mean error in % | left-out GPU predicted directly (each: all rows, rows >= 0.2 ms)"
        " | scaled from a measured GPU, mean over those GPUs",
        f"{'kind target width gpu':52} {'rows':>6} | {'mlp':>13} {'attainable':>13} "
        f"{'roofline':>13} | {'mlp':>6} {'attain':>6} {'roofl':>6} {'peak':>6}",
    ]
    for result in results:
        what = f"{result['kind']} {result['target']} {result['recipe']['width']}"
        lines.append(f"{what + ' configurations':52} {'':6} | {_pair(result['configurations'])}")
        for gpu, scores in result["left_out"].items():
            known = [_pair(scores[name]) for name in COLUMNS if name in scores]
            alone = " ".join([*known, f"({scores['unknown']} unknown)"])
            origins = list(scores["from"].values())
            means = [
                np.mean([o[n]["mean"] for o in origins] or [np.nan]) for n in (*COLUMNS, "peak")
            ]
            ratios = " ".join(f"{mean:6.1f}" for mean in means)
            lines.append(f"{what + ' ' + gpu:52} {scores['rows']:6} | {alone} | {ratios}")
    return "\n".join(lines)


def _pair(scores: dict[str, float]) -> str:
    return f"{scores['mean']:6.1f} {scores.get('long_mean', float('nan')):6.1f}"


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = needs.parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare")
    preparing.add_argument("folder", type=needs.tables("neusight", "deepbench"))
    preparing.add_argument("public", type=Path)
    fitting = commands.add_parser("fit")
    fitting.add_argument("public", type=Path)
    fitting.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    fitting.add_argument("--device", default="cuda")
    fitting.add_argument("collected", type=Path, nargs="*")
    fitting.add_argument("--out", type=Path, required=True)
    fitting.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS[:2]))
    fitting.add_argument("--widths", nargs="+", type=int, default=[1024, 256])
    fitting.add_argument("--bits", type=int, choices=(8, 16), default=16, help="of a weight")
    fitting.add_argument("--epochs", type=int, default=80)
    fitting.add_argument("--least-ms", type=float, default=0.02, help="shorter rows are left out")
    fitting.add_argument("--rows", type=int, help="use at most this many, for a quick try")
    fitting.add_argument("--eager", action="store_true", help="no CUDA graph")
    fitting.add_argument("--date", default=str(datetime.now(UTC).date()))
    return parser


def main(given: Sequence[str] = ()) -> None:
    """Run one of the commands."""
    args = arguments().parse_args(given)
    if args.command == "prepare":
        prepare(args.folder, args.public)
    else:
        began = time.perf_counter()
        fit_all(args)
        print(f"{time.perf_counter() - began:.0f} s in all")


# Which measured layers a network answers for, when it was trained on some of them.


Ranges = dict[str, tuple[float, float]]


def ranges_by_gpu(kind: str, features: Floats, gpu: NDArray[Any]) -> dict[str, Ranges]:
    """The range of each size of the layers that were measured on each GPU."""
    names = layer_type(kind).names()
    gpus = np.unique(gpu).tolist()
    return {name: _ranges(names, features[gpu == name]) for name in gpus}


def answered(
    kind: str, features: Floats, gpu: NDArray[Any], train: NDArray[Any]
) -> NDArray[np.bool_]:
    """A mask of the rows for which a network that was trained on the rows `train` answers."""
    of_training = features[train]
    model = MlpModel(
        kind,
        "forward",
        MlpNetwork(of_training[0], of_training[0], ()),
        low=1.0,
        high=1.0,
        ranges=_ranges((*layer_type(kind).names(), *DEVICE_FEATURES), of_training),
        by_gpu=ranges_by_gpu(kind, of_training, gpu[train]),
    )
    rows = zip(features.tolist(), gpu.tolist(), strict=True)
    return np.array([model.covers(tuple(row), name) for row, name in rows])


def _ranges(names: tuple[str, ...], features: Floats) -> Ranges:
    """The lowest and highest value of each named column, which are the first ones."""
    low, high = features.min(0).tolist(), features.max(0).tolist()
    return {name: (low[i], high[i]) for i, name in enumerate(names)}


# Measured layers as arrays, from public tables and our own GPU, for Habitat's networks.


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


def collected(paths: Sequence[Path], kind: str) -> Table:
    """The rows of a kind in files of measurements/h200/layers."""
    rows = [row for path in paths for row in read_rows(path) if kind == row.layer.KIND]
    done = [row for row in rows if row.time.status is LayerStatus.OK]
    times = [(row.time.forward_s or np.nan, row.time.backward_s or np.nan) for row in done]
    return table(
        [(row.layer.features(), row.gpu, *t) for row, t in zip(done, times, strict=True)], kind
    )
