"""Many ops as arrays, built once and evaluated on every GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wavecast import ops
from wavecast.ops import Kind, attention, convolution, matmul
from wavecast.ops import pointwise as quantization
from wavecast.ops.registry import (
    Cost,
    integer,
    integers,
    is_possible_work,
    item_bytes,
    reading,
    stored,
)
from wavecast.predictors.learned import fusions, passes, streams, tiles
from wavecast.predictors.learned.autotuned import MARK, term_of
from wavecast.predictors.learned.columns import (
    FORWARD,
    OF_IMAGE,
    OF_K,
    OF_M,
    OF_N,
    OF_WEIGHT,
    ROW_TYPES,
    AttentionRow,
    Columns,
    ConvolutionRow,
    ProductRow,
    RecurrentRow,
    Row,
    columns_of,
)
from wavecast.predictors.learned.convolutions import WINOGRAD_GAIN
from wavecast.predictors.learned.gpus import CODES, Floats, GpuFacts
from wavecast.predictors.learned.model import OpModel
from wavecast.traces.step import Op, TensorSpec

MOST_SHARE = 0.95
"""The share of the nominal bandwidth that no kernel exceeds."""
UNMODELLED = "unmodelled"
"""The entry in `Batch.main` of an op that no model covers."""
UNREADABLE = "unreadable"
"""The entry of an op whose formulas cannot read it. It gets no answer."""
CLASSED = ("product", "grouped", "convolution", "attention", "recurrent")
"""Models whose errors differ between tensor cores and plain cores."""


@dataclass(frozen=True, eq=False)
class PartColumns:
    """All parts of one model, and the op to which each belongs."""

    columns: Columns
    op: NDArray[np.int64]
    """The position of each part's op in the batch."""
    added: Floats
    """The term of the op's name in the logarithm of the learned factor."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Ops by columns, without anything that depends on a GPU."""

    parts: Mapping[str, PartColumns]
    """The parts of all ops, by model."""
    main: tuple[str, ...]
    """The model of each op's first part, or the op's kind if it passes over memory; `UNMODELLED`
    where no model fits, `UNREADABLE` where no formula can read the op."""
    seen: NDArray[np.bool_]
    """Whether ops of that name were in the fit."""
    unit: NDArray[np.int64]
    """The arithmetic unit of each op, as its number in `CODES`."""
    flops: Floats
    gain: Floats
    """The factor by which an algorithm may need fewer FLOPs."""
    nbytes: Floats
    tuned: Floats
    """The logarithm of the factor of library calls that XLA tuned; 0 for other ops."""

    def __len__(self) -> int:
        return len(self.main)

    def seconds(self, models: Mapping[str, OpModel], gpu: GpuFacts) -> Floats:
        """The time of each op, not below the physical bound; zero where no model fits."""
        total = np.zeros(len(self))
        for name, part in self.parts.items():
            if name == "grouped":
                seconds = tiles.seconds(part.columns, gpu, models)
            else:
                seconds = models[name].seconds(part.columns, gpu, part.added)
            total += np.bincount(part.op, weights=seconds, minlength=len(self))
        total *= np.exp(self.tuned)
        return np.where(total > 0, np.maximum(total, self.least_s(gpu)), 0.0)

    def least_s(self, gpu: GpuFacts) -> Floats:
        """The physical bound of each op: its FLOPs, and its bytes beyond the size of L2.

        Winograd's algorithm may save FLOPs. NaN if the GPU has no unit for the op.
        """
        rate = np.where(self.flops > 0, gpu.nominal_rates[self.unit], 1.0)
        moved = np.maximum(self.nbytes - gpu.l2_bytes, 0.0)
        memory_s = moved / (gpu.nominal_bytes_per_s * MOST_SHARE)
        bounds: Floats = np.maximum(self.flops / (rate * self.gain), memory_s)
        return bounds


