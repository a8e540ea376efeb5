"""The cost of ops on sparse matrices, by how many elements are not zero.

The inputs are the indices (one tensor for COO, two for CSR and CSC), the values, then dense
matrices. Rows of a dense matrix are fetched once for each element that needs them, or once in all
where they stay in the cache.
"""

from __future__ import annotations

from wavecast.ops.indexing import fetched
from wavecast.ops.registry import Cost, Kind, cost, read, stored, written
from wavecast.traces.step import Op, TensorSpec


def _parts(op: Op) -> tuple[tuple[TensorSpec, ...], TensorSpec, tuple[TensorSpec, ...]]:
    """The indices, the values, and the dense matrices."""
    count = 1 if op.attr("layout", "coo") == "coo" else 2
    return op.inputs[:count], op.inputs[count], op.inputs[count + 1 :]


@cost("wavecast.sparse_mm", kind=Kind.INDEXING)
def _mm(op: Op) -> Cost:
    """A row of the dense matrix is fetched for each element, and added to a row of the result."""
    indices, values, (dense,) = _parts(op)
    elements = values.numel * dense.shape[-1]
    reads = read((*indices, values)) + fetched(dense, elements)
    return Cost(2 * elements, reads, written(op.outputs))


@cost("wavecast.sparse_sampled_mm", kind=Kind.INDEXING)
def _sampled(op: Op) -> Cost:
    """A row of one matrix and a column of the other are fetched for each element."""
    indices, values, (left, right) = _parts(op)
    elements = values.numel * left.shape[-1]
    reads = read((*indices, values)) + fetched(left, elements) + fetched(right, elements)
    return Cost(2 * elements, reads, written(op.outputs))


@cost("wavecast.sparse_mask", kind=Kind.INDEXING)
def _mask(op: Op) -> Cost:
    indices, values, (dense,) = _parts(op)
    return Cost(0, read(indices) + fetched(dense, values.numel), written(op.outputs))


@cost("wavecast.sparse_to_dense", kind=Kind.INDEXING)
def _to_dense(op: Op) -> Cost:
    """The result is filled with zeros; then the values are added to it."""
    indices, values, _ = _parts(op)
    placed = fetched(op.outputs[0], values.numel)
    return Cost(values.numel, read((*indices, values)) + placed, written(op.outputs) + placed)


@cost("wavecast.sparse_softmax", "wavecast.sparse_softmax_backward", kind=Kind.INDEXING)
def _softmax(op: Op) -> Cost:
    """Values are read for the maximum, for the sum, and for the result."""
    indices, values, rest = _parts(op)
    return Cost(5 * values.numel, read((*indices, *rest)) + 3 * stored(values), written(op.outputs))


@cost("wavecast.sparse_coalesce", kind=Kind.SORT)
def _coalesce(op: Op) -> Cost:
    """The indices are sorted as one number each, with their positions; then values are added."""
    elements = op.inputs[1].numel
    comparisons = elements * max(elements - 1, 1).bit_length()
    return Cost(comparisons, read(op.inputs), written(op.outputs))


@cost("wavecast.sparse_compress", "wavecast.sparse_places", kind=Kind.INDEXING)
def _convert(op: Op) -> Cost:
    """Row numbers become limits, or limits row numbers. The values are not read."""
    return Cost(0, read(_parts(op)[0]), written(op.outputs))
