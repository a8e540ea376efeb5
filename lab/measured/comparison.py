"""Score predictors on measured steps: the errors of each prediction, and summaries of many."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import wavecast
from lab.figures import Figures, figures
from lab.measured.public_steps.case import Case, Traces
from wavecast import Prediction, Predictor, Trace, ops
from wavecast.predictors.base import Scaler
from wavecast.steps.ranges import gpu_factors

Fit = Callable[[str], Predictor | Scaler]
"""Returns a predictor fitted without the GPU, family or set of this name; "" leaves none out."""


@dataclass(frozen=True)
class Contender:
    """A named predictor. It may be fitted anew for each GPU, family or set that its fit leaves out.

    Contender("roofline", lambda _: Roofline())
    Contender("learned", fit_without, leaves_out="gpu")      # fit_without("rtx-3090") -> Predictor
    Contender("learned", fit_without, leaves_out="family")   # fit_without("resnet") -> Predictor
    """

    name: str
    fit: Fit
    leaves_out: str = ""
    """The field of a case whose value is passed to `fit`: "gpu", "family" or "set"."""
    fit_aged: Callable[[str, str], Predictor | Scaler] | None = None
    """Like `fit`, for steps of an era of old libraries, which is passed second. None: `fit` is used
    for these, too."""

    def left_out(self, case: Case) -> str:
        """The value that the predictor of a case must not have seen in its fit."""
        return str(getattr(case, self.leaves_out)) if self.leaves_out else ""

    def fitted(self, case: Case) -> Predictor | Scaler:
        """The predictor of a case."""
        if case.era and self.fit_aged:
            return self.fit_aged(self.left_out(case), case.era)
        return self.fit(self.left_out(case))


@dataclass(frozen=True)
class Scored:
    """One prediction and the case with its measurement."""

    case: Case
    contender: str
    seconds: float
    low_s: float | None
    high_s: float | None
    gpu_s: float
    host_s: float
    bound_by: str
    kinds_s: Mapping[str, float]
    """The GPU's predicted time by kind of op."""
    gpu_range_s: tuple[float, float] | None = None
    """The predicted range of the GPU's time. None if it has none."""

    @property
    def error(self) -> float:
        """The relative error of the step's time: 0.1 means that the prediction is 10% too long."""
        return self.seconds / self.case.measured_s - 1

    @property
    def gpu_error(self) -> float | None:
        """The relative error of the GPU-busy time. None if it was not measured."""
        return None if self.case.gpu_s is None else self.gpu_s / self.case.gpu_s - 1

    @property
    def gpu_within(self) -> bool | None:
        """Whether the GPU's measured time lies in its predicted range. None without both."""
        if self.case.gpu_s is None or self.gpu_range_s is None:
            return None
        return self.gpu_range_s[0] <= self.case.gpu_s <= self.gpu_range_s[1]

    @property
    def within(self) -> bool | None:
        """Whether the measured time lies in the predicted range. None if it has none."""
        if self.low_s is None or self.high_s is None:
            return None
        return self.low_s <= self.case.measured_s <= self.high_s


def score(
    traced: Iterable[tuple[Case, Trace]],
    contenders: Sequence[Contender],
    host: str | None = None,
) -> Iterator[Scored]:
    """The predictions of every contender for every case.

    Args:
        traced: cases with their traces, as `read` returns them.
        contenders: each is fitted once for each value that it leaves out.
        host: the host as in `wavecast.predict`. By default a measured trace has its own host.
    """
    fitted: dict[tuple[str, str, str], Predictor | Scaler] = {}
    for case, trace in traced:
        for contender in contenders:
            key = (contender.name, contender.left_out(case), case.era)
            if key not in fitted:
                fitted[key] = contender.fitted(case)
            prediction = wavecast.predict(trace, case.gpu, predictor=fitted[key], host=host)
            yield Scored(
                case=case,
                contender=contender.name,
                seconds=prediction.seconds,
                low_s=prediction.low_s,
                high_s=prediction.high_s,
                gpu_s=prediction.gpu_s,
                host_s=prediction.host_s,
                bound_by=prediction.bound_by,
                kinds_s=_kinds(prediction),
                gpu_range_s=gpu_range_s(prediction),
            )