def batch_of(given: Sequence[Op], families: Mapping[str, float]) -> Batch:
    """The ops by columns."""
    rows: dict[str, list[Row]] = {}
    owners: dict[str, list[int]] = {}
    added: dict[str, list[float]] = {}
    main: list[str] = []
    for position, op in enumerate(given):
        op_parts = readable_parts(op) if ops.launches(op) else ()
        for part in op_parts or ():
            rows.setdefault(part.model, []).append(part.row)
            owners.setdefault(part.model, []).append(position)
            term = families.get(op.base, 0.0) if part.model == "stream" else 0.0
            added.setdefault(part.model, []).append(term)
        if op_parts is None:
            main.append(UNREADABLE)
        else:
            main.append(_main(op, op_parts[0]) if op_parts else UNMODELLED)
    parts = {
        model: PartColumns(columns_of(model_rows), np.array(owners[model]), np.array(added[model]))
        for model, model_rows in rows.items()
    }
    costs = [(ops.cost_of(op), ops.executed_flops(op) or 0) for op in given]
    return Batch(
        parts=parts,
        main=tuple(main),
        seen=np.array(
            [_seen(name, op, families) for name, op in zip(main, given, strict=True)], dtype=bool
        ),
        unit=np.array([CODES[ops.unit(op)] for op in given], dtype=np.int64),
        flops=np.array([float(flops) for _, flops in costs]),
        gain=np.array([WINOGRAD_GAIN if name == "convolution" else 1.0 for name in main]),
        nbytes=np.array([float(cost.bytes) if cost else 0.0 for cost, _ in costs]),
        tuned=np.array([term_of(op) for op in given]),
    )


def readable_parts(op: Op) -> tuple[Part, ...] | None:
    """The parts of an op; None if its tensors or attributes are not those of such an op."""
    parts = reading(parts_of, None, op)
    if parts is None or not all(is_possible_work(abs(n)) for part in parts for n in part.row):
        return None
    return parts


def _seen(main: str, op: Op, families: Mapping[str, float]) -> bool:
    """Whether the fit had ops of that name.

    Of grouped matmuls it had those in bfloat16 only, and it had none of int8 or packed matrices.
    """
    if main == "product" and op.base in matmul.GROUPED:
        return op.base == "aten._grouped_mm"
    if main == "product" and (op.base == quantization.FUSED or op.inputs[0].dtype == "int8"):
        return False
    return main in ROW_TYPES or op.base in families


def _main(op: Op, part: Part) -> str:
    """The main model of an op. Groups that run one after another are matmuls."""
    kind, model = ops.kind(op), part.model
    if model == "grouped" and isinstance(part.row, ProductRow) and not part.row.one_kernel:
        return "product"
    return str(kind) if model == "stream" and kind is not Kind.CONVOLUTION else model


def group_of(main: str, unit: int, gpu: GpuFacts) -> str:
    """The group of ops that share one range of errors: `product/tensor`, `norm`."""
    if main not in CLASSED:
        return main
    if main == "grouped" and not gpu.groups:
        main = "product"
    return f"{main}/tensor" if gpu.tensor[unit] else f"{main}/cores"


# An op as parts: the work it gives the GPU, each part with the columns that its model needs.
#
# The columns do not depend on the GPU, so they are built once for all GPUs.


def parts_of(op: Op) -> tuple[Part, ...]:
    """The parts of an op; empty where no model knows it."""
    kind, cost = ops.kind(op), ops.cost_of(op)
    if kind is None or cost is None or not ops.has_shapes(op):
        return ()
    match kind:
        case Kind.MATMUL:
            return _products(op, cost)
        case Kind.CONVOLUTION:
            return convolution_parts(op)
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
    if op.base == "aten.cat" and (together := streams.row_of(op, cost)) is not None:
        return (Part("concatenation", together),)
    if op.base == "aten._safe_softmax":
        return tuple(Part("stream", passes.row_of(*costed)) for costed in safe_softmax(op))
    if op.base == "aten.embedding_dense_backward" and op.inputs[0].strides is not None:
        # torch first makes the gradient contiguous (embedding_dense_backward_cuda)
        return (copied(op.inputs[0], None), Part("stream", passes.row_of(op, cost)))
    if copies_first(op):
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
    net = matmul.rnn_shape(op)
    steps = matmul.cell_steps(op) / max(net.layers * net.directions, 1)
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


# A part of an op, and the parts that are ops of their own: copies and other passes over memory.


class Part(NamedTuple):
    """A piece of an op's work for which one model predicts the time."""

    model: str
    """The name of the model, a key of `columns.ROW_TYPES`."""
    row: Row
    """The columns that the model needs."""


def copied(tensor: TensorSpec, strides: tuple[int, ...] | None) -> Part:
    """The copy of a tensor to another layout; to a contiguous one if strides is None."""
    return alone(Op("aten.clone", (tensor,), (replace(tensor, strides=strides),)))


