"""Predictions between GPUs, compared with what was measured on them.

The experiment of Habitat's evaluation (Yu et al., USENIX ATC 2021, section 5, figures 1, 3 and 4),
on any measured traces: every trace is taken to the GPU of every other trace of the same model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from wavecast import ops
from wavecast.errors import InvalidInput, prefixed
from wavecast.hardware.devices import Device
from wavecast.ops import Kind
from wavecast.predictors.base import Predictor, Scaler
from wavecast.predictors.corrected import (
    Corrected,
    Corrections,
    OpOff,
    learn,
    measured_and_predicted,
)
from wavecast.results import Shown
from wavecast.steps.prediction import TOO_MUCH, Prediction
from wavecast.steps.request import default_predictor, measurement_of, origin_of, predict
from wavecast.traces.step import Trace

_HEAVY = (Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.RNN)
"""The kinds of ops by which two traces are known to be of the same step."""


@dataclass(frozen=True)
class StepOnGpu:
    """A measured step of a model on one GPU."""

    model: str
    """The name that traces of the same model share."""
    trace: Trace
    device: Device
    source: str = ""
    """The file, for messages."""


@dataclass(frozen=True)
class PairError(Shown):
    """One model taken from one GPU to another, by four methods, and what was measured there.

    Errors are (predicted - measured) / measured: below 0 is too short.
    """

    model: str
    origin: str
    """The GPU whose measurement is scaled."""
    target: str
    """The GPU that is predicted."""
    measured_s: float
    """The measured time of the step on the target."""
    scaled_s: float | None
    """The time scaled from the origin; None if too much of the step could not be scaled."""
    unmeasured_s: float | None
    """The time predicted from the ops alone; None if too many could not be predicted."""
    flops_s: float | None
    """The origin's time multiplied by the ratio of peak float32 rates."""
    bandwidth_s: float | None
    """The origin's time multiplied by the ratio of memory bandwidths."""

    def _error(self, seconds: float | None) -> float | None:
        return None if seconds is None else seconds / self.measured_s - 1

    @property
    def error(self) -> float | None:
        """The error of the time scaled from the origin."""
        return self._error(self.scaled_s)

    @property
    def unmeasured_error(self) -> float | None:
        """The error of the time predicted from the ops alone."""
        return self._error(self.unmeasured_s)

    @property
    def flops_error(self) -> float | None:
        """The error of the ratio of peak float32 rates."""
        return self._error(self.flops_s)

    @property
    def bandwidth_error(self) -> float | None:
        """The error of the ratio of memory bandwidths."""
        return self._error(self.bandwidth_s)


@dataclass(frozen=True)
class StepError(Shown):
    """One measured step, predicted from its ops alone on the GPU that it was measured on."""

    model: str
    gpu: str
    measured_s: float
    """The measured time of the step."""
    unmeasured_s: float | None
    """The time predicted from the ops alone; None if too many could not be predicted."""

    @property
    def unmeasured_error(self) -> float | None:
        """The error of the time predicted from the ops alone."""
        return None if self.unmeasured_s is None else self.unmeasured_s / self.measured_s - 1


@dataclass(frozen=True)
class MeanError(Shown):
    """The mean of the absolute errors of several pairs, by method; None where no pair has one."""

    name: str
    """The model or GPU that the pairs share."""
    pairs: int
    """How many pairs there are."""
    error: float | None
    """The mean absolute error of scaling from the origin."""
    worst: float | None
    """The largest absolute error of scaling from the origin."""
    unmeasured_error: float | None
    """The mean absolute error of predicting from the ops alone."""
    flops_error: float | None
    """The mean absolute error of the ratio of peak float32 rates."""
    bandwidth_error: float | None
    """The mean absolute error of the ratio of memory bandwidths."""


@dataclass(frozen=True)
class OpError(Shown):
    """How wrong the GPU time of an op is, over all pairs in which both GPUs ran it equally often.

    Other pairs say nothing about it: their traces are from frameworks that divide a step otherwise.
    """

    op: str
    """The name of the op."""
    pairs: int
    """In how many pairs both GPUs ran it equally often."""
    error: float | None
    """The mean absolute error of its GPU time in those pairs; None if there are none."""
    share: float
    """Its mean share of the GPU time measured on the target, over all pairs."""


