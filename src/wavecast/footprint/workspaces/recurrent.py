"""What cuDNN's recurrent layers take, as torch calls them (aten/native/cudnn/RNN.cpp).

The order and the algorithm are torch's. The sizes are cuDNN's, which is closed: the rules were
read off what it asked for on an H200, for 1,022 layers (measurements/h200/rnn_workspaces.jsonl and
rnn_workspaces_more.jsonl).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from wavecast.footprint.workspaces.taking import Taking
from wavecast.hardware.device import Device
from wavecast.ops.registry import integer, item_bytes
from wavecast.ops.rnn import network_of
from wavecast.traces.step import Op, Trace

FORWARD, BACKWARD = "aten._cudnn_rnn", "aten._cudnn_rnn_backward"
NAMES = (FORWARD, BACKWARD)

_BUFFER_BYTES, _HEAD_BYTES = 8 << 20, 256
"""For each layer and direction; and once."""
_INDEX_BYTES = 8
"""Two numbers for each sequence of a padded batch."""
_ALIGNED_BYTES = 32
_LONGEST_CHUNK = 256
"""Time steps whose gates a layer in one direction computes ahead."""
_WAVE = 8
"""Time steps by which a layer follows the one above it on the way back."""
_GATE_COPIES, _STATE_COPIES = 4, 8
"""How often all gates are held on the way there, and all states on the way back, where weights stay
on the chip."""
_GRU_GATES = 3
_PERSISTENT_HIDDEN, _PERSISTENT_MULTIPLE = 1024, 128
_PERSISTENT_BATCH, _BATCH_MULTIPLE = 128, 8
_SMALL_HIDDEN = {(True, True): 384, (True, False): 256, (False, True): 192, (False, False): 128}
"""By whether cells are plain, and the pass is forward."""
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
    """What cuDNN asks for: enough for the hungriest pass, and both passes ask the same.

    A copy of the matrices, a buffer for each layer and direction, and what a pass holds. Layers
    with and without biases take the same.
    """
    net, item = network_of(op), item_bytes(op.inputs[0])
    held = _forward_numbers(op)
    if op.attr("train", True):
        held = max(held, _backward_numbers(op))
    parts = [item * net.matrices, item * held]
    if _padded(op):
        parts.append(_INDEX_BYTES * _sequences(op))
    aligned = sum(math.ceil(n / _ALIGNED_BYTES) * _ALIGNED_BYTES for n in parts)
    return net.layers * net.directions * _BUFFER_BYTES + _HEAD_BYTES + aligned


def _forward_numbers(op: Op) -> int:
    """Gates, of a layer in one direction in chunks; outputs that are not those of the layer.

    Two directions have their outputs twice. In one direction those before a projection and those
    after dropout are held once. With weights on the chip there are no chunks, and more gates.
    """
    net, sequences = network_of(op), _sequences(op)
    ways, gates = net.directions, net.gates * net.hidden
    states = net.layers * ways * sequences
    chunked = ways == 1 and not _on_chip(op)
    ahead = min(net.tokens, _LONGEST_CHUNK * sequences) if chunked else net.tokens
    numbers = ways * ahead * gates
    if ways > 1:
        numbers += 2 * ways * net.tokens * net.hidden
    elif op.attr("dropout", 0.0) and op.attr("train", True) and net.layers > 1:
        numbers += net.tokens * net.output
    if _on_chip(op):
        numbers += _GATE_COPIES * net.tokens * gates
        numbers += states * (1 + ways + 2 * net.cells) * net.hidden
    else:
        numbers += states * (gates + 2 * (ways - 1 + net.cells) * net.hidden)
    if net.projected:
        numbers += ways * net.tokens * net.hidden
    return numbers + _unpadded_numbers(op)


def _backward_numbers(op: Op) -> int:
    """Gradients of a layer's input, and of the outputs of a layer and the one below it.

    In one direction the layers run in waves, each a few steps behind the one above it: gradients
    of outputs live as long as the waves need them. With weights on the chip there are no waves,
    and gradients of the gates are held: those of a GRU twice, since its reset gate keeps apart
    what input and state give.
    """
    net, sequences = network_of(op), _sequences(op)
    ways, states = net.directions, net.layers * net.directions * sequences
    outputs, kept = ways * net.tokens * min(net.layers, 2), 1 + ways + 2 * net.cells
    if ways == 1 and not _on_chip(op):
        waves = _WAVE * (net.layers + 1) * sequences
        outputs = net.tokens if net.layers == 1 else min(net.tokens, waves)
        kept -= 1
    numbers = ways * ways * net.tokens * max(net.widths[0], net.hidden)
    numbers += (outputs + states * kept) * net.hidden
    if _on_chip(op):
        gates = net.gates * (2 if net.gates == _GRU_GATES else 1)
        numbers += (_STATE_COPIES + gates) * net.tokens * net.hidden
    return numbers + 2 * _unpadded_numbers(op)


def _unpadded_numbers(op: Op) -> int:
    """A padded batch in packed form: input, output, and states before and after."""
    net = network_of(op)
    if not _padded(op):
        return 0
    stacked = net.layers * net.directions
    states = 2 * _sequences(op) * stacked * (net.output + net.cells * net.hidden)
    return net.tokens * (net.widths[0] + net.directions * net.output) + states


def recurrent_algorithm(op: Op) -> str:
    """Which of cuDNN's algorithms runs: `get_algo` in aten/native/cudnn/RNN.cpp.

    A padded batch keeps small weights on the chip ("small"), and those of one layer in one
    direction and half precision if they fit ("persistent"; GPUs since the A100).
    """
    net, item = network_of(op), item_bytes(op.inputs[0])
    if not _padded(op) or net.projected or item > 4:
        return "standard"
    plain = net.gates == 1
    if net.hidden <= _SMALL_HIDDEN[plain, op.base == FORWARD]:
        return "small"
    sequences = _sequences(op)
    persistent = (
        item == 2
        and (net.layers, net.directions) == (1, 1)
        and (plain or net.cells == 1)
        and net.hidden <= _PERSISTENT_HIDDEN
        and net.hidden % _PERSISTENT_MULTIPLE == net.widths[0] % _PERSISTENT_MULTIPLE == 0
        and sequences <= _PERSISTENT_BATCH
        and sequences % _BATCH_MULTIPLE == 0
    )
    return "persistent" if persistent else "standard"


def _on_chip(op: Op) -> bool:
    return recurrent_algorithm(op) != "standard"


def reordered_bytes(op: Op) -> int:
    """cuDNN wants time first: an input that lies otherwise is copied."""
    source = op.inputs[0]
    batch_first = op.attr("batch_first") is True and len(source.shape) == 3
    return source.nbytes if batch_first != (source.strides is not None) else 0


def _padded(op: Op) -> bool:
    return len(op.inputs[0].shape) == 3


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
