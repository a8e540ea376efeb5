"""From a trace and a GPU to the time of a step: each op predicted, then played against the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from wavecast.columns import Columns, codes, columns_of, modules
from wavecast.devices import Device, device
from wavecast.errors import InvalidInput, UnknownName
from wavecast.estimates import Estimate as Estimate
from wavecast.estimates import Predictor as Predictor
from wavecast.estimates import Scaler as Scaler
from wavecast.estimates import knows_chip, predicted, scaled, scales
from wavecast.hosts import find_host
from wavecast.pace import Pace, pace_of
from wavecast.ranges import Factors, gpu_powers, host_factors
from wavecast.timeline import (
    GRAPH_GAP_S,
    REFERENCE_HOST,
    GraphedHost,
    Host,
    RecordedHost,
    Seconds,
    Step,
    kernels,
    play,
    refuse_waits,
)
from wavecast.trace import Op, Phase, Trace

HOST_SPREAD = 0.25
"""Two runs of a host-bound step lay up to this far from their mean (measurements/README.md)."""


AnyHost = Host | RecordedHost | GraphedHost


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
    """For each different piece of work, in order; None where nobody knows, or nothing runs."""
    host: AnyHost
    pace: Pace | None = None
    """How a measured step's parts make its whole."""
    known_chip: bool = False
    """Whether the predictor has seen ops of all sorts on the GPU's very chip."""

    @cached_property
    def estimates(self) -> Mapping[Op, Estimate | None]:
        """For each distinct op that runs on the GPU; None where nobody knows."""
        found = zip(self._columns.works, self.answers, self._columns.launches, strict=True)
        return {call.op: answer for call, answer, launches in found if launches}

    @cached_property
    def step(self) -> Step:
        """The steady state of many iterations."""
        return self._play()

    @property
    def seconds(self) -> float:
        """Wall-clock time of one iteration."""
        return self.step.seconds

    @property
    def run_time_ms(self) -> float:
        """`seconds` in milliseconds, as Habitat's listing asks for it."""
        return self.seconds * 1e3

    @property
    def gpu_s(self) -> float:
        """Time the GPU is busy in one iteration."""
        return float(self.call_s.sum())

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
        """What training keeps: weights, gradients and optimizer state."""
        return self._columns.persistent_bytes

    @property
    def fits_persistent(self) -> bool:
        """Whether the GPU holds `persistent_bytes`. If not, the step cannot run there."""
        return self.persistent_bytes <= self.device.memory_bytes

    @property
    def tensor_bytes(self) -> int:
        """The most that all tensors of the step take at once.

        A lower bound: workspaces, fragments and CUDA's context come on top (`wavecast.memory`).
        """
        return self._columns.tensor_bytes

    @property
    def fits_tensors(self) -> bool:
        """Whether the GPU holds `tensor_bytes`. If not, the step cannot run there."""
        return self.tensor_bytes <= self.device.memory_bytes

    @cached_property
    def unpredicted(self) -> Mapping[str, int]:
        """Ops whose time nobody could predict, with their number of calls. Never hidden."""
        columns = self._columns
        missing: dict[str, int] = {}
        for call, count, answer, launches in zip(
            columns.works, columns.counts.tolist(), self.answers, columns.launches, strict=True
        ):
            if launches and answer is None:
                missing[call.op.name] = missing.get(call.op.name, 0) + count
        return missing

    def by_op(self) -> tuple[Share, ...]:
        """The GPU's time by op name, longest first."""
        columns = self._columns
        return _shares(columns.names, columns.name[columns.work], self.call_s)

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """The GPU's time by module, `depth` names deep, longest first."""
        names, module = modules(self._columns, depth)
        return _shares(names, module, self.call_s)

    def by_phase(self) -> Mapping[Phase, float]:
        """The GPU's time of each phase."""
        seconds = np.bincount(self._columns.phase, weights=self.call_s, minlength=len(Phase))
        return dict(zip(Phase, map(float, seconds), strict=True))

    def sources(self) -> tuple[Share, ...]:
        """The GPU's time by who predicted it."""
        names, source = codes([answer.source if answer else "" for answer in self.answers])
        shares = _shares(names, source[self._columns.work], self.call_s)
        return tuple(share for share in shares if share.name)

    @cached_property
    def _columns(self) -> Columns:
        return columns_of(self.trace)

    @cached_property
    def _op_s(self) -> NDArray[np.float64]:
        """Seconds, low and high of each different piece of work."""
        nothing = (0.0, 0.0, 0.0)
        return np.array([(a.seconds, a.low_s, a.high_s) if a else nothing for a in self.answers])

    @cached_property
    def call_s(self) -> Seconds:
        """The GPU's time for each call of the trace."""
        seconds: Seconds = self._op_s[self._columns.work, 0]
        return seconds if self.pace is None else seconds * self.pace.exposure

    def _play(self, gpu_factor: float = 1.0, host_factor: float = 1.0) -> Step:
        issue_s = _issue_s(self._columns, self.host) * host_factor
        gpu_s = self.call_s * gpu_factor + self._gap_s
        waits = self.pace is None or self.pace.waits
        return play(issue_s, gpu_s, self._columns.syncs if waits else (), self.host.trip_s)

    @property
    def _gap_s(self) -> Seconds | float:
        """Of each call: how long the GPU stands still between its kernels."""
        if self.pace is None:
            return 0.0  # most measured op times, of which predictors learn, include it
        if isinstance(self.host, GraphedHost):
            return GRAPH_GAP_S * kernels(self._columns.calls)
        return self.pace.gap_s

    @cached_property
    def gpu_spread(self) -> tuple[float, float]:
        """By which factors the GPU's time might be less or more, by the ranges of its ops.

        Errors of one kind of op go together, those of different kinds do not. So the distances to
        the low and high ends add up within a kind, and in squares between kinds.
        """
        columns = self._columns
        seconds, low, high = self._op_s.T * columns.counts
        below, above = (
            float(np.linalg.norm(np.bincount(columns.kind, weights=distances)))
            for distances in (seconds - low, high - seconds)
        )
        total = float(seconds.sum()) or 1.0
        return 1 - below / total, 1 + above / total

    @cached_property
    def _range(self) -> tuple[float, float]:
        """A step that was only traced runs on a GPU and a host of which more or less is known."""
        least, most = self.gpu_spread
        if self.pace is not None:
            host = Factors(1 - HOST_SPREAD, 1 + HOST_SPREAD)
        else:
            vendor = self.device.vendor
            host = host_factors(vendor, known=getattr(self.host, "known", False))
            powers = gpu_powers(vendor, measured=self.known_chip)
            least, most = least**powers.below, most**powers.above
        return self._play(least, host.low).seconds, self._play(most, host.high).seconds


