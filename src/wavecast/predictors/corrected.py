"""Predictions of ops that the user's own measured steps and layers correct, for his GPU.

A measured step, or a sweep of single layers, says how far off its predicted ops are. What that says
about other ops is in `wavecast.predictors.corrected`; here it is learned, kept and used.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.errors import InvalidInput, prefixed
from wavecast.files import config_folder, read_toml, shipped_toml, toml_text, write_checked
from wavecast.hardware.devices import Device, user_files
from wavecast.predictors.base import Estimate, Familiarity, Predictor
from wavecast.predictors.learned.batch import readable_parts
from wavecast.predictors.learned.columns import Row, columns_of
from wavecast.predictors.learned.gpus import Floats, GpuFacts, gpu_of
from wavecast.predictors.learned.model import FEATURES
from wavecast.predictors.learned.predictor import Learned
from wavecast.reading import day, refuse_unknown, text_of
from wavecast.traces.step import Op, Trace

VARIABLE = "WAVECAST_CORRECTIONS"
"""The environment variable that names further files, such as those that a team shares."""
MOST_OPS = 150
"""The ops of a step that are kept: those that are predicted to take longest."""
MOST_ROWS = 5000
"""The ops of all steps, and of a sweep, that are kept: learning takes the cube of their number."""
_FAVOURED_S = 2e-6, 50e-6
"""They are kept with chances in proportion to their predicted times between these."""
NONE = "-"
"""What a file says for an op without a model, and without features."""
_MOST_BYTES = 1 << 22
_KEYS = ("gpu", "date", "steps", "ops", "swept")


@dataclass(frozen=True)
class Corrected(Predictor):
    """A predictor whose answers are corrected on GPUs whose user has measured steps or layers."""

    base: Predictor
    corrections: Mapping[str, Corrections]
    """By the id of the GPU."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The time of one op."""
        return self.predict_all((op,), device)[0]

    def predict_all(self, given: Sequence[Op], device: Device) -> Sequence[Estimate | None]:
        """The time of each op, not below the physical bound."""
        answers = self.base.predict_all(given, device)
        corrections = self.corrections.get(device.id)
        if corrections is None:
            return answers
        known = [n for n, answer in enumerate(answers) if answer is not None]
        kept = [answers[n] for n in known]
        seconds = [answer.seconds for answer in kept if answer is not None]
        asked = places([given[n] for n in known], seconds, gpu_of(device))
        factors = dict(zip(known, corrections.factors(asked).tolist(), strict=True))
        least = Learned.shipped().least_s(given, device)
        return [
            None if answer is None else _scaled(answer, factors[n], least[n])
            for n, answer in enumerate(answers)
        ]

    def familiarity(self, device: Device) -> Familiarity | None:
        """How well the predictor that is corrected knows a GPU."""
        return self.base.familiarity(device)

    def assumptions(self, device: Device) -> tuple[str, ...]:
        """What the predictor that is corrected assumes, and what corrects it."""
        own = self.corrections.get(device.id)
        assumed = tuple(self.base.assumptions(device))
        if own is None:
            return assumed
        said = f"op times are corrected by {own.counted} that you measured ({own.day})"
        return (*assumed, said)


def _scaled(answer: Estimate, factor: float, least_s: float) -> Estimate:
    """An answer times a factor, where the physical bound allows it."""
    seconds = max(answer.seconds * factor, min(least_s, answer.seconds))
    low_s = max(answer.low_s * factor, min(least_s, answer.low_s))
    return replace(
        answer,
        seconds=seconds,
        low_s=min(low_s, seconds),
        high_s=max(answer.high_s * factor, seconds),
    )


# Learning.


def learn(
    traces: Sequence[Trace], device: Device, predictor: Predictor, *, swept: Sequence[Trace] = ()
) -> Corrections:
    """The corrections of a predictor for a GPU, from what was measured on it.

    Raises:
        InvalidInput: a step has no op that was both measured and predicted.
    """
    steps = [row for trace in traces for row in _longest(_errors(trace, device, predictor))]
    layers = [row for trace in swept for _, row in _errors(trace, device, predictor)]
    return Corrections(device.id, date.today(), len(traces), _sample(steps), _sample(layers))


def _longest(errors: Sequence[tuple[float, OpOff]]) -> list[OpOff]:
    return [row for _, row in sorted(errors, key=lambda error: -error[0])[:MOST_OPS]]


def _sample(rows: Sequence[OpOff]) -> tuple[OpOff, ...]:
    """The ops that are kept; the same for the same measurements."""
    draw, (short_s, long_s) = random.Random(0), _FAVOURED_S
    chances = [min(max(row.place.seconds, short_s), long_s) for row in rows]
    turns = [draw.expovariate(1.0) / chance for chance in chances]
    first = sorted(range(len(rows)), key=turns.__getitem__)[:MOST_ROWS]
    return tuple(rows[n] for n in sorted(first))


