"""Times of layers, from a step measured on a GPU or from the log of `caffe time`."""

from __future__ import annotations

import csv
import functools
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import shipped
from wavecast.hardware.devices import Device
from wavecast.predictors.base import Predictor
from wavecast.reading import read_bytes
from wavecast.runs.regression.complexities import (
    LayerCategory,
    Network,
    NetworkLayer,
    Pass,
    family_of,
    samples_of,
)
from wavecast.runs.regression.per_layer import LayerTime, LayerWork
from wavecast.traces.step import Call, Phase, Trace

_PASSES = {Phase.FORWARD: Pass.FORWARD, Phase.BACKWARD: Pass.BACKWARD}
_CAFFE_LINE = re.compile(r"\]\s+(?P<name>\S+)\s+(?P<which>forward|backward): (?P<time>\S+) ms\.")
_CAFFE_BEGIN = "Average time per layer:"
_CAFFE_END = {Pass.FORWARD: "Average Forward pass:", Pass.BACKWARD: "Average Backward pass:"}
# Layers that Caffe adds, or that do not run on the GPU.
_CAFFE_OTHERS = re.compile(r"(_split(_\d+)?|^data|^label|^input)$")

PREDICTED = "predicted seconds on "
"""The unit of predicted work, before the name of the GPU."""

Place = tuple[str | None, LayerCategory | None]
"""The name and family of layers; the family is None for calls that belong to no layer."""
Seconds = Mapping[tuple[Place, Pass], float]


@dataclass(frozen=True)
class LayerTimes:
    """The timed layers of a network at one batch, and the time outside of them."""

    times: tuple[LayerTime, ...]
    elsewhere_s: Mapping[Pass, float]
    """Seconds of each pass outside of the layers: losses, concatenations, plain functions."""
    untimed: tuple[str, ...]
    """Layers that have a category but no time."""

    def __iter__(self) -> Iterator[LayerTime]:
        return iter(self.times)


def times_of_trace(
    trace: Trace, network: Network, batch: int | None = None, work: LayerWork | None = None
) -> LayerTimes:
    """The time of each layer in a measured step, which is the time of its kernels.

    Args:
        trace: A step from `wavecast.measure`, or read from a profile that has modules.
        network: The module that the step ran (`network_of`).
        batch: The samples of the step; by default those of the trace.
        work: The work of each layer (`predicted_work`), if it is not its operations.

    Raises:
        InvalidInput: The step was not measured, or has none of the layers.
    """
    size = samples_of(trace, batch)
    if not any(call.kernels for call in trace):
        raise InvalidInput(
            "no kernel of this trace has a time: measure the step (wavecast.measure)"
        )
    measured = _summed(
        trace, network, lambda call: sum(kernel.seconds for kernel in call.kernels) or None
    )
    return _matched(network, size, measured, work)


def predicted_work(
    trace: Trace,
    network: Network,
    gpu: Device,
    predictor: Predictor,
    batch: int | None = None,
) -> LayerWork:
    """The predicted time of each layer on a GPU, to be used as the work of a per-layer model.

    Args:
        trace: A step of the network, traced without a GPU or measured; only its ops count.
        network: The module that the step runs (`network_of`).
        gpu: The GPU on which the layers are, or were, timed.
        predictor: The predictor of op times.
        batch: The samples of the step; by default those of the trace.
    """

    def seconds(call: Call) -> float | None:
        estimate = predictor.predict(call.op, gpu)
        return None if estimate is None else estimate.seconds

    amounts = _summed(trace, network, seconds)
    shares = _shares(network)
    return LayerWork(
        unit=f"{PREDICTED}{gpu.id}",
        batch=samples_of(trace, batch),
        amounts={
            (layer, which): amount * shares[layer, which]
            for layer in network.layers
            for which in Pass
            if (amount := amounts.get((_place(layer), which)))
        },
    )


