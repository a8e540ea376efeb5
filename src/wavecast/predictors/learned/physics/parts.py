"""An op as parts: the work it gives the GPU, each part with the columns that its model needs.

The columns do not depend on the GPU, so they are built once for all GPUs.
"""

from __future__ import annotations

import math
from dataclasses import replace

from wavecast import ops
from wavecast.ops import Kind, attention, matmul, quantization, rnn
from wavecast.ops.registry import Cost, integers, item_bytes
from wavecast.predictors.learned.gpus import CODES
from wavecast.predictors.learned.physics import (
    concatenations,
    convolution_parts,
    fusions,
    passes,
    preparations,
)
from wavecast.predictors.learned.physics.columns import (
    OF_K,
    OF_M,
    OF_N,
    AttentionRow,
    ProductRow,
    RecurrentRow,
)
from wavecast.predictors.learned.physics.part import Part, copied
from wavecast.traces.step import Op, TensorSpec


def parts_of(op: Op) -> tuple[Part, ...]:
    """The parts of an op; empty where no model knows it."""
    kind, cost = ops.kind(op), ops.cost_of(op)
    if kind is None or cost is None or not ops.has_shapes(op):
        return ()
    match kind:
        case Kind.MATMUL:
            return _products(op, cost)
        case Kind.CONVOLUTION:
            return convolution_parts.parts_of(op)
        case Kind.ATTENTION:
            return (_attention(op, cost),)
        case Kind.RNN:
            return _recurrent(op, cost)
        case Kind.FUSED:
            return (Part(fusions.model_of(op), fusions.row_of(op, cost)),)
        case Kind.COLLECTIVE | Kind.FFT | Kind.LINEAR_ALGEBRA | Kind.SORT:
            return ()
    return _over_memory(op, cost)


def _over_memory(op: Op, cost: Cost) -> tuple[Part, ...]:
    """The passes of an op over memory; those that torch makes before or after it are parts."""
    if op.base == "aten.cat" and (together := concatenations.row_of(op, cost)) is not None:
        return (Part("concatenation", together),)
    if op.base == "aten._safe_softmax":
        return tuple(
            Part("stream", passes.row_of(*costed)) for costed in preparations.safe_softmax(op)
        )
    if op.base == "aten.embedding_dense_backward" and op.inputs[0].strides is not None:
        # torch first makes the gradient contiguous (embedding_dense_backward_cuda)
        return (copied(op.inputs[0], None), Part("stream", passes.row_of(op, cost)))
    if preparations.copies_first(op):
        contiguous = replace(op, inputs=(replace(op.inputs[0], strides=None), *op.inputs[1:]))
        return (copied(op.inputs[0], None), Part("stream", passes.row_of(contiguous, cost)))
    return tuple(Part("stream", row) for row in passes.in_turn(passes.row_of(op, cost)))


# Matmuls.

_LINEAR = ("aten.linear", quantization.INT8)
"""Matmuls whose right matrix is a weight, (n, k)."""


def _products(op: Op, cost: Cost) -> tuple[Part, ...]:
    first = 1 if "add" in op.base else 0
    if op.base.endswith("_foreach_mm") or not op.outputs:
        return ()
    if op.base == quantization.FUSED:
        return _packed_product(op, cost)
    if len(op.inputs) < first + 2 or min(len(t.shape) for t in op.inputs[first : first + 2]) < 2:
        return ()
    a, b = op.inputs[first : first + 2]
    batch, m, n, k = _sizes(op, a, b)
    if op.base in _LINEAR:
        b = TensorSpec(b.shape[::-1], b.dtype, (1, b.shape[-1]))
    product = ProductRow(
        batch=batch,
        m=m,
        n=n,
        k=k,
        item_bytes=item_bytes(a),
        moved_bytes=cost.bytes,
        unit=CODES[ops.unit(op)],
        alignment=min(math.gcd(_row_stride(t), 16) for t in (a, b, op.outputs[0])),
        a_by_columns=_by_columns(a),
        b_by_columns=_by_columns(b),
    )
    groups = _groups(op, a, b)
    if groups is None:
        return (Part("product", product),)
    ragged, one_kernel = groups
    return (Part("grouped", product._replace(ragged=ragged, one_kernel=one_kernel)),)


