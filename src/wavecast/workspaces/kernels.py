"""What single ops other than convolutions take: accumulators, sorted copies, contiguous copies.

From the sources of torch and, where these are closed, from what was measured on an H200
(`benchmarks.memory` compares).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from wavecast.op_costs.attention import problem
from wavecast.op_costs.registry import integer, item_bytes
from wavecast.op_costs.rnn import network_of
from wavecast.trace import Op, TensorSpec

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
RECURRENT = ("aten._cudnn_rnn", "aten._cudnn_rnn_backward")
_RECURRENT_BUFFER_BYTES = 8 << 20
_PERSISTENT_HIDDEN, _PERSISTENT_MULTIPLE = 1024, 128
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


def embedding_bytes(op: Op) -> int:
    """Indices are sorted, and rows of the gradient added up by segments of equal indices."""
    gradient, indices = op.inputs[:2]
    count, rows = indices.numel, integer(op, "num_weights")
    if count <= _SORTING_FROM:
        return 0
    segments = count // _ROWS_PER_THREAD + min(count, rows)
    return _FLOAT * segments * _up(gradient.shape[-1], _WARP) + 6 * _LONG * count


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


def recurrent_bytes(op: Op, shares: Mapping[str, tuple[float, ...]]) -> int:
    """Shares of what moves through the network, what is taken as it is, and a copied input."""
    share = shares[recurrent_algorithm(op)]
    moving = sum(a * b for a, b in zip(recurrent_parts(op), share, strict=True))
    return int(moving) + recurrent_fixed_bytes(op)


def recurrent_algorithm(op: Op) -> str:
    """Which of cuDNN's algorithms runs: `get_algo` in aten/native/cudnn/RNN.cpp.

    One layer in one direction and half precision keeps its weights on the chip if they fit.
    """
    net, source = network_of(op), op.inputs[0]
    persistent = (
        item_bytes(source) == 2
        and len(source.shape) == 3
        and (net.layers, net.directions, net.projected) == (1, 1, False)
        and net.hidden <= _PERSISTENT_HIDDEN
        and net.hidden % _PERSISTENT_MULTIPLE == net.widths[0] % _PERSISTENT_MULTIPLE == 0
    )
    return "persistent" if persistent else "standard"


def recurrent_parts(op: Op) -> tuple[int, int, int]:
    """Bytes, for all tokens, of what layers share, for they run one after the other.

    Gates of a layer; the widest that goes in or out of a layer; and what comes out of a layer, if
    it goes into another one, or is a padded batch that is also read backwards.
    """
    net, item = network_of(op), item_bytes(op.inputs[0])
    tokens, out = item * net.tokens, net.directions * net.output
    turned = net.directions == 2 and len(op.inputs[0].shape) == 3
    between = out if turned or net.layers > 1 else 0
    gates = net.directions * net.gates * net.hidden
    return tokens * gates, tokens * max(*net.widths, out), tokens * between


def recurrent_fixed_bytes(op: Op) -> int:
    """A copy of the weights, a buffer for each layer and direction, and a copied input."""
    net, item = network_of(op), item_bytes(op.inputs[0])
    buffers = net.layers * net.directions * _RECURRENT_BUFFER_BYTES
    return item * net.weights + buffers + reordered_bytes(op)


def reordered_bytes(op: Op) -> int:
    """cuDNN wants time first: an input that lies otherwise is copied."""
    source = op.inputs[0]
    batch_first = op.attr("batch_first") is True and len(source.shape) == 3
    return source.nbytes if batch_first != (source.strides is not None) else 0


def scattered(spec: TensorSpec) -> bool:
    """Whether a tensor is neither contiguous nor channels last."""
    return spec.strides is not None and not spec.channels_last


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
