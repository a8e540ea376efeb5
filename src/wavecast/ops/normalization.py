"""The cost of normalisation. A second pass over a tensor counts as a second read.

Batch and group normalisation first compute statistics, then apply them, so they read twice. A row
of LayerNorm or RMSNorm fits on the chip, so the forward pass reads once. The backward pass has one
kernel for the input and one for weight and bias, which both read gradient and input.
"""

from __future__ import annotations

from wavecast.ops.registry import Cost, Kind, cost, integers, read, streaming, written
from wavecast.traces.step import Op, TensorSpec

_FORWARD_FLOPS = 8
_BACKWARD_FLOPS = 12


def _passes(op: Op, data: tuple[TensorSpec, ...], flops: int, passes: int) -> Cost:
    """The cost of reading `data` this many times, and every other input once."""
    again = (passes - 1) * read(data)
    return Cost(flops * data[0].numel, read(op.inputs) + again, written(op.outputs))


@cost("aten.native_batch_norm", "aten.cudnn_batch_norm", kind=Kind.NORM)
@cost("aten._native_batch_norm_legit", "aten._native_batch_norm_legit_functional", kind=Kind.NORM)
def _batch_norm(op: Op) -> Cost:
    passes = 2 if op.attr("training", True) else 1
    return _passes(op, op.inputs[:1], _FORWARD_FLOPS, passes)


@cost("aten._batch_norm_with_update", "aten._batch_norm_with_update_functional", kind=Kind.NORM)
@cost("aten.native_group_norm", kind=Kind.NORM)
def _two_passes(op: Op) -> Cost:
    return _passes(op, op.inputs[:1], _FORWARD_FLOPS, passes=2)


@cost("aten.native_layer_norm", "aten._fused_rms_norm", kind=Kind.NORM)
@cost("aten._native_batch_norm_legit_no_training", "aten._batch_norm_no_update", kind=Kind.NORM)
def _one_pass(op: Op) -> Cost:
    return _passes(op, op.inputs[:1], _FORWARD_FLOPS, passes=1)


@cost("aten.native_batch_norm_backward", "aten.cudnn_batch_norm_backward", kind=Kind.NORM)
@cost("aten.batch_norm_backward", kind=Kind.NORM)
def _batch_norm_backward(op: Op) -> Cost:
    trained = op.attr("train", True) and op.attr("update", True)
    return _passes(op, op.inputs[:2], _BACKWARD_FLOPS, passes=2 if trained else 1)


@cost("aten.native_group_norm_backward", "aten.native_layer_norm_backward", kind=Kind.NORM)
@cost("aten._fused_rms_norm_backward", kind=Kind.NORM)
def _backward(op: Op) -> Cost:
    wants = integers(op, "output_mask") or (1, 1)
    kernels = min(wants[0] + max(wants[1:]), 2)
    return _passes(op, op.inputs[:2], _BACKWARD_FLOPS, passes=max(kernels, 1))


# The parts of batch normalisation across GPUs, and weight normalisation.
streaming(
    Kind.NORM,
    """
    batch_norm_stats batch_norm_elemt batch_norm_update_stats batch_norm_backward_elemt
    batch_norm_gather_stats batch_norm_gather_stats_with_counts _weight_norm_interface
    _weight_norm_interface_backward
    """,
    flops=4,
)
streaming(Kind.NORM, "batch_norm_backward_reduce", flops=6)
