"""What cuDNN's recurrent networks cost: all layers, directions and time steps in one op."""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.ops.registry import Cost, Kind, cost, integer, integers, item_bytes, read
from wavecast.traces.step import Op

# By cuDNN's mode: rnn_relu, rnn_tanh, lstm, gru.
_GATES = (1, 1, 4, 3)
_LSTM = 2


@dataclass(frozen=True)
class RnnShape:
    """Elements of everything that a recurrent network holds.

    `tokens` are batch times length, or the sum of the lengths when the input is packed.
    """

    tokens: int
    layers: int
    directions: int
    widths: tuple[int, ...]
    hidden: int
    output: int
    gates: int
    cells: int
    biased: bool
    projected: bool

    @property
    def matrices(self) -> int:
        """Weights that multiply: input, recurrent and projection matrices."""
        gates = self.gates * self.hidden
        projection = self.hidden * self.output if self.projected else 0
        layers = sum(gates * (width + self.output) + projection for width in self.widths)
        return self.directions * layers

    @property
    def weights(self) -> int:
        """The matrices, and two biases per gate."""
        biases = 2 * self.gates * self.hidden if self.biased else 0
        return self.matrices + self.layers * self.directions * biases

    @property
    def inputs(self) -> int:
        """What all layers read."""
        return self.tokens * sum(self.widths)

    @property
    def outputs(self) -> int:
        """What all layers write."""
        return self.tokens * self.layers * self.directions * self.output

    @property
    def activations(self) -> int:
        """The gates before and the cells after each step."""
        steps = self.tokens * self.layers * self.directions
        return steps * self.hidden * (self.gates + self.cells)


def network_of(op: Op) -> RnnShape:
    """The network of an op."""
    hidden, layers = integer(op, "hidden_size"), integer(op, "num_layers", 1)
    projected, mode = integer(op, "proj_size"), integer(op, "mode")
    directions = 2 if op.attr("bidirectional", False) else 1
    output = projected or hidden
    *tokens, features = op.inputs[0].shape
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
    """Every weight meets every token once. Training keeps gates and cells for the backward pass.

    Each layer's input, output and weights move once: that the recurrent weights stay on the
    chip from step to step is the best case.
    """
    net, item = network_of(op), item_bytes(op.inputs[0])
    states = read(op.outputs[1:3])
    kept = net.activations if op.attr("train", True) else 0
    return Cost(
        2 * net.tokens * net.matrices,
        item * (net.inputs + net.weights) + states,
        item * (net.outputs + kept) + states,
    )


@cost("aten._cudnn_rnn_backward", kind=Kind.RNN)
def _rnn_backward(op: Op) -> Cost:
    """Data gradients always, then weight gradients if wanted; as many FLOPs each as forward."""
    net, item = network_of(op), item_bytes(op.inputs[0])
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
    """How many times a cell is applied one after the other: time steps by layers by directions."""
    network = network_of(op)
    packed = op.attr("batch_sizes")
    shape = op.inputs[0].shape
    if isinstance(packed, tuple):
        steps = len(packed)
    elif len(shape) == 3:
        steps = shape[1] if op.attr("batch_first", False) else shape[0]
    else:
        # A long packed batch drops its sizes from the trace; the first states tell its width.
        steps = -(-shape[0] // max(1, _batch(op)))
    return steps * network.layers * network.directions


def _batch(op: Op) -> int:
    states = [t.shape for t in op.inputs[1:] if len(t.shape) == 3]
    return states[0][1] if states else 1
