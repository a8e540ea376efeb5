"""The cost of bitsandbytes' ops: 4-bit and 8-bit weights, and optimizers with 8-bit state.

Nobody measured these ops for Wavecast. Their FLOPs and bytes follow from their shapes and from
bitsandbytes' source (release 0.50); predictors treat them like other ops of their kind.
"""

from __future__ import annotations

from wavecast.ops.registry import Cost, Kind, cost, integers, read, written
from wavecast.traces.step import Op, TensorSpec

FUSED = "bitsandbytes.gemm_4bit"
"""A matmul with a weight that stays packed."""
INT8 = "bitsandbytes.int8_linear_matmul"
"""A matmul of int8 matrices, (m, k) and (n, k)."""

_HALF_BYTES = 2
_HALF = "float16"


def unpacked_weight(op: Op) -> TensorSpec:
    """The weight of a matmul with a packed one, (k, n), as it is computed with."""
    rows, columns = integers(op, "shapeB")
    return TensorSpec((columns, rows), op.inputs[0].dtype, (1, columns))


@cost("bitsandbytes.dequantize_4bit", kind=Kind.ELEMENTWISE)
def _dequantize_4bit(op: Op) -> Cost:
    """A value from a table and a multiplication for each element; a scale for each block."""
    return Cost(2 * op.outputs[0].numel, read(op.inputs[:2]), written(op.outputs))


@cost("bitsandbytes.dequantize_blockwise", kind=Kind.ELEMENTWISE)
def _dequantize_blockwise(op: Op) -> Cost:
    return Cost(2 * op.outputs[0].numel, read(op.inputs[:3]), written(op.outputs))


@cost(
    "bitsandbytes.quantize_4bit",
    "bitsandbytes.quantize_blockwise",
    "bitsandbytes.int8_vectorwise_quant",
    "bitsandbytes.int8_vectorwise_dequant",
    kind=Kind.ELEMENTWISE,
)
def _quantize(op: Op) -> Cost:
    """The largest of each block or row, and the nearest value in the table for each element."""
    return Cost(10 * op.inputs[0].numel, read(op.inputs), written(op.outputs))


@cost(FUSED, kind=Kind.MATMUL)
def _gemm_4bit(op: Op) -> Cost:
    flops = 2 * op.inputs[0].numel * unpacked_weight(op).shape[-1]
    return Cost(flops, read(op.inputs), written(op.outputs))


@cost("bitsandbytes.gemv_4bit", kind=Kind.REDUCTION)
def _gemv_4bit(op: Op) -> Cost:
    """A matmul with a vector, which uses no tensor core."""
    flops = 2 * op.inputs[0].numel * unpacked_weight(op).shape[-1]
    return Cost(flops, read(op.inputs[:4]), written(op.outputs))


@cost(INT8, kind=Kind.MATMUL)
def _int8_matmul(op: Op) -> Cost:
    a, b = op.inputs[:2]
    return Cost(2 * a.numel * b.shape[0], read((a, b)), written(op.outputs))


@cost("bitsandbytes.int8_mm_dequant", kind=Kind.ELEMENTWISE)
def _int8_dequant(op: Op) -> Cost:
    """One kernel that writes float16, and others for a bias or a result of another type."""
    out = op.outputs[0]
    half_bytes = _HALF_BYTES * out.numel
    biased = len(op.inputs) > 3 and op.inputs[3].dtype != _HALF
    more = half_bytes * ((out.dtype != _HALF) + biased)
    return Cost(4 * out.numel, read(op.inputs) + more, written(op.outputs) + more)


@cost("bitsandbytes.optimizer_update_32bit", kind=Kind.OPTIMIZER)
@cost("bitsandbytes.optimizer_update_8bit_blockwise", kind=Kind.OPTIMIZER)
def _update(op: Op) -> Cost:
    """The gradient comes first and is only read; parameter and state are read and written."""
    return Cost(16 * op.inputs[0].numel, read(op.inputs), written(op.inputs[1:]))
