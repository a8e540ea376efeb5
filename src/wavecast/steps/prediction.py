"""The predicted time of a training step on a GPU.

Each op is predicted (or scaled from a measurement), then `timeline.play` puts op times and the
host's issue times together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from wavecast.footprint.memory import Memory, memory
from wavecast.hardware.device import Device
from wavecast.hardware.family_traces import FamilyTraces, trace_on
from wavecast.hardware.hosts import (
    REFERENCE_HOST,
    GraphedHost,
    Host,
    HostModel,
    RecordedHost,
    Seconds,
    refuse_waits,
)
from wavecast.hardware.kept_hosts import find_host
from wavecast.hardware.retargeting import retarget
from wavecast.predictors.base import (
    Estimate,
    Familiarity,
    Predictor,
    Scaler,
    refuse_impossible,
)
from wavecast.steps.arguments import (
    checked_target,
    measurement_of,
    origin_of,
    refuse_origin,
    refuse_other_predictors,
)
from wavecast.steps.op_times import Answers, predict_ops, scale_ops
from wavecast.steps.pace import Pace, pace_of
from wavecast.steps.ranges import Coverage, gpu_powers, held, host_factors, least_modelled
from wavecast.steps.shares import Share, shares_of
from wavecast.steps.timeline import StepTime, play
from wavecast.steps.unpredicted import unpredicted_shares
from wavecast.steps.work import StepWork, work_of
from wavecast.traces.arrays import StepArrays, encode, modules_of
from wavecast.traces.step import Op, Phase, Trace

MODELLED = "learned"
"""How the names of answers from fitted op models begin. Ops without a model get the share of the
roofline that such ops attain ("attainable")."""


@dataclass(frozen=True)
class Prediction:
    """The predicted time of one training step on one GPU; `predict` makes it.

    ```python
    prediction = wavecast.predict(trace, "h100-sxm-80gb")
    prediction.seconds, prediction.low_s, prediction.high_s  # one iteration, and its range
    prediction.by_op()[0]  # the op on which the GPU spends most time
    ```
    """

    trace: Trace
    device: Device
    answers: Answers
    """The predictor's estimate for each distinct piece of work of the trace."""
    host: HostModel
    """The host that issues the ops."""
    pace: Pace | None = None
    """The corrections that make a measured step take its measured time. None for a traced step."""
    familiarity: Familiarity | None = None
    """How well the predictor knows the GPU. None if its steps were never compared with measured
    ones, and for a measured step that is scaled: then there is no range."""
    notes: tuple[str, ...] = ()
    """Caveats of this GPU, beside those of the trace (`Trace.notes`)."""

    def __repr__(self) -> str:
        ends = "" if self._range is None else ", low_s={:.4g}, high_s={:.4g}".format(*self._range)
        notes = f", notes={self.notes!r}" if self.notes else ""
        return f"Prediction({self.device.id!r}, seconds={self.seconds:.4g}{ends}{notes})"

    @cached_property
    def estimates(self) -> Mapping[Op, Estimate | None]:
        """The estimate for each distinct op that runs on the GPU; None if no predictor answered."""
        rows = zip(self._arrays.works, self.answers, self._work.launches, strict=True)
        return {call.op: answer for call, answer, launches in rows if launches}

    @cached_property
    def step(self) -> StepTime:
        """The times of one iteration in the steady state of many.

        Raises:
            InvalidInput: the time is 0 or not finite; the message names the part that made it so.
        """
        step = self._play()
        refuse_impossible(f"the step on {self.device.id} ({self._culprit})", step.seconds)
        return step

    @property
    def _culprit(self) -> str:
        """What a reader should look at when the time of the step cannot be."""
        longest, missing = self.by_op()[0], ", ".join(list(self.unpredicted)[:3])
        part = f"longest op: {longest.name}" if longest.gpu_s else f"unpredicted: {missing or '-'}"
        return f"{part}, host: {self.host.name}"

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
    def low_s(self) -> float | None:
        """The low end of the range of `seconds`; None where no measured steps gave a range."""
        return self._range and self._range[0]

    @property
    def high_s(self) -> float | None:
        """The high end of the range of `seconds`; None where `low_s` is."""
        return self._range and self._range[1]

    @property
    def held(self) -> Coverage | None:
        """How many measured steps lay in ranges like this one; None without a range."""
        if self._range is None or self.familiarity is None:
            return None
        return held(self.familiarity, known=self.host.known, bound_by=self.bound_by)

    @property
    def bound_by(self) -> str:
        """What limits the step: "gpu", "host", or "both" where they wait for each other."""
        return self.step.bound_by

    @property
    def throughput(self) -> float | None:
        """Samples (the trace's `unit`) per second; None when the trace has no sample count."""
        if self.trace.samples is None or not self.seconds:
            return None
        return self.trace.samples / self.seconds

    @cached_property
    def memory(self) -> Memory | None:
        """The GPU memory that the step needs; None when the trace has no allocations."""
        return memory(self.trace, self.device) if self.trace.allocations else None

    @property
    def fits(self) -> bool | None:
        """Whether the step fits in the GPU's memory (`Memory.fits`); None when unknown."""
        return None if self.memory is None else self.memory.fits

    @cached_property
    def unpredicted(self) -> Mapping[str, int]:
        """The number of calls of each op that no predictor could answer, by op name.

        Their GPU time is counted as 0, so reports always show them.
        """
        arrays = self._arrays
        missing: dict[str, int] = {}
        for call, count, answer, launches in zip(
            arrays.works, arrays.counts.tolist(), self.answers, self._work.launches, strict=True
        ):
            if launches and answer is None:
                missing[call.op.name] = missing.get(call.op.name, 0) + count
        return missing

    @cached_property
    def unpredicted_shares(self) -> Mapping[str, float]:
        """How much of the step was not predicted, as shares of its "bytes" and "FLOPs".

        A measured step also has the share of its "measured GPU time". Empty if all ops were
        predicted.
        """
        return unpredicted_shares(self._work, self.answers)

    @property
    def unpredicted_share(self) -> float:
        """The largest of `unpredicted_shares`; 0 if all ops were answered, 1 if none was."""
        if self.unpredicted and not self.sources():
            return 1.0
        return max(self.unpredicted_shares.values(), default=0.0)

    def by_op(self) -> tuple[Share, ...]:
        """The GPU time by op name, longest first."""
        arrays = self._arrays
        return shares_of(arrays.names, arrays.name[arrays.work], self.call_s)

    def by_module(self, depth: int = 2) -> tuple[Share, ...]:
        """The GPU time by module, longest first; paths are cut after `depth` names."""
        names, module = modules_of(self._arrays, depth)
        return shares_of(names, module, self.call_s)

    def by_phase(self) -> Mapping[Phase, float]:
        """The GPU time of each phase, in seconds."""
        seconds = np.bincount(self._arrays.phase, weights=self.call_s, minlength=len(Phase))
        return dict(zip(Phase, map(float, seconds), strict=True))

    def sources(self) -> tuple[Share, ...]:
        """The GPU time by the predictor that answered, longest first."""
        names, source = encode([answer.source if answer else "" for answer in self.answers])
        shares = shares_of(names, source[self._arrays.work], self.call_s)
        return tuple(share for share in shares if share.name)

    @cached_property
    def modelled(self) -> float:
        """The share of the GPU time for which fitted op models answered; 0 if nobody answered."""
        own_s = sum(share.gpu_s for share in self.sources() if share.name.startswith(MODELLED))
        return own_s / self.gpu_s if self.gpu_s else 0.0

    @property
    def _arrays(self) -> StepArrays:
        return self.trace.arrays

    @cached_property
    def _work(self) -> StepWork:
        return work_of(self.trace)

    @cached_property
    def _op_s(self) -> NDArray[np.float64]:
        """Seconds, low and high end of each distinct piece of work, one row each."""
        nothing = (0.0, 0.0, 0.0)
        return np.array([(a.seconds, a.low_s, a.high_s) if a else nothing for a in self.answers])

    @cached_property
    def call_s(self) -> Seconds:
        """The GPU time of each call of the trace, in seconds."""
        seconds: Seconds = self._op_s[self._arrays.work, 0]
        return seconds if self.pace is None else seconds * self.pace.exposure

    def _play(self, gpu_factor: float = 1.0, host_factor: float = 1.0) -> StepTime:
        issue_s = _issue_s(self._arrays, self.host) * host_factor
        gpu_s = self.call_s * gpu_factor + self._gap_s
        waits = self.pace is None or self.pace.waits
        return play(issue_s, gpu_s, self._arrays.syncs if waits else (), self.host.trip_s)

    @property
    def _gap_s(self) -> Seconds | float:
        """The GPU's idle time between the kernels of each call, in seconds."""
        if self.pace is None:
            return 0.0  # most op times that predictors were trained on include these gaps
        gaps_s = self.host.kernel_gaps(self._arrays.calls)
        return self.pace.gap_s if gaps_s is None else gaps_s

    @cached_property
    def gpu_spread(self) -> tuple[float, float]:
        """Low and high end of the GPU time, relative to it, from the ranges of the ops alone.

        Errors of ops of one kind are taken as fully correlated, those of different kinds as
        independent. So the distances to the low and high ends add up within a kind, and their
        squares add up between kinds.
        """
        seconds, low, high = self._op_s.T * self._arrays.counts
        below, above = (
            float(np.linalg.norm(np.bincount(self._work.kind, weights=distances)))
            for distances in (seconds - low, high - seconds)
        )
        total = float(seconds.sum()) or 1.0
        return 1 - below / total, 1 + above / total

    @cached_property
    def _range(self) -> tuple[float, float] | None:
        """Low and high end of the step's time; None where no measured steps gave a range.

        None of the steps that gave ranges was scaled from a measurement or ran as a CUDA graph, and
        op models answered for most of their time.
        """
        graphed = isinstance(self.host, GraphedHost)
        if self.familiarity is None or self.pace is not None or graphed:
            return None
        if self.modelled < least_modelled():
            return None
        powers = gpu_powers(self.familiarity)
        factors = host_factors(self.familiarity, known=self.host.known)
        if powers is None or factors is None:
            return None
        least, most = self.gpu_spread
        low = self._play(least**powers.below, factors.low)
        high = self._play(most**powers.above, factors.high)
        what = f"the range of the step on {self.device.id} ({self._culprit})"
        refuse_impossible(what, self.seconds, low.seconds, high.seconds)
        return low.seconds, high.seconds


