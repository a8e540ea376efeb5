"""An op as the work it leaves to the GPU: parts with the numbers that a model of each needs.

The numbers know nothing of the GPU; they are made once and serve for all.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from wavecast import ops
from wavecast.ops import Kind, attention, convolution, matmul, rnn
from wavecast.ops.registry import integer, integers, item_bytes, stored
from wavecast.predictors.learned.gpus import CODES
from wavecast.predictors.learned.physics import passes
from wavecast.predictors.learned.physics.passes import Numbers
from wavecast.traces.step import Op, TensorSpec


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
    *("backward", "bytes"),
)
COLUMNS = {
    "product": PRODUCT,
    "grouped": GROUPED,
    "convolution": CONVOLUTION,
    "depthwise": CONVOLUTION,
    "attention": ATTENTION,
    "recurrent": RECURRENT,
    "stream": passes.STREAM,
}
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
            return _recurrent(op)
        case Kind.COLLECTIVE | Kind.FFT | Kind.LINEAR_ALGEBRA | Kind.SORT:
            return ()
    return (Part("stream", passes.numbers_of(op)),)


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
        added = (_pass(out, stored(out), width=1),) if biased else ()
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
        found.append(_pass(grad, 4 * grad.shape[1], width))
    return tuple(found)


def _pass(whole: TensorSpec, written: int, width: int) -> Part:
    return Part("stream", passes.over(whole, written, width))


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


def _recurrent(op: Op) -> tuple[Part, ...]:
    """The steps, one after the other, and the products over all of them at once: with the input,
    and backwards those of its gradient and of the weights' (Appleyard et al., "Optimizing
    Performance of Recurrent Neural Networks on GPUs", 2016, section 3)."""
    net = rnn.rnn_shape(op)
    steps = rnn.cell_steps(op) / max(net.layers * net.directions, 1)
    wants = integers(op, "output_mask") or (1, 1, 1, 1)
    cost, item, unit = ops.cost_of(op), item_bytes(op.inputs[0]), CODES[ops.unit(op)]
    backward = "backward" in op.base
    numbers = (
        *(steps, net.tokens / max(steps, 1), net.widths[0], net.hidden, net.gates, net.layers),
        *(net.directions, item, unit, backward, cost.bytes if cost else 0),
    )
    gates, inputs = net.gates * net.hidden, sum(net.widths) / max(net.layers, 1)
    whole: list[tuple[float, float, float]] = [
        (net.tokens, inputs, gates) if backward else (net.tokens, gates, inputs)
    ]
    if backward and wants[-1]:
        whole.append((gates, inputs + net.output, net.tokens))
    return (
        Part("recurrent", tuple(map(float, numbers))),
        *(_whole(net.layers * net.directions, sizes, item, unit) for sizes in whole),
    )


def _whole(batch: int, sizes: tuple[float, float, float], item: float, unit: int) -> Part:
    """A product (m, n, k) of each layer; how it is stored is cuDNN's affair."""
    m, n, k = sizes
    moved = batch * item * (m * k + k * n + m * n)
    aligned = min(math.gcd(int(each), 16) for each in (m, n, k))
    return Part("product", tuple(map(float, (batch, m, n, k, item, moved, unit, aligned, 0, 0))))
