"""The cost of lookups and scatters: the rows that are read or written, not their whole table.

A table that is smaller than all rows fetched from it is read once and then cached.
"""

from __future__ import annotations

import math
from itertools import zip_longest

from wavecast.ops.registry import (
    Cost,
    Kind,
    aten,
    cost,
    integer,
    item_bytes,
    read,
    stored,
    streaming,
    written,
)
from wavecast.traces.step import Op, TensorSpec


def fetched(table: TensorSpec, elements: int) -> int:
    """The bytes read to fetch this many elements of a table."""
    return min(elements * item_bytes(table), stored(table))


def _gather(op: Op) -> Cost:
    table, *indices = op.inputs
    return Cost(0, fetched(table, op.outputs[0].numel) + read(indices), written(op.outputs))


cost("aten.embedding", kind=Kind.EMBEDDING)(_gather)
cost(*aten("index _unsafe_index index_select gather take"), kind=Kind.INDEXING)(_gather)


@cost("aten.embedding_dense_backward", kind=Kind.EMBEDDING)
def _embedding_backward(op: Op) -> Cost:
    """The whole gradient is filled with zeros; then rows are read, added to and written."""
    grad, table = op.inputs[0], op.outputs[0]
    rows = fetched(table, grad.numel)
    return Cost(grad.numel, read(op.inputs) + rows, stored(table) + rows)


@cost("aten._embedding_bag", "aten._embedding_bag_forward_only", kind=Kind.EMBEDDING)
def _embedding_bag(op: Op) -> Cost:
    table, indices = op.inputs[:2]
    elements = indices.numel * table.shape[-1]
    return Cost(elements, fetched(table, elements) + read(op.inputs[1:]), written(op.outputs))


@cost("aten._embedding_bag_dense_backward", "aten._embedding_bag_backward", kind=Kind.EMBEDDING)
def _embedding_bag_backward(op: Op) -> Cost:
    indices, table = op.inputs[1], op.outputs[0]
    elements = indices.numel * table.shape[-1]
    rows = fetched(table, elements)
    return Cost(elements, read(op.inputs) + rows, stored(table) + rows)


@cost("aten._embedding_bag_per_sample_weights_backward", kind=Kind.EMBEDDING)
def _embedding_bag_weights_backward(op: Op) -> Cost:
    grad, table, indices = op.inputs[:3]
    elements = indices.numel * table.shape[-1]
    reads = fetched(grad, elements) + fetched(table, elements) + read(op.inputs[2:])
    return Cost(2 * elements, reads, written(op.outputs))


@cost("aten.embedding_renorm", kind=Kind.EMBEDDING)
def _embedding_renorm(op: Op) -> Cost:
    """Rows whose norm is too large are scaled; at most all rows that are looked up."""
    table, indices = op.inputs
    elements = indices.numel * table.shape[-1]
    rows = fetched(table, elements)
    return Cost(3 * elements, stored(indices) + rows, rows)


def _place(op: Op, elements: int, *, adds: bool) -> Cost:
    """The cost of writing (or adding to) this many elements of the first input.

    An op that is not in place copies the first input before.
    """
    target = op.inputs[0]
    moved = fetched(target, elements)
    copied = 0 if op.base.endswith("_") else stored(target)
    reads = copied + read(op.inputs[1:]) + (moved if adds else 0)
    return Cost(elements if adds else 0, reads, copied + moved)


@cost(*aten("index_put _unsafe_index_put _index_put_impl"), kind=Kind.INDEXING)
def _index_put(op: Op) -> Cost:
    """Masks count with all elements; where nothing tells, indices are of the leading dimensions."""
    target, *indices, values = op.inputs
    masks = [t for t in indices if t.dtype == "bool"]
    count = sum(len(t.shape) for t in masks) + len(indices) - len(masks)
    indexed = indexed_dims(op) or slice(0, count)
    picked = max((t.numel for t in indices), default=1)
    others = math.prod((*target.shape[: indexed.start], *target.shape[indexed.stop :]))
    elements = max(values.numel, picked * others)
    return _place(op, elements, adds=bool(op.attr("accumulate", False)))


def indexed_dims(op: Op) -> slice | None:
    """The dimensions of its target that the indices of an `index_put` are of.

    The values have the shape of the target, with that of the indices in their place. None if no
    place fits, if the indices are masks, or if there are none.
    """
    target, *indices, values = op.inputs
    if not indices or any("int" not in t.dtype for t in indices):
        return None
    sizes = zip_longest(*(reversed(t.shape) for t in indices), fillvalue=1)
    shape, count = tuple(map(max, sizes))[::-1], len(indices)
    for first in range(len(target.shape) - count + 1):
        indexed = slice(first, first + count)
        if values.shape == (*target.shape[:first], *shape, *target.shape[indexed.stop :]):
            return indexed
    return None


