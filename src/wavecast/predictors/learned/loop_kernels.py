"""Kernels of torch whose threads go through values one after the other, and how they divide them.

Softmax over a dimension that is not the last, adaptive pooling, losses of images, and places that
are fetched or written one by one. Sums are in `reductions`, rows that are fetched in `lookups`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from wavecast.ops.costs import UNSORTED_LOOKUPS, index_count
from wavecast.ops.indexing import indexed_dims
from wavecast.ops.registry import integer, integers, item_bytes
from wavecast.traces.step import Op, TensorSpec

# Rows that are fetched and added by index, by what torch's kernels do with them.
#
# Rows in one piece are fetched by a small thread block each, and a GPU launches only so many
# blocks in a second, however little they do. Rows that go to one place are added one after the
# other.


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


def queued_at_lookups(op: Op) -> float:
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


# What the threads of a kernel do that loops over values: how many of them, and how many values.


SM_THREADS, SM_BLOCKS = 2048, 32
"""Threads and blocks that an SM runs at a time."""


class ThreadLoop(NamedTuple):
    """Thread blocks whose threads load values one after the other, or a few at a time."""

    blocks: int
    """Thread blocks, before a sum is divided among more of them."""
    threads: int
    """Threads of a block."""
    resident: int
    """Blocks that an SM runs at a time."""
    terms: float
    """Values that each thread loads."""
    loads: int = 1
    """Those of them that it loads at a time."""
    sharing: int = 0
    """Threads that add up the partial sums of blocks; 0 if blocks do not share sums."""
    ragged: bool = False
    """Whether some threads of the last block have no sum: they read partial sums that nobody wrote,
    which L2 does not hold."""
    strided: bool = False
    """Whether threads that are neighbours load values that are not."""
    offsets: float = 0.0
    """Elements that finding the place of each value takes."""


def loop(blocks: int, threads: int, terms: float) -> ThreadLoop:
    """Blocks of which an SM runs as many as it has threads for."""
    return ThreadLoop(blocks, threads, min(SM_THREADS // threads, SM_BLOCKS), terms)


MOST_THREADS = 1024
"""Threads of the largest block."""
FEW = 64
"""Up to this many neighbours of a softmax, and from this many values on, threads share values."""
PASSES = {"forward": 3.0, "backward": 1.5}
"""Values that a softmax loads for each of its own: for the largest, the sum and the result. In the
backward pass there are two, of both of which several are loaded at a time."""
FETCHED = 3.0
"""Values, as of a sum, that loading one by a number from memory takes: the number and then a value
that no cache holds (0.8 us on our H200)."""
POOLED = 1.6
"""The same for a value of adaptive pooling in channels-last, which comes from memory (0.43 us)."""
IN_LINES = 0.15
"""The same in NCHW, where the next values are in the line of the first."""
IN_A_WARP = 0.1
"""The same for a row's loss, of which the only warp loads several (24 ns on our H200)."""
IN_CHANNELS = 1.6
"""The same for a value of torch's own batch norm (0.42 us on our H200)."""
FEWEST_SHARING = 8
"""The fewest blocks that share a channel."""
IMAGES = 300.0
"""Clocks in which a thread adds one image's part to the gradients of a group norm's weights."""
PLACES, PLACES_AT_ONCE = 8, 4
"""Places that a thread of `gather` and `scatter` goes through, and one of `index`."""
SORTED = 4
"""Warps, each with one number, of a block that adds sorted rows."""


def loop_of(op: Op) -> ThreadLoop | None:
    """The loop of an op's kernel; None for kernels that do not loop, or are modelled otherwise."""
    if not op.inputs or not op.outputs:
        return None
    if op.base in _LOOPS:
        return _LOOPS[op.base](op)
    return reduction(op)


def spatial(op: Op) -> tuple[int, int, int] | None:
    """The sizes before, of and after the dimension of a softmax; None if it is the last one."""
    shape = op.outputs[0].shape
    if not shape:
        return None
    dim = integer(op, "dim", -1) % len(shape)
    inner = math.prod(shape[dim + 1 :])
    return None if inner <= 1 else (math.prod(shape[:dim]), shape[dim], inner)


