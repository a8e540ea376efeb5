"""Times of layers, from a step measured on a GPU or from the log of `caffe time`."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from wavecast.errors import InvalidInput
from wavecast.hardware.device import Device
from wavecast.predictors.base import Predictor
from wavecast.reading import read_bytes
from wavecast.regression.complexities import Network, NetworkLayer, Pass
from wavecast.regression.per_layer import LayerTime, LayerWork
from wavecast.traces.step import Call, Phase, Trace

_PASSES = {Phase.FORWARD: Pass.FORWARD, Phase.BACKWARD: Pass.BACKWARD}
_CAFFE_LINE = re.compile(r"\]\s+(?P<name>\S+)\s+(?P<which>forward|backward): (?P<time>\S+) ms\.")
_CAFFE_BEGIN = "Average time per layer:"
_CAFFE_END = {Pass.FORWARD: "Average Forward pass:", Pass.BACKWARD: "Average Backward pass:"}
# Layers that Caffe adds, or that do not run on the GPU.
_CAFFE_OTHERS = re.compile(r"(_split(_\d+)?|^data|^label|^input)$")

Seconds = Mapping[tuple[str, Pass], float]
"""Seconds by layer and pass."""


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
    size = _batch(trace, batch)
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
    shares = {layer.name: _share(network, layer.name) for layer in network.layers}
    return LayerWork(
        unit=f"predicted seconds on {gpu.id}",
        batch=_batch(trace, batch),
        amounts={
            (layer, which): amount * shares[layer.name][layer, which]
            for layer in network.layers
            for which in Pass
            if (amount := amounts.get((layer.name, which)))
        },
    )


def _batch(trace: Trace, batch: int | None) -> int:
    size = batch if batch is not None else trace.samples
    if size is None or size < 1:
        raise InvalidInput("this trace does not say its batch: pass batch=...")
    return size


def _summed(
    trace: Trace, network: Network, seconds_of: Callable[[Call], float | None]
) -> dict[tuple[str, Pass], float]:
    """Seconds of calls by layer and pass; calls outside of all layers have an empty name."""
    prefix = _prefix(trace, network)
    sums: dict[tuple[str, Pass], float] = defaultdict(float)
    for call in trace:
        if call.phase in _PASSES and (seconds := seconds_of(call)) is not None:
            name = call.module.removeprefix(prefix) if call.module.startswith(prefix) else ""
            sums[name, _PASSES[call.phase]] += seconds
    return sums


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
    return _matched(network, batch, _caffe_seconds(lines, str(path)))


def _caffe_seconds(lines: Iterable[str], source: str) -> Seconds:
    seconds: dict[tuple[str, Pass], float] = {}
    begun, ended = False, set()
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        if _CAFFE_BEGIN in line:
            if begun:
                raise InvalidInput(
                    f"{where}: a second list of layers; give each log in a separate file"
                )
            begun = True
        elif begun and (match := _CAFFE_LINE.search(line)):
            key = match["name"], Pass(match["which"])
            if key in seconds:
                raise InvalidInput(f"{where}: {key[0]} {key[1]} is listed twice")
            seconds[key] = _milliseconds(match["time"], where)
        ended |= {which for which, mark in _CAFFE_END.items() if begun and mark in line}
    if not begun:
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
    names = {layer.name for layer in network.layers}
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
    repeated = {name: _share(network, name) for name in {layer.name for layer in network.layers}}
    times, untimed = [], []
    for layer in network.layers:
        shares = repeated[layer.name]
        both = []
        for which in Pass:
            time = seconds.get((layer.name, which))
            both.append(time * shares[layer, which] if time else None)
        if any(time is not None for time in both):
            times.append(LayerTime(layer, batch, both[0], both[1], work))
        elif layer.category is not None:
            untimed.append(layer.name)
    if not times:
        raise InvalidInput(f"none of the timed layers is one of {network.name}")
    elsewhere = {
        which: sum(
            time
            for (name, layer_pass), time in seconds.items()
            if layer_pass is which and name not in repeated and not _CAFFE_OTHERS.search(name)
        )
        for which in Pass
    }
    return LayerTimes(tuple(times), elsewhere, tuple(untimed))


def _share(network: Network, name: str) -> Mapping[tuple[NetworkLayer, Pass], float]:
    """The share of each run in the time of a module that runs several times in a step."""
    layers = [layer for layer in network.layers if layer.name == name]
    shares = {}
    for which in Pass:
        whole = sum(layer.ops(which) for layer in layers)
        for layer in layers:
            shares[layer, which] = layer.ops(which) / whole if whole else 1 / len(layers)
    return shares
