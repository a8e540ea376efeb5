"""Predictions against measured steps: who predicted, how far off, and what a set of errors says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import wavecast
from lab.measured.figures import Figures, figures
from lab.measured.public_steps.case import Case, Traces
from wavecast import Prediction, Predictor, Trace, ops
from wavecast.predictors.base import Scaler
from wavecast.steps.ranges import gpu_powers

Fit = Callable[[str], Predictor | Scaler]


@dataclass(frozen=True)
class Contender:
    """A predictor under a name, or one that is fitted anew for each thing left out of its fit.

    Contender("roofline", lambda _: Roofline())
    Contender("learned", fit_without, leaves_out="gpu")      # fit_without("rtx-3090") -> Predictor
    Contender("learned", fit_without, leaves_out="family")   # fit_without("resnet") -> Predictor
    """

    name: str
    fit: Fit
    leaves_out: str = ""
    """The field of a case, "gpu", "family" or "set", whose value `fit` is given."""
    fit_old: Fit | None = None
    """The same for steps that ran with old libraries, where the predictor knows of these."""

    def left_out(self, case: Case) -> str:
        """What the predictor of a case must not have seen."""
        return str(getattr(case, self.leaves_out)) if self.leaves_out else ""

    def fitted(self, case: Case) -> Predictor | Scaler:
        """The predictor of a case."""
        fit = self.fit_old if case.old and self.fit_old else self.fit
        return fit(self.left_out(case))


@dataclass(frozen=True)
class Scored:
    """One prediction beside its measurement."""

    case: Case
    contender: str
    seconds: float
    low_s: float
    high_s: float
    gpu_s: float
    host_s: float
    bound_by: str
    kinds_s: Mapping[str, float]
    """The GPU's predicted time by kind of op."""
    gpu_range_s: tuple[float, float] = (0.0, math.inf)
    """The predicted range of the GPU's time."""

    @property
    def error(self) -> float:
        """Of the step's time: 0.1 is 10% too long."""
        return self.seconds / self.case.measured_s - 1

    @property
    def gpu_error(self) -> float | None:
        """Of the time the GPU is busy, where that was measured."""
        return None if self.case.gpu_s is None else self.gpu_s / self.case.gpu_s - 1

    @property
    def gpu_within(self) -> bool:
        """Whether the GPU's measured time lies in its predicted range."""
        low_s, high_s = self.gpu_range_s
        return self.case.gpu_s is not None and low_s <= self.case.gpu_s <= high_s

    @property
    def within(self) -> bool:
        """Whether the measured time lies in the predicted range."""
        return self.low_s <= self.case.measured_s <= self.high_s


def score(
    traced: Iterable[tuple[Case, Trace]],
    contenders: Sequence[Contender],
    host: str | None = None,
) -> Iterator[Scored]:
    """Every case by every contender.

    Args:
        traced: what `read` gives; keep it as a list to score again without reading.
        contenders: each is fitted once for each thing that it leaves out.
        host: as `wavecast.predict` takes it; of a measured trace that would be its own.
    """
    fitted: dict[tuple[str, str, bool], Predictor | Scaler] = {}
    for case, trace in traced:
        for contender in contenders:
            key = (contender.name, contender.left_out(case), case.old)
            if key not in fitted:
                fitted[key] = contender.fitted(case)
            found = wavecast.predict(trace, case.gpu, predictor=fitted[key], host=host)
            yield Scored(
                case=case,
                contender=contender.name,
                seconds=found.seconds,
                low_s=found.low_s,
                high_s=found.high_s,
                gpu_s=found.gpu_s,
                host_s=found.host_s,
                bound_by=found.bound_by,
                kinds_s=_kinds(found),
                gpu_range_s=gpu_range_s(found),
            )


def gpu_range_s(found: Prediction) -> tuple[float, float]:
    """The predicted range of the GPU's time, whatever the host does."""
    least, most = found.gpu_spread
    powers = gpu_powers(found.device.vendor, measured=found.known_chip)
    return found.gpu_s * least**powers.below, found.gpu_s * most**powers.above