def alone(op: Op) -> Part:
    """A pass over memory that torch makes within another op."""
    cost = ops.cost_of(op)
    assert cost is not None
    return Part("stream", passes.row_of(op, cost))


# What torch runs around the kernel of an op: copies to the layout it knows, and further ops.


def copies_first(op: Op) -> bool:
    """Whether torch makes the first input contiguous, because the kernel knows no other layout.

    It does so for softmax, and for the gradient of resized images unless both are in channels-last,
    which bicubic ones never support (SoftMax.cu, UpSampleBilinear2d.cu).
    """
    if not op.inputs or not op.outputs or op.inputs[0].strides is None:
        return False
    if op.base in ("aten._softmax", "aten._log_softmax"):
        return True
    if not (op.base.startswith("aten.upsample") and "backward" in op.base):
        return False
    return "bicubic" in op.base or not op.outputs[0].channels_last


def safe_softmax(op: Op) -> Iterator[tuple[Op, Cost]]:
    """The ops that torch runs for a softmax whose rows may be hidden as a whole (SoftMax.cpp)."""
    scores, out = op.inputs[0], op.outputs[0]
    hidden = TensorSpec(scores.shape, "bool")
    rows = TensorSpec((*scores.shape[:-1], 1), "bool")
    for name, read, written in (
        ("aten._softmax", (scores,), out),
        ("aten.eq.Tensor", (scores,), hidden),
        ("aten.all.dim", (hidden,), rows),
        ("aten.where.self", (rows, out), out),
    ):
        part = Op(name, read, (written,))
        cost = ops.cost_of(part)
        assert cost is not None
        yield part, cost


# A convolution as parts: one for each of its passes, and what torch does before and after them.


def convolution_parts(op: Op) -> tuple[Part, ...]:
    """The forward pass or, for a backward op, one part for each requested gradient.

    The forward pass of a transposed convolution is the image gradient of a plain one.
    """
    return (*_passes_of_convolution(op), *map(_reordered, _unlike(op)))


def _unlike(op: Op) -> Iterator[TensorSpec]:
    """The images that are first copied to channels-last, because another operand is in it.

    torch does so if the image or the weight is in channels-last (cudnn_conv_suggest_memory_format).
    """
    operands = op.inputs[: 3 if "backward" in op.base else 2]
    if any(t.channels_last for t in operands):
        for t in operands:
            images = len(t.shape) == 4 and t is not operands[-1]
            if images and t.strides is None and min(t.shape[1], math.prod(t.shape[2:])) > 1:
                yield t


def _reordered(image: TensorSpec) -> Part:
    """The copy of an image to channels-last."""
    _, c, h, w = image.shape
    return copied(image, (c * h * w, 1, c * w, c))


def _passes_of_convolution(op: Op) -> tuple[Part, ...]:
    transposed = bool(op.attr("transposed", False)) or "transpose" in op.base
    if "backward" not in op.base:
        image, weight, out = op.inputs[0], op.inputs[1], op.outputs[0]
        biased = len(op.inputs) > 2 and len(op.inputs[2].shape) == 1
        bias = (Part("stream", passes.row_over(out, stored(out), row_width=1)),) if biased else ()
        if transposed:
            image, out = out, image
        return (_convolution(op, OF_IMAGE if transposed else FORWARD, image, weight, out), *bias)
    out, image, weight = op.inputs[:3]
    wants = integers(op, "output_mask") or (1, 1, 1)
    if transposed:
        image, out = out, image
    parts = []
    if wants[0]:
        parts.append(_convolution(op, FORWARD if transposed else OF_IMAGE, image, weight, out))
    if wants[1]:
        parts.append(_convolution(op, OF_WEIGHT, image, weight, out))
    if len(wants) > 2 and wants[2]:
        parts.append(_sum_by_channel(op.inputs[0]))
    return tuple(parts)


def _sum_by_channel(gradient: TensorSpec) -> Part:
    """The gradient of the bias, for which torch sums over images and points."""
    over = tuple(axis for axis in range(len(gradient.shape)) if axis != 1)
    bias = TensorSpec(gradient.shape[1:2], gradient.dtype)
    return alone(Op("aten.sum.dim_IntList", (gradient,), (bias,), (("dim", over),)))


