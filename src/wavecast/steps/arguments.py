"""Checks of the arguments of `predict`, each with a message that says what to do instead."""

from __future__ import annotations

from wavecast.errors import InvalidInput, UnknownName
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device
from wavecast.hardware.family_traces import FamilyTraces
from wavecast.predictors.base import Predictor, Scaler
from wavecast.traces.step import Measurement, Trace


def checked_target(trace: object, gpu: Device | str) -> Device:
    """The GPU to predict for; raises InvalidInput for an empty trace or a wrong argument."""
    if not isinstance(trace, Trace | FamilyTraces):
        raise InvalidInput(
            f"predict takes a Trace, not {type(trace).__name__}; "
            "make one with wavecast.trace(make_step) or wavecast.load_trace(path)"
        )
    steps = trace.traces if isinstance(trace, FamilyTraces) else (trace,)
    if not all(step.calls for step in steps):
        raise InvalidInput("the trace has no ops to predict; trace a step that runs on the GPU")
    target = device(gpu) if isinstance(gpu, str) else gpu
    if not isinstance(target, Device):
        raise InvalidInput(
            f"predict takes one GPU, a Device or its name, not {type(target).__name__}; "
            "call it once for each GPU"
        )
    return target


def origin_of(trace: Trace, origin: Device | str | None) -> Device:
    """The GPU on which a trace was measured: `origin` if given, else the one the trace names."""
    if isinstance(origin, Device):
        return origin
    if origin is not None:
        return device(origin)
    name = trace.measurement.gpu if trace.measurement else ""
    if not name:
        raise UnknownName(
            "the trace does not say on which GPU it was measured; give it: origin=... or --origin"
        )
    try:
        return device(name)
    except UnknownName as error:
        raise UnknownName(
            f'the trace was measured on "{name}", which does not identify one known GPU ({error}); '
            "give it: origin=... or --origin"
        ) from error


def refuse_other_predictors(predictor: object) -> None:
    """Raise InvalidInput for a predictor that is neither a Predictor nor a Scaler nor None."""
    if not isinstance(predictor, Predictor | Scaler | None):
        raise InvalidInput(
            f"{type(predictor).__name__} is neither a Predictor nor a Scaler; subclass "
            "wavecast.Predictor and write predict, or wavecast.Scaler and write scale_call"
        )


def refuse_origin(trace: Trace, predictor: Predictor | None, origin: object) -> None:
    """Raise InvalidInput if an origin was given although nothing is scaled."""
    if origin is None:
        return
    if trace.measurement is None:
        raise _nothing_to_scale()
    raise InvalidInput(
        f"{type(predictor).__name__} does not scale a measurement, so it has no origin; leave the "
        "origin out, or give a scaler"
    )


def measurement_of(trace: Trace) -> Measurement:
    """The measurement of a trace; raises InvalidInput if it was not measured."""
    if trace.measurement is None:
        raise _nothing_to_scale()
    return trace.measurement


def _nothing_to_scale() -> InvalidInput:
    return InvalidInput(
        "this trace was not measured, so there is nothing to scale; leave origin and scaler "
        "out, or measure the step with wavecast.measure(step)"
    )
