"""How well do lines fitted on the layers of one net predict the layers of another?

`python -m lab score run_models` writes the tables into docs/appendix/runs-layers.md. Besides the
models of the package, this module tries other features of a layer, to see which would help.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product

import numpy as np
import torch
from torch import nn

import wavecast
from lab.measured import campaigns
from lab.measured.run_grid import LAYER_BATCHES, LAYER_PRECISIONS, layer_key
from lab.pages import heading
from wavecast.predictors.learned.predictor import Learned
from wavecast.runs.regression import least_squares as least_squares
from wavecast.runs.regression.complexities import LayerCategory, Network, NetworkLayer, Pass
from wavecast.runs.regression.layer_times import predicted_work, times_of_trace
from wavecast.runs.regression.least_squares import Array, Method
from wavecast.runs.regression.per_layer import (
    Key,
    LayerTime,
    LayerWork,
    PerLayer,
    timed_network,
)
from wavecast.suite.models.classics import VGG, AlexNet, GoogLeNet
from wavecast.traces.step import Phase, Trace

GPU = "h200-sxm"
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, int, int]]] = {
    "alexnet-ungrouped": (partial(AlexNet, groups=1), (3, 227, 227)),
    "googlenet": (GoogLeNet, (3, 224, 224)),
    "vgg16": (VGG, (3, 224, 224)),
}


@dataclass(frozen=True)
class Way:
    """A way to predict the times of layers."""

    name: str
    method: Method
    predicted: bool = False
    """Whether lines are fitted to times that op models predict, not to counts of operations."""


WAYS = (
    Way("published", Method.ORDINARY),
    Way("operations", Method.RELATIVE_NON_NEGATIVE),
    Way("predicted", Method.RELATIVE_NON_NEGATIVE, predicted=True),
    Way("proportional", Method.PROPORTIONAL, predicted=True),
)


@cache
def network(name: str) -> Network:
    """A net as a list of layers."""
    make, shape = NETS[name]
    with torch.device("meta"):
        model = make()
    return wavecast.network_of(model, shape)


@cache
def trace(name: str, batch: int, precision: str) -> Trace:
    """The measured trace of a net."""
    return campaigns.traces("runs")[layer_key(name, batch, precision)]


@cache
def work(name: str, batch: int, precision: str) -> LayerWork:
    """The time that the op models predict for each layer."""
    gpu = wavecast.device(GPU)
    return predicted_work(trace(name, batch, precision), network(name), gpu, Learned.shipped())


def times(name: str, batch: int, precision: str, predicted: bool) -> tuple[LayerTime, ...]:
    """The measured times of a net's layers, with the predicted ones if `predicted` is set."""
    layer_work = work(name, batch, precision) if predicted else None
    return times_of_trace(trace(name, batch, precision), network(name), work=layer_work).times


Transfer = tuple[tuple[str, ...], str, int]
"""The nets that are fitted, the net that is predicted, and its batch."""


def transfers() -> Iterator[Transfer]:
    """All transfers from one net to another, then those from two nets to the third."""
    for count in (1, 2):
        for target, batch in product(NETS, LAYER_BATCHES):
            others = [name for name in NETS if name != target]
            for sources in [(other,) for other in others] if count == 1 else [tuple(others)]:
                yield sources, target, batch


def per_layer(precision: str) -> str:
    """The error of each way to predict, for each transfer: of covered layers, and of everything."""
    ways = " | ".join(way.name for way in WAYS)
    whole_ways = " | ".join(f"all: {WAYS[index].name}" for index in _WHOLE)
    lines = [*heading(f"fitted on, applied to, batch | {ways} | covered | {whole_ways}")]
    results = {
        transfer: [transferred(transfer, precision, way) for way in WAYS]
        for transfer in transfers()
    }
    for (sources, target, batch), cells in results.items():
        shown = " | ".join(f"{cell.error:+.1%}" for cell in cells)
        whole = " | ".join(f"{cells[index].whole:+.1%}" for index in _WHOLE)
        which, covered = f"{', '.join(sources)}, {target}, {batch}", f"{cells[0].covered:.0%}"
        lines.append(f"| {which} | {shown} | {covered} | {whole} |")
    for count, name in ((1, "one net"), (2, "two nets")):
        rows = [cells for (sources, *_), cells in results.items() if len(sources) == count]
        sums = [summed([cells[index].error for cells in rows]) for index in range(len(WAYS))]
        whole_sums = [summed([cells[index].whole for cells in rows]) for index in _WHOLE]
        lines.append(f"| **{name}** | {' | '.join(sums)} | | {' | '.join(whole_sums)} |")
    return "\n".join(lines)


_WHOLE = (0, 3)
"""The ways whose error on the whole of both passes is shown: the published one and ours."""