def _convolution(
    op: Op, computes: float, image: TensorSpec, weight: TensorSpec, out: TensorSpec
) -> Part:
    """One pass of a convolution of `image` to `out`."""
    if _is_matmul(op, image, weight, out):
        return Part("product", _point_product(op, computes, image, out))
    groups = max(integer(op, "groups", 1), 1)
    images, channels, filters = image.shape[0], image.shape[1], out.shape[1]
    taps = math.prod(weight.shape[2:])
    image_points, out_points = math.prod(image.shape[2:]), math.prod(out.shape[2:])
    flops = 2.0 * images * out_points * filters * channels / groups * taps
    m: float
    if computes == FORWARD:
        m, n = images * out_points, filters / groups
    elif computes == OF_IMAGE:
        m, n = images * image_points, channels / groups
    else:
        m, n = filters / groups, channels / groups * taps
    channels_last = any(t.channels_last for t in op.inputs[:3])
    pointwise = taps == 1 and image_points == out_points
    row = ConvolutionRow(
        computes=computes,
        groups=groups,
        m=m,
        n=n,
        k=flops / (2.0 * groups * m * n) if m * n else 0.0,
        item_bytes=item_bytes(image),
        unit=CODES[ops.unit(op)],
        converted=not (channels_last or pointwise),
        image_bytes=stored(image),
        out_bytes=stored(out),
        weight_bytes=stored(weight),
        taps=taps,
        stride_area=max(image_points / max(out_points, 1), 1.0),
        channels=channels / groups,
        filters=filters / groups,
        out_points=out_points,
        dilated=any(d > 1 for d in integers(op, "dilation")),
        of_sequences=len(image.shape) == 3,
        images=images,
        channels_last=channels_last,
        benchmarked=bool(op.attr("benchmark", False)),
        by_torch=convolution.by_torch(op),
        bfloat16=image.dtype == "bfloat16",
        tf32=op.attr("precision") == "tf32",
        alignment=math.gcd(image_points, 8) if pointwise and not channels_last else 8,
    )
    return Part(_model_of_convolution(op, weight), row)


def _is_matmul(op: Op, image: TensorSpec, weight: TensorSpec, out: TensorSpec) -> bool:
    """Whether cuDNN computes a convolution by cuBLAS's matmuls, as it is in memory.

    It does so in 16 bits for filters of one point without a stride, in channels-last; and for
    images as torch stores them, if their rows begin at multiples of 16 bytes. XLA chooses itself.
    """
    points = math.prod(image.shape[2:])
    plain = len(image.shape) < 5 and max(weight.shape[2:], default=0) == 1
    plain = plain and image.shape[2:] == out.shape[2:] and item_bytes(image) == 2
    if not plain or integer(op, "groups", 1) > 1 or op.attr(MARK, False):
        return False
    aligned = math.gcd(points, image.shape[1], out.shape[1], 8) == 8
    return any(t.channels_last for t in op.inputs[:3]) or aligned


def _point_product(op: Op, computes: float, image: TensorSpec, out: TensorSpec) -> ProductRow:
    """The matmul of a pass of a convolution with filters of one point, for all images or each."""
    images, channels, filters = image.shape[0], image.shape[1], out.shape[1]
    last, points = any(t.channels_last for t in op.inputs[:3]), math.prod(image.shape[2:])
    of_weight, forward = computes == OF_WEIGHT, computes == FORWARD
    wide, deep = (filters, channels) if forward else (channels, filters)
    batch, m, n, k = (1, images * points, wide, deep) if last else (images, wide, points, deep)
    if of_weight:
        batch, m, n, k = 1, filters, channels, images * points
    return ProductRow(
        batch=batch,
        m=m,
        n=n,
        k=k,
        item_bytes=item_bytes(image),
        moved_bytes=stored(image) + stored(out) + item_bytes(image) * channels * filters,
        unit=CODES[ops.unit(op)],
        alignment=math.gcd(channels, filters, 16 if last else math.gcd(points, 16)),
        a_by_columns=last and of_weight,
        b_by_columns=of_weight != last and (of_weight or forward),
    )


def _model_of_convolution(op: Op, weight: TensorSpec) -> str:
    """The model of a convolution; XLA takes other depthwise kernels of cuDNN than torch does."""
    if not convolution.depthwise(op):
        return "convolution"
    return "xla_depthwise" if op.attr(MARK, False) and len(weight.shape) == 4 else "depthwise"
