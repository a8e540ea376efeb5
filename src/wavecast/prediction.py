"""From a trace and a GPU to the time of a step: each op predicted, then played against the host."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.devices import Device, device
from wavecast.errors import InvalidInput
from wavecast.timeline import REFERENCE_HOST, Host, Seconds, Step, issue_times, play
from wavecast.trace import Allocation, Call, Op, Phase, Role, Trace

HOST_SPREAD = 0.25
"""Two runs of a host-bound step lay up to this far from their mean (measurements/README.md)."""

PERSISTENT_ROLES = (Role.PARAMETER, Role.GRADIENT, Role.OPTIMIZER_STATE)
"""Memory that training cannot do without, whatever happens to activations."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time, the range it may lie in, and who said so."""

    seconds: float
    low_s: float
    high_s: float
    source: str


class Predictor(Protocol):
    """Answers for the ops it knows and returns None for the others."""

    def predict(self, op: Op, device: Device) -> Estimate | None:
        """The GPU's time for one run of an op."""


@dataclass(frozen=True)
class Share:
    """A part of a step: how often it runs and how long the GPU takes for it in all."""

    name: str
    calls: int
    gpu_s: float


@dataclass(frozen=True)
class Prediction:
    """The predicted time of one training step on one GPU."""

    trace: Trace
    device: Device
    answers: tuple[Estimate | None, ...]
    """For each op of `trace.counts`, in its order; None where nobody knows, or nothing runs."""
    host: Host

    @cached_property
    def estimates(self) -> Mapping[Op, Estimate | None]:
        """For each distinct op that runs on the GPU; None where nobody knows."""
        found = zip(self.trace.counts, self.answers, self._columns.launches, strict=True)
        return {op: answer for op, answer, launches in found if launches}

    @cached_property
    def step(self) -> Step:
        """The steady state of many iterations."""
        return self._play()

    @property
    def seconds(self) -> float:
        """Wall-clock time of one iteration."""
        return self.step.seconds

    @property
    def gpu_s(self) -> float:
        """Time the GPU is busy in one iteration."""
        return self.step.gpu_s

    @property
    def host_s(self) -> float:
        """Time the host needs to issue one iteration."""
        return self.step.host_s

    @property
    def low_s(self) -> float:
        """The low end of the range of `seconds`."""
        return self._range[0]

    @property
    def high_s(self) -> float:
        """The high end of the range of `seconds`."""
        return self._range[1]

    @property
    def bound_by(self) -> str:
        """Who sets the pace: "gpu", "host" or "both"."""
        return self.step.bound_by

    @property
    def throughput(self) -> float | None:
        """Samples (the trace's `unit`) per second; None when the trace does not say how many."""
        if self.trace.samples is None or not self.seconds:
            return None
        return self.trace.samples / self.seconds

    @property
    def persistent_bytes(self) -> int:
        """The least memory that training needs: weights, gradients and optimizer state.

        A lower bound: activations, buffers and the framework's own memory come on top.
        """
        return self._columns.persistent_bytes

    @property
    def fits_persistent(self) -> bool:
        """Whether the GPU holds `persistent_bytes`. If not, the step cannot run there."""
        return self.persistent_bytes <= self.device.memory_bytes

    @cached_property
    def unpredicted(self) -> Mapping[str, int]:
        """Ops whose time nobody could predict, with their number of calls. Never hidden."""
        missing: dict[str, int] = {}
        calls = self.trace.counts.items()
        for (op, count), answer, launches in zip(
            calls, self.answers, self._columns.launches, strict=True
        ):
            if launches and answer is None:
                missing[op.name] = missing.get(op.name, 0) + count
        return missing

    def by_op(self) -> tuple[Share, ...]:
        """The GPU's time by op name, longest first."""
        columns = self._columns
        return _shares(columns.names, columns.name[columns.op], self._call_s)

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """The GPU's time by module, `depth` names deep, longest first."""
        names, codes = _modules(self._columns, depth)
        return _shares(names, codes, self._call_s)

    def by_phase(self) -> Mapping[Phase, float]:
        """The GPU's time of each phase."""
        seconds = np.bincount(self._columns.phase, weights=self._call_s, minlength=len(Phase))
        return dict(zip(Phase, map(float, seconds), strict=True))

    def sources(self) -> tuple[Share, ...]:
        """The GPU's time by who predicted it."""
        calls: dict[str, int] = {}
        seconds: dict[str, float] = {}
        for answer, count in zip(self.answers, self._columns.counts.tolist(), strict=True):
            if answer is not None:
                calls[answer.source] = calls.get(answer.source, 0) + count
                seconds[answer.source] = seconds.get(answer.source, 0.0) + count * answer.seconds
        return _longest_first(Share(name, calls[name], seconds[name]) for name in calls)

    @cached_property
    def _columns(self) -> _Columns:
        return _columns_of(self.trace)

    @cached_property
    def _op_s(self) -> NDArray[np.float64]:
        """Seconds, low and high of each distinct op."""
        nothing = (0.0, 0.0, 0.0)
        return np.array([(a.seconds, a.low_s, a.high_s) if a else nothing for a in self.answers])

    @cached_property
    def _call_s(self) -> Seconds:
        seconds: Seconds = self._op_s[self._columns.op, 0]
        return seconds

    def _play(self, gpu_factor: float = 1.0, host_factor: float = 1.0) -> Step:
        issue_s = _issue_s(self._columns, self.host) * host_factor
        return play(issue_s, self._call_s * gpu_factor, self._columns.syncs, self.host.sync_s)

    @cached_property
    def _range(self) -> tuple[float, float]:
        """Errors of one kind of op go together, those of different kinds do not.

        So the distances to the low and high ends add up within a kind, and in squares between
        kinds; host times are moved by `HOST_SPREAD`.
        """
        columns = self._columns
        seconds, low, high = self._op_s.T * columns.counts
        below, above = (
            float(np.linalg.norm(np.bincount(columns.kind, weights=distances)))
            for distances in (seconds - low, high - seconds)
        )
        total = float(seconds.sum()) or 1.0
        return (
            self._play(1 - below / total, 1 - HOST_SPREAD).seconds,
            self._play(1 + above / total, 1 + HOST_SPREAD).seconds,
        )


