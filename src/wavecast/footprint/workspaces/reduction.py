"""The buffers for partial results of torch's reductions.

The rules are those of `setReduceConfig` in aten/native/cuda/Reduce.cuh. A reduction with too few
outputs to fill the GPU is cut into pieces, on which several thread blocks work. Their partial
results go to a buffer. The buffer is larger than necessary: every thread has a slot for every
output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.footprint.workspaces import recurrent
from wavecast.hardware.devices import Device
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
    wanted = device.sm_count * (device.max_threads_per_sm // (x * y))
    if values < _MOST_VALUES or grid > wanted:
        return 0
    pieces = max(
        min(math.ceil(wanted / grid), math.ceil(values / _LEAST_VALUES)),
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
    noise = recurrent.noise_position(trace)
    matmuls = (buffer.position for buffer in blas_buffers(trace))
    return (*matmuls, *(() if noise is None else (noise,)))


def kept_bytes(trace: Trace, device: Device) -> tuple[int, ...]:
    """The size of each buffer: cuBLAS's workspaces, then cuDNN's dropout state.

    The dropout state is left out where the GPU's size is unknown.
    """
    noise = recurrent.noise_bytes(device) if recurrent.noise_position(trace) is not None else 0
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
