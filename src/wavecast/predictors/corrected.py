"""Predictions of ops that the user's own measured steps correct, for the GPU they ran on.

A measured step says how far off its predicted ops are. Logarithms of measured over predicted time
are taken as a Gaussian process (Rasmussen and Williams, "Gaussian Processes for Machine Learning",
2006, equation 2.23): ops err alike if they are of the same kind and unit, more so if they are the
same op, and most if their sizes are alike as well. The correction of an op is the mean of that
process, given what was measured. So an op that is like none that was measured keeps its prediction,
and what a single op says is shrunk. `lab.score.corrections` says what this is worth.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.errors import InvalidInput, prefixed
from wavecast.files import config_folder, read_toml, toml_text, write_checked
from wavecast.hardware.device import Device
from wavecast.hardware.fact_files import refuse_unknown, text_of, user_files
from wavecast.predictors.base import Estimate, Familiarity, Predictor
from wavecast.predictors.roofline import demand
from wavecast.traces.step import Op, Trace

VARIABLE = "WAVECAST_CORRECTIONS"
"""The environment variable that names further files, such as those that a team shares."""
KIND_SPREAD, OP_SPREAD, SIZE_SPREAD = 0.03, 0.05, 0.2
"""How much ops of a kind, the same op, and the same op of a size err alike: standard deviations of
logarithms. Chosen on steps of our H200, with the model of each step left out."""
SIZE_LENGTH = 0.7
"""The distance of logarithms of sizes at which two runs of an op are no longer alike."""
NOISE = 0.2
"""What a single op is off by chance, in the same unit."""
SMALL_SHARE = 0.01
"""An op with this share of a step's time is twice as noisy as a large one."""
MOST_OFF = 1.0
"""Logarithms beyond this are cut off: such an op was not understood."""
MOST_OPS = 60
"""The ops of a step that are kept, the longest first."""
_SIZES = 5
_KEYS = ("gpu", "date", "steps", "ops")

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OpOff:
    """How far off the prediction of an op was in a measured step."""

    kind: str
    """Its kind and unit ("matmul/bf16_tensor")."""
    name: str
    sizes: tuple[float, ...]
    """Logarithms of its FLOPs, bytes, and elements of its first tensors."""
    off: float
    """The logarithm of measured over predicted time."""
    share: float
    """Its share of the step's GPU time."""


def kind_of(op: Op) -> str:
    """The kind of an op, and the unit that it is meant for."""
    return f"{ops.kind(op)}/{ops.unit(op)}"


def sizes_of(op: Op) -> tuple[float, ...]:
    """The logarithms of an op's FLOPs, bytes, and elements of its first tensors."""
    work = demand(op)
    tensors = [float(math.prod(t.shape)) for t in (*op.inputs, *op.outputs)][: _SIZES - 2]
    amounts = [] if work is None else [float(work.flops), float(work.nbytes), *tensors]
    amounts += [0.0] * (_SIZES - len(amounts))
    return tuple(round(math.log1p(amount), 3) for amount in amounts)


@dataclass(frozen=True)
class Corrections:
    """What measured steps say about the predictions for one GPU."""

    gpu: str
    """The id of the GPU."""
    day: date
    """The day on which they were learned."""
    steps: int
    """The number of measured steps."""
    errors: tuple[OpOff, ...] = field(repr=False)

    def factors(self, given: Sequence[Op]) -> list[float]:
        """The time of each op over its predicted time."""
        asked = [OpOff(kind_of(op), op.base, sizes_of(op), 0.0, 1.0) for op in given]
        factors: list[float] = np.exp(_alike(asked, self.errors) @ self._weights).tolist()
        return factors

    @cached_property
    def _weights(self) -> Floats:
        noise = [NOISE**2 * (1 + SMALL_SHARE / max(row.share, 1e-5)) for row in self.errors]
        off = np.array([row.off for row in self.errors])
        weights: Floats = np.linalg.solve(_alike(self.errors, self.errors) + np.diag(noise), off)
        return weights


