"""An op as the work it leaves to the GPU: parts with the numbers that a model of each needs.

The numbers know nothing of the GPU; they are made once and serve for all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from wavecast import ops
from wavecast.op_costs import attention, convolution, matmul, rnn
from wavecast.op_costs.registry import Cost, integer, integers, item_bytes, stored
from wavecast.op_models.gpus import CODES
from wavecast.ops import Kind
from wavecast.trace import DTYPE_BYTES, Op, TensorSpec

Numbers = tuple[float, ...]


class Part(NamedTuple):
    """Work of one sort; `numbers` are in the order of the model's columns."""

    model: str
    numbers: Numbers


PRODUCT = ("batch", "m", "n", "k", "item", "bytes", "unit", "aligned", "ta", "tb")
GROUPED = (*PRODUCT, "ragged", "kernel")
CONVOLUTION = (
    *("which", "groups", "m", "n", "k", "item", "unit", "converted"),
    *("image_bytes", "out_bytes", "weight_bytes", "taps", "steps", "channels", "filters"),
    *("points", "dilated", "images", "last", "tuned"),
)
ATTENTION = (
    *("sequences", "q_len", "k_len", "width", "share", "flops", "bytes", "unit"),
    *("backward", "efficient", "cudnn", "biased"),
)
RECURRENT = (
    *("steps", "batch", "inputs", "hidden", "gates", "layers", "directions", "item", "unit"),
    *("backward", "weights", "bytes", "flops"),
)
STREAM = (
    *("read", "written", "again", "elements", "flops", "width", "tensors", "twisted", "by_row"),
    *("item", "atomic", "groups", "footprint", "last", "sort", "backward"),
)
COLUMNS = {
    "product": PRODUCT,
    "grouped": GROUPED,
    "convolution": CONVOLUTION,
    "depthwise": CONVOLUTION,
    "attention": ATTENTION,
    "recurrent": RECURRENT,
    "stream": STREAM,
}
SORTS = (
    *(Kind.FILL, Kind.RANDOM, Kind.COPY, Kind.ELEMENTWISE, Kind.OPTIMIZER),
    *(Kind.REDUCTION, Kind.LOSS, Kind.SOFTMAX, Kind.NORM),
    *(Kind.POOLING, Kind.RESAMPLING, Kind.INDEXING, Kind.EMBEDDING),
)
"""Of passes over memory: those that are alike are neighbours, since trees ask for larger ones."""
FORWARD, OF_IMAGE, OF_WEIGHT = 0.0, 1.0, 2.0
"""What a convolution computes: `which`."""
OF_M, OF_N, OF_K = 0.0, 1.0, 2.0
"""What groups of a product have shares of: `ragged`."""


def parts_of(op: Op) -> tuple[Part, ...]:
    """The parts of an op; none where no model knows it."""
    kind = ops.kind(op)
    if kind is None or not ops.has_shapes(op) or ops.cost_of(op) is None:
        return ()
    match kind:
        case Kind.MATMUL:
            return _products(op)
        case Kind.CONVOLUTION:
            return _convolutions(op)
        case Kind.ATTENTION:
            return (_attention(op),)
        case Kind.RNN:
            return (_recurrent(op),)
        case Kind.COLLECTIVE | Kind.FFT | Kind.LINEAR_ALGEBRA | Kind.SORT:
            return ()
    return (_stream(op),)


# Matrix products.


def _products(op: Op) -> tuple[Part, ...]:
    first = 1 if "add" in op.base else 0
    if op.base.endswith("_foreach_mm") or not op.outputs:
        return ()
    if len(op.inputs) < first + 2 or min(len(t.shape) for t in op.inputs[first : first + 2]) < 2:
        return ()
    a, b = op.inputs[first : first + 2]
    sizes = _sizes(op, a, b)
    if op.base == "aten.linear":
        b = TensorSpec(b.shape[::-1], b.dtype, (1, b.shape[-1]))
    leading = [_leading(t) for t in (a, b, op.outputs[0])]
    cost = ops.cost_of(op)
    numbers = (
        *(*sizes, item_bytes(a), cost.bytes if cost else 0, CODES[ops.unit(op)]),
        *(min(math.gcd(each, 16) for each in leading), _turned(a), _turned(b)),
    )
    groups = _groups(op, a, b)
    model = "product" if groups is None else "grouped"
    return (Part(model, tuple(map(float, (*numbers, *(groups or ()))))),)


