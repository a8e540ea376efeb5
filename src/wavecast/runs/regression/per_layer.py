"""The time of a network, from timed layers of another network (Gianniti et al., "Per Layer").

A layer takes t = b0 + b1 * c, where c is its number of operations at the given batch, and b0 and b1
belong to its category and pass. A network takes the sum over its layers, times the iterations. On
GPUs where operations are faster in some layers than in others, the time that op models predict is a
better c (`predicted_work`): the lines then correct those predictions.

    model = PerLayer().fit(times)  # of one network
    model.predict(caffe_net("vgg16"), batch=32).forward_s
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wavecast.errors import InvalidInput, UnknownName
from wavecast.files import write_whole
from wavecast.reading import parse_json, read_bytes
from wavecast.results import Shown
from wavecast.runs.regression import least_squares as least_squares
from wavecast.runs.regression.complexities import Category, Network, NetworkLayer, Pass
from wavecast.runs.regression.least_squares import Method

Key = tuple[Category, Pass]

OPERATIONS = "operations"
"""The unit of work by default, when operations are counted."""


@dataclass(frozen=True)
class LayerWork:
    """The work of each layer at one batch, in a unit other than operations."""

    unit: str
    """The unit of the work."""
    batch: int
    amounts: Mapping[tuple[NetworkLayer, Pass], float]

    def amount(self, layer: NetworkLayer, which: Pass) -> float | None:
        """The work of one pass of a layer; None if it is not known."""
        return self.amounts.get((layer, which))


@dataclass(frozen=True, slots=True)
class LayerTime(Shown):
    """One layer, timed at one batch."""

    layer: NetworkLayer
    batch: int
    forward_s: float | None
    """None if not known."""
    backward_s: float | None
    """None if not known."""
    work: LayerWork | None = None
    """None to use its number of operations."""

    def seconds(self, which: Pass) -> float | None:
        """The time of one pass."""
        return self.forward_s if Pass(which) is Pass.FORWARD else self.backward_s


@dataclass(frozen=True, slots=True)
class Line:
    """The time of a layer: `fixed_s`, and `per_unit_s` for each operation or unit of work."""

    fixed_s: float
    per_unit_s: float
    layers: int | None = None
    """How many timed layers it was fitted on."""
    error: float | None = None
    """The mean size of the relative errors on these layers."""

    def seconds(self, work: float) -> float:
        """The time of a layer with this amount of work."""
        return self.fixed_s + self.per_unit_s * work


@dataclass(frozen=True)
class NetworkTime(Shown):
    """The time of a network, summed over the layers that have a line."""

    network: str
    batch: int
    iterations: int
    parts: Mapping[Key, float]
    """Seconds of all iterations, by category and pass."""
    unpredicted: tuple[str, ...]
    """Layers without a line or a known amount of work, which are not in the sums."""

    @property
    def forward_s(self) -> float:
        """The time of the forward passes, which is the time to classify."""
        return self._sum(Pass.FORWARD)

    @property
    def backward_s(self) -> float:
        """The time of the backward passes."""
        return self._sum(Pass.BACKWARD)

    @property
    def seconds(self) -> float:
        """The time of both passes."""
        return self.forward_s + self.backward_s

    def shares(self, which: Pass) -> dict[Category, float]:
        """The share of each category in the time of one pass."""
        whole = self._sum(which)
        return {
            category: seconds / whole
            for (category, part), seconds in self.parts.items()
            if part == which
        }

    def _sum(self, which: Pass) -> float:
        return sum(seconds for (_, part), seconds in self.parts.items() if part == which)


@dataclass(frozen=True)
class PerLayer:
    """The model of layers; `fit` it on timed layers.

    Args:
        method: What the fit minimises. `Method.ORDINARY` is the method of the paper, with which the
            predicted shares of the fitted network equal the measured ones.

    Example:
        >>> model = PerLayer().fit(times_of_trace(trace, network))
        >>> model.predict(network, batch=64).forward_s
    """

    method: Method | str = Method.RELATIVE_NON_NEGATIVE

    def fit(self, times: Iterable[LayerTime]) -> LayerModel:
        """The lines fitted on timed layers, of one or more networks at one or more batches.

        Layers without a category (loss, concatenation) and passes without a time are left out. So
        is a category whose layers determine no line: `LayerModel.left_out` names it, with the
        reason.

        Raises:
            InvalidInput: No category has a line.
        """
        points: dict[Key, list[tuple[float, float]]] = {}
        units = set()
        for time in times:
            units.add(_unit(time.work))
            for which in Pass:
                seconds, category = time.seconds(which), time.layer.category
                amount = _amount(time.work, time.layer, which, time.batch)
                if category is not None and seconds is not None and amount is not None:
                    points.setdefault((category, which), []).append((amount, seconds))
        if not points:
            raise InvalidInput("no timed layer to learn from")
        if len(units) > 1:
            raise InvalidInput(f"work is counted in one unit, not in {', '.join(sorted(units))}")
        lines, left_out = {}, []
        for key, pairs in points.items():
            table = np.array(pairs)
            if not (table[:, 1] > 0).all():
                raise InvalidInput(f"{_title(key)}: a layer cannot take {table[:, 1].min()} s")
            reason = _undetermined(key, table[:, 0])
            if reason is None:
                lines[key] = self._line(table)
            else:
                left_out.append(reason)
        if not lines:
            raise InvalidInput(f"no category has a line. {'. '.join(left_out)}")
        return LayerModel(lines, "timed layers", units.pop(), tuple(left_out))

    def _line(self, points: np.ndarray) -> Line:
        work, seconds = points.T
        rows = np.stack([np.ones_like(work), work], axis=1)
        fixed, slope = map(float, least_squares.fit(rows, seconds, Method(self.method)).values)
        error = float(np.abs((fixed + slope * work) / seconds - 1).mean())
        return Line(fixed, slope, len(points), error)


def _title(key: Key) -> str:
    return f"{key[0]} {key[1]}"


def _undetermined(key: Key, work: np.ndarray) -> str | None:
    """Why the timed layers of a category determine no line; None if they do."""
    if len(work) < 3:
        return (
            f"{_title(key)}: a line needs three timed layers or more, and there "
            f"{'is' if len(work) == 1 else 'are'} {len(work)}; time another batch"
        )
    if (work == work[0]).all():
        return (
            f"{_title(key)}: all {len(work)} timed layers have the same amount of work; time "
            "another batch"
        )
    return None


@dataclass(frozen=True)
class LayerModel(Shown):
    """A line for each category and pass."""

    lines: Mapping[Key, Line]
    source: str
    """Where the lines come from."""
    unit: str = OPERATIONS
    """The unit of work."""
    left_out: tuple[str, ...] = ()
    """The categories and passes whose layers determined no line, each with the reason."""

    def predict(
        self, network: Network, batch: int, iterations: int = 1, work: LayerWork | None = None
    ) -> NetworkTime:
        """The time of a network, whether or not its layers were in the fit.

        Args:
            network: The network.
            batch: Samples in a batch.
            iterations: How many batches.
            work: The work of its layers at this batch, if it is not their number of operations.
        """
        if self.unit != _unit(work) or (work is not None and work.batch != batch):
            raise InvalidInput(
                f"these lines need the work of each layer at batch {batch} in {self.unit}, not in "
                f"{_unit(work)}{f' at batch {work.batch}' if work else ''}"
            )
        if batch < 1 or iterations < 1:
            raise InvalidInput("batch and iterations must be at least 1")
        parts: dict[Key, float] = {}
        missing = list(network.unknown)
        for layer in network.layers:
            if (category := layer.category) is None:
                continue
            for which in Pass:
                if not layer.ops(which):  # as in the backward pass of a sum
                    parts.setdefault((category, which), 0.0)
                    continue
                line = self.lines.get((category, which))
                amount = _amount(work, layer, which, batch)
                if line is None or amount is None:
                    missing.append(f"{layer.name or network.name} ({category}, {which})")
                    continue
                key = (category, which)
                seconds = iterations * line.seconds(amount)
                parts[key] = parts.get(key, 0.0) + seconds
        time = NetworkTime(network.name, batch, iterations, parts, tuple(missing))
        for which, seconds in ((Pass.FORWARD, time.forward_s), (Pass.BACKWARD, time.backward_s)):
            if seconds < 0:
                raise InvalidInput(
                    f"the lines give {network.name} at batch {batch} a {which} time below 0: its "
                    'layers are far smaller than those timed; fit with method="relative '
                    'non-negative", or time smaller layers'
                )
        return time


def _unit(work: LayerWork | None) -> str:
    return OPERATIONS if work is None else work.unit


def _amount(work: LayerWork | None, layer: NetworkLayer, which: Pass, batch: int) -> float | None:
    return layer.ops(which, batch) if work is None else work.amount(layer, which)


def timed_network(name: str, times: Sequence[LayerTime]) -> NetworkTime:
    """The measured time of a network: the sum of its layers' times at one batch."""
    batches = {time.batch for time in times}
    if len(batches) != 1:
        raise InvalidInput(f"the layers must be timed at one batch, not at {sorted(batches)}")
    parts: dict[Key, float] = {}
    for time in times:
        for which in Pass:
            category, seconds = time.layer.category, time.seconds(which)
            if category is not None and seconds is not None:
                parts[category, which] = parts.get((category, which), 0.0) + seconds
    return NetworkTime(name, batches.pop(), 1, parts, ())