def _packed_product(op: Op, cost: Cost) -> tuple[Part, ...]:
    """A matmul with a 4-bit weight, as an ordinary one that reads fewer bytes."""
    a, b = op.inputs[0], quantization.unpacked_weight(op)
    rows = TensorSpec((a.numel // max(a.shape[-1], 1), a.shape[-1]), a.dtype)
    return _products(Op("aten.mm", (rows, b), op.outputs), cost)


def _sizes(op: Op, a: TensorSpec, b: TensorSpec) -> tuple[float, float, float, float]:
    """How many matmuls there are, and m, n and k of each."""
    if op.base in _LINEAR:
        return 1, a.numel // max(a.shape[-1], 1), b.shape[0], a.shape[-1]
    if op.base in matmul.GROUPED:
        return matmul.groups(op)
    return math.prod(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1]


def _groups(op: Op, a: TensorSpec, b: TensorSpec) -> tuple[float, bool] | None:
    """The dimension that groups divide, and whether torch has one kernel for all of them.

    It has one for bfloat16; groups of other types run one by one (GroupedBlas.cpp of torch 2.11).
    None for groups of whole matrices, which are a batch, and for fp8, which is treated as one.
    """
    ranks = len(a.shape), len(b.shape)
    if op.base != "aten._grouped_mm" or ranks == (3, 3):
        return None
    ragged = {(2, 3): OF_M, (3, 2): OF_N}.get(ranks, OF_K)
    return ragged, all(t.dtype == "bfloat16" for t in (a, b, *op.outputs))


def _row_stride(t: TensorSpec) -> int:
    """The distance in memory between two rows (or columns), which vector loads must align with."""
    if t.strides is None:
        return t.shape[-1]
    inner, outer = t.strides[-1], t.strides[-2]
    return outer if inner == 1 else inner


def _by_columns(t: TensorSpec) -> bool:
    """Whether a matrix is stored by columns."""
    return t.strides is not None and t.strides[-1] != 1


# Attention and recurrent layers.


FEWEST_QUERIES = 16
"""Queries of the smallest tile of tensor cores. With no more of them, attention takes as long as
reading keys and values once."""


def _attention(op: Op, cost: Cost) -> Part:
    problem = attention.problem(op, as_torch=False)
    if problem.q_len <= FEWEST_QUERIES and "backward" not in op.base:
        key = op.inputs[1]
        both = TensorSpec((2, *key.shape), key.dtype)
        return Part("stream", passes.row_over(both, cost.written_bytes, problem.d))
    pairs = max(problem.q_len * problem.k_len, 1)
    dropped = op.attr("dropout_p", 0.0)
    row = AttentionRow(
        sequences=problem.sequences,
        q_len=problem.q_len,
        k_len=problem.k_len,
        head_width=(problem.d + problem.d_v) / 2,
        attended_share=attention.attended(op, problem.q_len, problem.k_len) / pairs,
        flops=ops.executed_flops(op) or 0,
        moved_bytes=cost.bytes,
        unit=CODES[ops.unit(op)],
        backward="backward" in op.base,
        efficient="efficient" in op.base,
        cudnn="cudnn" in op.base,
        biased=_has_bias(op),
        masked=is_masked(op),
        dropout=isinstance(dropped, float) and dropped > 0,
        of_mask=bool((integers(op, "grad_input_mask") or (0,))[-1]),
        shared_keys=_query_heads(op),
    )
    return Part("attention", row)


def _query_heads(op: Op) -> float:
    """Query heads for each head of the keys, where heads are a dimension of both."""
    first = int("backward" in op.base)
    query, key = op.inputs[first : first + 2]
    if not op.base.startswith("aten._scaled_dot_product") or len(key.shape) != 4:
        return 1.0
    return max(query.shape[1] / max(key.shape[1], 1), 1.0)


def _has_bias(op: Op) -> bool:
    """Whether the tensor after the values is a mask, or the output in the backward pass."""
    first = int("backward" in op.base)
    return any(len(t.shape) == 4 for t in op.inputs[first + 3 : first + 4])


def is_masked(op: Op) -> bool:
    """Whether a mask is read: one more tensor with a row for each query.

    Others are queries, keys and values and, in the backward pass, the output and its gradient;
    sums of exponentials have rows of one element.
    """
    others = 5 if "backward" in op.base else 3
    return sum(len(t.shape) == 4 and t.shape[3] > 1 for t in op.inputs) > others


def _recurrent(op: Op, cost: Cost) -> tuple[Part, ...]:
    """The steps, which follow each other, and the matmuls over all steps at once.

    These are the matmul with the input and, backward, those for the gradients of the input and of
    the weights (Appleyard et al., "Optimizing Performance of Recurrent Neural Networks on GPUs",
    2016, section 3).
    """
    net = rnn.rnn_shape(op)
    steps = rnn.cell_steps(op) / max(net.layers * net.directions, 1)
    wants = integers(op, "output_mask") or (1, 1, 1, 1)
    item, unit = item_bytes(op.inputs[0]), CODES[ops.unit(op)]
    backward = "backward" in op.base
    row = RecurrentRow(
        steps=steps,
        batch=net.tokens / max(steps, 1),
        inputs=net.widths[0],
        hidden=net.hidden,
        gates=net.gates,
        layers=net.layers,
        directions=net.directions,
        item_bytes=item,
        unit=unit,
        backward=backward,
        moved_bytes=cost.bytes,
    )
    gates, inputs = net.gates * net.hidden, sum(net.widths) / max(net.layers, 1)
    products: list[tuple[float, float, float]] = [
        (net.tokens, inputs, gates) if backward else (net.tokens, gates, inputs)
    ]
    if backward and wants[-1]:
        products.append((gates, inputs + net.output, net.tokens))
    return (
        Part("recurrent", row),
        *(_layer_product(net.layers * net.directions, sizes, item, unit) for sizes in products),
    )


def _layer_product(batch: int, sizes: tuple[float, float, float], item: float, unit: int) -> Part:
    """A matmul (m, n, k) of each layer, whose layout cuDNN chooses."""
    m, n, k = sizes
    row = ProductRow(
        batch=batch,
        m=m,
        n=n,
        k=k,
        item_bytes=item,
        moved_bytes=batch * item * (m * k + k * n + m * n),
        unit=unit,
        alignment=min(math.gcd(int(side), 16) for side in (m, n, k)),
        a_by_columns=False,
        b_by_columns=False,
    )
    return Part("product", row)