def summed(errors: Sequence[float]) -> str:
    """The mean and the worst size of the errors, as a cell of a table."""
    sizes = [abs(error) for error in errors]
    return f"mean {statistics.mean(sizes):.1%}, worst {max(sizes):.1%}"


@dataclass(frozen=True)
class Transferred:
    """How well lines of some networks predict another one."""

    error: float
    """The error over the layers for which the sources give a line."""
    covered: float
    """The share of these layers in the GPU time of both passes."""
    whole: float
    """The error over both passes, in which all that has no line counts as 0."""


def transferred(which: Transfer, precision: str, way: Way) -> Transferred:
    """The errors of one transfer."""
    sources, target, batch = which
    model = PerLayer(way.method).fit(
        time
        for name, size in product(sources, LAYER_BATCHES)
        for time in times(name, size, precision, way.predicted)
    )
    given = work(target, batch, precision) if way.predicted else None
    predicted = model.predict(network(target), batch, work=given)
    actual = timed_network(target, times(target, batch, precision, way.predicted))
    covered_s = sum(seconds for key, seconds in actual.parts.items() if key in predicted.parts)
    passes = (Phase.FORWARD, Phase.BACKWARD)
    calls = [call for call in trace(target, batch, precision) if call.phase in passes]
    whole_s = sum(kernel.seconds for call in calls for kernel in call.kernels)
    predicted_s = sum(predicted.parts.values())
    return Transferred(predicted_s / covered_s - 1, covered_s / whole_s, predicted_s / whole_s - 1)


Feature = Callable[[LayerTime, Pass], float]
_TILE = 128
_SMS = 132


def _matrices(layer: NetworkLayer, batch: int) -> tuple[int, int, int]:
    """Height, width and depth of a layer as a matrix product with height by width outputs."""
    if layer.kind is LayerCategory.CONV:
        depth = math.prod(layer.kernel) * layer.inputs[0] // layer.groups
        return batch * layer.outputs[1] * layer.outputs[2], layer.outputs[0], depth
    if layer.kind is LayerCategory.FC:
        return batch, layer.outputs[0], math.prod(layer.inputs)
    return batch * math.prod(layer.outputs), 1, math.prod(layer.kernel)


def _bytes(time: LayerTime, which: Pass) -> float:
    layer = time.layer
    values = time.batch * (math.prod(layer.inputs) + math.prod(layer.outputs)) + layer.weights
    return 4.0 * values * (1 if which is Pass.FORWARD else 2)


