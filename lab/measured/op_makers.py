"""Makes ops from the dimensions in public tables, as a trace would contain them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from wavecast import ops
from wavecast.ops import Kind
from wavecast.predictors.mlp import Bmm, Conv2d, Layer, Linear, Lstm
from wavecast.traces.step import Op, Scalar, TensorSpec

IEEE = (("precision", "ieee"),)


def tensor(*shape: int, dtype: str = "float32") -> TensorSpec:
    """A contiguous tensor."""
    return TensorSpec(tuple(int(side) for side in shape), dtype)


def transposed(rows: int, columns: int, dtype: str) -> TensorSpec:
    """A matrix that is stored transposed, like `weight.t()`."""
    return TensorSpec((int(rows), int(columns)), dtype, (1, int(rows)))


def product(
    m: int, k: int, n: int, dtype: str = "float32", *, ta: bool = False, tb: bool = False
) -> Op:
    """(m, k) @ (k, n); `ta` and `tb` say that an operand is stored transposed."""
    a = transposed(m, k, dtype) if ta else tensor(m, k, dtype=dtype)
    b = transposed(k, n, dtype) if tb else tensor(k, n, dtype=dtype)
    return Op("aten.mm", (a, b), (tensor(m, n, dtype=dtype),), IEEE)


def linear(m: int, k: int, n: int, dtype: str = "float32", *, bias: bool = True) -> Op:
    """The forward pass of a linear layer: its weight is stored as (n, k)."""
    operands = tensor(m, k, dtype=dtype), transposed(k, n, dtype)
    out = (tensor(m, n, dtype=dtype),)
    if not bias:
        return Op("aten.mm", operands, out, IEEE)
    return Op("aten.addmm", (tensor(n, dtype=dtype), *operands), out, IEEE)


def linear_backward(m: int, k: int, n: int, dtype: str = "float32") -> tuple[Op, ...]:
    """The gradients of a linear layer's input and weight: two products."""
    return product(m, n, k, dtype), product(n, m, k, dtype, ta=True)


def batched(b: int, m: int, k: int, n: int, dtype: str = "float32") -> Op:
    """`b` products (m, k) @ (k, n)."""
    operands = tensor(b, m, k, dtype=dtype), tensor(b, k, n, dtype=dtype)
    return Op("aten.bmm", operands, (tensor(b, m, n, dtype=dtype),), IEEE)


def batched_backward(b: int, m: int, k: int, n: int, dtype: str = "float32") -> tuple[Op, ...]:
    """The gradients of both operands of a batched product."""
    return batched(b, m, n, k, dtype), batched(b, k, m, n, dtype)