def _softmax(op: Op) -> ThreadLoop | None:
    """A thread for each neighbour, and several for its values if there are few (SoftMax.cu)."""
    sizes = spatial(op)
    if sizes is None:
        return None
    outside, length, inner = sizes
    across = min(inner, MOST_THREADS)
    along = 1
    if across <= FEW <= length:
        while across * along * 2 <= MOST_THREADS and along * 2 <= length:
            along *= 2
    passes = PASSES["backward" if "backward" in op.base else "forward"]
    return loop(outside * _up(inner, across), across * along, passes * _up(length, along))


def _class_loss(op: Op) -> ThreadLoop | None:
    """One warp for all rows, or a block for each 128 * 1,024 points of an image (NLLLoss2d.cu)."""
    target = next((t for t in op.inputs if "int" in t.dtype), None)
    if target is None or len(target.shape) not in (1, 3):
        return None
    if len(target.shape) == 1:
        return loop(1, 32, IN_A_WARP * _up(target.numel, 32))
    area = math.prod(target.shape[1:])
    blocks = max(_up(area, MOST_THREADS) // 128, 1)
    terms = FETCHED * _up(area, MOST_THREADS * blocks)
    return loop(target.shape[0] * blocks, MOST_THREADS, terms)


def _own_norm(op: Op) -> ThreadLoop | None:
    """Blocks of torch's own batch norm, each with a channel (Normalization.cuh).

    The forward pass goes through a channel once, the backward pass twice. Neighbours are points of
    an image or, in channels-last, 32 channels, whose points up to 128 blocks share.
    """
    image = op.inputs[1 if "backward" in op.base else 0]
    trains = bool(op.attr("training", True) and op.attr("train", True))
    if len(image.shape) < 2 or not image.numel or not trains:
        return None
    images, channels = image.shape[:2]
    if image.channels_last or len(image.shape) == 2:
        points = image.numel // channels
        high = min(_up(points, 256), 128)
        high = high if high >= FEWEST_SHARING else 1
        return ThreadLoop(_up(channels, 32) * high, 512, 2, IN_CHANNELS * _up(points, 16 * high))
    points = math.prod(image.shape[2:])
    across = next((n for n in (32, 64, 128, 256) if points <= n), 512)
    passes, resident = (2, 3) if "backward" in op.base else (1, 2)
    loaded = passes * _up(images, 512 // across) * _up(points, across)
    return ThreadLoop(channels, 512, resident, IN_CHANNELS * loaded)


def _group_norm(op: Op) -> ThreadLoop | None:
    """A block for each group of an image or, in the backward pass, for each channel."""
    image = op.inputs[1 if "backward" in op.base else 0]
    if len(image.shape) < 2:
        return None
    blocks = image.shape[0] * max(integer(op, "group", 1), 1)
    if "backward" in op.base:
        blocks = image.shape[0] * image.shape[1]
    each = image.numel // max(blocks, 1)
    threads = 512 if each > 256 else 32
    return loop(blocks, threads, _up(each, threads))


def queued_in_loops(op: Op) -> float:
    """Clocks of kernels that follow: a thread adds up images for the weights of a group norm."""
    if op.base != "aten.native_group_norm_backward":
        return 0.0
    return IMAGES * min(op.inputs[0].shape[0], 128)


def _adaptive_pool(op: Op) -> ThreadLoop | None:
    """A block for each plane or, in channels-last, for each image (AdaptiveAveragePooling.cu)."""
    image, out = op.inputs[0], op.outputs[0]
    if len(image.shape) != 4 or not out.numel:
        return None
    images, channels, height, width = image.shape
    tall, wide = out.shape[2:]
    window = _up(height, tall) * _up(width, wide)
    if not image.channels_last:
        terms = IN_LINES * window * _up(tall, 8) * _up(wide, 32)
        return loop(images * channels, 256, terms)
    x = max(_power(min(channels, MOST_THREADS)), 32)
    y = min(_power(wide), MOST_THREADS // x)
    z = min(_power(tall), MOST_THREADS // x // y)
    strips = _up(channels, x * 4)
    terms = POOLED * window * _up(tall, z) * _up(wide, y) * _up(channels, x * strips)
    return loop(images * strips, x * y * z, terms)


def _places(op: Op) -> ThreadLoop | None:
    """Places that `gather`, `scatter` and `index` go through, each with a number to load before."""
    if fetched_rows(op) is not None:
        return None
    numbers = [t for t in op.inputs[1:] if "int" in t.dtype]
    if not numbers:
        return None
    if op.base in ("aten.index", "aten._unsafe_index"):
        count, each = op.outputs[0].numel, PLACES_AT_ONCE
    else:
        count, each = numbers[0].numel, PLACES
    terms = FETCHED * min(each, max(count // 128, 1))
    return loop(_up(count, 128 * each), 128, terms)


def _added_rows(op: Op) -> ThreadLoop | None:
    """Rows that are sorted by their place and added there: a warp for each (Indexing.cu)."""
    indexed = indexed_dims(op)
    if not op.attr("accumulate", False) or indexed is None:
        return None
    shape = op.inputs[0].shape
    before, width = math.prod(shape[: indexed.start]), math.prod(shape[indexed.stop :])
    count = max((t.numel for t in op.inputs[1:-1]), default=0)
    return loop(_up(count, SORTED) * _up(width, 128) * before, 32 * SORTED, 1.0)


def _power(count: int) -> int:
    """The largest power of two that is at most a count."""
    return 1 << (max(count, 1).bit_length() - 1)


def _up(count: int, size: int) -> int:
    return -(-count // max(size, 1))


_LOOPS = {
    **dict.fromkeys(("aten._softmax", "aten._log_softmax"), _softmax),
    **dict.fromkeys(("aten._softmax_backward_data", "aten._log_softmax_backward_data"), _softmax),
    **dict.fromkeys(("aten.nll_loss2d_forward", "aten.nll_loss2d_backward"), _class_loss),
    **dict.fromkeys(("aten.nll_loss_forward", "aten.nll_loss_backward"), _class_loss),
    **dict.fromkeys(("aten.native_batch_norm", "aten.native_batch_norm_backward"), _own_norm),
    **dict.fromkeys(("aten.native_group_norm", "aten.native_group_norm_backward"), _group_norm),
    "aten._adaptive_avg_pool2d": _adaptive_pool,
    **dict.fromkeys(("aten.gather", "aten.index", "aten._unsafe_index"), _places),
    **dict.fromkeys(("aten.scatter", "aten.scatter_", "aten.scatter_add"), _places),
    **dict.fromkeys(("aten.scatter_add_", "aten.scatter_reduce", "aten.scatter_reduce_"), _places),
    **dict.fromkeys(("aten.index_put", "aten.index_put_", "aten._index_put_impl_"), _added_rows),
}
"""The loop of each op that has one."""


# How torch divides a sum among threads and blocks (`setReduceConfig` of Reduce.cuh).
#
# A block has a row of threads for neighbours in memory and several such rows. Rows of threads
# share one sum if it is long, else each has its own. Long sums are divided among blocks, and the
# last of these adds up their partial sums, one after the other.


WARP = 32
MOST_REDUCING_THREADS = 512
"""Threads of a block; fewer where each computes several sums."""
LONG, LOADS = 16, 4
"""Values of a thread from which rows of threads share a sum, and values that it loads at a time."""
RESIDENT = {1: 2048, 2: 1536, 4: 1152}
"""Threads that an SM runs at a time, by the sums that each computes: 32, 40 and 56 registers of
65,536."""
DIVIDED = 256
"""Values of a thread from which blocks share a sum."""
OFFSET = 12.0
"""Elements that finding a value takes where it is summed over dimensions that do not lie one behind
the other: divisions, for each vector (2.4 values of an SM in a clock on our H200)."""
_NAMES = {
    *("aten.sum", "aten.mean", "aten.prod", "aten.amax", "aten.amin", "aten.max", "aten.min"),
    *("aten.argmax", "aten.argmin", "aten.any", "aten.all", "aten.norm", "aten.nansum"),
    *("aten.linalg_vector_norm", "aten.var", "aten.std", "aten.var_mean", "aten.std_mean"),
}
"""Ops that run torch's kernel for sums (`reduce_kernel`)."""


def reduction(op: Op) -> ThreadLoop | None:
    """How an op's sums are divided; None for ops that do not run torch's kernel for sums."""
    if op.base not in _NAMES or not op.inputs or not op.outputs:
        return None
    whole = op.inputs[0]
    reduced, kept = _dims(op, whole)
    sums = math.prod(size for size, _ in kept)
    length = math.prod(size for size, _ in reduced)
    if not sums * length:
        return None
    along = not kept or (bool(reduced) and reduced[0][1] < kept[0][1])
    fastest = (reduced if along else kept)[:1] or [(1, 1)]
    vector, loaded = 1, LOADS
    x, y = (length, sums) if along else (sums, length)
    if fastest[0][1] == 1:
        if along and x >= 128 and len(reduced) == 1:
            loaded = _input_vector(op, whole)
            x //= loaded
        elif not along:
            vector = _output_vector(kept, reduced)
            x //= vector
    width, height = _block(x, y, MOST_REDUCING_THREADS // vector)
    step = width if along else 1
    terms = _divided_up(length, step)
    together = terms >= min(height * LONG, DIVIDED)
    columns = 1 if along else width
    if together:
        step, terms = step * height, _divided_up(length, step * height)
    else:
        columns *= height
    sharing = height * (width if along else 1) if together and terms >= DIVIDED else 0
    outputs = sums // vector
    ragged = not along and outputs % width > 0
    threads = width * height
    offsets = OFFSET / vector if len(reduced) > 1 else 0.0
    resident = min(RESIDENT[vector] // threads, SM_BLOCKS)
    return ThreadLoop(
        _divided_up(outputs, columns), threads, resident, terms, loaded, sharing, ragged,
        strided=fastest[0][1] > 1, offsets=offsets,
    )  # fmt: skip


def _dims(op: Op, whole: TensorSpec) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The sizes and strides of the dimensions that are summed over and of the others.

    The fastest comes first; of the others, in the order of the result. Neighbours that lie one
    behind the other in memory are one dimension (`TensorIterator::coalesce_dimensions`).
    """
    rank = len(whole.shape)
    named = {dim % rank for dim in _named(op)} if rank else set()
    over = named or set(range(rank))
    sizes = [(n, _stride(whole, i)) for i, n in enumerate(whole.shape)]
    reduced = sorted((sizes[i] for i in over if sizes[i][0] != 1), key=lambda d: d[1])
    others = [i for i in range(rank) if i not in over]
    out = op.outputs[0]
    places = others if len(out.shape) == rank else range(len(others))
    order = dict(zip(others, (_stride(out, place) for place in places), strict=True))
    others = sorted(others, key=lambda i: (order[i], -i))
    return _joined(reduced), _joined([sizes[i] for i in others if sizes[i][0] != 1])


def _stride(t: TensorSpec, dim: int) -> int:
    return t.strides[dim] if t.strides else math.prod(t.shape[dim + 1 :])


def _named(op: Op) -> tuple[int, ...]:
    """The dimensions that an op names; none if it takes all."""
    dim = op.attr("dim")
    return (dim,) if isinstance(dim, int) else integers(op, "dim")


def _joined(dims: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Dimensions, with those that lie one behind the other in memory as one."""
    joined: list[tuple[int, int]] = []
    for size, stride in dims:
        if joined and stride == joined[-1][0] * joined[-1][1]:
            joined[-1] = (joined[-1][0] * size, joined[-1][1])
        else:
            joined.append((size, stride))
    return joined


def _input_vector(op: Op, whole: TensorSpec) -> int:
    """Values of a sum that a thread loads at once: more of two bytes, where torch has a kernel."""
    return 8 if op.base in ("aten.sum", "aten.mean") and item_bytes(whole) == 2 else LOADS


def _output_vector(kept: list[tuple[int, int]], reduced: list[tuple[int, int]]) -> int:
    """Neighbouring sums that a thread computes: all sizes and strides are multiples of it."""
    numbers = (kept[0][0], *(stride for _, stride in (*kept[1:], *reduced)))
    return math.gcd(4, *numbers)


def _block(x: int, y: int, most: int) -> tuple[int, int]:
    """The width and the height of a block: powers of two, of at most `most` threads."""
    wide, high = (min(1 << (max(n, 1).bit_length() - 1), most) for n in (x, y))
    height = min(high, most // min(wide, WARP))
    return min(wide, most // height), height


def _divided_up(count: int, size: int) -> int:
    return -(-count // size)