def _sizes(op: Op, a: TensorSpec, b: TensorSpec) -> Numbers:
    """How many products, and the m, n and k of each."""
    if op.base == "aten.linear":
        return 1, a.numel // max(a.shape[-1], 1), b.shape[0], a.shape[-1]
    if op.base in matmul.GROUPED:
        return matmul.groups(op)
    return math.prod(a.shape[:-2]), a.shape[-2], b.shape[-1], a.shape[-1]


def _groups(op: Op, a: TensorSpec, b: TensorSpec) -> Numbers | None:
    """What groups share, and whether torch has a kernel for all of them: in bfloat16.

    It runs those of other types one by one (GroupedBlas.cpp of torch 2.11). Groups of whole
    matrices are a batch, and fp8 is taken for one.
    """
    ranks = len(a.shape), len(b.shape)
    if op.base != "aten._grouped_mm" or ranks == (3, 3):
        return None
    ragged = {(2, 3): OF_M, (3, 2): OF_N}.get(ranks, OF_K)
    return ragged, all(t.dtype == "bfloat16" for t in (a, b, *op.outputs))


def _leading(t: TensorSpec) -> int:
    """The distance in memory between two rows (or columns): what vector loads align with."""
    if t.strides is None:
        return t.shape[-1]
    inner, outer = t.strides[-1], t.strides[-2]
    return outer if inner == 1 else inner


def _turned(t: TensorSpec) -> bool:
    """Whether a matrix is stored by columns."""
    return t.strides is not None and t.strides[-1] != 1


# Convolutions.


def _convolutions(op: Op) -> tuple[Part, ...]:
    """What is computed forwards or, of a backward op, for each gradient that is wanted.

    The forward pass of a transposed convolution is the data gradient of a plain one.
    """
    turned = bool(op.attr("transposed", False)) or "transpose" in op.base
    if "backward" not in op.base:
        image, weight, out = op.inputs[0], op.inputs[1], op.outputs[0]
        biased = len(op.inputs) > 2 and len(op.inputs[2].shape) == 1
        added = (_pass(out, read=stored(out), written=stored(out), width=1),) if biased else ()
        if turned:
            image, out = out, image
        return (_convolution(op, OF_IMAGE if turned else FORWARD, image, weight, out), *added)
    out, image, weight = op.inputs[:3]
    wants = integers(op, "output_mask") or (1, 1, 1)
    if turned:
        image, out = out, image
    found = []
    if wants[0]:
        found.append(_convolution(op, FORWARD if turned else OF_IMAGE, image, weight, out))
    if wants[1]:
        found.append(_convolution(op, OF_WEIGHT, image, weight, out))
    if len(wants) > 2 and wants[2]:  # the bias: a sum over images and points
        grad = op.inputs[0]
        width = grad.numel // max(grad.shape[1], 1)
        found.append(_pass(grad, read=stored(grad), written=4 * grad.shape[1], width=width))
    return tuple(found)


def _pass(whole: TensorSpec, *, read: int, written: int, width: int) -> Part:
    """A pass over a tensor, as a convolution's bias is added (in place) or summed."""
    numbers = {
        **{"read": read, "written": written, "elements": whole.numel, "flops": whole.numel},
        **{"width": width, "tensors": 1, "item": item_bytes(whole), "footprint": read},
        **{"last": whole.channels_last, "sort": SORTS.index(Kind.ELEMENTWISE)},
    }
    return Part("stream", tuple(float(numbers.get(name, 0)) for name in STREAM))


