"""What cuDNN's recurrent layers take, as torch calls them (aten/native/cudnn/RNN.cpp).

The order is torch's. The sizes are cuDNN's, which is closed: the rules were read off what it asked
for on an H200, and `tests/test_workspaces.py` has what was seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from wavecast.devices import Device
from wavecast.op_costs.registry import integer, item_bytes
from wavecast.op_costs.rnn import Network, network_of
from wavecast.trace import Op, Trace
from wavecast.workspaces.taking import Taking

FORWARD, BACKWARD = "aten._cudnn_rnn", "aten._cudnn_rnn_backward"
NAMES = (FORWARD, BACKWARD)

_BUFFER_BYTES, _HEAD_BYTES = 8 << 20, 256
"""For each layer and direction; and once."""
_INDEX_BYTES = 8
"""Two numbers for each sequence of a padded batch."""
_LONGEST_CHUNK = 32
"""Time steps that a layer in one direction computes ahead."""
_PERSISTENT_COPIES = 5
"""How often all gates are held where the weights stay on the chip."""
_PERSISTENT_HIDDEN, _PERSISTENT_MULTIPLE = 1024, 128
_NOISE_BYTES = 24
"""Of cuDNN's random numbers, for each thread that a GPU can hold."""


def takings(op: Op) -> tuple[Taking, ...]:
    """All that a layer takes for itself, in order."""
    space, copied = workspace_bytes(op), reordered_bytes(op)
    first = op.outputs[0].nbytes
    if op.base == FORWARD:
        # The workspace is taken before what is kept for the way back, and outlives its making.
        kept = op.outputs[3].nbytes if len(op.outputs) > 3 else None
        return _real(Taking(copied, before_bytes=first), Taking(space, before_bytes=kept))
    states = [Taking(n, before_bytes=first) for n in _missing_gradients_bytes(op)]
    gradients = [spec.nbytes for spec in op.outputs[2 + network_of(op).cells :]]
    if not gradients:
        return _real(*states, Taking(space))
    flat = flat_bytes(op)
    if network_of(op).biased:
        # Gradients of weights are views of one tensor.
        made = flat
        return _real(
            *states, Taking(space, True, made), Taking(copied, before_bytes=made), Taking(space)
        )
    # They are copied out of one tensor, which has places for biases too.
    made = gradients[0]
    later = (Taking(n, before_bytes=made) for n in (copied, flat, space))
    return _real(*states, Taking(space, True, made), *later)


def flat_bytes(op: Op) -> int:
    """All weights of a layer in one tensor: cuDNN has biases, even where torch has none."""
    net = network_of(op)
    biases = 2 * net.layers * net.directions * net.gates * net.hidden
    return item_bytes(op.inputs[0]) * (net.matrices + biases)


def joined_weights(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """By the size of a layer's flat weights, the sizes of the weights that were joined to them.

    They are made one by one, and let go when the layer has come to the GPU
    (`torch.nn.RNNBase.flatten_parameters`).
    """
    return {
        flat_bytes(op): _weights_bytes(op)
        for op in trace.counts
        if op.base == FORWARD and _weights_bytes(op)
    }


def noise_position(trace: Trace) -> int | None:
    """The call that makes cuDNN's random numbers, if any does: they are kept for dropout."""
    for position, call in enumerate(trace):
        op = call.op
        if op.base == FORWARD and op.attr("train") is True and op.attr("dropout", 0.0):
            return position
    return None


def noise_bytes(device: Device) -> int:
    """The size of these random numbers; 0 where the GPU's size is not known."""
    return _NOISE_BYTES * (device.sm_count or 0) * (device.max_threads_per_sm or 0)


def workspace_bytes(op: Op) -> int:
    """What cuDNN asks for, the same forward and backward.

    A copy of the matrices and a buffer for each layer and direction; what goes into and comes out
    of a layer, twice; gates; and a padded batch in packed form, with its states.
    """
    net, item = network_of(op), item_bytes(op.inputs[0])
    sequences, padded = _sequences(op), len(op.inputs[0].shape) == 3
    stacked, out = net.layers * net.directions, net.directions * net.output
    states = 1 + net.cells
    numbers = net.matrices
    if padded:
        numbers += net.tokens * (net.widths[0] + out)
        numbers += 2 * sequences * stacked * (net.output + net.cells * net.hidden)
    gates = net.gates * net.hidden
    if recurrent_algorithm(op) == "persistent":
        numbers += _PERSISTENT_COPIES * net.tokens * gates + 2 * sequences * states * net.hidden
    else:
        numbers += 2 * net.tokens * max(*net.widths, out)
        if net.directions == 1:
            chunk = _chunk(net, sequences)
            numbers += sequences * stacked * (chunk * gates + gates + 2 * net.hidden)
        else:
            numbers += net.tokens * net.directions * gates
            numbers += sequences * stacked * (gates + 2 * states * net.hidden)
    indices = _INDEX_BYTES * sequences if padded else 0
    return item * numbers + stacked * _BUFFER_BYTES + _HEAD_BYTES + indices


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


def reordered_bytes(op: Op) -> int:
    """cuDNN wants time first: an input that lies otherwise is copied."""
    source = op.inputs[0]
    batch_first = op.attr("batch_first") is True and len(source.shape) == 3
    return source.nbytes if batch_first != (source.strides is not None) else 0


def _chunk(net: Network, sequences: int) -> int:
    """Equal parts of a sequence, none longer than cuDNN's longest."""
    steps = math.ceil(net.tokens / max(1, sequences))
    return math.ceil(steps / max(1, math.ceil(steps / _LONGEST_CHUNK)))


def _sequences(op: Op) -> int:
    """The batch; of a packed one, that of the states."""
    source = op.inputs[0]
    if len(source.shape) == 3:
        return source.shape[0 if op.attr("batch_first") is True else 1]
    return next((spec.shape[1] for spec in op.inputs[1:] if len(spec.shape) == 3), 0)


def _weight_count(op: Op) -> int:
    net = network_of(op)
    return net.layers * net.directions * integer(op, "weight_stride0", 4)


def _weights_bytes(op: Op) -> tuple[int, ...]:
    """Sizes of the weights among the inputs: they follow the source."""
    count = _weight_count(op)
    return tuple(t.nbytes for t in op.inputs[1 : count + 1]) if len(op.inputs) > count else ()


def _missing_gradients_bytes(op: Op) -> tuple[int, ...]:
    """Zeros for gradients that nobody gave: of the output and of each state."""
    first = _weight_count(op) + 2  # after the source, the weights and their flat tensor
    count = 1 + network_of(op).cells
    wanted = op.inputs[first : first + count + 1]
    given = op.inputs[first + count + 1 : -1]  # the last is what the forward pass kept
    if len(wanted) <= count:
        return ()
    *states, output = wanted
    missing = Counter(spec.shape for spec in states)
    output_given = bool(given) and given[0].shape == output.shape
    missing.subtract(spec.shape for spec in given[int(output_given) :])
    found = [] if output_given else [output.nbytes]
    for spec in states:
        if missing[spec.shape] > 0:
            missing[spec.shape] -= 1
            found.append(spec.nbytes)
    return tuple(found)


def _real(*found: Taking) -> tuple[Taking, ...]:
    return tuple(each for each in found if each.nbytes)