@dataclass(frozen=True)
class PairEvaluation(Shown):
    """All pairs of measured steps, and their errors by model, origin, target and op."""

    pairs: tuple[PairError, ...]
    """Each model from each GPU to each other one."""
    steps: tuple[StepError, ...]
    """Each measured step, predicted from its ops alone."""
    by_op: tuple[OpError, ...]
    """The errors of ops, by their share of the measured time."""
    notes: tuple[str, ...]
    """What could not be compared, and why."""

    @cached_property
    def overall(self) -> MeanError:
        """The mean errors of all pairs."""
        return mean_error("all", self.pairs)

    @property
    def by_model(self) -> tuple[MeanError, ...]:
        """The mean errors of each model."""
        return self._by(lambda pair: pair.model)

    @property
    def by_origin(self) -> tuple[MeanError, ...]:
        """The mean errors from each GPU."""
        return self._by(lambda pair: pair.origin)

    @property
    def by_target(self) -> tuple[MeanError, ...]:
        """The mean errors to each GPU."""
        return self._by(lambda pair: pair.target)

    def _by(self, key: Callable[[PairError], str]) -> tuple[MeanError, ...]:
        names = dict.fromkeys(map(key, self.pairs))
        return tuple(
            mean_error(name, [pair for pair in self.pairs if key(pair) == name]) for name in names
        )


def mean_error(name: str, pairs: Sequence[PairError]) -> MeanError:
    """The mean absolute errors of some pairs."""
    errors = _sizes(pair.error for pair in pairs)
    return MeanError(
        name,
        len(pairs),
        _mean(errors),
        max(errors, default=None),
        _mean(_sizes(pair.unmeasured_error for pair in pairs)),
        _mean(_sizes(pair.flops_error for pair in pairs)),
        _mean(_sizes(pair.bandwidth_error for pair in pairs)),
    )


