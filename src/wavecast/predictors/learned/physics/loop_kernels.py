"""Kernels of torch whose threads go through values one after the other, and how they divide them.

Softmax over a dimension that is not the last, adaptive pooling, losses of images, and places that
are fetched or written one by one. Sums are in `reductions`, rows that are fetched in `lookups`.
"""

from __future__ import annotations

import math

from wavecast.ops.indexing import indexed_dims
from wavecast.ops.registry import integer
from wavecast.predictors.learned.physics import lookups
from wavecast.predictors.learned.physics.loops import ThreadLoop, loop
from wavecast.predictors.learned.physics.reductions import reduction
from wavecast.traces.step import Op

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


def queued_clocks(op: Op) -> float:
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
    if lookups.fetched_rows(op) is not None:
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