def _summed(
    trace: Trace, network: Network, seconds_of: Callable[[Call], float | None]
) -> dict[tuple[Place, Pass], float]:
    prefix = _prefix(trace, network)
    places = _places(network)
    sums: dict[tuple[Place, Pass], float] = defaultdict(float)
    for call in trace:
        if call.phase in _PASSES and (seconds := seconds_of(call)) is not None:
            which = _PASSES[call.phase]
            name = _name(call.module, prefix)
            sums[_place_of_call(call, name, which, places), which] += seconds
    return sums


def _name(module: str, prefix: str) -> str | None:
    """The name of a layer that a module would be in the network; None outside of the network."""
    if module.startswith(prefix):
        return module.removeprefix(prefix)
    return "" if module == prefix.removesuffix(".") else None


def _place_of_call(
    call: Call, name: str | None, which: Pass, places: Mapping[str, Mapping[Pass, set[Place]]]
) -> Place:
    """The layers to which a call belongs: those of its module that run such ops.

    If all layers of a module are of one family, all its calls belong to them.
    """
    inside = places.get(name, {}).get(which, set()) if name is not None else set()
    place = name, family_of(call.op)
    if place in inside:
        return place
    return next(iter(inside)) if len(inside) == 1 else (name, None)


def _places(network: Network) -> dict[str, dict[Pass, set[Place]]]:
    places: dict[str, dict[Pass, set[Place]]] = {}
    for layer in network.layers:
        working = places.setdefault(layer.name, {which: set() for which in Pass})
        for which in Pass:
            if layer.ops(which) or layer.category is None:
                working[which].add(_place(layer))
    return places


def _place(layer: NetworkLayer) -> Place:
    kind = layer.kind
    return layer.name, LayerCategory.CONV if kind is LayerCategory.FC else kind


def read_caffe_time(path: str | Path, network: Network, batch: int) -> LayerTimes:
    """The time of each layer in a log of `caffe time`, which averages over iterations.

    Args:
        path: The log.
        network: The network that was timed, with the layer names of its prototxt.
        batch: The samples in a batch, which the log does not contain.

    Raises:
        InvalidInput: The file is not such a log; the message names the line.
    """
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, not {batch}")
    content = read_bytes(Path(path), prefix=f"cannot read {path}: it ")
    lines = content.decode(errors="replace").splitlines()
    places = {layer.name: _place(layer) for layer in network.layers}
    return _matched(
        network,
        batch,
        {
            (places.get(name, (name, None)), which): seconds
            for (name, which), seconds in _caffe_seconds(lines, str(path)).items()
        },
    )


def _caffe_seconds(lines: Iterable[str], source: str) -> Mapping[tuple[str, Pass], float]:
    seconds: dict[tuple[str, Pass], float] = {}
    in_list, ended = False, set()
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        if _CAFFE_BEGIN in line:
            if in_list:
                raise InvalidInput(
                    f"{where}: a second list of layers; give each log in a separate file"
                )
            in_list = True
        elif in_list and (match := _CAFFE_LINE.search(line)):
            key = match["name"], Pass(match["which"])
            if key in seconds:
                raise InvalidInput(f"{where}: {key[0]} {key[1]} is listed twice")
            seconds[key] = _milliseconds(match["time"], where)
        ended |= {which for which, mark in _CAFFE_END.items() if in_list and mark in line}
    if not in_list:
        raise InvalidInput(f'{source}: no "{_CAFFE_BEGIN}"; this is not a log of `caffe time`')
    if Pass.FORWARD not in ended:
        raise InvalidInput(f"{source}: the log ends before its sums: it was cut off")
    return seconds


def _milliseconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidInput(f"{where}: {text!r} is not a time") from None
    if not (math.isfinite(value) and value >= 0):
        raise InvalidInput(f"{where}: {text} ms is not a time")
    return value * 1e-3


def _prefix(trace: Trace, network: Network) -> str:
    """The text before the layer names in the trace's modules: a class name, or a wrapper's."""
    names = {layer.name for layer in network.layers} - {""}
    if not names:
        return ""  # layers of a profile that does not tell modules
    prefixes = Counter(
        module.removesuffix(name)
        for module in {call.module for call in trace}
        for name in names
        if module == name or module.endswith(f".{name}")
    )
    if not prefixes:
        raise InvalidInput(
            f"no module of this trace is a layer of {network.name}; it has "
            f"{', '.join(sorted({call.module for call in trace} - {''})[:4]) or 'none'}, the "
            f"network {', '.join(sorted(names)[:4])}"
        )
    return max(prefixes, key=lambda prefix: (prefixes[prefix], -len(prefix)))


