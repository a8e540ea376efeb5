"""The cost of matmuls. FLOPs are as torch counts them: without bias and activation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.ops.registry import (
    Cost,
    Kind,
    cost,
    integer,
    integers,
    item_bytes,
    read,
    streaming,
    written,
)
from wavecast.traces.step import Op, TensorSpec


def _product(a: TensorSpec, b: TensorSpec) -> int:
    """The FLOPs of (..., m, k) @ (..., k, n)."""
    return 2 * a.numel * b.shape[-1]


def _one_pass(op: Op, flops: int) -> Cost:
    """The cost when each tensor is read or written once."""
    return Cost(flops, read(op.inputs), written(op.outputs))


XLA_UNALIGNED = "xla.unaligned_mm"
"""A matmul that XLA writes in Triton, since the rows of an operand begin at odd places."""


@cost(XLA_UNALIGNED, kind=Kind.MATMUL)
@cost("aten.mm", "aten.bmm", "aten._int_mm", kind=Kind.MATMUL)
@cost("aten._scaled_mm", "aten._scaled_mm_v2", kind=Kind.MATMUL)
def _mm(op: Op) -> Cost:
    return _one_pass(op, _product(op.inputs[0], op.inputs[1]))


ADDING = ("aten.addmm", "aten.baddbmm", "aten.addbmm", "aten._addmm_activation")
"""Matmuls whose first input is added to their product."""


@cost(*ADDING, kind=Kind.MATMUL)
def _addmm(op: Op) -> Cost:
    """`self` is not read when `beta` is 0."""
    operands = op.inputs if op.attr("beta", 1) else op.inputs[1:]
    return Cost(_product(op.inputs[1], op.inputs[2]), read(operands), written(op.outputs))


@cost("aten.linear", kind=Kind.MATMUL)
def _linear(op: Op) -> Cost:
    return _one_pass(op, 2 * op.inputs[0].numel * op.inputs[1].shape[0])


GROUPED = ("aten._grouped_mm", "aten._scaled_grouped_mm", "aten._scaled_grouped_mm_v2")


@cost(*GROUPED, kind=Kind.MATMUL)
def _grouped_mm(op: Op) -> Cost:
    """Each row (or column, or inner element) belongs to one group, so groups add no FLOPs.

    2-D @ 3-D is (m, k) @ (g, k, n), where groups split the rows. In 3-D @ 2-D they split the
    columns, in 2-D @ 2-D the inner dimension. 3-D @ 3-D is a batched matmul.
    """
    a, b = op.inputs[:2]
    groups = a.shape[0] if len(a.shape) == len(b.shape) == 3 else 1
    return _one_pass(op, 2 * groups * math.prod(a.shape[-2:]) * b.shape[-1])


def groups(op: Op) -> tuple[int, float, float, float]:
    """The number of groups of a grouped matmul, and m, n and k of each.

    The sizes of groups are data, which a trace does not have, so all groups count as equally large.
    """
    a, b, out = *op.inputs[:2], op.outputs[0]
    m, k, n = float(a.shape[-2]), float(a.shape[-1]), float(b.shape[-1])
    match len(a.shape), len(b.shape):
        case 2, 2:
            return out.shape[0], m, n, k / max(out.shape[0], 1)
        case 2, 3:
            return b.shape[0], m / max(b.shape[0], 1), n, k
        case 3, 2:
            return a.shape[0], m, n / max(a.shape[0], 1), k
    return a.shape[0], m, n, k


@cost("aten._foreach_mm", kind=Kind.MATMUL)
def _foreach_mm(op: Op) -> Cost:
    half = len(op.inputs) // 2
    pairs = zip(op.inputs[:half], op.inputs[half:], strict=True)
    return _one_pass(op, sum(_product(a, b) for a, b in pairs))


# Matmuls with a vector read their matrix once and use no tensor core, so they are reductions.
streaming(Kind.REDUCTION, "mv addmv dot vdot", flops=2)


@cost("aten._cdist_forward", "aten._euclidean_dist", kind=Kind.REDUCTION)
def _cdist(op: Op) -> Cost:
    """A subtraction, a multiplication and an addition for each pair of points and coordinate."""
    return _one_pass(op, 3 * op.outputs[0].numel * op.inputs[0].shape[-1])


@cost("aten._cdist_backward", kind=Kind.REDUCTION)
def _cdist_backward(op: Op) -> Cost:
    grad, points = op.inputs[:2]
    return _one_pass(op, 4 * grad.numel * points.shape[-1])


@cost("aten._trilinear", kind=Kind.REDUCTION)
def _trilinear(op: Op) -> Cost:
    """Sums over three tensors, as in nn.Bilinear: a multiply-add for each combination."""
    shapes = []
    for number, tensor in enumerate(op.inputs, start=1):
        shape = list(tensor.shape)
        for dim in sorted(integers(op, f"expand{number}")):
            shape.insert(dim, 1)
        shapes.append(shape)
    return _one_pass(op, 2 * math.prod(map(max, zip(*shapes, strict=True))))


@cost("aten.linalg_solve_triangular", kind=Kind.LINEAR_ALGEBRA)
def _solve_triangular(op: Op) -> Cost:
    """n^2 FLOPs for each right-hand side, whichever side the matrix is on."""
    matrix, right = op.inputs[:2]
    return _one_pass(op, right.numel * matrix.shape[-1])


@cost("aten.linalg_cholesky_ex", "aten.cholesky", kind=Kind.LINEAR_ALGEBRA)
def _cholesky(op: Op) -> Cost:
    """n^3 / 3 FLOPs, as LAPACK counts."""
    matrix = op.inputs[0]
    return _one_pass(op, matrix.numel * matrix.shape[-1] // 3)


@cost("aten.linalg_inv_ex", kind=Kind.LINEAR_ALGEBRA)
def _inverse(op: Op) -> Cost:
    """2 n^3 FLOPs, as LAPACK counts."""
    matrix = op.inputs[0]
    return _one_pass(op, 2 * matrix.numel * matrix.shape[-1])


@cost("aten._fft_c2c", "aten._fft_r2c", "aten._fft_c2r", kind=Kind.FFT)
def _fft(op: Op) -> Cost:
    """5 N log2 n FLOPs, n the points of one transform; half of it when one side is real."""
    points = max(op.inputs[0], op.outputs[0], key=lambda t: t.numel)
    dims = op.attr("dim", ())
    length = math.prod(points.shape[int(d)] for d in dims) if isinstance(dims, tuple) else 1
    flops = 5 * points.numel * math.ceil(math.log2(max(length, 2)))
    return _one_pass(op, flops if op.base.endswith("c2c") else flops // 2)


# The cost of cuDNN's recurrent networks: all layers, directions and time steps are one op.


# The number of gates by cuDNN's mode: rnn_relu, rnn_tanh, lstm, gru.
_GATES = (1, 1, 4, 3)
_LSTM = 2
MOST_LAYERS = 1 << 16
"""Far more layers than any network has; without a limit, an attribute could fill the memory."""


@dataclass(frozen=True)
class RnnShape:
    """The sizes of a recurrent network, in elements."""

    tokens: int
    """Batch times length, or the sum of the lengths when the input is packed."""
    layers: int
    directions: int
    """1, or 2 for a bidirectional network."""
    widths: tuple[int, ...]
    """The input size of each layer."""
    hidden: int
    """The hidden size."""
    output: int
    """The output size of one direction: the projection's, else the hidden size."""
    gates: int
    """The number of gates: 1, 3 (GRU) or 4 (LSTM)."""
    cells: int
    """The number of cell states: 1 for an LSTM, else 0."""
    biased: bool
    projected: bool

    @property
    def matrices(self) -> int:
        """The elements of all input, recurrent and projection matrices."""
        gates = self.gates * self.hidden
        projection = self.hidden * self.output if self.projected else 0
        layers = sum(gates * (width + self.output) + projection for width in self.widths)
        return self.directions * layers

    @property
    def weights(self) -> int:
        """The elements of all weights: the matrices, and two biases per gate."""
        biases = 2 * self.gates * self.hidden if self.biased else 0
        return self.matrices + self.layers * self.directions * biases

    @property
    def inputs(self) -> int:
        """The elements of the inputs of all layers."""
        return self.tokens * sum(self.widths)

    @property
    def outputs(self) -> int:
        """The elements of the outputs of all layers."""
        return self.tokens * self.layers * self.directions * self.output

    @property
    def activations(self) -> int:
        """The elements of the gates and cell states of all time steps."""
        steps = self.tokens * self.layers * self.directions
        return steps * self.hidden * (self.gates + self.cells)