def published(gpu: str) -> LayerModel:
    """The lines with the coefficients that a paper published for a GPU.

    Raises:
        UnknownName: No coefficients are published for the GPU.
    """
    key = gpu.strip().lower().replace(" ", "-")
    if key not in PUBLISHED_GPUS:
        raise UnknownName(
            f'no paper publishes coefficients for "{gpu}"; known: {", ".join(PUBLISHED_GPUS)}'
        )
    return _QUADRO_M6000


def _milliseconds(*rows: tuple[Category, float, float, float, float]) -> dict[Key, Line]:
    lines = {}
    for category, forward_ms, forward_ms_per_op, backward_ms, backward_ms_per_op in rows:
        lines[category, Pass.FORWARD] = Line(forward_ms * 1e-3, forward_ms_per_op * 1e-3)
        lines[category, Pass.BACKWARD] = Line(backward_ms * 1e-3, backward_ms_per_op * 1e-3)
    return lines


_QUADRO_M6000 = LayerModel(
    _milliseconds(
        (Category.CONV_FC, 1.83e-1, 3.43e-10, 3.15e-1, 3.65e-10),
        (Category.NORM, 1.64e-2, 7.11e-9, 1.01e-1, 6.87e-9),
        (Category.POOL_DENSE, 2.23e-2, 1.27e-8, 1.52e-1, 1.93e-8),
        (Category.POOL_STRIDED, 1.44e-2, 1.45e-8, 6.11e-3, 5.67e-8),
        (Category.RELU_DROP, 8.91e-3, 1.17e-8, 1.18e-2, 1.33e-8),
    ),
    source="Gianniti, Zhang and Ardagna, CLOSER 2019, slides: Quadro M6000, on GoogLeNet",
)
"""Milliseconds, and milliseconds per operation, as published: forward, then backward."""
PUBLISHED_GPUS = ("quadro-m6000-12gb", "quadro-m6000")
"""The GPUs with published coefficients. The paper's table 1 gives its M6000 12 GB."""


