"""Rows that are fetched and added by index, by what torch's kernels do with them.

Rows in one piece are fetched by a small thread block each, and a GPU launches only so many blocks
in a second, however little they do. Rows that go to one place are added one after the other.
"""

from __future__ import annotations

import math

from wavecast.ops.costs import UNSORTED_LOOKUPS, index_count
from wavecast.ops.indexing import indexed_dims
from wavecast.ops.registry import integer, item_bytes
from wavecast.traces.step import Op, TensorSpec

PIECE_BYTES = 16
"""Bytes that a thread moves at once where rows begin at multiples of it."""
BLOCK_BYTES = 4096
"""Bytes of a row that one block moves: 256 threads (`vectorized_gather_kernel`)."""
BLOCK_ELEMENTS = 1024
"""Elements of a row that one block adds up, in gradients of lookups that are sorted first."""
PIECE_LOOKUPS = 10
"""Sorted lookups whose rows one block adds up, before another adds the sums of a place
(`NROWS_PER_THREAD` of EmbeddingBackwardKernel.cu)."""
NARROW = 32
"""Up to this many elements of a row, another kernel adds up (`indexing_backward_kernel_...`)."""
ADDED = {"single": 320.0, "narrow": 530.0, "float32": 1370.0, "float16": 1980.0}
"""Clocks in which a place takes one more row: the row's number, the row and the sum are read one
after the other (0.16, 0.27, 0.69 and 1.0 us on our H200)."""
SCANNED = 0.25
"""Elements, as a serial thread handles them, for each lookup that the gradient of an embedding goes
through where it does not sort (42 ns on our H200)."""
EXCHANGES = {2: 1.8, 4: 1.0}
"""Atomic additions that the largest (smallest, product) of several numbers takes, by the bytes of
one: there is none in hardware, so threads compare and exchange until no other came between."""
JOINED = {2: 0.7, 4: 0.4}
"""The same for `scatter_add`. The kernel of `index_add` divides for the place of each element."""


def fetched_rows(op: Op) -> tuple[int, int] | None:
    """How many rows are fetched in one piece, and the bytes of each; None for other ops.

    These are rows of the first dimension that begin at multiples of 16 bytes (torch's
    `fast_gather_kernel_eligible`).
    """
    if not op.outputs or len(op.inputs) != 2:
        return None
    table, index = op.inputs
    row = table.shape[1:]
    if not _in_rows(table) or "int" not in index.dtype or not math.prod(row):
        return None
    row_bytes = math.prod(row) * item_bytes(table)
    match op.base:
        case "aten.embedding" | "aten.index" | "aten._unsafe_index":
            whole = op.outputs[0].shape == (*index.shape, *row)
        case "aten.index_select":
            whole = integer(op, "dim") in (0, -len(table.shape))
        case "aten.gather":
            # one number for each row, expanded to its width
            inside = zip(index.shape[1:], (index.strides or index.shape)[1:], strict=True)
            spread = not any(stride for size, stride in inside if size > 1)
            whole = integer(op, "dim") == 0 and index.shape[1:] == row and spread
        case _:
            return None
    if not whole or row_bytes % PIECE_BYTES:
        return None
    return op.outputs[0].numel // math.prod(row), row_bytes


def _in_rows(table: TensorSpec) -> bool:
    """Whether each row of a table is in one piece and begins at a multiple of 16 bytes."""
    if table.strides is None:
        return True
    inside = tuple(math.prod(table.shape[i + 1 :]) for i in range(1, len(table.shape)))
    aligned = table.strides[0] * item_bytes(table) % PIECE_BYTES == 0
    return aligned and table.strides[1:] == inside


def blocks(op: Op) -> int:
    """Thread blocks that an op launches for rows, each of which does little."""
    rows = fetched_rows(op)
    if rows is not None:
        return rows[0] * math.ceil(rows[1] / BLOCK_BYTES)
    if _sorts_lookups(op):  # one kernel adds up pieces of a place's rows, another these sums
        count, (rows_of_table, width) = index_count(op), op.outputs[0].shape[-2:]
        # Blocks are launched for as many places as there can be, and a piece ends with its place.
        places = min(count, rows_of_table)
        pieces = math.ceil(count / PIECE_LOOKUPS) + places
        return (pieces + places) * math.ceil(width / BLOCK_ELEMENTS)
    return 0


def elements(op: Op) -> int | None:
    """What threads handle one by one; None for ops that are no such lookups."""
    rows = fetched_rows(op)
    if rows is not None:
        return rows[0] * rows[1] // PIECE_BYTES
    if op.base == "aten.embedding_dense_backward":
        return op.inputs[0].numel
    if _sorts_lookups(op):
        return index_count(op) * op.outputs[0].shape[-1]
    if any(name in op.base for name in ("index_put", "index_add", "scatter", "slice_backward")):
        added = [t.numel for t in op.inputs[len(op.inputs) > 1 :] if t.device != "cpu"]
        return max(added, default=0) * (1 if op.attr("include_self", True) else 2)
    return None


def _sorts_lookups(op: Op) -> bool:
    """Whether an op is a gradient of lookups that sorts them and adds up those of one place."""
    if op.base in ("aten._embedding_bag_dense_backward", "aten._embedding_bag_backward"):
        return True
    return op.base == "aten.embedding_dense_backward" and index_count(op) > UNSORTED_LOOKUPS


def atomic_operations(op: Op) -> float:
    """Atomic additions, or what takes as long, for each element that an op adds to its place."""
    wide = max(min(item_bytes(op.inputs[0]), 4), 2)
    if op.attr("reduce") in (None, "sum", "mean"):
        return JOINED[wide] if "scatter" in op.base else 1.0
    return EXCHANGES[wide]


def scanned(op: Op) -> float:
    """Elements, as one thread handles them, of the lookups that an unsorted gradient scans."""
    count = index_count(op)
    return SCANNED * count if count <= UNSORTED_LOOKUPS else 0.0


def queued_clocks(op: Op) -> float:
    """Clocks in which one place takes its rows one after the other, where they are sorted.

    Places are assumed to get equally many rows, but for tables of relative positions.
    """
    if "index_put" not in op.base or not op.attr("accumulate", False):
        return 0.0
    indexed = indexed_dims(op)
    if indexed is None:
        return 0.0
    shape = op.inputs[0].shape
    width = math.prod(shape[indexed.stop :])
    rows = _rows_of_a_place(index_count(op), max(math.prod(shape[indexed]), 1))
    if rows <= 1:
        return 0.0
    if width == 1:  # the threads of a warp add up single elements, but one counts them
        return ADDED["single"] * rows
    kind = "narrow" if width <= NARROW else "float32" if item_bytes(op.inputs[0]) > 2 else "float16"
    return ADDED[kind] * rows


def _rows_of_a_place(count: int, places: int) -> float:
    """How many rows the place gets that gets most.

    A table of relative positions of an n x n image has (2n - 1) ** 2 places, or a few more. The one
    in the middle, no distance, belongs to each of the n * n pairs of equals.
    """
    positions = math.isqrt(count)
    side = math.isqrt(positions)
    if side**4 == count and 0 <= places - (2 * side - 1) ** 2 <= 3:
        return positions
    return count / places