def rnn_shape(op: Op) -> RnnShape:
    """The sizes of the network that an op runs."""
    hidden, layers = integer(op, "hidden_size"), integer(op, "num_layers", 1)
    projected, mode = integer(op, "proj_size"), integer(op, "mode")
    directions = 2 if op.attr("bidirectional", False) else 1
    output = projected or hidden
    *tokens, features = op.inputs[0].shape
    if not 0 < layers <= MOST_LAYERS:
        raise ValueError(f"a recurrent network of {layers} layers")
    return RnnShape(
        tokens=math.prod(tokens),
        layers=layers,
        directions=directions,
        widths=(features, *[directions * output] * (layers - 1)),
        hidden=hidden,
        output=output,
        gates=_GATES[mode],
        cells=int(mode == _LSTM),
        biased=integer(op, "weight_stride0", 4) >= 4,
        projected=bool(projected),
    )


@cost("aten._cudnn_rnn", kind=Kind.RNN)
def _rnn(op: Op) -> Cost:
    """One multiply-add for every matrix element and token.

    Training also writes gates and cells for the backward pass. Input, output and weights of each
    layer move once, which is the best case: the recurrent weights stay on the chip.
    """
    net, item = rnn_shape(op), item_bytes(op.inputs[0])
    states = read(op.outputs[1:3])
    kept = net.activations if op.attr("train", True) else 0
    return Cost(
        2 * net.tokens * net.matrices,
        item * (net.inputs + net.weights) + states,
        item * (net.outputs + kept) + states,
    )


