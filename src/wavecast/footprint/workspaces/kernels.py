"""The workspaces of ops with one workspace rule each: accumulators, sorted and contiguous copies.

The rules come from the sources of torch and, for closed libraries, from measurements on an H200
(`lab.score.memory` compares).
"""

from __future__ import annotations

import math

from wavecast.footprint.workspaces.workspace import Workspace
from wavecast.ops.attention import problem
from wavecast.ops.registry import integer
from wavecast.traces.step import Op, TensorSpec

_FLOAT, _LONG = 4, 8
_SORTING_FROM = 3072
"""Up to this many indices are added up without sorting (aten/native/cuda/Embedding.cu)."""
_ROWS_PER_THREAD, _WARP = 10, 32
_NORM_CHUNK = 65536
"""Elements that give one partial norm (aten/native/cuda/ForeachReduceOp.cu)."""

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
    """The bytes of the query gradients in float32, and of one number for each query.

    The backward pass accumulates into them. Flash attention rounds the number of queries up to a
    multiple of 128 and the head size to one of 32; memory-efficient attention rounds to 128 and
    64; cuDNN does not round.
    """
    shapes = problem(op, as_torch=True)
    queries, width = shapes.q_len, shapes.d
    if "cudnn" not in op.base:
        queries = _round_up(queries, 128)
        width = _round_up(width, 32 if "flash" in op.base else 64)
    return _FLOAT * shapes.sequences * (queries * width + shapes.q_len)


def embedding_workspaces(op: Op) -> tuple[Workspace, ...]:
    """The workspaces of an embedding's gradient.

    Its indices are sorted, then rows of the gradient are added up by segments of equal indices.
    """
    gradient, indices = op.inputs[:2]
    count, rows = indices.numel, integer(op, "num_weights")
    if count <= _SORTING_FROM:
        return ()
    sorted_bytes, result = _LONG * count, op.outputs[0].nbytes
    distinct = min(count, rows)
    segments = count // _ROWS_PER_THREAD + distinct
    sorting = (sorted_bytes, 2 * sorted_bytes)
    adding = (sorted_bytes, _LONG * distinct, _LONG * distinct, _LONG * segments)
    return (
        *(Workspace(sorted_bytes, before_bytes=result) for _ in range(2)),
        *(Workspace(n, released_early=True, before_bytes=result) for n in sorting),
        *(Workspace(n) for n in adding),
        Workspace(_FLOAT * segments * _round_up(gradient.shape[-1], _WARP)),
    )


def ctc_bytes(op: Op) -> int:
    """The bytes of the CTC loss's backward log probabilities, and as many again."""
    steps, batch = op.inputs[1].shape[:2]
    targets = op.attr("target_lengths")
    longest = max(targets) if isinstance(targets, tuple) else op.inputs[2].shape[-1]
    return int(2 * _FLOAT * batch * steps * (2 * longest + 1))


def packing_bytes(op: Op) -> int:
    """The bytes of the pieces from which the packed sequence is concatenated."""
    return op.outputs[0].nbytes


def norm_bytes(op: Op) -> int:
    """The bytes of the partial norms: all tensors get as many as the largest one needs."""
    largest = max((t.numel for t in op.inputs), default=0)
    return _FLOAT * len(op.inputs) * math.ceil(largest / _NORM_CHUNK)


def copied_bytes(op: Op) -> int:
    """The bytes of contiguous copies of inputs in a layout that the kernel cannot read."""
    return sum(t.nbytes for t in op.inputs[:2] if scattered(t))


def scattered(spec: TensorSpec) -> bool:
    """Whether a tensor is neither contiguous nor channels last."""
    return spec.strides is not None and not spec.channels_last


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
