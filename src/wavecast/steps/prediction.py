"""From a trace and a GPU to the time of a step: each op predicted, then played against the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from wavecast.errors import InvalidInput, UnknownName
from wavecast.footprint.memory import Memory, memory
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.hardware.host_files import find_host
from wavecast.hardware.hosts import (
    REFERENCE_HOST,
    GraphedHost,
    Host,
    RecordedHost,
    Seconds,
    refuse_waits,
)
from wavecast.predictors.base import Estimate, Predictor, Scaler
from wavecast.steps.op_times import Answers, predict_ops, scale_ops
from wavecast.steps.pace import Pace, pace_of
from wavecast.steps.ranges import Factors, gpu_powers, host_factors
from wavecast.steps.timeline import StepTime, play
from wavecast.steps.work import StepWork, work_of
from wavecast.traces.arrays import Codes, StepArrays, encode, modules_of
from wavecast.traces.step import Measurement, Op, Phase, Trace

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
    answers: Answers
    host: AnyHost
    pace: Pace | None = None
    """How a measured step's parts make its whole."""
    known_chip: bool = False
    """Whether the predictor has seen ops of all sorts on the GPU's very chip."""

    @cached_property
    def estimates(self) -> Mapping[Op, Estimate | None]:
        """For each distinct op that runs on the GPU; None where nobody knows."""
        rows = zip(self._arrays.works, self.answers, self._work.launches, strict=True)
        return {call.op: answer for call, answer, launches in rows if launches}

    @cached_property
    def step(self) -> StepTime:
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

    @cached_property
    def memory(self) -> Memory | None:
        """The memory of the step on this GPU; None when the trace holds no allocations."""
        return memory(self.trace, self.device) if self.trace.allocations else None

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in the GPU's memory (`Memory.fits`); None: not known."""
        return None if self.memory is None else self.memory.fits

    @cached_property
    def unpredicted(self) -> Mapping[str, int]:
        """Ops whose time nobody could predict, with their number of calls. Never hidden."""
        arrays, launched = self._arrays, self._work.launches
        missing: dict[str, int] = {}
        for call, count, answer, launches in zip(
            arrays.works, arrays.counts.tolist(), self.answers, launched, strict=True
        ):
            if launches and answer is None:
                missing[call.op.name] = missing.get(call.op.name, 0) + count
        return missing

    def by_op(self) -> tuple[Share, ...]:
        """The GPU's time by op name, longest first."""
        arrays = self._arrays
        return _shares(arrays.names, arrays.name[arrays.work], self.call_s)

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """The GPU's time by module, `depth` names deep, longest first."""
        names, module = modules_of(self._arrays, depth)
        return _shares(names, module, self.call_s)

    def by_phase(self) -> Mapping[Phase, float]:
        """The GPU's time of each phase."""
        seconds = np.bincount(self._arrays.phase, weights=self.call_s, minlength=len(Phase))
        return dict(zip(Phase, map(float, seconds), strict=True))

    def sources(self) -> tuple[Share, ...]:
        """The GPU's time by who predicted it."""
        names, source = encode([answer.source if answer else "" for answer in self.answers])
        shares = _shares(names, source[self._arrays.work], self.call_s)
        return tuple(share for share in shares if share.name)

    @property
    def _arrays(self) -> StepArrays:
        return self.trace.arrays

    @cached_property
    def _work(self) -> StepWork:
        return work_of(self.trace)

    @cached_property
    def _op_s(self) -> NDArray[np.float64]:
        """Seconds, low and high of each different piece of work."""
        nothing = (0.0, 0.0, 0.0)
        return np.array([(a.seconds, a.low_s, a.high_s) if a else nothing for a in self.answers])

    @cached_property
    def call_s(self) -> Seconds:
        """The GPU's time for each call of the trace."""
        seconds: Seconds = self._op_s[self._arrays.work, 0]
        return seconds if self.pace is None else seconds * self.pace.exposure

    def _play(self, gpu_factor: float = 1.0, host_factor: float = 1.0) -> StepTime:
        issue_s = _issue_s(self._arrays, self.host) * host_factor
        gpu_s = self.call_s * gpu_factor + self._gap_s
        waits = self.pace is None or self.pace.waits
        return play(issue_s, gpu_s, self._arrays.syncs if waits else (), self.host.trip_s)

    @property
    def _gap_s(self) -> Seconds | float:
        """Of each call: how long the GPU stands still between its kernels."""
        if self.pace is None:
            return 0.0  # most measured op times, of which predictors learn, include it
        gaps_s = self.host.kernel_gaps(self._arrays.calls)
        return self.pace.gap_s if gaps_s is None else gaps_s

    @cached_property
    def gpu_spread(self) -> tuple[float, float]:
        """By which factors the GPU's time might be less or more, by the ranges of its ops.

        Errors of one kind of op go together, those of different kinds do not. So the distances to
        the low and high ends add up within a kind, and in squares between kinds.
        """
        seconds, low, high = self._op_s.T * self._arrays.counts
        below, above = (
            float(np.linalg.norm(np.bincount(self._work.kind, weights=distances)))
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
            host = host_factors(vendor, known=self.host.known)
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
    target = _checked_target(trace, gpu)
    asked = find_host(host)
    issuing: Host | RecordedHost = asked
    pace, known_chip = None, False
    if isinstance(predictor, Predictor) or (predictor is None and trace.measurement is None):
        _refuse_scaling(trace, predictor, origin)
        asking = predictor or default_predictor()
        answers = predict_ops(trace, target, asking)
        known_chip = asking.knows_chip(target)
    elif isinstance(predictor, Scaler | None):
        measured = _measured(trace)
        answers = scale_ops(trace, target, predictor or default_scaler(), origin_of(trace, origin))
        pace = _pace(trace.arrays, measured.host_s is not None, measured.seconds)
        if host is None:
            issuing = _host_of(pace, measured.host_s is not None)
    else:
        raise InvalidInput(
            f"{type(predictor).__name__} is neither a Predictor nor a Scaler; subclass "
            "wavecast.Predictor and write predict, or wavecast.Scaler and write scale_call"
        )
    if graphed:
        refuse_waits(trace.calls)
        whole = (asked if host_factor == 1 else asked.scaled(host_factor)).graphed()
        return Prediction(trace, target, answers, whole, pace, known_chip)
    if host_factor != 1:
        issuing = issuing.scaled(host_factor)
    return Prediction(trace, target, answers, issuing, pace, known_chip)


def _checked_target(trace: object, gpu: Device | str) -> Device:
    """The GPU to predict for, once the arguments are known to be a trace with ops and one GPU."""
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
    return target


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


def _refuse_scaling(trace: Trace, predictor: Predictor | None, origin: object) -> None:
    if origin is None:
        return
    if trace.measurement is None:
        raise _nothing_to_scale()
    raise InvalidInput(
        f"{type(predictor).__name__} predicts from nothing, it does not scale; leave the "
        "origin out, or take a scaler"
    )


def _measured(trace: Trace) -> Measurement:
    if trace.measurement is None:
        raise _nothing_to_scale()
    return trace.measurement


def _nothing_to_scale() -> InvalidInput:
    return InvalidInput(
        "this trace was not measured, so there is nothing to scale; leave origin and scaler "
        "out, or measure the step with wavecast.measure(step)"
    )


def default_scaler() -> Scaler:
    """The most accurate way to take a measurement to another GPU."""
    from wavecast.predictors.habitat import Habitat

    return Habitat.shipped()


def default_predictor() -> Predictor:
    """The most accurate predictor that needs no measurement."""
    from wavecast.predictors.learned.predictor import Learned

    return Learned.shipped()


@lru_cache(maxsize=16)
def _issue_s(arrays: StepArrays, host: AnyHost) -> Seconds:
    return host.issue_times(arrays.calls)


@lru_cache(maxsize=16)
def _pace(arrays: StepArrays, recorded: bool, measured_s: float | None) -> Pace:
    host: Host | RecordedHost = RecordedHost() if recorded else REFERENCE_HOST
    return pace_of(arrays.calls, _issue_s(arrays, host), measured_s, host.trip_s)


def _host_of(pace: Pace, recorded: bool) -> Host | RecordedHost:
    """The host with which a measured step takes the measured time."""
    if recorded:
        return RecordedHost(factor=pace.host_factor)
    return REFERENCE_HOST if pace.host_factor == 1 else REFERENCE_HOST.scaled(pace.host_factor)


def _shares(names: Sequence[str], codes: Codes, seconds: Seconds) -> tuple[Share, ...]:
    calls = np.bincount(codes, minlength=len(names)).tolist()
    times = np.bincount(codes, weights=seconds, minlength=len(names)).tolist()
    return _longest_first(map(Share, names, calls, times))


def _longest_first(shares: Iterable[Share]) -> tuple[Share, ...]:
    return tuple(sorted(shares, key=lambda share: -share.gpu_s))