def _alike(some: Sequence[OpOff], others: Sequence[OpOff]) -> Floats:
    """The covariance of the errors of ops: a row for each of some, a column for each of others."""

    def equal(names: Sequence[object], with_names: Sequence[object]) -> NDArray[np.bool_]:
        numbers = {name: n for n, name in enumerate(dict.fromkeys((*names, *with_names)))}
        left, right = ([numbers[name] for name in those] for those in (names, with_names))
        same: NDArray[np.bool_] = np.array(left)[:, None] == np.array(right)[None]
        return same

    kind = equal([row.kind for row in some], [row.kind for row in others])
    name = kind & equal([row.name for row in some], [row.name for row in others])
    left = np.array([row.sizes for row in some]).reshape(-1, _SIZES)
    right = np.array([row.sizes for row in others]).reshape(-1, _SIZES)
    distance = (left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2 * left @ right.T
    near = np.exp(-np.maximum(distance, 0) / (2 * SIZE_LENGTH**2))
    covariance: Floats = KIND_SPREAD**2 * kind + name * (OP_SPREAD**2 + SIZE_SPREAD**2 * near)
    return covariance


@dataclass(frozen=True)
class Corrected(Predictor):
    """A predictor whose answers are corrected on GPUs whose user has measured steps."""

    base: Predictor
    corrections: Mapping[str, Corrections]
    """By the id of the GPU."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The time of one op."""
        return self.predict_all((op,), device)[0]

    def predict_all(self, given: Sequence[Op], device: Device) -> Sequence[Estimate | None]:
        """The time of each op."""
        answers = self.base.predict_all(given, device)
        corrections = self.corrections.get(device.id)
        if corrections is None or not given:
            return answers
        return [
            None if answer is None else _scaled(answer, factor)
            for answer, factor in zip(answers, corrections.factors(given), strict=True)
        ]

    def familiarity(self, device: Device) -> Familiarity | None:
        """How well the predictor that is corrected knows a GPU."""
        return self.base.familiarity(device)

    def assumptions(self, device: Device) -> tuple[str, ...]:
        """What the predictor that is corrected assumes, and what corrects it."""
        own = self.corrections.get(device.id)
        said = () if own is None else (_said(own),)
        return (*self.base.assumptions(device), *said)


def _said(own: Corrections) -> str:
    steps = "1 step" if own.steps == 1 else f"{own.steps} steps"
    return f"op times are corrected by {steps} that you measured ({own.day})"


def _scaled(answer: Estimate, factor: float) -> Estimate:
    return replace(
        answer,
        seconds=answer.seconds * factor,
        low_s=answer.low_s * factor,
        high_s=answer.high_s * factor,
    )


# Learning.


def learn(traces: Sequence[Trace], device: Device, predictor: Predictor) -> Corrections:
    """The corrections of a predictor for a GPU, from steps that were measured on it.

    Raises:
        InvalidInput: a step has no op that was both measured and predicted.
    """
    errors = [row for trace in traces for row in _errors(trace, device, predictor)]
    return Corrections(device.id, date.today(), len(traces), tuple(errors))


def _errors(trace: Trace, device: Device, predictor: Predictor) -> Iterator[OpOff]:
    pairs = measured_and_predicted(trace, device, predictor)
    total_s = sum(measured_s for _, measured_s, _ in pairs)
    for op, measured_s, predicted_s in sorted(pairs, key=lambda pair: -pair[1])[:MOST_OPS]:
        off = min(max(math.log(measured_s / predicted_s), -MOST_OFF), MOST_OFF)
        yield OpOff(
            kind_of(op), op.base, sizes_of(op), round(off, 4), round(measured_s / total_s, 6)
        )


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
    rows = [[e.kind, e.name, list(e.sizes), e.off, e.share] for e in corrections.errors]
    table = {
        "gpu": corrections.gpu,
        "date": corrections.day,
        "steps": corrections.steps,
        "ops": rows,
    }
    write_checked(path, toml_text(table), read)


def read(path: Path) -> Corrections:
    """The corrections in a file.

    Raises:
        InvalidInput: the file cannot be read, or has no corrections; says which key and why.
    """
    with prefixed(f"{path}: "):
        table = read_toml(path)
        refuse_unknown(table, _KEYS, "corrections")
        day, steps, rows = table.get("date"), table.get("steps"), table.get("ops")
        if not isinstance(day, date):
            raise InvalidInput("date must be a day, written 2026-01-31")
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise InvalidInput(f"steps must be a whole number above 0, not {steps!r}")
        if not isinstance(rows, list) or not rows:
            raise InvalidInput("ops must be a list of rows")
        return Corrections(text_of(table, "gpu"), day, steps, tuple(map(_row, rows)))


def _row(row: Any) -> OpOff:
    """One op of a file."""
    match row:
        case [str(kind), str(name), list(sizes), off, share] if len(sizes) == _SIZES:
            if all(map(_is_number, (*sizes, off, share))) and abs(off) <= MOST_OFF:
                return OpOff(kind, name, tuple(map(float, sizes)), float(off), float(share))
    raise InvalidInput(
        f"a row of ops is [kind, op, {_SIZES} logarithms of sizes, logarithm of the error up to "
        f"{MOST_OFF:g}, share of the step], not {str(row)[:100]}"
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= abs(value) < 1e3


def kept() -> dict[str, Corrections]:
    """The corrections in the user's folder and in $WAVECAST_CORRECTIONS, by the id of the GPU."""
    found = (_read_once(path, path.stat().st_mtime_ns) for path in user_files(folder(), VARIABLE))
    return {corrections.gpu: corrections for corrections in found}


@lru_cache(maxsize=64)
def _read_once(path: Path, changed: int) -> Corrections:
    """The corrections in a file, cached until its modification time `changed` is another."""
    return read(path)
