"""What single ops other than convolutions take: accumulators, sorted copies, contiguous copies.

From the sources of torch and, where these are closed, from what was measured on an H200
(`lab.score.memory` compares).
"""

from __future__ import annotations

import math

from wavecast.footprint.workspaces.taking import Taking
from wavecast.ops.attention import problem
from wavecast.ops.registry import integer
from wavecast.traces.step import Op, TensorSpec

_FLOAT, _LONG = 4, 8
_SORTING_FROM = 3072
"""aten/native/cuda/Embedding.cu: fewer indices are added up without sorting."""
_ROWS_PER_THREAD, _WARP = 10, 32
_NORM_CHUNK = 65536
"""aten/native/cuda/ForeachReduceOp.cu."""

ATTENTION = (
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "aten._flash_attention_backward",
    "aten._efficient_attention_backward",
    "aten._cudnn_attention_backward",
)
COPYING = (
    "aten.native_layer_norm",
    "aten.native_layer_norm_backward",
    "aten.max_pool2d_with_indices_backward",
)


def attention_bytes(op: Op) -> int:
    """The backward pass adds query gradients up in float32, and keeps a number for each query.

    cuDNN has the tensor as it is; flash (to 128 and 32) and memory-efficient attention (to 128
    and 64) fill queries and head size up.
    """
    found = problem(op, as_torch=True)
    queries, width = found.q_len, found.d
    if "cudnn" not in op.base:
        queries = _up(queries, 128)
        width = _up(width, 32 if "flash" in op.base else 64)
    return _FLOAT * found.sequences * (queries * width + found.q_len)


def embedding_takings(op: Op) -> tuple[Taking, ...]:
    """Indices are sorted, and rows of the gradient added up by segments of equal indices."""
    gradient, indices = op.inputs[:2]
    count, rows = indices.numel, integer(op, "num_weights")
    if count <= _SORTING_FROM:
        return ()
    places, result = _LONG * count, op.outputs[0].nbytes
    different = min(count, rows)
    segments = count // _ROWS_PER_THREAD + different
    return (
        *(Taking(places, before_bytes=result) for _ in range(2)),
        *(Taking(n, passing=True, before_bytes=result) for n in (places, 2 * places)),
        *(Taking(n) for n in (places, _LONG * different, _LONG * different, _LONG * segments)),
        Taking(_FLOAT * segments * _up(gradient.shape[-1], _WARP)),
    )


def ctc_bytes(op: Op) -> int:
    """Log probabilities of all prefixes, and as much again."""
    steps, batch = op.inputs[1].shape[:2]
    targets = op.attr("target_lengths")
    longest = max(targets) if isinstance(targets, tuple) else op.inputs[2].shape[-1]
    return int(2 * _FLOAT * batch * steps * (2 * longest + 1))


def packing_bytes(op: Op) -> int:
    """The pieces that are joined to the packed sequence."""
    return op.outputs[0].nbytes


def norm_bytes(op: Op) -> int:
    """One partial norm for each piece of each tensor, all tensors as large as the largest."""
    largest = max((t.numel for t in op.inputs), default=0)
    return _FLOAT * len(op.inputs) * math.ceil(largest / _NORM_CHUNK)


def copied_bytes(op: Op) -> int:
    """Contiguous copies of what does not lie as the kernel wants it."""
    return sum(t.nbytes for t in op.inputs[:2] if scattered(t))


def scattered(spec: TensorSpec) -> bool:
    """Whether a tensor is neither contiguous nor channels last."""
    return spec.strides is not None and not spec.channels_last


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