def _convolution(
    op: Op, which: float, image: TensorSpec, weight: TensorSpec, out: TensorSpec
) -> Part:
    """A convolution of `image` to `out` as a product (implicit GEMM, Chetlur et al. 2014)."""
    groups = max(integer(op, "groups", 1), 1)
    images, channels, filters = image.shape[0], image.shape[1], out.shape[1]
    taps = math.prod(weight.shape[2:])
    inside, outside = math.prod(image.shape[2:]), math.prod(out.shape[2:])
    flops = 2.0 * images * outside * filters * channels / groups * taps
    m: float
    if which == FORWARD:
        m, n = images * outside, filters / groups
    elif which == OF_IMAGE:
        m, n = images * inside, channels / groups
    else:
        m, n = filters / groups, channels / groups * taps
    k = flops / (2.0 * groups * m * n) if m * n else 0.0
    last = any(t.channels_last for t in op.inputs[:3])
    plain = taps == 1 and inside == outside
    numbers = (
        *(which, groups, m, n, k, item_bytes(image), CODES[ops.unit(op)], not (last or plain)),
        *(stored(image), stored(out), stored(weight), taps, max(inside / max(outside, 1), 1.0)),
        *(channels / groups, filters / groups, outside),
        *(any(d > 1 for d in integers(op, "dilation")), images, last),
        bool(op.attr("benchmark", False)),
    )
    model = "depthwise" if convolution.depthwise(op) else "convolution"
    return Part(model, tuple(map(float, numbers)))


# Attention and recurrent layers.


def _attention(op: Op) -> Part:
    found = attention.problem(op, as_torch=False)
    pairs = max(found.q_len * found.k_len, 1)
    cost, flops = ops.cost_of(op), ops.executed_flops(op)
    numbers = (
        *(found.sequences, found.q_len, found.k_len, (found.d + found.d_v) / 2),
        *(attention.attended(op, found.q_len, found.k_len) / pairs, flops or 0),
        *(cost.bytes if cost else 0, CODES[ops.unit(op)], "backward" in op.base),
        *("efficient" in op.base, "cudnn" in op.base, _has_bias(op)),
    )
    return Part("attention", tuple(map(float, numbers)))


def _has_bias(op: Op) -> bool:
    """Whether a mask is read: a tensor with a row for each query and a column for each key."""
    first = int("backward" in op.base)
    return any(len(t.shape) == 4 for t in op.inputs[first + 3 : first + 4])


def _recurrent(op: Op) -> Part:
    net = rnn.network_of(op)
    steps = rnn.cell_steps(op) / max(net.layers * net.directions, 1)
    wants = integers(op, "output_mask") or (1, 1, 1, 1)
    backward = 0 if "backward" not in op.base else 1 + bool(wants[-1])
    cost = ops.cost_of(op)
    numbers = (
        *(steps, net.tokens / max(steps, 1), net.widths[0], net.hidden, net.gates, net.layers),
        *(net.directions, item_bytes(op.inputs[0]), CODES[ops.unit(op)], backward, net.matrices),
        *(cost.bytes if cost else 0, cost.flops if cost else 0),
    )
    return Part("recurrent", tuple(map(float, numbers)))


# All else: passes over memory.

_PLACES = ("backward", "scatter", "index_put", "index_add")
_ATOMIC = ("index_add", "scatter_add", "scatter_reduce")
"""The others sort first."""


def _stream(op: Op) -> Part:
    cost = ops.cost_of(op)
    assert cost is not None
    kind = ops.kind(op)
    outputs = [t for t in op.outputs if t.device != "cpu"]
    whole = _whole(op, outputs)
    by_row = (kind is Kind.SOFTMAX) or "layer_norm" in op.base or "rms_norm" in op.base
    again = 0
    if kind is Kind.NORM and not by_row:  # the formula has counted every pass
        data = 2 if "backward" in op.base else 1
        again = max(cost.read_bytes - sum(map(stored, op.inputs)), 0)
        again = min(again, sum(map(stored, op.inputs[:data])))
    elif by_row:
        first = sum(map(stored, op.inputs[: 2 if "backward" in op.base else 1]))
        again = first if "backward" not in op.base or kind is Kind.SOFTMAX else first // 2
    counted = again if kind is Kind.NORM and (not by_row or "backward" in op.base) else 0
    numbers = (
        *(cost.read_bytes - counted, cost.written_bytes, again, _accesses(op, whole), cost.flops),
        *(_width(op, whole, kind), _lists(op), _twisted(op, outputs), by_row),
        *(DTYPE_BYTES[whole.dtype], _added(op), _blocks(op, whole, again, by_row)),
        *(_footprint(op, cost), whole.channels_last, _sort(kind), "backward" in op.base),
    )
    return Part("stream", tuple(map(float, numbers)))


