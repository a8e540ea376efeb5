"""The cost of cuDNN's recurrent networks: all layers, directions and time steps are one op."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.ops.registry import Cost, Kind, cost, integer, integers, item_bytes, read
from wavecast.traces.step import Op

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
