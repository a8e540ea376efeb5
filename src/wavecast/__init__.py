"""How long training a neural network takes, on GPUs you do not have.

import wavecast as wc

trace = wc.trace(make_step)  # make_step builds a training step for CUDA; no GPU needed
prediction = wc.predict(trace, "h100-sxm-80gb")
prediction.seconds, prediction.low_s, prediction.high_s
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wavecast.errors import (
    CaptureError,
    DoubtfulInput,
    InvalidInput,
    MissingExtra,
    StoreUnavailable,
    UnknownName,
    WavecastError,
    needing_extra,
)

if TYPE_CHECKING:
    from wavecast.advice.advising import advise
    from wavecast.advice.proposals import Proposal, StepAdvice
    from wavecast.analysis.comparison import StepComparison, compare
    from wavecast.analysis.larger_batch import LargerBatch, extrapolate_batch
    from wavecast.footprint.largest_batch import LargestBatch
    from wavecast.footprint.memory import Memory, memory
    from wavecast.frameworks.jax.steps import trace_jax
    from wavecast.frameworks.kineto import read_kineto
    from wavecast.frameworks.pytorch.layers.networks import network_of
    from wavecast.frameworks.pytorch.measurement.iteration import measure
    from wavecast.frameworks.pytorch.measurement.sampling import OperationTracker
    from wavecast.hardware.devices import Device, device, devices
    from wavecast.hardware.hosts import Host
    from wavecast.parallel.strategy import Parallel
    from wavecast.planning.cost import TrainingCost, TrainingPlan, training_cost
    from wavecast.planning.prices import Price, price
    from wavecast.predictors.base import Estimate, Predictor, Scaler
    from wavecast.predictors.retargeting import FamilyTraces
    from wavecast.runs.readers import read_runs
    from wavecast.runs.regression.complexities import caffe_net
    from wavecast.runs.regression.end_to_end import EndToEnd
    from wavecast.runs.regression.extrapolation import Extrapolation
    from wavecast.runs.regression.per_layer import LayerTime, PerLayer, published
    from wavecast.runs.run import Run
    from wavecast.runs.store.store import RunStore
    from wavecast.steps.prediction import Prediction
    from wavecast.steps.request import predict
    from wavecast.targets.scripts import run_script
    from wavecast.targets.sources import max_batch, trace
    from wavecast.traces.script import ScriptPart, ScriptRun
    from wavecast.traces.step import Measurement, Trace, load_trace

__version__ = "0.2.0"

__all__ = [
    "CaptureError",
    "Device",
    "DoubtfulInput",
    "EndToEnd",
    "Estimate",
    "Extrapolation",
    "FamilyTraces",
    "Host",
    "InvalidInput",
    "LargerBatch",
    "LargestBatch",
    "LayerTime",
    "Measurement",
    "Memory",
    "MissingExtra",
    "OperationTracker",
    "Parallel",
    "PerLayer",
    "Prediction",
    "Predictor",
    "Price",
    "Proposal",
    "Run",
    "RunStore",
    "Scaler",
    "ScriptPart",
    "ScriptRun",
    "StepAdvice",
    "StepComparison",
    "StoreUnavailable",
    "Trace",
    "TrainingCost",
    "TrainingPlan",
    "UnknownName",
    "WavecastError",
    "advise",
    "caffe_net",
    "compare",
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
    "published",
    "read_kineto",
    "read_runs",
    "run_script",
    "trace",
    "trace_jax",
    "training_cost",
]

# Loaded when first used: importing wavecast should cost next to nothing.
_LAZY = {
    "Device": "wavecast.hardware.devices",
    "EndToEnd": "wavecast.runs.regression.end_to_end",
    "Estimate": "wavecast.predictors.base",
    "Extrapolation": "wavecast.runs.regression.extrapolation",
    "FamilyTraces": "wavecast.predictors.retargeting",
    "Host": "wavecast.hardware.hosts",
    "LargerBatch": "wavecast.analysis.larger_batch",
    "LargestBatch": "wavecast.footprint.largest_batch",
    "LayerTime": "wavecast.runs.regression.per_layer",
    "Measurement": "wavecast.traces.step",
    "Memory": "wavecast.footprint.memory",
    "OperationTracker": "wavecast.frameworks.pytorch.measurement.sampling",
    "Parallel": "wavecast.parallel.strategy",
    "PerLayer": "wavecast.runs.regression.per_layer",
    "Prediction": "wavecast.steps.prediction",
    "Predictor": "wavecast.predictors.base",
    "Price": "wavecast.planning.prices",
    "Proposal": "wavecast.advice.proposals",
    "Run": "wavecast.runs.run",
    "RunStore": "wavecast.runs.store.store",
    "Scaler": "wavecast.predictors.base",
    "ScriptPart": "wavecast.traces.script",
    "ScriptRun": "wavecast.traces.script",
    "StepAdvice": "wavecast.advice.proposals",
    "StepComparison": "wavecast.analysis.comparison",
    "Trace": "wavecast.traces.step",
    "TrainingCost": "wavecast.planning.cost",
    "TrainingPlan": "wavecast.planning.cost",
    "advise": "wavecast.advice.advising",
    "caffe_net": "wavecast.runs.regression.complexities",
    "compare": "wavecast.analysis.comparison",
    "device": "wavecast.hardware.devices",
    "devices": "wavecast.hardware.devices",
    "extrapolate_batch": "wavecast.analysis.larger_batch",
    "load_trace": "wavecast.traces.step",
    "max_batch": "wavecast.targets.sources",
    "measure": "wavecast.frameworks.pytorch.measurement.iteration",
    "memory": "wavecast.footprint.memory",
    "network_of": "wavecast.frameworks.pytorch.layers.networks",
    "predict": "wavecast.steps.request",
    "price": "wavecast.planning.prices",
    "published": "wavecast.runs.regression.per_layer",
    "read_kineto": "wavecast.frameworks.kineto",
    "read_runs": "wavecast.runs.readers",
    "run_script": "wavecast.targets.scripts",
    "trace": "wavecast.targets.sources",
    "trace_jax": "wavecast.frameworks.jax.steps",
    "training_cost": "wavecast.planning.cost",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'wavecast' has no attribute {name!r}")
    import importlib

    with needing_extra(name):
        return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