@cost("aten._cudnn_rnn_backward", kind=Kind.RNN)
def _rnn_backward(op: Op) -> Cost:
    """Data gradients, and weight gradients if they are computed; each has the forward's FLOPs."""
    net, item = rnn_shape(op), item_bytes(op.inputs[0])
    flops = 2 * net.tokens * net.matrices
    gates = net.tokens * net.layers * net.directions * net.gates * net.hidden
    data = Cost(
        flops,
        item * (net.weights + net.outputs + net.activations),
        item * (gates + net.inputs),
    )
    weights = Cost(flops, item * (gates + net.inputs + net.outputs), item * net.weights)
    wants = integers(op, "output_mask") or (1, 1, 1, 1)
    return data + weights * wants[-1]


def cell_steps(op: Op) -> int:
    """The number of cell applications in sequence: time steps times layers times directions."""
    network = rnn_shape(op)
    packed = op.attr("batch_sizes")
    shape = op.inputs[0].shape
    if isinstance(packed, tuple):
        steps = len(packed)
    elif len(shape) == 3:
        steps = shape[1] if op.attr("batch_first", False) else shape[0]
    else:
        # The trace leaves out the sizes of long packed batches; the states have the batch size.
        steps = -(-shape[0] // max(1, _batch(op)))
    return steps * network.layers * network.directions


def _batch(op: Op) -> int:
    states = [t.shape for t in op.inputs[1:] if len(t.shape) == 3]
    return states[0][1] if states else 1