def _kinds(found: Prediction) -> dict[str, float]:
    seconds: dict[str, float] = {}
    arrays = found.trace.arrays
    times = zip(arrays.works, arrays.counts.tolist(), found.answers, strict=True)
    for call, count, answer in times:
        if answer is not None:
            kind = ops.kind(call.op)
            name = "depthwise" if ops.is_depthwise(call.op) else kind.value if kind else "other"
            seconds[name] = seconds.get(name, 0.0) + count * answer.seconds
    return seconds


def read(cases: Iterable[Case], traces: Traces) -> Iterator[tuple[Case, Trace]]:
    """Cases with their traces, each read once; those that were never traced are passed over."""
    for _, group in itertools.groupby(sorted(cases, key=traces.key), traces.key):
        known: dict[str, Trace | None] = {}
        for case in group:
            path = str(traces.path(case))
            if path not in known:
                known[path] = traces.find(case)
            trace = known[path]
            if trace is not None:
                yield case, trace


def summary(rows: Sequence[Scored]) -> Figures:
    """The figures of at least one row."""
    return figures((row.error for row in rows), (row.within for row in rows))


def groups(rows: Iterable[Scored], key: Callable[[Scored], str]) -> list[tuple[str, list[Scored]]]:
    """Rows by a key, in its order."""
    ordered = sorted(rows, key=key)
    return [(name, list(group)) for name, group in itertools.groupby(ordered, key)]


@dataclass(frozen=True)
class ErrorPart:
    """A kind of op in many steps."""

    kind: str
    share: float
    """Of the predicted time, the mean over steps."""
    factor: float
    """What its predictions must be multiplied by for the steps to come out best."""


def parts(rows: Sequence[Scored]) -> tuple[list[ErrorPart], float]:
    """Which kinds of op make the errors of GPU-bound steps, and the mean error without them.

    The factors solve measured = sum of factor * predicted over kinds, in least squares of relative
    errors. Kinds that are always in the same proportion cannot be told apart: a weak pull to the
    median of measured / predicted keeps those at it.
    """
    kinds = sorted({kind for row in rows for kind in row.kinds_s})
    measured = np.array([row.case.measured_s for row in rows])
    predicted = np.array([[row.kinds_s.get(kind, 0.0) for kind in kinds] for row in rows])
    relative = predicted / measured[:, None]
    pull = 0.05 * np.sqrt(len(rows))
    common = float(np.median(measured / predicted.sum(axis=1)))
    factors = np.linalg.lstsq(
        np.vstack([relative, pull * np.eye(len(kinds))]),
        np.concatenate([np.ones(len(rows)), np.full(len(kinds), pull * common)]),
        rcond=None,
    )[0]
    shares = (predicted / predicted.sum(axis=1, keepdims=True)).mean(axis=0)
    found = map(ErrorPart, kinds, shares.tolist(), factors.tolist())
    left = float(np.abs(relative @ factors - 1).mean())
    return sorted(found, key=lambda part: -part.share), left


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """How alike two orders are (tau-a): 1 the same, 0 unrelated, -1 reversed."""
    signs = [
        _sign(one[0] - other[0]) * _sign(one[1] - other[1])
        for one, other in itertools.combinations(pairs, 2)
    ]
    return sum(signs) / len(signs) if signs else 1.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def rankings(rows: Iterable[Scored]) -> list[tuple[str, int, float]]:
    """Of each task on at least three GPUs: its name, the GPUs, and the tau of their throughputs.

    TF32 is what fp32 means on newer GPUs, so that both are one task.
    """
    tasks = groups(
        (row for row in rows if row.case.newest),
        lambda row: f"{row.case.model} {'amp' if 'amp' in row.case.precision else 'fp32 or tf32'}",
    )
    found = []
    for task, group in tasks:
        best = {row.case.gpu: row for row in sorted(group, key=lambda row: row.case.throughput)}
        pairs = [(r.case.throughput, r.case.batch / r.seconds) for r in best.values()]
        if len(pairs) >= 3:
            found.append((task, len(pairs), kendall_tau(pairs)))
    return found
