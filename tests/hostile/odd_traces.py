"""Traces that no framework would record, and everything that is computed from a trace.

Their ops are real ones with tensors, attributes and names changed.
"""

from __future__ import annotations

import io
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial

from rich.console import Console, RenderableType
from small_models import SMALL

import wavecast
from wavecast import ops
from wavecast.analysis.profile import Profile, profile_measured, profile_predicted
from wavecast.footprint.advice import advise
from wavecast.footprint.largest_batch import accumulate_twice
from wavecast.ops.registry import _KINDS
from wavecast.predictors.attainable import Attainable, Roofline
from wavecast.predictors.base import Predictor, Scaler
from wavecast.predictors.habitat import Habitat, MixedPrecision
from wavecast.predictors.learned.predictor import Learned
from wavecast.predictors.mlp import Mlp
from wavecast.predictors.wave import WaveScaling
from wavecast.report.fields import record
from wavecast.report.results.memory import memories
from wavecast.report.results.predictions import predictions
from wavecast.report.results.profiles import measured_step, profiles, traced_step
from wavecast.steps.prediction import Prediction
from wavecast.suite import benchmark
from wavecast.traces.step import (
    DTYPE_BYTES,
    Allocation,
    Call,
    Kernel,
    Measurement,
    Op,
    Phase,
    Role,
    Scalar,
    TensorSpec,
    Trace,
)

MODELS = ("resnet50", "gpt2", "gnmt", "dcgan", "dlrm", "deep-speech-2")
"""Models of the suite that have, together, ops of nearly every kind."""
SIZES = (0, 1, 2, 3, 7, 64, 1 << 20, 1 << 31, 1 << 48, (1 << 63) - 1)
VALUES: tuple[Scalar, ...] = (
    *(0, 1, -1, 2, 3, 99, 1 << 62, -(1 << 62), 0.0, -0.5, 1e300, True, False, "", "tf32"),
    *((), (0,), (1,), (0, 0), (1, 2, 3), (-1, -1), (True, False, True), (1 << 62, 1 << 62)),
)


@cache
def real_traces() -> tuple[Trace, ...]:
    """The traces of `MODELS`, in small variants."""
    return tuple(
        wavecast.trace(partial(benchmark(name).make_step, 2, "fp32", **SMALL[name]))
        for name in MODELS
    )


@cache
def real_ops() -> tuple[Op, ...]:
    """The distinct ops of these traces, one of each name and number of inputs."""
    kept: dict[tuple[str, int], Op] = {}
    for trace in real_traces():
        for op in trace.counts:
            kept.setdefault((op.name, len(op.inputs)), op)
    return tuple(kept.values())


@cache
def registered() -> tuple[str, ...]:
    """The names of all ops that have a kind."""
    return tuple(sorted(name.replace("*", "any") for name in _KINDS))


def _spec(chance: random.Random, spec: TensorSpec) -> TensorSpec:
    match chance.randrange(6):
        case 0:
            return replace(spec, shape=spec.shape[1:], strides=None)
        case 1:
            return replace(spec, shape=(*spec.shape, chance.choice(SIZES)), strides=None)
        case 2:
            return replace(spec, dtype=chance.choice([*sorted(DTYPE_BYTES), "int3", ""]))
        case 3:
            return replace(spec, shape=(), strides=None)
        case 4:
            strides = tuple(chance.choice(SIZES) for _ in spec.shape)
            return replace(spec, strides=strides, device=chance.choice(["cuda", "cpu"]))
    shape = tuple(chance.choice((n, *SIZES)) for n in spec.shape)
    return replace(spec, shape=shape, strides=None)


def _tensors(chance: random.Random, specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    kept = list(specs)
    match chance.randrange(5):
        case 0:
            return tuple(kept[: chance.randint(0, len(kept))])
        case 1:
            return tuple(kept[chance.randint(0, len(kept)) :])
        case 2:
            chance.shuffle(kept)
            return (*kept, *kept[:1])
    return tuple(_spec(chance, spec) if chance.random() < 0.5 else spec for spec in kept)


def _attributes(
    chance: random.Random, attributes: Sequence[tuple[str, Scalar]]
) -> tuple[tuple[str, Scalar], ...]:
    if chance.random() < 0.3:
        return tuple(pair for pair in attributes if chance.random() < 0.5)
    return tuple(
        (name, chance.choice(VALUES) if chance.random() < 0.5 else value)
        for name, value in attributes
    )


_CHANGES: tuple[Callable[[random.Random, Op], Op], ...] = (
    lambda chance, op: replace(op, name=chance.choice(registered())),
    lambda chance, op: replace(op, inputs=_tensors(chance, op.inputs)),
    lambda chance, op: replace(op, outputs=_tensors(chance, op.outputs)),
    lambda chance, op: replace(op, attrs=_attributes(chance, op.attrs)),
)


def odd_op(chance: random.Random) -> Op:
    """A real op with one to three changes."""
    op = chance.choice(real_ops())
    for _ in range(chance.randint(1, 3)):
        op = chance.choice(_CHANGES)(chance, op)
    return op


def odd_trace(chance: random.Random, calls: int = 8, *, measured: bool = False) -> Trace:
    """A trace of odd ops with memory; with kernels if it was measured."""
    made: list[Call] = []
    for _ in range(calls):
        runs = []
        for number in range(chance.randint(0, 2) if measured else 0):
            grid = tuple(chance.choice(SIZES) for _ in range(3)), (chance.choice(SIZES), 1, 1)
            runs.append(
                Kernel(
                    name=chance.choice(["volta_sgemm", "Memcpy HtoD (Pageable)", "elementwise"]),
                    seconds=chance.choice([0.0, 1e-9, 1e-4, 1.0]),
                    grid=chance.choice([None, grid[0]]),  # type: ignore[arg-type]
                    block=chance.choice([None, grid[1]]),
                    registers=chance.choice([None, *SIZES]),
                    shared_bytes=chance.choice([None, *SIZES]),
                    start_s=chance.choice([None, 1e-4 * len(made) + 1e-6 * number]),
                )
            )
        phase = chance.choice(list(Phase))
        made.append(
            Call(odd_op(chance), phase, "net", syncs=chance.random() < 0.1, kernels=tuple(runs))
        )
    memory = tuple(
        Allocation(
            chance.choice(SIZES[:8]), chance.choice([None, at]), None, chance.choice([*Role])
        )
        for at in range(calls)
    )
    whole = Measurement("Tesla V100-SXM2-16GB", 1e-3, 5e-4, 4e-4) if measured else None
    return Trace(
        tuple(made),
        memory,
        capability=(9, 0),
        samples=chance.choice([None, 1, 8]),
        measurement=whole,
    )


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