def predict(
    trace: Trace,
    gpu: Device | str,
    *,
    predictor: Predictor | None = None,
    host: Host = REFERENCE_HOST,
) -> Prediction:
    """The time of a traced step on a GPU.

    Args:
        trace: what the step does.
        gpu: a device, or a name that `wavecast.device` knows.
        predictor: who predicts each op; the best shipped one if not given.
        host: what it costs to issue ops.
    """
    if not isinstance(trace, Trace):
        raise InvalidInput(
            f"predict takes a Trace, not {type(trace).__name__}; "
            "make one with wavecast.trace(make_step) or wavecast.load_trace(path)"
        )
    if not trace.calls:
        raise InvalidInput("the trace has no ops to predict; trace a step that runs on the GPU")
    target = device(gpu) if isinstance(gpu, str) else gpu
    if not isinstance(target, Device):
        raise InvalidInput(
            f"predict takes one GPU, a Device or its name, not {type(target).__name__}; "
            "call it once for each GPU"
        )
    answering = predictor if predictor is not None else default_predictor()
    answers = tuple(
        _checked(answering.predict(op, target), op, answering) if launches else None
        for op, launches in zip(trace.counts, _columns_of(trace).launches, strict=True)
    )
    return Prediction(trace, target, answers, host)


def default_predictor() -> Predictor:
    """The most accurate predictor that needs no measurement."""
    from wavecast.predictors.attainable import Attainable

    return Attainable.shipped()