def _sort(kind: Kind | None) -> int:
    return SORTS.index(kind) if kind in SORTS else SORTS.index(Kind.ELEMENTWISE)


def _whole(op: Op, outputs: list[TensorSpec]) -> TensorSpec:
    """The tensor whose elements are handled: of a lookup or a fill, what comes out."""
    tensors = [t for t in op.inputs if t.device != "cpu"] + outputs
    if outputs and (ops.kind(op) is Kind.FILL or (_looks_up(op) and not _adds_up(op))):
        tensors = outputs
    return max(tensors, key=lambda t: t.numel, default=TensorSpec((), "float32"))


def _looks_up(op: Op) -> bool:
    return ops.kind(op) in (Kind.EMBEDDING, Kind.INDEXING)


def _adds_up(op: Op) -> bool:
    """Whether several elements may go to one place."""
    return _looks_up(op) and any(name in op.base for name in _PLACES)


def _added(op: Op) -> int:
    """How many elements are added into places, one atomic operation each."""
    if not any(name in op.base for name in _ATOMIC):
        return 0
    place = op.outputs[0].shape if op.outputs else ()
    return max((t.numel for t in op.inputs if t.shape != place and "int" not in t.dtype), default=0)


def _blocks(op: Op, whole: TensorSpec, again: int, by_row: bool) -> int:
    """How many blocks share the work where each takes a whole channel, as batch norm does; 0: any.

    Where channels are the fastest dimension, all blocks share every channel. Group norm has a
    block for each group of each image.
    """
    if by_row or not again or len(whole.shape) < 2 or whole.channels_last:
        return 0
    if "group_norm" in op.base:
        return whole.shape[0] * max(integer(op, "group", 1), 1)
    return whole.shape[1]


def _footprint(op: Op, cost: Cost) -> int:
    """Bytes of the tensors that are touched: what is updated in place is there once."""
    in_place = op.base.endswith("_") and op.inputs[:1] == op.outputs[:1]
    return cost.bytes - (stored(op.outputs[0]) if in_place else 0)


def _accesses(op: Op, whole: TensorSpec) -> int:
    """Elements to handle: a pooling window's as often as windows have them."""
    sides = integers(op, "kernel_size")
    if ops.kind(op) is not Kind.POOLING or not sides:
        return whole.numel
    spatial = 3 if "3d" in op.base else 2
    window = math.prod(sides) if len(sides) > 1 else sides[0] ** spatial
    pooled = op.inputs[0] if "backward" in op.base else op.outputs[0]
    return max(whole.numel, pooled.numel * window)


def _lists(op: Op) -> int:
    """How many tensors a fused op on lists works on; 1 for others."""
    lists = "_foreach" in op.base or "_fused_" in op.base or "_amp_foreach" in op.base
    return max(len(op.outputs), 1) if lists else 1


def _width(op: Op, whole: TensorSpec, kind: Kind | None) -> float:
    """How many elements are reduced to one, where that is what the op does."""
    if kind is Kind.REDUCTION or kind is Kind.LOSS:
        out = max((t.numel for t in op.outputs), default=1)
        return whole.numel / max(out, 1)
    if kind is Kind.NORM and whole.shape:
        named = integers(op, "normalized_shape")
        channels = whole.shape[1] if len(whole.shape) > 1 else 1
        return math.prod(named) if named else whole.numel / max(channels, 1)
    return whole.shape[-1] if whole.shape else 1


def _twisted(op: Op, outputs: list[TensorSpec]) -> int:
    """Bytes of inputs that are stored in another order than the output: access in strides."""
    if not outputs or not outputs[0].numel:
        return 0
    order = _fastest(outputs[0])
    others = (t for t in op.inputs if t.shape == outputs[0].shape and t.device != "cpu")
    return sum(t.nbytes for t in others if _fastest(t) != order)


def _fastest(t: TensorSpec) -> int:
    """The dimension whose neighbours are neighbours in memory."""
    real = [i for i, n in enumerate(t.shape) if n > 1]
    if not real:
        return -1
    if t.strides is None:
        return real[-1]
    stored_dims = [i for i in real if t.strides[i]]
    return min(stored_dims, key=lambda i: t.strides[i]) if stored_dims else real[-1]  # type: ignore[index]