def _errors(trace: Trace, device: Device, predictor: Predictor) -> list[tuple[float, OpOff]]:
    """The predicted time of each op in a whole step, and how far off it is."""
    pairs = measured_and_predicted(trace, device, predictor)
    given = [op for op, _, _ in pairs]
    answers = predictor.predict_all(given, device)
    seconds = [float(f"{answer.seconds:.4g}") for answer in answers if answer is not None]
    errors = []
    for place, (_, measured_s, predicted_s) in zip(
        places(given, seconds, gpu_of(device)), pairs, strict=True
    ):
        off = min(max(math.log(measured_s / predicted_s), -MOST_OFF), MOST_OFF)
        errors.append((predicted_s, OpOff(place, round(off, 4))))
    return errors


def measured_and_predicted(
    trace: Trace, device: Device, predictor: Predictor
) -> list[tuple[Op, float, float]]:
    """Each op of a measured step that can be predicted, with both times in the step.

    Raises:
        InvalidInput: there is none.
    """
    measured: dict[Op, float] = defaultdict(float)
    counts: dict[Op, int] = defaultdict(int)
    for call in trace:
        if call.kernels and ops.launches(call.op):
            measured[call.op] += sum(kernel.seconds for kernel in call.kernels)
            counts[call.op] += 1
    given = tuple(measured)
    pairs = [
        (op, measured[op], counts[op] * answer.seconds)
        for op, answer in zip(given, predictor.predict_all(given, device), strict=True)
        if answer is not None and measured[op] > 0
    ]
    if not pairs:
        raise InvalidInput(
            "no op of the step has a measured time and a predicted one; give a trace from "
            '"wavecast measure" or a file of torch.profiler with shapes'
        )
    return pairs


# Files.


def folder() -> Path:
    """The folder of the user's corrections."""
    return config_folder() / "corrections"


def save(corrections: Corrections, path: Path) -> None:
    """Write corrections, all or nothing."""
    table = {
        "gpu": corrections.gpu,
        "date": corrections.day,
        "steps": corrections.steps,
        "ops": [_written(row) for row in corrections.errors],
        "swept": [_written(row) for row in corrections.swept],
    }
    write_checked(path, toml_text(table), read)


def keep(learned: Corrections, path: Path) -> Corrections:
    """Write corrections, with what the file has of the other sort: of steps, or of a sweep.

    So steps replace steps, a sweep replaces a sweep, and the file is all that is known of the GPU.

    Raises:
        InvalidInput: the file is there but is damaged, or is of another GPU.
    """
    if path.exists():
        before = read(path)
        if before.gpu != learned.gpu:
            raise InvalidInput(f"{path} has corrections for {before.gpu}, not for {learned.gpu}")
        if not learned.swept:
            learned = replace(learned, swept=before.swept)
        if not learned.errors:
            learned = replace(learned, steps=before.steps, errors=before.errors)
    save(learned, path)
    return learned


def read(path: Path) -> Corrections:
    """The corrections in a file.

    Raises:
        InvalidInput: the file cannot be read, or has no corrections; says which key and why.
    """
    with prefixed(f"{path}: "):
        table = read_toml(path, _MOST_BYTES)
        refuse_unknown(table, _KEYS, "corrections")
        learned_on, steps = day(table.get("date"), "date"), table.get("steps")
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 0:
            raise InvalidInput(f"steps must be a whole number of at least 0, not {steps!r}")
        errors, swept = (_rows(table, key) for key in ("ops", "swept"))
        if not errors and not swept:
            raise InvalidInput("ops or swept must be a list of rows")
        return Corrections(text_of(table, "gpu"), learned_on, steps, errors, swept)


def _rows(table: Mapping[str, Any], key: str) -> tuple[OpOff, ...]:
    rows = table.get(key, [])
    if not isinstance(rows, list) or len(rows) > MOST_ROWS:
        raise InvalidInput(f"{key} must be a list of at most {MOST_ROWS} rows")
    return tuple(map(_row, rows))


def _written(row: OpOff) -> str:
    at = row.place
    features = ",".join(f"{feature:.10g}" for feature in at.features)
    return f"{row.off} {at.seconds} {at.kind} {at.model or NONE} {features or NONE} {at.name}"


