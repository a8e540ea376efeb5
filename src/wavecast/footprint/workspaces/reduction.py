"""Partial results of torch's reductions (aten/native/cuda/Reduce.cuh, `setReduceConfig`).

A reduction whose outputs are too few to fill the GPU is cut into pieces that several blocks work
on; their partial results go to a buffer, which is larger than it need be: every thread has a
place for every output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from wavecast.hardware.device import Device
from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

_WARP = 32
_MOST_THREADS = 512
_LEAST_VALUES, _MOST_VALUES = 16, 256
"""Per thread."""
_VECTOR = 4

Dimension = tuple[int, int]
"""Size and stride, in elements."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction as the kernel sees it: neighbouring dimensions joined, fastest first."""

    reduced: tuple[Dimension, ...]
    kept: tuple[Dimension, ...]
    item_bytes: int
    """Of one partial result."""

    @property
    def inputs(self) -> int:
        """For each output."""
        return math.prod(size for size, _ in self.reduced)

    @property
    def outputs(self) -> int:
        """How many there are."""
        return math.prod(size for size, _ in self.kept)


def reduction_bytes(op: Op, device: Device) -> int | None:
    """The buffers of a reduction op; None where the GPU's size is not known."""
    found = _reduction_of(op)
    return 0 if found is None else buffer_bytes(found, device)


def bias_bytes(gradient: TensorSpec, device: Device) -> int | None:
    """The buffers for the gradient of a convolution's bias: a sum over all but the channels."""
    dims = [d for d in range(len(gradient.shape)) if d != 1]
    return buffer_bytes(_along(gradient, dims, 4), device)


def buffer_bytes(reduction: Reduction, device: Device) -> int | None:
    """Partial results and counters."""
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
    """Threads of a block along both dimensions."""
    x, y = min(most, _power(width)), min(most, _power(height))
    rows = min(y, most // min(x, _WARP))
    return min(x, most // rows), rows


def _power(number: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << max(0, number.bit_length() - 1)


def _vector(reduction: Reduction) -> int:
    vector = _VECTOR
    strides = [stride for _, stride in (*reduction.reduced, *reduction.kept[1:])]
    for number in (reduction.kept[0][0], *strides):
        while number % vector:
            vector //= 2
    return vector


_FLOATS = ("aten.sum", "aten.mean", "aten.linalg_vector_norm", "aten.norm", "aten.prod")
_SAME = ("aten.any", "aten.all", "aten.amax", "aten.amin")
OPS = (*_FLOATS, *_SAME)


def _reduction_of(op: Op) -> Reduction | None:
    if not op.inputs:
        return None
    source = op.inputs[0]
    item = DTYPE_BYTES[source.dtype]
    if op.base in _FLOATS:
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
    reduced = [each for d, each in enumerate(sizes) if d in dims]
    kept = [each for d, each in enumerate(sizes) if d not in dims]
    return Reduction(_joined(reduced), _joined(kept), item_bytes)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def _joined(dims: list[Dimension]) -> tuple[Dimension, ...]:
    """Dimensions by stride, neighbours that lie behind one another taken as one."""
    joined: list[Dimension] = []
    for size, stride in sorted(dims, key=lambda each: each[1]):
        if size == 1:
            continue
        if joined and joined[-1][0] * joined[-1][1] == stride:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return tuple(joined)
