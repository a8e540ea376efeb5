"""The rates of a GPU as `wavecast calibrate` measured them on one card."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from wavecast.hardware.device import Device
from wavecast.ops import Unit
from wavecast.predictors.learned.batch import batch_of
from wavecast.predictors.learned.gpus import CODES, GpuFacts
from wavecast.predictors.learned.model import OpModel
from wavecast.traces.step import Op, TensorSpec

_SIDE = 8192
_TRUSTED = (0.5, 2.0)
"""A measurement changes a rate of the data sheet by at most these factors."""
_ROUNDS = 4


def _product(dtype: str, precision: str = "ieee") -> Op:
    side = TensorSpec((_SIDE, _SIDE), dtype)
    return Op("aten.mm", (side, side), (side,), (("precision", precision),))


CALIBRATED = {
    Unit.FP32: _product("float32"),
    Unit.TF32_TENSOR: _product("float32", "tf32"),
    Unit.FP16_TENSOR: _product("float16"),
    Unit.BF16_TENSOR: _product("bfloat16"),
}
"""The matmuls with which `wavecast calibrate` measures the rate of each unit."""


def calibrated(
    gpu: GpuFacts, device: Device, models: Mapping[str, OpModel], fitted: Mapping[str, float]
) -> GpuFacts:
    """The GPU with rates at which large matmuls take the time that was measured on this card.

    A measurement says more about clocks and power than a data sheet. If the card of the fit was
    measured as well, the ratio of the two counts: a second of nothing but matmuls draws more power
    than training steps do, and H200s slow down by a fifth.

    Args:
        gpu: The numbers of the GPU, from its data sheet.
        device: The device, whose `measured` facts count.
        models: The op models.
        fitted: The rates measured on the card of the fit, by fact ("bf16_tensor_flops").
    """
    for unit, op in CALIBRATED.items():
        fact = f"{unit}_flops"
        measured = device.measured.get(fact)
        if measured is None or device.rate(unit) is None:
            continue
        if fact in fitted:
            gpu = _faster(gpu, unit, measured.value / fitted[fact])
        else:
            gpu = _with_rate(gpu, unit, op, measured.value, models)
    return gpu


def _with_rate(
    gpu: GpuFacts, unit: Unit, op: Op, measured: float, models: Mapping[str, OpModel]
) -> GpuFacts:
    """The GPU with a rate at which the models predict the measured FLOP/s for the matmul.

    Memory is left out: a GPU with more bandwidth must not get slower cores because of it.
    """
    batch = batch_of((op,), {})
    for _ in range(_ROUNDS):  # a lower rate draws less power, which allows a higher one
        cores = replace(gpu, bytes_per_s=np.inf, nominal_bytes_per_s=np.inf)
        predicted = 2.0 * _SIDE**3 / float(batch.seconds(models, cores)[0])
        gpu = _faster(gpu, unit, measured / predicted)
    return gpu


def _faster(gpu: GpuFacts, unit: Unit, factor: float) -> GpuFacts:
    """The GPU with the rate of one unit multiplied."""
    factors = np.ones(len(gpu.rates))
    factors[CODES[unit]] = np.clip(factor, *_TRUSTED)
    return replace(gpu, rates=gpu.rates * factors)