@cost("aten.index_fill", kind=Kind.INDEXING)
def _index_fill(op: Op) -> Cost:
    target, index = op.inputs[:2]
    slices = target.shape[integer(op, "dim")] if target.shape else 1
    return _place(op, index.numel * target.numel // max(slices, 1), adds=False)


@cost("aten.index_copy", "aten.put", "aten.scatter", kind=Kind.INDEXING)
def _scatter(op: Op) -> Cost:
    adds = op.attr("reduce") is not None or bool(op.attr("accumulate", False))
    return _place(op, max(t.numel for t in op.inputs[1:]), adds=adds)


@cost(*aten("index_add index_reduce scatter_add scatter_reduce"), kind=Kind.INDEXING)
def _scatter_add(op: Op) -> Cost:
    return _place(op, max(t.numel for t in op.inputs[1:]), adds=True)


@cost("aten.select_backward", "aten.slice_backward", kind=Kind.INDEXING)
@cost("aten.diagonal_backward", "aten.diag_embed", kind=Kind.INDEXING)
@cost("aten.constant_pad_nd", "aten.masked_scatter_backward", kind=Kind.COPY)
def _fill_then_place(op: Op) -> Cost:
    """The output is filled, then the input (or a part of it) is copied into the output."""
    placed = min(op.inputs[0].nbytes, op.outputs[0].nbytes)
    return Cost(0, read(op.inputs), written(op.outputs) + placed)


@cost("aten.unfold_backward", kind=Kind.INDEXING)
def _fill_then_add(op: Op) -> Cost:
    """Windows overlap, so the output is filled with zeros, then read, added to and written."""
    grad, target = op.inputs[0], op.outputs[0]
    return Cost(grad.numel, read(op.inputs) + stored(target), 2 * stored(target))


@cost(*aten("slice_scatter select_scatter diagonal_scatter as_strided_scatter"), kind=Kind.COPY)
def _copy_then_place(op: Op) -> Cost:
    """The first input is copied, then the second into a part of the copy."""
    return Cost(0, read(op.inputs), written(op.outputs) + op.inputs[1].nbytes)


@cost("aten.nll_loss_forward", "aten.nll_loss2d_forward", kind=Kind.LOSS)
def _nll_loss(op: Op) -> Cost:
    """One value per target is looked up; the rest of the probabilities is not read."""
    table, target = op.inputs[:2]
    reads = fetched(table, target.numel) + read(op.inputs[1:])
    return Cost(2 * target.numel, reads, written(op.outputs))


@cost("aten.nll_loss_backward", "aten.nll_loss2d_backward", kind=Kind.LOSS)
def _nll_loss_backward(op: Op) -> Cost:
    """The gradient is filled with zeros, then gets one value per target. The input is not read."""
    grad, table, target = op.inputs[:3]
    placed = fetched(table, target.numel)
    return Cost(target.numel, read((grad, *op.inputs[2:])), written(op.outputs) + placed)


# FLOPs per state (there are 2 * symbols + 1) and time step: log of a sum of three exponentials.
_CTC_FLOPS = 20


@cost("aten._ctc_loss", kind=Kind.LOSS)
def _ctc_loss(op: Op) -> Cost:
    table, states = op.inputs[0], op.outputs[-1]
    reads = fetched(table, states.numel) + read(op.inputs[1:])
    return Cost(_CTC_FLOPS * states.numel, reads, written(op.outputs))


@cost("aten._ctc_loss_backward", kind=Kind.LOSS)
def _ctc_loss_backward(op: Op) -> Cost:
    """The backward states are written, then read together with the forward states."""
    states = op.inputs[-1]
    betas = stored(states)
    return Cost(2 * _CTC_FLOPS * states.numel, read(op.inputs) + betas, written(op.outputs) + betas)


streaming(Kind.LOSS, "_cudnn_ctc_loss", flops=_CTC_FLOPS)

streaming(
    Kind.INDEXING,
    """
    nonzero nonzero_static masked_select masked_scatter repeat_interleave bucketize searchsorted
    segment_reduce _segment_reduce_backward _unsafe_masked_index
    _unsafe_masked_index_put_accumulate
    """,
    flops=1,
)


@cost(*aten("sort topk kthvalue median nanmedian mode isin msort argsort"), kind=Kind.SORT)
@cost(*aten("_unique _unique2 unique_dim unique_consecutive randperm"), kind=Kind.SORT)
@cost("aten.unique_dim_consecutive", kind=Kind.SORT)
def _sort(op: Op) -> Cost:
    """n log2 n comparisons, and one pass over memory, which is the least that a sort needs."""
    elements = max(t.numel for t in (*op.inputs, *op.outputs))
    comparisons = elements * max(elements - 1, 1).bit_length()
    return Cost(comparisons, read(op.inputs), written(op.outputs))


# Ops on sparse matrices, by how many elements are not zero. The inputs are the indices (one tensor
# for COO, two for CSR and CSC), the values, then dense matrices, whose rows are fetched once for
# each element that needs them, or once in all where they stay in the cache.


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