def _row(row: Any) -> OpOff:
    """One op of a file."""
    match row.split(" ", 5) if isinstance(row, str) else ():
        case [off, seconds, kind, model, features, name]:
            model = "" if model == NONE else model
            places_of = () if features == NONE else tuple(map(_number, features.split(",")))
            place = OpPlace(kind, name, model, places_of, _number(seconds))
            error = OpOff(place, _number(off))
            known = len(place.features) == len(scales().get(model, ()))
            finite = all(map(math.isfinite, (*place.features, place.seconds, error.off)))
            if known and finite and place.seconds > 0 and abs(error.off) <= MOST_OFF:
                return error
    raise InvalidInput(
        f'a row is "LOGARITHM SECONDS KIND MODEL FEATURES OP": the logarithm of the error, up to '
        f"{MOST_OFF:g}, the predicted time, and where the op is, not {str(row)[:100]!r}; files of "
        "other versions of Wavecast have other features: measure and learn again"
    )


def _number(text: str) -> float:
    """A number below 1e9; otherwise one that is not finite."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if abs(number) < 1e9 else math.nan


def kept() -> dict[str, Corrections]:
    """The corrections in the user's folder and in $WAVECAST_CORRECTIONS, by the id of the GPU.

    Files of one GPU count together.
    """
    files = user_files(folder(), VARIABLE)
    return _read_once(tuple((path, path.stat().st_mtime_ns) for path in files))


@lru_cache(maxsize=4)
def _read_once(files: tuple[tuple[Path, int], ...]) -> dict[str, Corrections]:
    """The corrections in files, cached until the modification time of one is another."""
    corrections: dict[str, Corrections] = {}
    for path, _ in files:
        own = read(path)
        corrections[own.gpu] = corrections[own.gpu] | own if own.gpu in corrections else own
    return corrections


# What ops that the user measured say about the predictions of other ops on the same GPU.
#
# Logarithms of measured over predicted time are taken as a Gaussian process (Rasmussen and
# Williams, "Gaussian Processes for Machine Learning", 2006, equation 2.23). Ops err alike if the
# op model sees them alike, and more so if they are the same op: the features of its trees
# (`learned.model`) are the places of the process. Ops without features err alike if they are of
# one kind and take about as long. The correction of an op is the mean of the process, given what
# was measured. So an op that is like none that was measured keeps its prediction, and what a
# single op says is shrunk. `lab.score.corrections` says what this is worth.


MODEL_SPREAD, NAME_SPREAD = 0.35, 0.2
"""How much ops of one model, and the same op, err alike where their features are equal: standard
deviations of logarithms. These and the constants below were fitted by maximum likelihood on swept
layers, and noise and times then chosen on steps that `lab.score.corrections` does not score."""
FEATURE_LENGTH = 4.5
"""The distance between features at which ops are no longer alike. Each feature counts in units of
its standard deviation over swept layers (`data/models/corrections.toml`)."""
KIND_SPREAD, OP_SPREAD = 0.15, 0.1
"""How much ops without features of one kind, and the same op, err alike if they take equally
long."""
TIME_LENGTH = 2.5
"""The difference of the logarithms of times at which they no longer do."""
NOISE = 0.2
"""What a single op is off by chance."""
SHORT_S = 3e-6
"""An op that takes this long has twice the variance of a long one."""
MOST_OFF = 1.0
"""Logarithms beyond this are cut off: such an op was not understood."""


@dataclass(frozen=True)
class OpPlace:
    """What the correction of an op depends on."""

    kind: str
    """Its kind and unit ("matmul/bf16_tensor")."""
    name: str
    model: str
    """The op model of its first part ("convolution"); empty if no sweep has such ops."""
    features: tuple[float, ...]
    """The features by which the trees of that model know it."""
    seconds: float
    """Its predicted time. The measured one would not do: of two ops that were predicted alike, the
    slower would count as the larger, and corrections would be too long."""


@dataclass(frozen=True)
class OpOff:
    """How far off the prediction of a measured op was."""

    place: OpPlace
    off: float
    """The logarithm of measured over predicted time."""


def places(given: Sequence[Op], seconds: Sequence[float], gpu: GpuFacts | None) -> list[OpPlace]:
    """What the corrections of ops depend on, given their predicted times on a GPU."""
    known = {} if gpu is None else features_of(given, gpu)
    positions = []
    for number, (op, predicted) in enumerate(zip(given, seconds, strict=True)):
        model, features = known.get(number, ("", ()))
        if model not in scales():
            model, features = "", ()
        positions.append(
            OpPlace(f"{ops.kind(op)}/{ops.unit(op)}", op.base, model, features, predicted)
        )
    return positions


def features_of(given: Sequence[Op], gpu: GpuFacts) -> dict[int, tuple[str, tuple[float, ...]]]:
    """The op model of the first part of each op, and its features there, by the op's position."""
    rows: dict[str, dict[int, Row]] = {}
    for number, op in enumerate(given):
        parts = readable_parts(op) if ops.launches(op) else None
        if parts:
            rows.setdefault(parts[0].model, {})[number] = parts[0].row
    features_by_op: dict[int, tuple[str, tuple[float, ...]]] = {}
    for model, of_model in rows.items():
        with np.errstate(all="ignore"):
            features = FEATURES[model](columns_of(list(of_model.values())), gpu)
        values = np.nan_to_num(features).round(2).tolist()
        features_by_op |= {n: (model, tuple(row)) for n, row in zip(of_model, values, strict=True)}
    return features_by_op


