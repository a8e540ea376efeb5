"""The arithmetic unit of a GPU that an op is meant for."""

from __future__ import annotations

from enum import StrEnum

from wavecast.ops.costs import is_depthwise, kind
from wavecast.ops.matmul import ADDING
from wavecast.ops.registry import Kind
from wavecast.traces.step import Op


class Unit(StrEnum):
    """An arithmetic unit of a GPU: CUDA cores or tensor cores, with a precision."""

    FP64 = "fp64"
    FP32 = "fp32"
    FP16 = "fp16"
    TF32_TENSOR = "tf32_tensor"
    FP16_TENSOR = "fp16_tensor"
    BF16_TENSOR = "bf16_tensor"
    FP8_TENSOR = "fp8_tensor"
    INT8_TENSOR = "int8_tensor"


_TENSOR_KINDS = {Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION, Kind.RNN}
_TENSOR_UNITS = {
    "float16": Unit.FP16_TENSOR,
    "bfloat16": Unit.BF16_TENSOR,
    "float8_e4m3fn": Unit.FP8_TENSOR,
    "float8_e5m2": Unit.FP8_TENSOR,
    "int8": Unit.INT8_TENSOR,
}
_FALLBACKS = {
    Unit.FP16: (Unit.FP32,),
    Unit.TF32_TENSOR: (Unit.FP32,),
    Unit.FP16_TENSOR: (Unit.FP16, Unit.FP32),
    Unit.BF16_TENSOR: (Unit.FP32,),
}


def unit(op: Op) -> Unit:
    """The unit that an op's FLOPs are meant for, by its kind, data type and float32 precision.

    Ops that are no matmul, depthwise convolutions included, compute half precision in float32. What
    a matmul adds does not count: gradients in bfloat16 may be added to a sum in float32.
    """
    tensors = op.inputs or op.outputs
    factors = tensors[1:] if op.base in ADDING and len(tensors) > 2 else tensors
    dtype = factors[0].dtype if factors else "float32"
    if dtype in ("float64", "complex128"):
        return Unit.FP64
    if kind(op) not in _TENSOR_KINDS:
        return Unit.FP32
    if is_depthwise(op):
        return Unit.FP32
    if op.attr("precision") == "tf32":
        return Unit.TF32_TENSOR
    return _TENSOR_UNITS.get(dtype, Unit.FP32)


def fallbacks(unit: Unit) -> tuple[Unit, ...]:
    """The units that a GPU without this one uses instead, in order; empty if it cannot."""
    return _FALLBACKS.get(unit, ())