def predict(
    trace: Trace,
    gpu: Device | str,
    *,
    predictor: Predictor | Scaler | None = None,
    origin: Device | str | None = None,
    host: Host | str | None = None,
    host_factor: float = 1.0,
    graphed: bool = False,
) -> Prediction:
    """The time of a step on a GPU: of a traced one from nothing, of a measured one by scaling.

    Args:
        trace: what the step does.
        gpu: a device, or a name that `wavecast.device` knows.
        predictor: who predicts each op, or scales each measured call; the best shipped one if not
            given. A Predictor, given for a measured trace, predicts it as if it were only traced.
        origin: the GPU on which the trace was measured, if its name says too little.
        host: what it costs to issue ops: a Host, "reference", "mine" (`wavecast calibrate`) or a
            file. If not given: of a measured step its own host, of others yours if it was
            calibrated, and the reference if not.
        host_factor: how many times as long the host takes as that.
        graphed: the whole step is captured as a CUDA graph and replayed.
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
    asked = find_host(host)
    issuing: Host | RecordedHost = asked
    pace = None
    if trace.measurement is None or (predictor is not None and not scales(predictor)):
        _refuse_scaling(trace, predictor, origin)
        predictor = predictor or default_predictor()
        answers = predicted(trace, target, predictor)
    else:
        answers = scaled(trace, target, predictor or default_scaler(), origin_of(trace, origin))
        recorded = trace.measurement.host_s is not None
        pace = _pace(columns_of(trace), recorded, trace.measurement.seconds)
        if host is None:
            issuing = _host_of(pace, recorded)
    known_chip = pace is None and knows_chip(predictor, target)
    if graphed:
        refuse_waits(trace.calls)
        whole = (asked if host_factor == 1 else asked.scaled(host_factor)).graphed()
        return Prediction(trace, target, answers, whole, pace, known_chip)
    if host_factor != 1:
        issuing = issuing.scaled(host_factor)
    return Prediction(trace, target, answers, issuing, pace, known_chip)


def origin_of(trace: Trace, origin: Device | str | None) -> Device:
    """The GPU on which a trace was measured: as given, or by the name it has in the trace."""
    if isinstance(origin, Device):
        return origin
    if origin is not None:
        return device(origin)
    name = trace.measurement.gpu if trace.measurement else ""
    if not name:
        raise UnknownName(
            "the trace does not say on which GPU it was measured; say it: origin=... or --origin"
        )
    try:
        return device(name)
    except UnknownName as error:
        raise UnknownName(
            f'the trace was measured on "{name}", which is not one GPU that we know ({error}); '
            "say which it is: origin=... or --origin"
        ) from error


def _refuse_scaling(trace: Trace, predictor: object, origin: object) -> None:
    if trace.measurement is not None and origin is not None:
        raise InvalidInput(
            f"{type(predictor).__name__} predicts from nothing, it does not scale; leave the "
            "origin out, or take a scaler"
        )
    if origin is not None or scales(predictor):
        raise InvalidInput(
            "this trace was not measured, so there is nothing to scale; leave origin and scaler "
            "out, or measure the step with wavecast.measure(step)"
        )


def default_scaler() -> Scaler:
    """The most accurate way to take a measurement to another GPU."""
    from wavecast.predictors.habitat import Habitat

    return Habitat.shipped()


def default_predictor() -> Predictor:
    """The most accurate predictor that needs no measurement."""
    from wavecast.predictors.learned import Learned

    return Learned.shipped()


@lru_cache(maxsize=16)
def _issue_s(columns: Columns, host: AnyHost) -> Seconds:
    return host.issue_times(columns.calls)


@lru_cache(maxsize=16)
def _pace(columns: Columns, recorded: bool, measured_s: float | None) -> Pace:
    host: Host | RecordedHost = RecordedHost() if recorded else REFERENCE_HOST
    return pace_of(columns.calls, _issue_s(columns, host), measured_s, host.trip_s)


def _host_of(pace: Pace, recorded: bool) -> Host | RecordedHost:
    """The host with which a measured step takes the measured time."""
    if recorded:
        return RecordedHost(factor=pace.host_factor)
    return REFERENCE_HOST if pace.host_factor == 1 else REFERENCE_HOST.scaled(pace.host_factor)


def _shares(names: Sequence[str], codes: NDArray[np.int64], seconds: Seconds) -> tuple[Share, ...]:
    calls = np.bincount(codes, minlength=len(names)).tolist()
    times = np.bincount(codes, weights=seconds, minlength=len(names)).tolist()
    return _longest_first(map(Share, names, calls, times))


def _longest_first(shares: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda share: -share.gpu_s))