@dataclass(frozen=True)
class Corrections:
    """What measured ops say about the predictions for one GPU."""

    gpu: str
    """The id of the GPU."""
    day: date
    """The day on which they were learned."""
    steps: int
    """The number of measured steps."""
    errors: tuple[OpOff, ...] = field(repr=False)
    """The ops of these steps."""
    swept: tuple[OpOff, ...] = field(default=(), repr=False)
    """Ops of single layers that a sweep measured."""

    @property
    def counted(self) -> str:
        """What was measured, in words: "3 steps and 5000 single ops"."""
        counts = (self.steps, "step"), (len(self.swept), "single op")
        return " and ".join(f"{n} {what}{'s' * (n > 1)}" for n, what in counts if n)

    def factors(self, asked: Sequence[OpPlace]) -> Floats:
        """The time of each op over its predicted time."""
        factors = np.ones(len(asked))
        for model, (known, weights) in self._weights.items():
            rows = [n for n, place in enumerate(asked) if place.model == model]
            if rows:
                some = [asked[n] for n in rows]
                factors[rows] = np.exp(_alike(some, known) @ weights)
        return factors

    def __or__(self, other: Corrections) -> Corrections:
        """What both say of their GPU. What they have in common counts once."""
        common = bool(set(self.errors) & set(other.errors))
        return Corrections(
            self.gpu,
            max(self.day, other.day),
            max(self.steps, other.steps) if common else self.steps + other.steps,
            tuple(dict.fromkeys((*self.errors, *other.errors))),
            tuple(dict.fromkeys((*self.swept, *other.swept))),
        )

    @cached_property
    def _weights(self) -> dict[str, tuple[list[OpPlace], Floats]]:
        """The measured ops of each model, and by how much each of them counts."""
        return dict(self._solved())

    def _solved(self) -> Iterator[tuple[str, tuple[list[OpPlace], Floats]]]:
        every = (*self.errors, *self.swept)
        for model in dict.fromkeys(row.place.model for row in every):
            rows = [row for row in every if row.place.model == model]
            known = [row.place for row in rows]
            noise = [NOISE**2 * (1 + SHORT_S / place.seconds) for place in known]
            off = np.array([row.off for row in rows])
            yield model, (known, np.linalg.solve(_alike(known, known) + np.diag(noise), off))


def _alike(some: Sequence[OpPlace], others: Sequence[OpPlace]) -> Floats:
    """The covariance of the errors of ops of one model: a row for each of some."""
    name = _equal([off.name for off in some], [off.name for off in others])
    if some[0].features:
        near: Floats = np.exp(-_distance(some, others) / FEATURE_LENGTH)
        return near * (MODEL_SPREAD**2 + NAME_SPREAD**2 * name)
    kind = _equal([off.kind for off in some], [off.kind for off in others])
    left, right = (np.log([off.seconds for off in those]) for those in (some, others))
    timely: Floats = np.exp(-((left[:, None] - right[None]) ** 2) / (2 * TIME_LENGTH**2))
    return timely * (KIND_SPREAD**2 * kind + OP_SPREAD**2 * name)


def _equal(names: Sequence[str], with_names: Sequence[str]) -> NDArray[np.bool_]:
    numbers = {name: n for n, name in enumerate(dict.fromkeys((*names, *with_names)))}
    left, right = (np.array([numbers[name] for name in those]) for those in (names, with_names))
    same: NDArray[np.bool_] = left[:, None] == right[None]
    return same


def _distance(some: Sequence[OpPlace], others: Sequence[OpPlace]) -> Floats:
    """How far apart the features of ops are."""
    scale = scales()[some[0].model]
    left, right = (np.array([off.features for off in those]) / scale for those in (some, others))
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2 * left @ right.T
    distance: Floats = np.sqrt(np.maximum(squares, 0.0))
    return distance


@cache
def scales() -> Mapping[str, Floats]:
    """The standard deviation of each feature over swept layers, by op model.

    It is infinite for a feature that did not vary.
    """
    shipped = shipped_toml("models/corrections.toml")["scales"]
    return {
        model: np.array([scale if scale > 0 else math.inf for scale in known])
        for model, known in shipped.items()
    }
