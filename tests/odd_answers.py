"""Everything that is computed from a trace, as questions to ask one after another."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Iterator
from functools import partial

from rich.console import Console, RenderableType

import wavecast
from wavecast import ops
from wavecast.analysis.profile import Profile, profile_measured, profile_predicted
from wavecast.footprint.advice import advise
from wavecast.footprint.largest_batch import accumulate_twice
from wavecast.predictors.attainable import Attainable, Roofline
from wavecast.predictors.base import Predictor, Scaler
from wavecast.predictors.habitat import Habitat, MixedPrecision
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.mlp import Mlp
from wavecast.predictors.wave import WaveScaling
from wavecast.report.fields import record
from wavecast.report.memory import memories
from wavecast.report.predictions import predictions
from wavecast.report.profiles import profiles
from wavecast.report.traces import measured_step, traced_step
from wavecast.steps.prediction import Prediction
from wavecast.traces.step import Trace

GPUS = ("v100-sxm-16gb", "h100-sxm-80gb", "mi250x")


def check_prediction(prediction: Prediction) -> None:
    low_s, high_s = prediction.low_s, prediction.high_s
    assert 0 < prediction.seconds < math.inf
    if low_s is not None and high_s is not None:
        assert 0 < low_s <= prediction.seconds <= high_s < math.inf
    assert 0 <= prediction.unpredicted_share <= 1
    launched = {op.name for op in prediction.estimates}
    assert set(prediction.unpredicted) <= launched
    prediction.by_op(), prediction.by_module(), prediction.by_phase(), prediction.sources()
    assert repr(prediction)


def _predicted(trace: Trace, by: Predictor | Scaler | None, gpu: str) -> None:
    prediction = wavecast.predict(trace, gpu, predictor=by)
    check_prediction(prediction)
    profile = profile_predicted("odd", prediction)
    _shown_profile(profile)
    _shown(predictions("odd", [prediction], 80))
    _written(record(prediction))


def _shown_profile(profile: Profile) -> None:
    profile.wasteful()
    _shown(profiles("odd", [profile], 80))
    _written(record(profile))


def _measured(trace: Trace) -> None:
    profile = profile_measured("odd", trace, wavecast.device(GPUS[0]))
    _shown_profile(profile)
    assert 0 < profile.seconds < math.inf
    assert 0 <= profile.gpu_s <= profile.seconds


def _memory(trace: Trace, gpu: str | None) -> None:
    memory = wavecast.memory(trace, gpu)
    assert 0 <= memory.peak_bytes <= memory.reserved_bytes < math.inf
    memory.by_kind, memory.by_module(), memory.held(), memory.fits
    _shown(memories("odd", [memory], 80))
    _written(record(memory))
    if gpu is not None:
        advise(memory)
    else:
        accumulate_twice(trace)


def _shown(page: RenderableType) -> None:
    Console(width=80, file=io.StringIO()).print(page)


def _written(data: object) -> None:
    json.dumps(data, allow_nan=False)


def _described(trace: Trace) -> None:
    ops.totals(trace)
    _written(record(trace))
    _shown((measured_step if trace.measurement else traced_step)("odd", trace))


def check_all(trace: Trace) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every question about a trace, by name."""
    yield "description", lambda: _described(trace)
    for gpu in GPUS:
        for by in (Learned.shipped(), Roofline(), Attainable.shipped(), Mlp.shipped()):
            yield f"{type(by).__name__}", partial(_predicted, trace, by, gpu)
        yield "memory", partial(_memory, trace, gpu)
        if trace.measurement is not None:
            scalers = Habitat.shipped(), WaveScaling(), MixedPrecision.shipped("bf16")
            for scaler in (*scalers, Habitat(Mlp.shipped())):
                yield type(scaler).__name__, partial(_predicted, trace, scaler, gpu)
    yield "memory without a GPU", lambda: _memory(trace, None)
    yield "graphed", lambda: check_prediction(wavecast.predict(trace, GPUS[0], graphed=True))
    if trace.measurement is not None:
        yield "measured profile", lambda: _measured(trace)
