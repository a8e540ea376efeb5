"""Checks of the arguments of `predict`, each with a message that says what to do instead."""

from __future__ import annotations

import math
from collections.abc import Sequence

from wavecast.errors import InvalidInput, UnknownName
from wavecast.hardware.device import Device
from wavecast.hardware.devices import device, known_device
from wavecast.hardware.hosts import kernels
from wavecast.predictors.base import Predictor, Scaler
from wavecast.retargeting.family_traces import FamilyTraces
from wavecast.traces.step import Call, Measurement, Trace


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
        return known_device(name)
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
    refuse_impossible_measurement(trace, trace.measurement)
    return trace.measurement


LONGEST_PAUSE_S = 60.0
"""A step of tiny kernels may still wait this long for its data."""
MOST_TIMES = 1e4
"""A measured step takes at most this many times as long as its recorded parts, or they as it."""


def refuse_impossible_measurement(trace: Trace, whole: Measurement) -> None:
    """Raise InvalidInput for a measurement whose parts cannot be; the message names the part."""
    again = "measure the step again, or read another step of the file"
    kernels = [(call.op.name, kernel) for call in trace for kernel in call.kernels]
    if not kernels:
        raise InvalidInput(
            f"the trace was measured on {whole.gpu or 'a GPU'} but has no kernels, so there is "
            f"nothing to scale; {again}"
        )
    for name, kernel in kernels:
        for what, value in (("runs for", kernel.seconds), ("starts at", kernel.start_s or 0.0)):
            if not 0 <= value < math.inf:
                raise InvalidInput(
                    f"a kernel of {name} {what} {value:g} s, which cannot be; {again}"
                )
    host = [(f"the host's time for {c.op.name}", c.host_s) for c in trace]
    fields = ("seconds", "gpu_s", "host_s", "recorded_s", "cpu_s")
    for what, time_s in (*host, *((name, getattr(whole, name)) for name in fields)):
        if time_s is not None and not 0 <= time_s < math.inf:
            raise InvalidInput(f"the measurement says {what} = {time_s:g}; {again}")
    busy_s = sum(kernel.seconds for _, kernel in kernels)
    if not 0 < busy_s < math.inf:
        raise InvalidInput(f"all kernels of the trace together take {busy_s:g} s; {again}")
    if whole.seconds is not None:
        _refuse_other_scale(trace, whole.seconds, busy_s, again)


def _refuse_other_scale(trace: Trace, seconds: float, busy_s: float, again: str) -> None:
    """Raise InvalidInput if a step is far longer, or far shorter, than all that happened in it."""
    parts_s = busy_s + sum(call.host_s or 0.0 for call in trace)
    if seconds > max(MOST_TIMES * parts_s, LONGEST_PAUSE_S) or busy_s > MOST_TIMES * seconds:
        raise InvalidInput(
            f"the step took {seconds:g} s by the clock, but its kernels {busy_s:g} s and all its "
            f"parts {parts_s:g} s, which cannot both be; {again}"
        )


def _nothing_to_scale() -> InvalidInput:
    return InvalidInput(
        "this trace was not measured, so there is nothing to scale; leave origin and scaler "
        "out, or measure the step with wavecast.measure(step)"
    )


def refuse_waits(calls: Sequence[Call]) -> None:
    """Raise InvalidInput if the host waits for the GPU before the end of the step.

    No CUDA graph can hold such a wait.
    """
    works = kernels(calls) > 0
    for position, call in enumerate(calls):
        later = zip(calls[position + 1 :], works[position + 1 :], strict=True)
        if call.syncs and any(work and not other.syncs for other, work in later):
            place = f" in {call.module}" if call.module else ""
            raise InvalidInput(
                f"a CUDA graph cannot wait for the GPU, and this step does: {call.op.name}{place}, "
                f"call {position + 1} of {len(calls)}. Take the wait (.item(), a copy to the "
                "host, gradient scaling) out of the step, or predict it without a graph"
            )