def gpu_range_s(prediction: Prediction) -> tuple[float, float] | None:
    """The predicted range of the GPU's time, whatever the host does. None if it has none."""
    if prediction.familiarity is None:
        return None
    ends = gpu_factors(prediction.familiarity, prediction.makeup)
    return None if ends is None else (prediction.gpu_s * ends.low, prediction.gpu_s * ends.high)


def is_within(prediction: Prediction, measured_s: float) -> bool | None:
    """Whether a measured time lies in the range of a prediction. None if it has no range."""
    if prediction.low_s is None or prediction.high_s is None:
        return None
    return prediction.low_s <= measured_s <= prediction.high_s


def _kinds(prediction: Prediction) -> dict[str, float]:
    seconds: dict[str, float] = {}
    arrays = prediction.trace.arrays
    times = zip(arrays.works, arrays.counts.tolist(), prediction.answers, strict=True)
    for call, count, answer in times:
        if answer is not None:
            kind = ops.kind(call.op)
            name = "depthwise" if ops.is_depthwise(call.op) else kind.value if kind else "other"
            seconds[name] = seconds.get(name, 0.0) + count * answer.seconds
    return seconds


def read(cases: Iterable[Case], traces: Traces) -> Iterator[tuple[Case, Trace]]:
    """Cases with their traces. Each trace is read once; cases without a trace are skipped."""
    for _, group in itertools.groupby(sorted(cases, key=traces.key), traces.key):
        read_traces: dict[str, Trace | None] = {}
        for case in group:
            path = str(traces.path(case))
            if path not in read_traces:
                read_traces[path] = traces.find(case)
            trace = read_traces[path]
            if trace is not None:
                yield case, trace


def summary(rows: Sequence[Scored]) -> Figures:
    """The five figures of some rows, of which there must be at least one."""
    return figures((row.error for row in rows), (row.within for row in rows))


def groups(rows: Iterable[Scored], key: Callable[[Scored], str]) -> list[tuple[str, list[Scored]]]:
    """Rows grouped by a key, in the order of the keys."""
    ordered = sorted(rows, key=key)
    return [(name, list(group)) for name, group in itertools.groupby(ordered, key)]


@dataclass(frozen=True)
class ErrorPart:
    """How much a kind of op contributes to the errors of many steps."""

    kind: str
    share: float
    """Its share of the predicted time, averaged over steps."""
    factor: float
    """The factor on its predictions that minimises the errors of the steps."""


def parts(rows: Sequence[Scored]) -> tuple[list[ErrorPart], float]:
    """The best factor on each kind of op for GPU-bound steps, and the mean error with the factors.

    The factors solve measured = sum of factor * predicted over kinds, by least squares of relative
    errors. Kinds that always occur in the same proportion cannot be told apart. A weak pull keeps
    the factors of such kinds at the median of measured / predicted.
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
    error_parts = map(ErrorPart, kinds, shares.tolist(), factors.tolist())
    left = float(np.abs(relative @ factors - 1).mean())
    return sorted(error_parts, key=lambda part: -part.share), left


def kendall_tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's tau-a of two orders: 1 if they are the same, 0 if unrelated, -1 if reversed."""
    signs = [
        _sign(pair[0] - other[0]) * _sign(pair[1] - other[1])
        for pair, other in itertools.combinations(pairs, 2)
    ]
    return sum(signs) / len(signs) if signs else 1.0


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


def rankings(rows: Iterable[Scored]) -> list[tuple[str, int, float]]:
    """The name, the number of GPUs and Kendall's tau of their throughputs, for each task.

    A task is a model and a precision on at least three GPUs. On newer GPUs fp32 means TF32, so the
    two are one task.
    """
    tasks = groups(
        (row for row in rows if row.case.newest),
        lambda row: f"{row.case.model} {'amp' if 'amp' in row.case.precision else 'fp32 or tf32'}",
    )
    ranked = []
    for task, group in tasks:
        best = {row.case.gpu: row for row in sorted(group, key=lambda row: row.case.throughput)}
        pairs = [(r.case.throughput, r.case.batch / r.seconds) for r in best.values()]
        if len(pairs) >= 3:
            ranked.append((task, len(pairs), kendall_tau(pairs)))
    return ranked
