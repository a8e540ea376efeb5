"""The buffers for partial results of torch's reductions, and workspaces of recurrent layers.

The rules are those of `setReduceConfig` in aten/native/cuda/Reduce.cuh. A reduction with too few
outputs to fill the GPU is cut into pieces, on which several thread blocks work. Their partial
results go to a buffer. The buffer is larger than necessary: every thread has a slot for every
output.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from wavecast.footprint.convolution_workspaces import Workspace
from wavecast.hardware.devices import Device
from wavecast.ops.matmul import rnn_shape
from wavecast.ops.registry import has_possible_tensors, integer, item_bytes, reading
from wavecast.traces.step import DTYPE_BYTES, Op, Phase, TensorSpec, Trace

_WARP_THREADS = 32
_MOST_THREADS = 512
_LEAST_VALUES, _MOST_VALUES = 16, 256
"""The fewest and most input values per thread."""
_VECTOR = 4
"""The most values that a thread loads at once."""

Dimension = tuple[int, int]
"""Size and stride of a dimension, in elements."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction as its kernel sees it: contiguous dimensions merged, smallest stride first."""

    reduced: tuple[Dimension, ...]
    """The dimensions that are summed over."""
    kept: tuple[Dimension, ...]
    """The dimensions of the result."""
    item_bytes: int
    """The bytes of one partial result."""

    @property
    def inputs(self) -> int:
        """The number of input values for each output."""
        return math.prod(size for size, _ in self.reduced)

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        return math.prod(size for size, _ in self.kept)


def reduction_bytes(op: Op, device: Device) -> int | None:
    """The bytes of a reduction op's buffers; None where the number of SMs is unknown."""
    reduction = _reduction_of(op)
    return 0 if reduction is None else buffer_bytes(reduction, device)


def bias_bytes(gradient: TensorSpec, device: Device) -> int | None:
    """The bytes of the buffers for a convolution's bias gradient, a sum over all but channels."""
    dims = [d for d in range(len(gradient.shape)) if d != 1]
    return buffer_bytes(_along(gradient, dims, 4), device)