def _waves(time: LayerTime, which: Pass) -> float:
    """The operations when tiles fill whole waves; few tiles are split along their depth."""
    if time.layer.kind not in (LayerCategory.CONV, LayerCategory.FC):
        return time.layer.ops(which, time.batch)

    def one(height: int, width: int, depth: int) -> int:
        tiles = -(-height // _TILE) * -(-width // _TILE)
        parts = max(1, min(_SMS // tiles, -(-depth // 256)))
        return -(-tiles * parts // _SMS) * _SMS * _TILE**2 * -(-depth // parts)

    height, width, depth = _matrices(time.layer, time.batch)
    if which is Pass.FORWARD:
        return one(height, width, depth)
    return one(height, depth, width) + one(width, depth, height)


FEATURES: Mapping[str, Feature] = {
    "operations": lambda time, which: time.layer.ops(which, time.batch),
    "bytes": _bytes,
    "operations of whole waves": _waves,
    "unrolled inputs": lambda t, _: math.prod(_matrices(t.layer, t.batch)[::2]),
    "outputs": lambda t, _: math.prod(_matrices(t.layer, t.batch)[:2]),
    "weights": lambda t, _: float(t.layer.weights),
    "predicted time": lambda t, which: (t.work.amount(t.layer, which) if t.work else None) or 0.0,
}
TRIED = (
    ("operations",),
    ("operations", "bytes"),
    ("operations", "unrolled inputs", "outputs", "weights"),
    ("operations of whole waves",),
    ("operations of whole waves", "bytes"),
    ("predicted time",),
    ("predicted time", "bytes"),
    ("predicted time", "unrolled inputs", "outputs", "weights"),
)


METHODS = (Method.RELATIVE_NON_NEGATIVE, Method.PROPORTIONAL)


def features() -> str:
    """Mean and worst error from one net to another, by the features of a layer."""
    columns = [*product(METHODS, LAYER_PRECISIONS)]
    names = [f"{method.split()[0]}, {precision}" for method, precision in columns]
    lines = [*heading(f"features of a layer, besides a constant | {' | '.join(names)}")]
    pairs = [transfer for transfer in transfers() if len(transfer[0]) == 1]
    errors = {
        (tried, method, precision): {pair: _tried(pair, precision, tried, method) for pair in pairs}
        for tried, method, precision in product(TRIED, METHODS, LAYER_PRECISIONS)
    }
    for tried in TRIED:
        cells = [summed([*errors[(tried, *column)].values()]) for column in columns]
        lines.append(f"| {', '.join(tried)} | {' | '.join(cells)} |")
    lines.append("")
    for precision in LAYER_PRECISIONS:
        rows = [row for (*_, column), row in errors.items() if column == precision]
        lines.append(
            f"In {precision}, features and method were also chosen for each net by the errors "
            f"between the other two nets: {summed(_chosen(rows))}."
        )
    return "\n".join(lines)


def _chosen(rows: Sequence[Mapping[Transfer, float]]) -> list[float]:
    """The errors for each net with the features that are best for the other two nets."""
    chosen: list[float] = []
    for net in NETS:

        def elsewhere(errors: Mapping[Transfer, float], net: str = net) -> float:
            return statistics.mean(
                abs(error)
                for (sources, to, _), error in errors.items()
                if net not in (*sources, to)
            )

        best = min(rows, key=elsewhere)
        chosen += [error for (_, to, _), error in best.items() if to == net]
    return chosen


def _tried(which: Transfer, precision: str, names: Sequence[str], method: Method) -> float:
    sources, target, batch = which
    fitted = _table([(name, size) for name in sources for size in LAYER_BATCHES], precision, names)
    targets = _table([(target, batch)], precision, names)
    predicted = actual = 0.0
    for key, (rows, seconds) in targets.items():
        if key in fitted:
            predicted += float((rows @ _coefficients(*fitted[key], method)).sum())
            actual += float(seconds.sum())
    return predicted / actual - 1


def _table(
    cases: Sequence[tuple[str, int]], precision: str, names: Sequence[str]
) -> dict[Key, tuple[Array, Array]]:
    by_key: dict[Key, list[list[float]]] = {}
    for name, batch in cases:
        for time in times(name, batch, precision, predicted=True):
            for which in Pass:
                seconds, category = time.seconds(which), time.layer.category
                if category is not None and seconds is not None:
                    row = [1.0, *(FEATURES[feature](time, which) for feature in names), seconds]
                    by_key.setdefault((category, which), []).append(row)
    tables = {key: np.array(rows) for key, rows in by_key.items()}
    return {key: (table[:, :-1], table[:, -1]) for key, table in tables.items()}


def _coefficients(rows: Array, seconds: Array, method: Method) -> Array:
    """The fitted coefficients. A feature that depends linearly on those before it gets 0."""
    kept: list[int] = []
    for index in range(rows.shape[1]):
        more = [*kept, index]
        if len(more) < len(rows) and least_squares.rank(rows[:, more]) == len(more):
            kept = more
    coefficients = np.zeros(rows.shape[1])
    coefficients[kept] = least_squares.fit(rows[:, kept], seconds, method).values
    return coefficients


SHOWN = {"vgg16": "", "googlenet": "lower.10."}
"""The nets whose rates are shown, and the prefix of the layers to show."""


def rates() -> str:
    """TFLOP/s of layers in the forward pass, with cuDNN's algorithm where it is FFT or Winograd."""
    cells = [*product(LAYER_PRECISIONS, LAYER_BATCHES)]
    names = " | ".join(f"{p}, batch {b}" for p, b in cells)
    lines = [*heading(f"net | layer | {names}", "ll")]
    for net, prefix in SHOWN.items():
        shown = set()
        for layer in network(net).layers:
            title = _described(layer)
            if not layer.weights or not layer.name.startswith(prefix) or title in shown:
                continue
            shown.add(title)
            shown_rates = [_rate(net, layer, batch, precision) for precision, batch in cells]
            lines.append(f"| {net} | {title} | {' | '.join(shown_rates)} |")
    return "\n".join(lines)


def _described(layer: NetworkLayer) -> str:
    if layer.kind is LayerCategory.FC:
        return f"fully connected, {math.prod(layer.inputs)} to {layer.outputs[0]}"
    window = "x".join(map(str, layer.kernel))
    return f"{window}, {layer.inputs[0]} to {layer.outputs[0]} channels, side {layer.outputs[1]}"


def _rate(net: str, layer: NetworkLayer, batch: int, precision: str) -> str:
    measured = trace(net, batch, precision)
    names, seconds = [], 0.0
    for call in measured:
        if call.phase is Phase.FORWARD and call.module.partition(".")[2] == layer.name:
            names += [kernel.name.lower() for kernel in call.kernels]
            seconds += sum(kernel.seconds for kernel in call.kernels)
    rate = 2 * layer.ops(Pass.FORWARD, batch) / seconds / 1e12
    algorithms = (name for name in ("FFT", "Winograd") if name.lower() in "".join(names))
    algorithm = next(algorithms, "")
    return f"{rate:.0f} {algorithm}".strip()