def predict(
    trace: Trace | FamilyTraces,
    gpu: Device | str,
    *,
    predictor: Predictor | Scaler | None = None,
    origin: Device | str | None = None,
    host: Host | str | None = None,
    host_factor: float = 1.0,
    graphed: bool = False,
) -> Prediction:
    """The time of one step on a GPU.

    The ops of a traced step are predicted; the calls of a measured step are scaled to the GPU.

    ```python
    wavecast.predict(trace, "h100-sxm-80gb").seconds
    wavecast.predict(trace, "l4", host="reference", host_factor=2, graphed=False)
    ```

    Args:
        trace: the step, from `wavecast.trace`, `wavecast.measure` or a file. If its attention
            kernels are for other GPUs, they are chosen again, or `notes` says that they are not.
        gpu: a device, or a name that `wavecast.device` knows.
        predictor: a Predictor, which predicts each op, or a Scaler, which scales each measured
            call. The most accurate shipped one by default. A Predictor ignores what was measured.
        origin: the GPU on which the trace was measured. Needed only when its name in the trace
            does not identify one GPU.
        host: the host that issues the ops: a Host, "reference", "mine", the name of a calibrated
            one (`wavecast calibrate`) or a path to a host file. By default a measured step keeps
            its own host; others use one that was calibrated with this GPU, else the reference.
        host_factor: the host's times are multiplied by this.
        graphed: whether the whole step is captured as one CUDA graph and replayed.

    Raises:
        InvalidInput: the trace is empty, or the arguments contradict each other.
        UnknownName: the GPU, its origin or the host is not known.
    """
    target = checked_target(trace, gpu)
    trace, notes = retarget(trace_on(trace, target), target)
    refuse_other_predictors(predictor)
    chosen_host = find_host(host, target)
    issuing: Host | RecordedHost = chosen_host
    pace, familiarity = None, None
    if isinstance(predictor, Predictor) or (predictor is None and trace.measurement is None):
        refuse_origin(trace, predictor, origin)
        op_predictor = predictor or default_predictor()
        answers = predict_ops(trace, target, op_predictor)
        familiarity = op_predictor.familiarity(target)
    else:
        measured = measurement_of(trace)
        answers = scale_ops(trace, target, predictor or default_scaler(), origin_of(trace, origin))
        pace = _pace(trace.arrays, measured.host_s is not None, measured.seconds)
        if host is None and not graphed:
            issuing = _host_of(pace, measured.host_s is not None)
    if host_factor != 1:
        issuing = issuing.scaled(host_factor)
    model = _graphed(trace, issuing) if graphed else issuing
    return Prediction(trace, target, answers, model, pace, familiarity, notes)


