"""How long training a neural network takes, on GPUs you do not have.

import wavecast as wc

trace = wc.trace(make_step)  # make_step builds a training step for CUDA; no GPU needed
prediction = wc.predict(trace, "h100-sxm-80gb")
prediction.seconds, prediction.low_s, prediction.high_s
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wavecast.devices import Device, device, devices
from wavecast.errors import (
    CaptureError,
    DoubtfulInput,
    InvalidInput,
    MissingExtra,
    StoreUnavailable,
    UnknownName,
    WavecastError,
)
from wavecast.families import family
from wavecast.prices import Price, price
from wavecast.runs import Run
from wavecast.trace import Measurement, Trace, load_trace

if TYPE_CHECKING:
    from wavecast.batches import LargerBatch, extrapolate_batch
    from wavecast.capacity import LargestBatch, max_batch
    from wavecast.footprint import Memory, memory
    from wavecast.frameworks.kineto import read_kineto
    from wavecast.frameworks.pytorch.measurement import measure
    from wavecast.frameworks.pytorch.networks import network_of
    from wavecast.frameworks.pytorch.tracker import OperationTracker
    from wavecast.prediction import Estimate, Prediction, Predictor, Scaler, predict
    from wavecast.regression.end_to_end import EndToEnd
    from wavecast.regression.extrapolation import Extrapolation
    from wavecast.regression.per_layer import PerLayer
    from wavecast.run_readers import read_runs
    from wavecast.run_store.store import RunStore
    from wavecast.timeline import Host

__version__ = "0.1.0"

__all__ = [
    "CaptureError",
    "Device",
    "DoubtfulInput",
    "EndToEnd",
    "Estimate",
    "Extrapolation",
    "Host",
    "InvalidInput",
    "LargerBatch",
    "LargestBatch",
    "Measurement",
    "Memory",
    "MissingExtra",
    "OperationTracker",
    "PerLayer",
    "Prediction",
    "Predictor",
    "Price",
    "Run",
    "RunStore",
    "Scaler",
    "StoreUnavailable",
    "Trace",
    "UnknownName",
    "WavecastError",
    "device",
    "devices",
    "extrapolate_batch",
    "load_trace",
    "max_batch",
    "measure",
    "memory",
    "network_of",
    "predict",
    "price",
    "read_kineto",
    "read_runs",
    "trace",
]

# Loaded when first used: importing wavecast should cost next to nothing.
_LAZY = {
    "EndToEnd": "wavecast.regression.end_to_end",
    "Estimate": "wavecast.prediction",
    "Extrapolation": "wavecast.regression.extrapolation",
    "Host": "wavecast.timeline",
    "LargerBatch": "wavecast.batches",
    "LargestBatch": "wavecast.capacity",
    "Memory": "wavecast.footprint",
    "OperationTracker": "wavecast.frameworks.pytorch.tracker",
    "PerLayer": "wavecast.regression.per_layer",
    "Prediction": "wavecast.prediction",
    "Predictor": "wavecast.prediction",
    "RunStore": "wavecast.run_store.store",
    "Scaler": "wavecast.prediction",
    "extrapolate_batch": "wavecast.batches",
    "max_batch": "wavecast.capacity",
    "measure": "wavecast.frameworks.pytorch.measurement",
    "memory": "wavecast.footprint",
    "network_of": "wavecast.frameworks.pytorch.networks",
    "predict": "wavecast.prediction",
    "read_kineto": "wavecast.frameworks.kineto",
    "read_runs": "wavecast.run_readers",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'wavecast' has no attribute {name!r}")
    import importlib

    with _needing_extra(name):
        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def trace(
    make_step: Callable[[], Callable[[], Any]],
    *,
    gpu: Device | str | None = None,
    capability: tuple[int, int] | None = None,
    samples: int | None = None,
    unit: str = "samples",
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """The trace of one training step: no GPU, no arithmetic, no weights in memory.

    Args:
        make_step: builds model, optimizer and inputs as for CUDA, and returns the function that
            runs one training step.
        gpu: the GPU for which kernels are chosen; a recent data-centre GPU if not given. It
            matters for attention, of which older GPUs have other kernels.
        capability: the same by compute capability alone.
        samples: how many samples (or other `unit`) one step consumes, for throughput.
        unit: what `samples` counts.
        progress: called now and then with the number of ops traced so far.
    """
    with _needing_extra("tracing"):
        from wavecast.frameworks.pytorch import capture
    target = device(gpu) if isinstance(gpu, str) else gpu
    return capture(
        make_step,
        capability=capability if target is None else family(target),
        samples=samples,
        unit=unit,
        progress=progress,
    )


# What an optional dependency is called, and the extra that brings it.
_EXTRAS = {"torch": ("torch", "torch"), "sqlalchemy": ("SQLAlchemy", "runs")}


@contextmanager
def _needing_extra(what: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _EXTRAS:
            raise
        name, extra = _EXTRAS[error.name]
        raise MissingExtra(f"{what} needs {name}: pip install 'wavecast[{extra}]'") from error