def _checked(answer: Estimate | None, op: Op, predictor: Predictor) -> Estimate | None:
    """The answer of a predictor, which may be a user's own."""
    if answer is None:
        return None
    who = type(predictor).__name__
    if not isinstance(answer, Estimate):
        raise InvalidInput(
            f"{who}.predict answered {answer!r} for {op.name}; "
            "it should return an Estimate, or None for an op it does not know"
        )
    if not 0 < answer.low_s <= answer.seconds <= answer.high_s < math.inf:
        raise InvalidInput(
            f"{who}.predict answered {answer.low_s:g} <= {answer.seconds:g} <= {answer.high_s:g} s "
            f"for {op.name}; times must be positive, finite and in this order"
        )
    return answer


@dataclass(frozen=True, eq=False)
class _Columns:
    """A trace as arrays, made once for all GPUs."""

    calls: tuple[Call, ...]
    launches: tuple[bool, ...]
    """Of each distinct op: whether the GPU has something to run."""
    counts: NDArray[np.int64]
    kind: NDArray[np.int64]
    names: tuple[str, ...]
    name: NDArray[np.int64]
    """Of each distinct op: the position of its name in `names`."""
    op: NDArray[np.int64]
    """Of each call: the position of its op among the distinct ones."""
    phase: NDArray[np.int64]
    syncs: tuple[int, ...]
    persistent_bytes: int


# By identity: a trace is large, and hashing it costs more than what is kept here saves.
_COLUMNS: dict[int, _Columns] = {}


def _columns_of(trace: Trace) -> _Columns:
    known = _COLUMNS.get(id(trace))
    if known is None:
        known = _COLUMNS[id(trace)] = _columns(trace)
        weakref.finalize(trace, _COLUMNS.pop, id(trace), None)
    return known


def _columns(trace: Trace) -> _Columns:
    distinct = tuple(trace.counts)
    position = {op: i for i, op in enumerate(distinct)}
    phases = list(Phase)
    names, name = _codes([op.base for op in distinct])
    return _Columns(
        calls=trace.calls,
        launches=tuple(ops.launches(op) for op in distinct),
        counts=np.array(list(trace.counts.values())),
        kind=_codes([str(ops.kind(op)) for op in distinct])[1],
        names=names,
        name=name,
        op=np.array([position[call.op] for call in trace]),
        phase=np.array([phases.index(call.phase) for call in trace]),
        syncs=tuple(i for i, call in enumerate(trace) if call.syncs),
        persistent_bytes=peak_bytes(a for a in trace.allocations if a.role in PERSISTENT_ROLES),
    )


@lru_cache(maxsize=16)
def _modules(columns: _Columns, depth: int) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    paths = [call.module.split(".")[:depth] for call in columns.calls]
    return _codes([".".join(path) or "(no module)" for path in paths])


@lru_cache(maxsize=16)
def _issue_s(columns: _Columns, host: Host) -> Seconds:
    return issue_times(columns.calls, host)


def _codes(values: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The different values, and the position of each value among them."""
    known: dict[str, int] = {}
    codes = np.array([known.setdefault(value, len(known)) for value in values], dtype=np.int64)
    return tuple(known), codes


def peak_bytes(allocations: Iterable[Allocation]) -> int:
    """The most memory that these take together at any time of the step."""
    changes: dict[int, int] = {}
    for each in allocations:
        born = -1 if each.born is None else each.born
        changes[born] = changes.get(born, 0) + each.nbytes
        if each.freed is not None:
            changes[each.freed] = changes.get(each.freed, 0) - each.nbytes
    return max(accumulate(changes[time] for time in sorted(changes)), default=0)


def _shares(names: Sequence[str], codes: NDArray[np.int64], seconds: Seconds) -> tuple[Share, ...]:
    calls = np.bincount(codes, minlength=len(names)).tolist()
    times = np.bincount(codes, weights=seconds, minlength=len(names)).tolist()
    return _longest_first(map(Share, names, calls, times))


def _longest_first(shares: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda share: -share.gpu_s))