def _graphed(trace: Trace, host: Host | RecordedHost) -> HostModel:
    """The host when it replays the whole step as one CUDA graph."""
    assert isinstance(host, Host)  # the times of a recorded one are those of single calls
    refuse_waits(trace.calls)
    return host.graphed()


def default_scaler() -> Scaler:
    """The most accurate shipped scaler, which takes a measurement to another GPU."""
    from wavecast.predictors.habitat import Habitat

    return Habitat.shipped()


def default_predictor() -> Predictor:
    """The most accurate shipped predictor, which needs no measurement."""
    from wavecast.predictors.learned.predictor import Learned

    return Learned.shipped()


@lru_cache(maxsize=16)
def _issue_s(arrays: StepArrays, host: HostModel) -> Seconds:
    return host.issue_times(arrays.calls)


@lru_cache(maxsize=16)
def _pace(arrays: StepArrays, recorded: bool, measured_s: float | None) -> Pace:
    host: Host | RecordedHost = RecordedHost() if recorded else REFERENCE_HOST
    return pace_of(arrays.calls, _issue_s(arrays, host), measured_s, host.trip_s)


def _host_of(pace: Pace, recorded: bool) -> Host | RecordedHost:
    """The host with which a measured step takes its measured time."""
    if recorded:
        return RecordedHost(factor=pace.host_factor)
    return REFERENCE_HOST if pace.host_factor == 1 else REFERENCE_HOST.scaled(pace.host_factor)
