"""What measured steps and ops teach about predictions for their GPU, and how much it is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from wavecast.errors import InvalidInput, prefixed
from wavecast.hardware.devices import Device
from wavecast.predictors.base import Predictor
from wavecast.predictors.corrected import (
    Corrected,
    Corrections,
    OpOff,
    learn,
    measured_and_predicted,
)
from wavecast.results import Shown
from wavecast.steps.request import origin_of
from wavecast.traces.step import Trace


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

    Args:
        steps: measured traces by name.
        predictor: what is corrected; the shipped predictor by default.
        swept: what a sweep of single layers showed on the same GPU, which counts as well.

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

    Args:
        traces: recorded layers (`wavecast.frameworks.pytorch.measurement.sweep`).
        predictor: what is corrected; the shipped predictor by default.

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