# Files of fitted lines: a per-layer model as JSON, so that others need not fit it again.
#
# A file is one object: "format", "version", "source", "unit", "left_out", and "lines", each with
# its category, pass, seconds, seconds per unit of work, and how it was fitted.


FORMAT = "wavecast-layers"
VERSION = 1
_LARGEST_BYTES = 1 << 20
_FIELDS = {"format", "version", "source", "unit", "left_out", "lines"}


def lines_as_records(model: LayerModel) -> list[dict[str, Any]]:
    """The lines of a model as plain data."""
    return [
        {
            "category": str(category),
            "pass": str(which),
            "fixed_s": line.fixed_s,
            "per_unit_s": line.per_unit_s,
            "layers": line.layers,
            "error": line.error,
        }
        for (category, which), line in model.lines.items()
    ]


def write_lines(path: Path, model: LayerModel) -> None:
    """Write the lines of a model as JSON."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "source": model.source,
        "unit": model.unit,
        "left_out": list(model.left_out),
        "lines": lines_as_records(model),
    }
    write_whole(path, json.dumps(content, indent=1) + "\n")


def read_lines(path: str | Path) -> LayerModel:
    """The model in a file that `write_lines` wrote.

    Raises:
        InvalidInput: it is not such a file; says why.
    """
    prefix = f"cannot read the lines {path}: it "
    content = read_bytes(Path(path), _LARGEST_BYTES, prefix=prefix)
    document = parse_json(content, unique=True, prefix=prefix)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidInput(f'{prefix}was not written by "wavecast layers fit"')
    if document.get("version") != VERSION or set(document) != _FIELDS:
        raise InvalidInput(
            f"{prefix}is of version {document.get('version')!r}, and {VERSION} is known; fit again"
        )
    try:
        lines = dict(map(_line, document["lines"]))
        texts = [document["source"], document["unit"], *document["left_out"]]
        if not lines or not all(isinstance(text, str) for text in texts):
            raise ValueError("it has no line, or a text is missing")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"{prefix}is damaged ({error}); fit again") from None
    return LayerModel(lines, document["source"], document["unit"], tuple(document["left_out"]))


def _line(record: dict[str, Any]) -> tuple[Key, Line]:
    numbers = record["fixed_s"], record["per_unit_s"]
    if not all(isinstance(number, int | float) for number in numbers):
        raise ValueError(f"{numbers} are not two numbers")
    key = Category(record["category"]), Pass(record["pass"])
    return key, Line(float(numbers[0]), float(numbers[1]), record["layers"], record["error"])
