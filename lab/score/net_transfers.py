"""How well do lines fitted on one network of the suite predict another, in all categories?

`python -m lab score run_models` writes the tables into docs/appendix/runs-layers.md. Unlike in
`lab.score.layer_models`, networks are read from measured traces, and all categories count: batch
and layer norm, attention, embeddings, activation functions and sums beside the published five.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import permutations

import wavecast
from lab.measured import campaigns
from lab.pages import heading
from lab.score.layer_models import GPU, WAYS, Way, summed
from wavecast.errors import InvalidInput
from wavecast.predictors.learned.predictor import Learned
from wavecast.runs.regression.complexities import Network, network_of_trace
from wavecast.runs.regression.layer_times import LayerTimes, predicted_work, times_of_trace
from wavecast.runs.regression.per_layer import LayerWork, PerLayer, timed_network
from wavecast.traces.step import Phase, Trace

FAMILIES = {
    "convolutional": {
        "resnet50": (16, 64),
        "inception-v3": (16, 64),
        "googlenet": (8, 32),
        "vgg16": (16, 64),
    },
    "transformers": {
        "bert-base": (8, 32),
        "gpt2": (2, 8),
        "vit": (16, 64),
        "transformer": (16, 64),
    },
}
"""Networks of the suite, with the smallest and the largest batch at which each was measured."""
PRECISIONS = ("fp32", "bf16")


@cache
def step(net: str, batch: int, precision: str) -> Trace:
    """A measured step of the suite."""
    return campaigns.traces("suite")[f"{net}-b{batch}-{precision}"]


@cache
def network(net: str, batch: int, precision: str) -> Network:
    """The layers of a step."""
    return network_of_trace(step(net, batch, precision), batch=batch, name=net)


@cache
def work(net: str, batch: int, precision: str) -> LayerWork:
    """The time that the op models predict for each layer of a step."""
    trace, layers = step(net, batch, precision), network(net, batch, precision)
    return predicted_work(trace, layers, wavecast.device(GPU), Learned.shipped(), batch)


@cache
def times(net: str, batch: int, precision: str, predicted: bool) -> LayerTimes:
    """The measured times of a step's layers."""
    amounts = work(net, batch, precision) if predicted else None
    trace, layers = step(net, batch, precision), network(net, batch, precision)
    return times_of_trace(trace, layers, batch, amounts)


def pairs() -> Iterator[tuple[str, str]]:
    """All ordered pairs of networks of one family."""
    for nets in FAMILIES.values():
        yield from permutations(nets, 2)


def batches(net: str) -> tuple[int, int]:
    """The batches of a network."""
    return next(nets[net] for nets in FAMILIES.values() if net in nets)


def transferred(source: str, target: str, batch: int, precision: str, way: Way) -> float | None:
    """The error over the layers for which the source gives a line; None for a time below 0."""
    timed = [times(source, size, precision, way.predicted) for size in batches(source)]
    model = PerLayer(way.method).fit(time for layer_times in timed for time in layer_times)
    given = work(target, batch, precision) if way.predicted else None
    try:
        predicted = model.predict(network(target, batch, precision), batch, work=given)
    except InvalidInput:
        return None
    actual = timed_network(target, times(target, batch, precision, way.predicted).times)
    covered = sum(seconds for key, seconds in actual.parts.items() if key in predicted.parts)
    return predicted.seconds / covered - 1


def covered(source: str, target: str, batch: int, precision: str) -> float:
    """The share of forward and backward time for which the source gives a line."""
    timed = [times(source, size, precision, predicted=False) for size in batches(source)]
    model = PerLayer().fit(time for layer_times in timed for time in layer_times)
    actual = timed_network(target, times(target, batch, precision, predicted=False).times)
    known = sum(seconds for key, seconds in actual.parts.items() if key in model.lines)
    passes = (Phase.FORWARD, Phase.BACKWARD)
    calls = [call for call in step(target, batch, precision) if call.phase in passes]
    return known / sum(kernel.seconds for call in calls for kernel in call.kernels)


def table(precision: str) -> str:
    """The error of each way to predict, for each pair of networks, at the largest batch."""
    lines = [
        *heading(
            f"fitted on | applied to | batch | {' | '.join(way.name for way in WAYS)} | covered",
            "ll",
        ),
    ]
    rows = {
        (source, target, batch): [
            transferred(source, target, batch, precision, way) for way in WAYS
        ]
        for source, target in pairs()
        for batch in batches(target)[1:]
    }
    for (source, target, batch), errors in rows.items():
        share = covered(source, target, batch, precision)
        cells = " | ".join("below 0" if error is None else f"{error:+.1%}" for error in errors)
        lines.append(f"| {source} | {target} | {batch} | {cells} | {share:.0%} |")
    for family, nets in FAMILIES.items():
        inside = [errors for (source, *_), errors in rows.items() if source in nets]
        columns = [[row[index] for row in inside] for index in range(len(WAYS))]
        sums = [summed([error for error in column if error is not None]) for column in columns]
        lines.append(f"| **{family}** | | | {' | '.join(sums)} | |")
    return "\n".join(lines)
