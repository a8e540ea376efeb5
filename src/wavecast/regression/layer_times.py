"""Times of layers: from a step measured on a GPU, or from the log of `caffe time`."""

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
from wavecast.regression.complexities import Network, NetworkLayer, Pass
from wavecast.regression.per_layer import LayerTime, LayerWork
from wavecast.traces.step import Call, Phase, Trace

_PASSES = {Phase.FORWARD: Pass.FORWARD, Phase.BACKWARD: Pass.BACKWARD}
_CAFFE_LINE = re.compile(r"\]\s+(?P<name>\S+)\s+(?P<which>forward|backward): (?P<time>\S+) ms\.")
_CAFFE_BEGIN = "Average time per layer:"
_CAFFE_END = {Pass.FORWARD: "Average Forward pass:", Pass.BACKWARD: "Average Backward pass:"}
# What Caffe adds, or what is no work of the GPU's.
_CAFFE_OTHERS = re.compile(r"(_split(_\d+)?|^data|^label|^input)$")

Seconds = Mapping[tuple[str, Pass], float]
"""By layer and direction."""


@dataclass(frozen=True)
class LayerTimes:
    """The timed layers of a network at one batch, and the time that is in none of them."""

    times: tuple[LayerTime, ...]
    elsewhere_s: Mapping[Pass, float]
    """Of each direction: losses, concatenations, functions that are no module."""
    untimed: tuple[str, ...]
    """Layers that have a coefficient but no time."""

    def __iter__(self) -> Iterator[LayerTime]:
        return iter(self.times)


def times_of_trace(
    trace: Trace, network: Network, batch: int | None = None, work: LayerWork | None = None
) -> LayerTimes:
    """The time of each layer in a measured step: that of its kernels.

    Args:
        trace: from `wavecast.measure`, or read from a profile that has modules.
        network: the module that the step ran (`network_of`).
        batch: samples of the step; what the trace says if not given.
        work: of each layer (`predicted_work`), if not its operations.

    Raises:
        InvalidInput: the step was not measured, or has none of the layers.
    """
    size = _batch(trace, batch)
    if not any(call.kernels for call in trace):
        raise InvalidInput(
            "no kernel of this trace has a time: measure the step (wavecast.measure)"
        )
    measured = _summed(
        trace, network, lambda call: sum(each.seconds for each in call.kernels) or None
    )
    return _matched(network, size, measured, work)


def predicted_work(
    trace: Trace,
    network: Network,
    gpu: Device,
    predictor: Predictor,
    batch: int | None = None,
) -> LayerWork:
    """What a predictor of ops says each layer takes on a GPU, as the work of a per-layer model.

    Args:
        trace: a step of the network, traced without a GPU or measured; only its ops are looked at.
        network: the module that the step runs (`network_of`).
        gpu: the GPU whose layers are, or were, timed.
        predictor: of ops.
        batch: samples of the step; what the trace says if not given.
    """

    def seconds(call: Call) -> float | None:
        found = predictor.predict(call.op, gpu)
        return None if found is None else found.seconds

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
        raise InvalidInput("this trace does not say its batch: give it")
    return size


def _summed(
    trace: Trace, network: Network, seconds_of: Callable[[Call], float | None]
) -> dict[tuple[str, Pass], float]:
    """Times of calls, by layer and direction; what belongs to no layer is under an empty name."""
    prefix = _prefix(trace, network)
    found: dict[tuple[str, Pass], float] = defaultdict(float)
    for call in trace:
        if call.phase in _PASSES and (seconds := seconds_of(call)) is not None:
            name = call.module.removeprefix(prefix) if call.module.startswith(prefix) else ""
            found[name, _PASSES[call.phase]] += seconds
    return found


def read_caffe_time(path: str | Path, network: Network, batch: int) -> LayerTimes:
    """The time of each layer in the log that `caffe time` printed (its average over iterations).

    Args:
        path: the log.
        network: the network it timed, with the names of its prototxt.
        batch: samples in a batch; the log does not say.

    Raises:
        InvalidInput: the log is not what it should be; says in which line.
    """
    if batch < 1:
        raise InvalidInput(f"batch must be at least 1, not {batch}")
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    return _matched(network, batch, _caffe_seconds(lines, str(path)))


def _caffe_seconds(lines: Iterable[str], source: str) -> Seconds:
    found: dict[tuple[str, Pass], float] = {}
    begun, ended = False, set()
    for number, line in enumerate(lines, start=1):
        where = f"{source}, line {number}"
        if _CAFFE_BEGIN in line:
            if begun:
                raise InvalidInput(f"{where}: a second list of layers; give each log by itself")
            begun = True
        elif begun and (match := _CAFFE_LINE.search(line)):
            key = match["name"], Pass(match["which"])
            if key in found:
                raise InvalidInput(f"{where}: {key[0]} {key[1]} is there twice")
            found[key] = _milliseconds(match["time"], where)
        ended |= {which for which, mark in _CAFFE_END.items() if begun and mark in line}
    if not begun:
        raise InvalidInput(f'{source}: no "{_CAFFE_BEGIN}"; this is no log of `caffe time`')
    if Pass.FORWARD not in ended:
        raise InvalidInput(f"{source}: the log ends before its sums: it was cut off")
    return found


def _milliseconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidInput(f"{where}: {text!r} is no time") from None
    if not (math.isfinite(value) and value >= 0):
        raise InvalidInput(f"{where}: {text} ms is no time")
    return value * 1e-3


def _prefix(trace: Trace, network: Network) -> str:
    """What the trace puts before the names of the network's layers: its class, or a wrapper."""
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
    return max(prefixes, key=lambda each: (prefixes[each], -len(each)))


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
            for (name, each), time in seconds.items()
            if each is which and name not in repeated and not _CAFFE_OTHERS.search(name)
        )
        for which in Pass
    }
    return LayerTimes(tuple(times), elsewhere, tuple(untimed))


def _share(network: Network, name: str) -> Mapping[tuple[NetworkLayer, Pass], float]:
    """Of a module that runs several times in a step, how much of its time each run takes."""
    layers = [layer for layer in network.layers if layer.name == name]
    shares = {}
    for which in Pass:
        whole = sum(layer.ops(which) for layer in layers)
        for layer in layers:
            shares[layer, which] = layer.ops(which) / whole if whole else 1 / len(layers)
    return shares
