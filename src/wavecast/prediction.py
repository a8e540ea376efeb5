"""From a trace and a GPU to the time of a step: every op predicted, then played against the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from wavecast import ops
from wavecast.devices import Device, device
from wavecast.errors import InvalidInput
from wavecast.timeline import REFERENCE_HOST, Host, Seconds, Step, issue_times, play
from wavecast.trace import Op, Phase, Trace

HOST_SPREAD = 0.25
"""Host-bound steps vary by this much from run to run (measurements/README.md)."""


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
    estimates: Mapping[Op, Estimate | None]
    """For each distinct op that runs on the GPU; None where nobody knows."""
    host: Host

    @cached_property
    def step(self) -> Step:
        """The steady state of many iterations."""
        return self._play(np.array([self._op_s(call.op) for call in self.trace]), self._issue_s)

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
        return None if self.trace.samples is None else self.trace.samples / self.seconds

    @cached_property
    def unpredicted(self) -> Mapping[str, int]:
        """Ops whose time nobody could predict, with their number of calls. Never hidden."""
        missing: dict[str, int] = {}
        for op, estimate in self.estimates.items():
            if estimate is None:
                missing[op.name] = missing.get(op.name, 0) + self.trace.counts[op]
        return missing

    def by_op(self) -> tuple[Share, ...]:
        """The GPU's time by op name, longest first."""
        return _shares((call.op.base, self._op_s(call.op)) for call in self.trace)

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """The GPU's time by module, `depth` names deep, longest first."""
        return _shares(
            (".".join(call.module.split(".")[:depth]) or "(no module)", self._op_s(call.op))
            for call in self.trace
        )

    def by_phase(self) -> Mapping[Phase, float]:
        """The GPU's time of each phase."""
        times = dict.fromkeys(Phase, 0.0)
        for call in self.trace:
            times[call.phase] += self._op_s(call.op)
        return times

    def sources(self) -> tuple[Share, ...]:
        """The GPU's time by who predicted it."""
        return _shares(
            (estimate.source, estimate.seconds)
            for call in self.trace
            if (estimate := self.estimates.get(call.op)) is not None
        )

    @cached_property
    def _issue_s(self) -> Seconds:
        return issue_times(self.trace.calls, self.host)

    def _op_s(self, op: Op) -> float:
        estimate = self.estimates.get(op)
        return 0.0 if estimate is None else estimate.seconds

    def _play(self, gpu_s: Seconds, issue_s: Seconds) -> Step:
        syncs = [i for i, call in enumerate(self.trace) if call.syncs]
        return play(issue_s, gpu_s, syncs, self.host.sync_s)

    @cached_property
    def _range(self) -> tuple[float, float]:
        """Errors of one kind of op go together, those of different kinds do not.

        So the distances to the low and high ends add up within a kind, and in squares between
        kinds; host times are moved by `HOST_SPREAD`.
        """
        below: dict[str, float] = {}
        above: dict[str, float] = {}
        for op, count in self.trace.counts.items():
            estimate = self.estimates.get(op)
            if estimate is not None:
                kind = str(ops.kind(op))
                below[kind] = below.get(kind, 0.0) + count * (estimate.seconds - estimate.low_s)
                above[kind] = above.get(kind, 0.0) + count * (estimate.high_s - estimate.seconds)
        gpu_s = np.array([self._op_s(call.op) for call in self.trace])
        total = float(gpu_s.sum()) or 1.0
        low = 1 - float(np.linalg.norm(list(below.values()))) / total
        high = 1 + float(np.linalg.norm(list(above.values()))) / total
        return (
            self._play(gpu_s * low, self._issue_s * (1 - HOST_SPREAD)).seconds,
            self._play(gpu_s * high, self._issue_s * (1 + HOST_SPREAD)).seconds,
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
    if not trace.calls:
        raise InvalidInput("the trace has no ops to predict")
    target = device(gpu) if isinstance(gpu, str) else gpu
    answering = predictor if predictor is not None else default_predictor()
    estimates = {
        op: answering.predict(op, target) for op in trace.counts if ops.launches(op)
    }
    return Prediction(trace, target, estimates, host)


def default_predictor() -> Predictor:
    """The most accurate predictor that needs no measurement."""
    from wavecast.predictors.attainable import Attainable

    return Attainable.shipped()


def _shares(parts: Iterable[tuple[str, float]]) -> tuple[Share, ...]:
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for name, gpu_s in parts:
        calls[name] = calls.get(name, 0) + 1
        seconds[name] = seconds.get(name, 0.0) + gpu_s
    rows: Sequence[Share] = [Share(name, calls[name], seconds[name]) for name in calls]
    return tuple(sorted(rows, key=lambda share: -share.gpu_s))