def buffer_bytes(reduction: Reduction, device: Device) -> int | None:
    """The bytes of partial results and counters; None where the number of SMs is unknown."""
    if device.sm_count is None or device.max_threads_per_sm is None:
        return None
    inputs, outputs = reduction.inputs, reduction.outputs
    if inputs <= 1 or not outputs:
        return 0
    along = not reduction.kept or reduction.reduced[0][1] < reduction.kept[0][1]
    fastest = reduction.reduced[0] if along else reduction.kept[0]
    vector = 1
    width, height = (inputs, outputs) if along else (outputs, inputs)
    if fastest[1] == 1 and along and width > 128 and not reduction.kept:
        width //= _VECTOR
    elif fastest[1] == 1 and not along:
        vector = _vector(reduction)
        width //= vector
    x, y = _block(width, height, _MOST_THREADS // vector)
    per_input, per_output = (x, 1) if along else (1, x)
    values = math.ceil(inputs / per_input)
    if not (values >= y * _LEAST_VALUES or values >= _MOST_VALUES):
        return 0
    values = math.ceil(inputs / (per_input * y))
    grid = math.ceil(outputs // vector / per_output)
    blocks_wanted = device.sm_count * (device.max_threads_per_sm // (x * y))
    if values < _MOST_VALUES or grid > blocks_wanted:
        return 0
    pieces = max(
        min(math.ceil(blocks_wanted / grid), math.ceil(values / _LEAST_VALUES)),
        math.ceil(values / _MOST_VALUES),
    )
    if pieces <= 1:
        return 0
    partial = reduction.item_bytes * outputs * pieces * (1 if along else x * vector)
    return partial + 4 * grid


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    """The threads of a block along both dimensions."""
    x, y = min(most, _power(width)), min(most, _power(height))
    rows = min(y, most // min(x, _WARP_THREADS))
    return min(x, most // rows), rows


def _power(number: int) -> int:
    """The largest power of two that is at most `number`."""
    return 1 << max(0, number.bit_length() - 1)


def _vector(reduction: Reduction) -> int:
    """How many outputs a thread computes at once: all strides and sizes must be divisible."""
    vector = _VECTOR
    strides = [stride for _, stride in (*reduction.reduced, *reduction.kept[1:])]
    for number in (reduction.kept[0][0], *strides):
        while number % vector:
            vector //= 2
    return vector


_IN_FLOAT32 = ("aten.sum", "aten.mean", "aten.linalg_vector_norm", "aten.norm", "aten.prod")
_IN_INPUT_TYPE = ("aten.any", "aten.all", "aten.amax", "aten.amin")
OPS = (*_IN_FLOAT32, *_IN_INPUT_TYPE)
"""The ops that `reduction_bytes` knows. The first group accumulates in 4 bytes at least."""


def _reduction_of(op: Op) -> Reduction | None:
    if not op.inputs:
        return None
    source = op.inputs[0]
    item = DTYPE_BYTES[source.dtype]
    if op.base in _IN_FLOAT32:
        item = max(4, item)
    dims = op.attr("dim")
    if isinstance(dims, int):
        dims = (dims,)
    if not isinstance(dims, tuple) or not dims:
        dims = tuple(range(len(source.shape)))
    return _along(source, [int(d) % max(1, len(source.shape)) for d in dims], item)


def _along(source: TensorSpec, dims: list[int], item_bytes: int) -> Reduction:
    strides = source.strides or _contiguous(source.shape)
    sizes = list(zip(source.shape, strides, strict=True))
    reduced = [dimension for d, dimension in enumerate(sizes) if d in dims]
    kept = [dimension for d, dimension in enumerate(sizes) if d not in dims]
    return Reduction(_merged(reduced), _merged(kept), item_bytes)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _merged(dims: list[Dimension]) -> tuple[Dimension, ...]:
    """The dimensions by stride; those that are contiguous in memory are merged into one."""
    merged: list[Dimension] = []
    for size, stride in sorted(dims, key=lambda dimension: dimension[1]):
        if size == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return tuple(merged)


# Buffers that libraries allocate at their first use and keep: their sizes, and when.
#
# torch allocates those of cuBLAS and cuBLASLt (aten/cuda/CublasHandlePool.cpp). Each thread has a
# cuBLAS handle, and autograd runs the backward pass in a second thread. Each handle keeps one
# buffer for each stream that it has used.


_KIB = 1024
_LARGE_CAPABILITIES = ((9, 0), (10, 0))
_LARGE_BYTES = 8 * 4096 * _KIB
_SMALL_BYTES = 2 * 4096 * _KIB + 8 * 16 * _KIB
_LT_BYTES = 1024 * _KIB
"""torch's defaults, which CUBLAS_WORKSPACE_CONFIG and CUBLASLT_WORKSPACE_SIZE change."""

_MATMULS = (
    *("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.mv", "aten.addmv", "aten.dot"),
    *("aten.linear", "aten._addmm_activation"),
)
_WITH_BIAS = ("aten.addmm", "aten._addmm_activation", "aten.linear", "aten._scaled_mm")


def first_uses(trace: Trace) -> tuple[int, ...]:
    """The position of the call that first needs each buffer, in the order of `kept_bytes`."""
    noise = noise_position(trace)
    matmuls = (buffer.position for buffer in blas_buffers(trace))
    return (*matmuls, *(() if noise is None else (noise,)))


def kept_bytes(trace: Trace, device: Device) -> tuple[int, ...]:
    """The size of each buffer: cuBLAS's workspaces, then cuDNN's dropout state.

    The dropout state is left out where the GPU's size is unknown.
    """
    noise = noise_bytes(device) if noise_position(trace) is not None else 0
    return (*blas_bytes(trace, device), *((noise,) if noise else ()))


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer of a cuBLAS handle."""

    light: bool
    """True for cuBLASLt, False for cuBLAS."""
    position: int
    """The position of the call that allocates it."""


def blas_buffers(trace: Trace) -> tuple[Buffer, ...]:
    """The buffers that all handles hold after the first step, in the order of allocation."""
    by_handle: dict[tuple[bool, bool, int], Buffer] = {}
    for position, call in enumerate(trace):
        backward = call.phase is Phase.BACKWARD
        for light, names in ((False, _MATMULS), (True, _WITH_BIAS)):
            if call.op.base in names:
                by_handle.setdefault((light, backward, call.stream), Buffer(light, position))
    return tuple(by_handle.values())


def blas_bytes(trace: Trace, device: Device) -> tuple[int, ...]:
    """The size of each of `blas_buffers`, in bytes."""
    large = device.compute_capability in _LARGE_CAPABILITIES
    nbytes = _LARGE_BYTES if large else _SMALL_BYTES
    return tuple(_LT_BYTES if buffer.light else nbytes for buffer in blas_buffers(trace))


# The workspaces of cuDNN's recurrent layers, as torch calls them (aten/native/cudnn/RNN.cpp).
#
# The order of allocations and the choice of the algorithm are in torch's source. The sizes are
# cuDNN's, whose source is closed: the rules were derived from the sizes of 1,022 layers measured
# on an H200 (measurements/h200/rnn_workspaces.jsonl and rnn_workspaces_more.jsonl).


FORWARD, BACKWARD = "aten._cudnn_rnn", "aten._cudnn_rnn_backward"
NAMES = (FORWARD, BACKWARD)

_BUFFER_BYTES, _HEAD_BYTES = 8 << 20, 256
"""Bytes for each layer and direction, and bytes for the whole workspace."""
_INDEX_BYTES = 8
"""Bytes for each sequence of a padded batch: two 4-byte numbers."""
_ALIGNED_BYTES = 32
"""Each part of a workspace is rounded up to a multiple of this."""
_LONGEST_CHUNK = 256
"""The time steps whose gates a layer in one direction computes in advance."""
_WAVE = 8
"""The time steps by which a layer follows the one above it in the backward pass."""
_GATE_COPIES, _STATE_COPIES = 4, 8
"""Copies of all gates in the forward pass, and of all states in the backward pass, when the weights
stay on the chip."""
_GRU_GATES = 3
_PERSISTENT_HIDDEN, _PERSISTENT_MULTIPLE = 1024, 128
_PERSISTENT_BATCH, _BATCH_MULTIPLE = 128, 8
_SMALL_HIDDEN = {(True, True): 384, (True, False): 256, (False, True): 192, (False, False): 128}
"""The largest hidden size of the "small" algorithm, by (the cell has no gates, pass is forward)."""
_NOISE_BYTES = 24
"""Bytes of cuDNN's random-number state for each thread that fits on the GPU."""


def workspaces_of(op: Op) -> tuple[Workspace, ...]:
    """The workspaces of a layer, in the order in which they are allocated."""
    space, copied = workspace_bytes(op), reordered_bytes(op)
    first = op.outputs[0].nbytes
    if op.base == FORWARD:
        # cuDNN's workspace is allocated before the tensor that is kept for the backward pass, and
        # freed after it.
        kept = op.outputs[3].nbytes if len(op.outputs) > 3 else None
        return _not_empty(
            Workspace(copied, before_bytes=first), Workspace(space, before_bytes=kept)
        )
    states = [Workspace(n, before_bytes=first) for n in _missing_gradients_bytes(op)]
    gradients = [spec.nbytes for spec in op.outputs[2 + rnn_shape(op).cells :]]
    if not gradients:
        return _not_empty(*states, Workspace(space))
    flat = flat_bytes(op)
    if rnn_shape(op).biased:
        # The gradients of the weights are views of one tensor.
        result = flat
        return _not_empty(
            *states,
            Workspace(space, True, result),
            Workspace(copied, before_bytes=result),
            Workspace(space),
        )
    # The gradients of the weights are copied out of one tensor, which has room for biases, too.
    result = gradients[0]
    later = (Workspace(n, before_bytes=result) for n in (copied, flat, space))
    return _not_empty(*states, Workspace(space, True, result), *later)


def flat_bytes(op: Op) -> int:
    """The bytes of all weights of a layer in one tensor.

    cuDNN's tensor has biases even where torch's layer has none.
    """
    net = rnn_shape(op)
    biases = 2 * net.layers * net.directions * net.gates * net.hidden
    return item_bytes(op.inputs[0]) * (net.matrices + biases)


def joined_weights(trace: Trace) -> Mapping[int, tuple[int, ...]]:
    """The sizes of the weights that were joined to one flat tensor, by the flat tensor's size.

    torch allocates the weights one by one. It frees them when the layer has been moved to the GPU
    and `torch.nn.RNNBase.flatten_parameters` has joined them. All sizes are in bytes.
    """
    layers = (op for op in trace.counts if op.base == FORWARD and has_possible_tensors(op))
    joined = (reading(_joined, None, op) for op in layers)
    return {flat: weights for flat, weights in filter(None, joined) if weights}


def _joined(op: Op) -> tuple[int, tuple[int, ...]]:
    """The size of the flat tensor of a layer, and those of its weights, in bytes."""
    return flat_bytes(op), _weights_bytes(op)


def noise_position(trace: Trace) -> int | None:
    """The position of the call that allocates cuDNN's random-number state for dropout, or None."""
    for position, call in enumerate(trace):
        op = call.op
        if op.base == FORWARD and op.attr("train") is True and op.attr("dropout", 0.0):
            return position
    return None


def noise_bytes(device: Device) -> int:
    """The bytes of cuDNN's random-number state; 0 where the GPU's size is unknown."""
    return _NOISE_BYTES * (device.sm_count or 0) * (device.max_threads_per_sm or 0)


def workspace_bytes(op: Op) -> int:
    """The bytes that cuDNN asks for, which are the same for the forward and the backward pass.

    They hold a copy of the matrices, a buffer for each layer and direction, and the intermediate
    values of the pass that has more of them. Biases do not change the size.
    """
    net, item = rnn_shape(op), item_bytes(op.inputs[0])
    values = _forward_values(op)
    if op.attr("train", True):
        values = max(values, _backward_values(op))
    parts = [item * net.matrices, item * values]
    if _padded(op):
        parts.append(_INDEX_BYTES * _sequences(op))
    aligned = sum(math.ceil(n / _ALIGNED_BYTES) * _ALIGNED_BYTES for n in parts)
    return net.layers * net.directions * _BUFFER_BYTES + _HEAD_BYTES + aligned


def _forward_values(op: Op) -> int:
    """The intermediate values of the forward pass: gates, states, and outputs of inner layers.

    A layer in one direction computes its gates in chunks. With two directions, outputs are held
    twice. With one, the outputs before a projection and those after dropout are held once. When
    the weights stay on the chip, gates are not chunked and there are more copies of them.
    """
    net, sequences = rnn_shape(op), _sequences(op)
    directions, gates = net.directions, net.gates * net.hidden
    states = net.layers * directions * sequences
    chunked = directions == 1 and not _on_chip(op)
    ahead = min(net.tokens, _LONGEST_CHUNK * sequences) if chunked else net.tokens
    values = directions * ahead * gates
    if directions > 1:
        values += 2 * directions * net.tokens * net.hidden
    elif op.attr("dropout", 0.0) and op.attr("train", True) and net.layers > 1:
        values += net.tokens * net.output
    if _on_chip(op):
        values += _GATE_COPIES * net.tokens * gates
        values += states * (1 + directions + 2 * net.cells) * net.hidden
    else:
        values += states * (gates + 2 * (directions - 1 + net.cells) * net.hidden)
    if net.projected:
        values += directions * net.tokens * net.hidden
    return values + _unpadded_values(op)


def _backward_values(op: Op) -> int:
    """The intermediate values of the backward pass.

    They are the gradients of a layer's input, and of the outputs of that layer and the one below
    it. In one direction the layers run in waves, each a few time steps behind the one above it, and
    the gradients of outputs live as long as the waves need them. When the weights stay on the chip
    there are no waves, and the gradients of the gates are held, too. A GRU holds them twice, since
    its reset gate separates the contributions of input and state.
    """
    net, sequences = rnn_shape(op), _sequences(op)
    directions, states = net.directions, net.layers * net.directions * sequences
    outputs, kept = directions * net.tokens * min(net.layers, 2), 1 + directions + 2 * net.cells
    if directions == 1 and not _on_chip(op):
        waves = _WAVE * (net.layers + 1) * sequences
        outputs = net.tokens if net.layers == 1 else min(net.tokens, waves)
        kept -= 1
    values = directions * directions * net.tokens * max(net.widths[0], net.hidden)
    values += (outputs + states * kept) * net.hidden
    if _on_chip(op):
        gates = net.gates * (2 if net.gates == _GRU_GATES else 1)
        values += (_STATE_COPIES + gates) * net.tokens * net.hidden
    return values + 2 * _unpadded_values(op)


def _unpadded_values(op: Op) -> int:
    """The values of a padded batch in packed form: input, output, states before and after."""
    net = rnn_shape(op)
    if not _padded(op):
        return 0
    stacked = net.layers * net.directions
    states = 2 * _sequences(op) * stacked * (net.output + net.cells * net.hidden)
    return net.tokens * (net.widths[0] + net.directions * net.output) + states


def recurrent_algorithm(op: Op) -> str:
    """The algorithm of cuDNN that torch chooses: `get_algo` in aten/native/cudnn/RNN.cpp.

    "small" and "persistent" keep the weights on the chip. Both need a padded batch. "small" needs
    a small hidden size; "persistent" needs one layer in one direction, half precision, weights
    that fit, and an A100 or newer. Everything else is "standard".
    """
    net, item = rnn_shape(op), item_bytes(op.inputs[0])
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
    """The bytes of the input's copy with time as first dimension; 0 if it has that layout."""
    source = op.inputs[0]
    batch_first = op.attr("batch_first") is True and len(source.shape) == 3
    return source.nbytes if batch_first != (source.strides is not None) else 0


def _padded(op: Op) -> bool:
    return len(op.inputs[0].shape) == 3


def _sequences(op: Op) -> int:
    """The number of sequences in the batch; for a packed batch it is taken from the states."""
    source = op.inputs[0]
    if len(source.shape) == 3:
        return source.shape[0 if op.attr("batch_first") is True else 1]
    return next((spec.shape[1] for spec in op.inputs[1:] if len(spec.shape) == 3), 0)


def _weight_count(op: Op) -> int:
    net = rnn_shape(op)
    return net.layers * net.directions * integer(op, "weight_stride0", 4)


def _weights_bytes(op: Op) -> tuple[int, ...]:
    """The sizes of the weights among the inputs, where they follow the source."""
    count = _weight_count(op)
    return tuple(t.nbytes for t in op.inputs[1 : count + 1]) if len(op.inputs) > count else ()


def _missing_gradients_bytes(op: Op) -> tuple[int, ...]:
    """The sizes of the zeros that stand for missing gradients of the output and of each state."""
    first = _weight_count(op) + 2  # after the source, the weights and their flat tensor
    count = 1 + rnn_shape(op).cells
    results = op.inputs[first : first + count + 1]
    given = op.inputs[first + count + 1 : -1]  # the last one was kept by the forward pass
    if len(results) <= count:
        return ()
    *states, output = results
    missing = Counter(spec.shape for spec in states)
    output_given = bool(given) and given[0].shape == output.shape
    missing.subtract(spec.shape for spec in given[int(output_given) :])
    sizes = [] if output_given else [output.nbytes]
    for spec in states:
        if missing[spec.shape] > 0:
            missing[spec.shape] -= 1
            sizes.append(spec.nbytes)
    return tuple(sizes)


def _not_empty(*workspaces: Workspace) -> tuple[Workspace, ...]:
    return tuple(workspace for workspace in workspaces if workspace.nbytes)