def _sizes(errors: Iterable[float | None]) -> list[float]:
    return [abs(error) for error in errors if error is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def measured_steps(
    traces: Sequence[tuple[str, str, Trace]], origin: Device | str | None = None
) -> tuple[StepOnGpu, ...]:
    """Measured traces with their models and GPUs.

    Args:
        traces: the model of each, its file and itself. Where the model is empty, traces with the
            same matmuls, convolutions and attention are of one model, named after the first file.
        origin: the GPU of all traces, where they do not name it.

    Raises:
        InvalidInput: a trace was not measured, or the time of its step is unknown.
        UnknownName: a trace does not name a known GPU.
    """
    names: dict[object, str] = {}
    steps = []
    for given, source, trace in traces:
        if measurement_of(trace).seconds is None:
            raise InvalidInput(
                f"{source} does not say how long the step took, so there is nothing to compare "
                "with; measure it with wavecast measure"
            )
        model = given or names.setdefault(_identity(trace), _stem(source))
        steps.append(StepOnGpu(model, trace, origin_of(trace, origin), source))
    return tuple(steps)


def _stem(source: str) -> str:
    return source.replace("\\", "/").rpartition("/")[2].partition(".")[0] or source


def _identity(trace: Trace) -> object:
    """What traces of the same step have in common on every GPU."""
    heavy = [call.op for call in trace if ops.kind(call.op) in _HEAVY]
    shapes = Counter(
        (op.base, tuple((tensor.shape, tensor.dtype) for tensor in op.inputs)) for op in heavy
    )
    return frozenset(shapes.items())


def evaluate(steps: Sequence[StepOnGpu], scaler: Scaler | None = None) -> PairEvaluation:
    """Every measured step, taken to the GPU of every other one of its model and compared.

    Raises:
        InvalidInput: there are no steps.
    """
    if not steps:
        raise InvalidInput("there is nothing to evaluate; give measured traces")
    notes: list[str] = []
    pairs, op_times = [], []
    for here in steps:
        for there in steps:
            if here.model == there.model and here.device.id != there.device.id:
                pair, times = _pair(here, there, scaler, notes)
                pairs.append(pair)
                op_times.append(times)
    alone = [step.model for step in steps if not _has_partner(step, steps)]
    if alone:
        notes.append(
            f"measured on one GPU only, so there is no pair: {', '.join(dict.fromkeys(alone))}; "
            "name traces of the same model alike (MODEL=FILE)"
        )
    own = tuple(_own_error(step) for step in steps)
    notes.extend(_corrected_notes(steps, own))
    return PairEvaluation(tuple(pairs), own, _op_errors(op_times), tuple(dict.fromkeys(notes)))


def _has_partner(step: StepOnGpu, steps: Sequence[StepOnGpu]) -> bool:
    return any(o.model == step.model and o.device.id != step.device.id for o in steps)


_OpTimes = Mapping[str, tuple[float | None, float]]
"""The predicted and the measured GPU time of each op of a pair."""


def _pair(
    here: StepOnGpu, there: StepOnGpu, scaler: Scaler | None, notes: list[str]
) -> tuple[PairError, _OpTimes]:
    scaled = predict(here.trace, there.device, predictor=scaler, origin=here.device)
    seconds = _known(scaled)
    if seconds is None:
        notes.append(
            f"{here.model} from {here.device.id} to {there.device.id}: "
            f"{100 * scaled.unpredicted_share:.0f}% of the step could not be scaled"
        )
    measured = predict(there.trace, there.device, origin=there.device)
    here_s = measurement_of(here.trace).seconds
    assert here_s is not None
    rates = here.device.fp32_flops, there.device.fp32_flops
    widths = here.device.memory_bytes_per_s, there.device.memory_bytes_per_s
    predicted_s = {(share.name, share.calls): share.gpu_s for share in scaled.by_op()}
    times = {
        share.name: (predicted_s.get((share.name, share.calls)), share.gpu_s)
        for share in measured.by_op()
        if share.gpu_s > 0
    }
    pair = PairError(
        here.model,
        here.device.id,
        there.device.id,
        measured_s=measured.seconds,
        scaled_s=seconds,
        unmeasured_s=_from_ops(here.trace, there.device),
        flops_s=_by_ratio(here_s, *rates),
        bandwidth_s=_by_ratio(here_s, *widths),
    )
    return pair, {} if seconds is None else times


def _known(prediction: Prediction) -> float | None:
    return None if prediction.unpredicted_share > TOO_MUCH else prediction.seconds


def _from_ops(trace: Trace, device: Device) -> float | None:
    """The time that our predictor gives from the ops alone; None if it knows too few of them."""
    return _known(predict(trace, device, predictor=default_predictor()))


def _by_ratio(seconds: float, here: float | None, there: float | None) -> float | None:
    return None if not here or not there else seconds * here / there


def _own_error(step: StepOnGpu) -> StepError:
    measured_s = measurement_of(step.trace).seconds
    assert measured_s is not None
    return StepError(step.model, step.device.id, measured_s, _from_ops(step.trace, step.device))


def _corrected_notes(steps: Sequence[StepOnGpu], errors: Sequence[StepError]) -> Iterator[str]:
    """What the user's corrections change, for each GPU that has any."""
    from wavecast.predictors.corrected import Corrected

    predictor = default_predictor()
    if not isinstance(predictor, Corrected):
        return
    both: dict[str, list[tuple[float, float]]] = {}
    for step, own in zip(steps, errors, strict=True):
        if own.gpu in predictor.corrections and own.unmeasured_error is not None:
            shipped = predict(step.trace, step.device, predictor=predictor.base).seconds
            pair = abs(own.unmeasured_error), abs(shipped / own.measured_s - 1)
            both.setdefault(own.gpu, []).append(pair)
    for gpu, pairs in both.items():
        after, before = (math.fsum(sizes) / len(pairs) for sizes in zip(*pairs, strict=True))
        yield (
            f"{gpu}: times from nothing are corrected by {predictor.corrections[gpu].counted} that "
            f"you measured, and off by {after:.1%}; without that by {before:.1%}. Steps that were "
            "learned from do not count as a test"
        )


def _op_errors(pairs: Sequence[_OpTimes]) -> tuple[OpError, ...]:
    known = [times for times in pairs if times]
    totals = [math.fsum(measured for _, measured in times.values()) for times in known]
    op_errors = []
    for name in dict.fromkeys(name for times in known for name in times):
        shares = [
            times.get(name, (None, 0.0))[1] / all_s
            for times, all_s in zip(known, totals, strict=True)
        ]
        both = [times[name] for times in known if name in times]
        errors = [abs(seconds / measured - 1) for seconds, measured in both if seconds is not None]
        op_errors.append(OpError(name, len(errors), _mean(errors), math.fsum(shares) / len(known)))
    return tuple(sorted(op_errors, key=lambda error: -error.share))


# What measured steps and ops teach about predictions for their GPU, and how much it is worth.


@dataclass(frozen=True)
class LearnedStep(Shown):
    """How well the GPU time of a measured step is predicted, before and after learning.

    Errors are (predicted - measured) / measured: below 0 is too short.
    """

    step: str
    """The file of the step."""
    measured_s: float
    """The measured GPU time of its ops that can be predicted, in seconds."""
    before: float
    """The error of the shipped predictor."""
    after: float | None
    """The error with what the other steps and swept ops teach. None if there are none."""


@dataclass(frozen=True)
class Learning:
    """What some measured steps teach about the predictions for their GPU."""

    gpu: str
    """The id of the GPU."""
    steps: tuple[LearnedStep, ...]
    """The steps, in the order in which they were given."""
    corrections: Corrections = field(repr=False)
    """What all of them give."""


def learn_from(
    steps: Mapping[str, Trace], predictor: Predictor | None = None, swept: Sequence[OpOff] = ()
) -> Learning:
    """The corrections that measured steps of one GPU give, each judged by the others.

    Raises:
        InvalidInput: the steps were measured on several GPUs, or nothing in one can be compared.
    """
    base = predictor or _shipped()
    gpus = {name: origin_of(trace, None) for name, trace in steps.items()}
    device = next(iter(gpus.values()))
    for name, other in gpus.items():
        if other.id != device.id:
            raise InvalidInput(
                f"{name} was measured on {other.id}, and others on {device.id}; what they teach "
                "is kept by GPU, so give the steps of one GPU at a time"
            )
    names = list(steps)
    rows = []
    for name in names:
        with prefixed(f"{name}: "):
            others = [steps[other] for other in names if other != name]
            rows.append(_judged(name, steps[name], others, swept, device, base))
    learned = learn(list(steps.values()), device, base)
    return Learning(device.id, tuple(rows), replace(learned, swept=tuple(swept)))


def learn_from_layers(traces: Sequence[Trace], predictor: Predictor | None = None) -> Learning:
    """The corrections that recorded single layers of one GPU give.

    Raises:
        InvalidInput: nothing in a trace can be compared.
    """
    device = origin_of(traces[0], None)
    learned = learn((), device, predictor or _shipped(), swept=traces)
    return Learning(device.id, (), learned)


def _shipped() -> Predictor:
    from wavecast.predictors.learned.predictor import Learned

    return Learned.shipped()


def _judged(
    name: str,
    trace: Trace,
    others: Sequence[Trace],
    swept: Sequence[OpOff],
    device: Device,
    base: Predictor,
) -> LearnedStep:
    """A step, predicted without and with what other steps and swept ops teach."""
    measured_s, before = _error(trace, device, base)
    after = None
    if others or swept:
        own = replace(learn(others, device, base), swept=tuple(swept))
        _, after = _error(trace, device, Corrected(base, {own.gpu: own}))
    return LearnedStep(name, measured_s, before, after)


def _error(trace: Trace, device: Device, predictor: Predictor) -> tuple[float, float]:
    """The measured GPU time of a step's ops, and the error of its prediction."""
    pairs = measured_and_predicted(trace, device, predictor)
    measured_s = sum(pair[1] for pair in pairs)
    return measured_s, sum(pair[2] for pair in pairs) / measured_s - 1