def convolution(
    image: tuple[int, int, int, int],
    weight: tuple[int, int, int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dtype: str = "float32",
    output_mask: tuple[bool, bool] | None = None,
    bias: bool = False,
    tuned: bool = False,
) -> Op:
    """A convolution in one group, NCHW, or its backward pass.

    Args:
        image: (batch, channels, height, width).
        weight: (filters, channels, height, width).
        stride: the stride of both dimensions.
        padding: the padding of both dimensions.
        dtype: the dtype of all tensors.
        wanted: whether the gradients of image and weight are computed; None for the forward pass.
        bias: whether it has a bias.
        tuned: whether cuDNN searched for the fastest algorithm (`cudnn.benchmark`).
    """
    n, _, height, width = image
    out_h, out_w = (
        (size + 2 * pad - kernel) // step + 1
        for size, pad, kernel, step in zip(
            (height, width), padding, weight[2:], stride, strict=True
        )
    )
    source, filters = tensor(*image, dtype=dtype), tensor(*weight, dtype=dtype)
    out = tensor(n, weight[0], out_h, out_w, dtype=dtype)
    shared: tuple[tuple[str, Scalar], ...] = (
        ("stride", tuple(map(int, stride))),
        ("padding", tuple(map(int, padding))),
        ("dilation", (1, 1)),
        ("transposed", False),
        ("groups", 1),
        *IEEE,
        *((("benchmark", True),) if tuned else ()),
    )
    added = (tensor(weight[0], dtype=dtype),) if bias else ()
    if output_mask is None:
        return Op("aten.convolution", (source, filters, *added), (out,), shared)
    gradients = [spec for spec, want in zip((source, filters), output_mask, strict=True) if want]
    mask = ("output_mask", (*output_mask, bias))
    return Op(
        "aten.convolution_backward", (out, source, filters), (*gradients, *added), (*shared, mask)
    )


def attention(
    batch: int,
    heads: int,
    seq: int,
    width: int,
    *,
    causal: bool,
    dtype: str = "bfloat16",
    kernel: str = "flash",
) -> Op:
    """The forward pass of self-attention with one of torch's kernels."""
    whole = tensor(batch, heads, seq, width, dtype=dtype)
    return Op(
        f"aten._scaled_dot_product_{kernel}_attention",
        (whole, whole, whole),
        (whole, tensor(batch, heads, seq)),
        (("dropout_p", 0.0), ("is_causal", causal)),
    )


def elementwise(name: str, operands: int, *shape: int, dtype: str = "float32") -> Op:
    """An elementwise op on tensors of one shape."""
    whole = tensor(*shape, dtype=dtype)
    return Op(name, (whole,) * operands, (whole,))


def softmax(rows: int, width: int, dtype: str = "float32") -> Op:
    """A softmax over the last dimension."""
    whole = tensor(rows, width, dtype=dtype)
    return Op("aten._softmax", (whole,), (whole,), (("dim", 1), ("half_to_float", False)))


def layer_norm(rows: int, width: int, dtype: str = "float32") -> Op:
    """A layer norm over the last dimension, with weight and bias."""
    whole, weight = tensor(rows, width, dtype=dtype), tensor(width, dtype=dtype)
    statistics = tensor(rows, 1)
    return Op(
        "aten.native_layer_norm",
        (whole, weight, weight),
        (whole, statistics, statistics),
        (("normalized_shape", (int(width),)), ("eps", 1e-5)),
    )


def recurrent(
    mode: int,
    steps: int,
    batch: int,
    inputs: int,
    hidden: int,
    layers: int = 1,
    *,
    bidirectional: bool = False,
    bias: bool = True,
    dtype: str = "float32",
    output_mask: tuple[bool, bool] | None = None,
) -> Op:
    """cuDNN's recurrent layers.

    Args:
        mode: the cell: 0 and 1 plain, 2 LSTM, 3 GRU.
        steps: the length of the sequence.
        batch: the number of sequences.
        inputs: the width of the input.
        hidden: the width of the state.
        layers: the number of layers.
        bidirectional: whether each layer runs in both directions.
        bias: whether layers have biases.
        dtype: the dtype of all tensors.
        wanted: whether the gradients of input and weights are computed; None for the forward pass.
    """
    directions, gates = 1 + bidirectional, {0: 1, 1: 1, 2: 4, 3: 3}[mode]
    sequence = tensor(steps, batch, inputs, dtype=dtype)
    state = tensor(layers * directions, batch, hidden, dtype=dtype)
    out = tensor(steps, batch, directions * hidden, dtype=dtype)
    weights: list[TensorSpec] = []
    for number in range(layers):
        width = directions * hidden if number else inputs
        matrices = [tensor(gates * hidden, columns, dtype=dtype) for columns in (width, hidden)]
        biases = [tensor(gates * hidden, dtype=dtype)] * (2 * bias)
        weights += (matrices + biases) * directions
    attrs: tuple[tuple[str, Scalar], ...] = (
        ("weight_stride0", 4 if bias else 2),
        ("mode", mode),
        ("hidden_size", int(hidden)),
        ("num_layers", int(layers)),
        ("bidirectional", bidirectional),
        ("train", True),
        *IEEE,
    )
    states = (state, state) if mode == 2 else (state,)
    operands = (sequence, *weights, *states)
    if output_mask is None:
        return Op("aten._cudnn_rnn", operands, (out, *states), attrs)
    mask = ("output_mask", (output_mask[0], False, False, output_mask[1]))
    return Op("aten._cudnn_rnn_backward", (*operands, out), (sequence, *weights), (*attrs, mask))


# The measured time of an op, from any source.


@dataclass(frozen=True)
class OpRow:
    """Ops that were timed together (nearly always one), the GPU, the time and the source."""

    ops: tuple[Op, ...]
    gpu: str
    seconds: float
    source: str

    @property
    def kind(self) -> Kind:
        """The kind of the ops, which is the same for all of them."""
        kind = ops.kind(self.ops[0])
        assert kind is not None
        return kind


def digest(rows: Sequence[OpRow]) -> str:
    """A hash of everything that a fit sees."""
    hasher = hashlib.sha256()
    for row in rows:
        hasher.update(repr((row.ops, row.gpu, float(f"{row.seconds:.6g}"), row.source)).encode())
    return hasher.hexdigest()


# The ops that torch runs for a layer (`wavecast.predictors.mlp`), forward and backward.


def op_of(layer: Layer, target: str = "forward") -> Op:
    """The op that the networks recognise as a layer (`wavecast.predictors.mlp.layer_of`).

    Args:
        layer: the layer.
        target: "forward" or "backward". Linear layers and batched products have no network for the
            backward pass; for them both targets return the forward op.
    """
    match layer:
        case Linear(bias, batch, inwards, out):
            added = (tensor(out),) if bias else ()
            operands = (*added, tensor(batch, inwards), tensor(inwards, out))
            name = "aten.addmm" if bias else "aten.mm"
            return Op(name, operands, (tensor(batch, out),), IEEE)
        case Bmm(batch, left, middle, right):
            return batched(batch, left, middle, right)
        case Conv2d():
            return _convolution(layer, target == "backward")
        case Lstm():
            return _lstm(layer, target == "backward")


def ops_of(layer: Layer, *, backward: bool) -> tuple[Op, ...]:
    """All ops that torch runs for one pass of a layer."""
    match layer:
        case Linear(bias, batch, inwards, out):
            if backward:
                return linear_backward(batch, inwards, out)
            return (linear(batch, inwards, out, bias=bias),)
        case Bmm(batch, left, middle, right):
            if backward:
                return batched_backward(batch, left, middle, right)
            return (batched(batch, left, middle, right),)
        case Conv2d():
            return (_convolution(layer, backward),)
        case Lstm():
            return (_lstm(layer, backward),)


def _convolution(layer: Conv2d, backward: bool) -> Op:
    return convolution(
        (layer.batch, layer.in_channels, layer.image, layer.image),
        (layer.out_channels, layer.in_channels, layer.kernel, layer.kernel),
        (layer.stride, layer.stride),
        (layer.padding, layer.padding),
        output_mask=(True, True) if backward else None,
        bias=bool(layer.bias),
    )


def _lstm(layer: Lstm, backward: bool) -> Op:
    return recurrent(
        2,
        layer.sequence,
        layer.batch,
        layer.inputs,
        layer.hidden,
        layer.layers,
        bidirectional=bool(layer.bidirectional),
        bias=bool(layer.bias),
        output_mask=(True, True) if backward else None,
    )