def _matched(
    network: Network, batch: int, seconds: Seconds, work: LayerWork | None = None
) -> LayerTimes:
    """The layers with their times, and the time that belongs to none of them."""
    shares = _shares(network)
    times, untimed = [], []
    layers = [layer for layer in network.layers if layer.category is not None]
    for layer in layers:
        both = []
        for which in Pass:
            time = seconds.get((_place(layer), which))
            both.append(time * shares[layer, which] if time else None)
        if any(time is not None for time in both):
            times.append(LayerTime(layer, batch, both[0], both[1], work))
        else:
            untimed.append(layer.name)
    if not times:
        raise InvalidInput(f"none of the timed layers is one of {network.name}")
    places = {_place(layer) for layer in layers}
    elsewhere = {
        which: sum(
            time
            for (place, layer_pass), time in seconds.items()
            if layer_pass is which
            and place not in places
            and not _CAFFE_OTHERS.search(place[0] or "")
        )
        for which in Pass
    }
    return LayerTimes(tuple(times), elsewhere, tuple(untimed))


def _shares(network: Network) -> Mapping[tuple[NetworkLayer, Pass], float]:
    """The share of each run in the time of layers that a step runs several times."""
    runs: dict[Place, list[NetworkLayer]] = defaultdict(list)
    for layer in network.layers:
        runs[_place(layer)].append(layer)
    shares = {}
    for layers in runs.values():
        for which in Pass:
            whole = sum(layer.ops(which) for layer in layers)
            for layer in layers:
                shares[layer, which] = layer.ops(which) / whole if whole else 1 / len(layers)
    return shares


EXPERIMENTS: Mapping[str, str] = {
    "power": "power",
    "gpu_number": "gpus",
    "inner_modules": "inner_modules",
    "batch_size": "batch",
}
"""The experiments of the slides, and the axis of `wavecast.Extrapolation` for each."""
SOURCE = (
    "slides of E. Gianniti, L. Zhang, D. Ardagna, Performance Prediction of GPU-based Deep "
    "Learning Applications, CLOSER 2019: the four multi-GPU tables at their end"
)
FILE = "published/multi_gpu.csv"


@dataclass(frozen=True, slots=True)
class PublishedError:
    """One cell of the slides' tables."""

    experiment: str
    network: str
    framework: str
    gpu: str
    """The GPU; empty if the cell is about all of them."""
    gpus: int | None
    """The number of GPUs; None if the cell is about all of them."""
    most_modules: int | None
    """The largest number of inner modules in the fit; None in the other experiments."""
    error: float
    """The mean absolute relative error."""


@functools.cache
def published_errors() -> tuple[PublishedError, ...]:
    """All cells that have a value. VGG-19 was not run on the P600, so two cells have none.

    These are the mean absolute relative errors of multi-GPU models on the slides of Gianniti et al.
    2019, for each axis, network, framework and GPU (`SOURCE`). The slides do not have the times.
    """
    with shipped(FILE).open(newline="", encoding="utf-8") as file:
        return tuple(
            PublishedError(
                row["experiment"],
                row["network"],
                row["framework"],
                row["gpu_type"],
                int(row["n_gpus"]) if row["n_gpus"] else None,
                int(row["max_inner_modules"]) if row["max_inner_modules"] else None,
                float(row["mape_pct"]) / 100,
            )
            for row in csv.DictReader(file)
            if row["mape_pct"]
        )


def errors_of(experiment: str) -> tuple[float, ...]:
    """The errors of one experiment, by its name."""
    if experiment not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise UnknownName(f'there is no experiment "{experiment}"; the slides have {known}')
    return tuple(cell.error for cell in published_errors() if cell.experiment == experiment)


def mean_error(experiment: str) -> float:
    """The mean of an experiment's cells."""
    return statistics.mean(errors_of(experiment))
