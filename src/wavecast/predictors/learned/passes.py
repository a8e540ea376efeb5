"""Ops that pass over memory, as rows of the stream model."""

from __future__ import annotations

import math

from wavecast import ops
from wavecast.ops import Kind
from wavecast.ops.convolution import window
from wavecast.ops.costs import COUNTED
from wavecast.ops.registry import Cost, integers, item_bytes, stored
from wavecast.predictors.learned import loop_kernels
from wavecast.predictors.learned.columns import CASTS, STRIDES, VECTORS, StreamRow
from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

STREAM_KINDS = (
    *(Kind.FILL, Kind.RANDOM, Kind.COPY, Kind.ELEMENTWISE, Kind.OPTIMIZER),
    *(Kind.REDUCTION, Kind.LOSS, Kind.SOFTMAX, Kind.NORM),
    *(Kind.POOLING, Kind.RESAMPLING, Kind.INDEXING, Kind.EMBEDDING),
)
"""The kinds of ops that pass over memory. Similar kinds are neighbours, because trees split this
column by comparing it with a threshold."""
FLOATS = {"float16", "bfloat16", "float32", "float64"}
_PLACES = ("backward", "scatter", "index_put", "index_add")
_ATOMIC = ("index_add", "scatter_add", "scatter_reduce")
"""Ops that add with atomic operations. Other ops that add into places sort first."""
_MOST_NORM_BLOCKS = 256 * 1024
"""Blocks of torch's own batch norm, which then takes several images in each (Normalization.cuh)."""
_READ_ONCE = 1024
"""Up to this many elements, rows of a softmax stay in registers and are read once (SoftMax.cu). On
NeuSight's V100 such rows take 1.2 times the time of memory, longer ones 1.6 times."""
_SLICES_IN_PLACE = ("aten.index_copy_", "aten.index_fill_")
"""Ops that write some slices of a tensor, such as a token's keys, and leave the rest."""
FOLDED = 5
"""Elementwise elements that folding one takes (24 ps for a point of one column on our H200)."""
MANY_ROWS, NARROW_ROW = 64 * 1024, 2048
"""More rows than this, of no more elements, are divided among blocks for the gradient of a weight;
the width is 32 for every second SM of a large GPU."""
DIVIDED = 0.6
"""What a row costs then (1.0 to 1.3 ns on our H200), relative to one of the forward pass."""
DIVISIONS, SUMMED = 2.5, 0.25
"""Elements that finding the windows of a point of mean pooling takes, and adding one of them: 16
and 1.6 ps on our H200."""
ROLLED = 2
"""Elements that finding the place of one takes, in each kernel of a roll (1.3 ns for each SM)."""
_SCANS = {"aten._ctc_loss": 1, "aten._ctc_loss_backward": 2}
"""Elements for each time of ops that go through time step by step. A step of the forward pass takes
0.54 us on our H200, one of the backward pass 0.95 us."""


HELD_BYTES = 160 * 1024
"""The largest channel of a batch norm that an SM holds (`singleread`), and what each SM holds of an
image in channels-last (`semiPersist`); the rest is read twice."""
PAIRED = 4
"""The fewest bytes that a thread of such a kernel moves at a time, for planes of fours."""


def row_of(op: Op, cost: Cost) -> StreamRow:
    """The columns of an op that passes over memory."""
    kind = ops.kind(op)
    outputs = [t for t in op.outputs if t.device != "cpu"]
    whole = _whole(op, outputs)
    by_row = (kind is Kind.SOFTMAX) or "layer_norm" in op.base or "rms_norm" in op.base
    reread = _reread_bytes(op, kind, cost, by_row)
    # The cost formulas of norms count every pass, but bytes read again have a separate column.
    counted = reread if kind is Kind.NORM and (not by_row or "backward" in op.base) else 0
    row = StreamRow(
        read_bytes=cost.read_bytes - counted,
        written_bytes=cost.written_bytes,
        reread_bytes=0 if _is_held(op) else reread,
        elements=_accesses(op, whole, cost),
        flops=cost.flops,
        row_width=_row_width(op, whole, kind),
        tensors=_tensors(op),
        reordered_bytes=_reordered_bytes(op, outputs),
        by_row=by_row,
        item_bytes=DTYPE_BYTES[whole.dtype],
        atomic_adds=_atomic_adds(op),
        channel_blocks=_channel_blocks(op, whole, reread, by_row),
        footprint_bytes=_footprint_bytes(op, cost),
        channels_last=whole.channels_last,
        kind=_position(kind),
        backward="backward" in op.base,
        access=_access(op, kind, outputs),
        rows=_rows(op, whole, kind),
        serial_elements=_serial_elements(op),
        kernels=_kernels(op),
        blocks=_blocks(op, whole),
        queued_clocks=loop_kernels.queued_at_lookups(op) + loop_kernels.queued_in_loops(op),
        access_bytes=_access_bytes(op, whole),
        kept_bytes=HELD_BYTES if _is_cudnn_norm(op) and whole.channels_last else 0,
    )
    return _with_loop(row, op)


def _with_loop(row: StreamRow, op: Op) -> StreamRow:
    """The row with the threads and blocks of the kernel, where they loop over values."""
    thread_loop = loop_kernels.loop_of(op)
    if thread_loop is None:
        return row
    return row._replace(
        loop_blocks=thread_loop.blocks,
        loop_threads=thread_loop.threads,
        loop_resident=thread_loop.resident,
        loop_terms=thread_loop.terms,
        loop_loads=thread_loop.loads,
        loop_sharing=thread_loop.sharing,
        loop_ragged=thread_loop.ragged,
        reordered_bytes=stored(op.inputs[0]) if thread_loop.strided else row.reordered_bytes,
        elements=max(row.elements, round(thread_loop.offsets * op.inputs[0].numel)),
    )


def in_turn(row: StreamRow) -> tuple[StreamRow, ...]:
    """The kernels of an op, one after the other, where the first goes through its input in loops.

    So do torch's own batch norms in training: a second kernel applies what the first computed.
    """
    twice = row.kind == _position(Kind.NORM) and row.reread_bytes > 0 and row.loop_blocks > 0
    if not twice or row.backward:
        return (row,)
    first = row._replace(written_bytes=0, reread_bytes=0, kernels=row.kernels - 1)
    return first, row._replace(reread_bytes=0, kernels=1, loop_blocks=0)


def row_over(whole: TensorSpec, written_bytes: int, row_width: int) -> StreamRow:
    """The columns of one pass over a tensor, such as adding or summing a convolution's bias."""
    return StreamRow(
        read_bytes=stored(whole),
        written_bytes=written_bytes,
        reread_bytes=0,
        elements=whole.numel,
        flops=whole.numel,
        row_width=row_width,
        tensors=1,
        reordered_bytes=0,
        by_row=False,
        item_bytes=item_bytes(whole),
        atomic_adds=0,
        channel_blocks=0,
        footprint_bytes=stored(whole),
        channels_last=whole.channels_last,
        kind=_position(Kind.ELEMENTWISE),
        backward=False,
        access=VECTORS,
        rows=0,
        serial_elements=0,
        kernels=1,
        blocks=0,
        queued_clocks=0,
    )


def _reread_bytes(op: Op, kind: Kind | None, cost: Cost, by_row: bool) -> int:
    """Bytes that norms and softmax read a second time."""
    backward = "backward" in op.base
    data_bytes = sum(map(stored, op.inputs[: 2 if backward else 1]))
    if kind is Kind.SOFTMAX and op.inputs[0].shape and op.inputs[0].shape[-1] <= _READ_ONCE:
        return 0
    if by_row:
        return data_bytes if not backward or kind is Kind.SOFTMAX else data_bytes // 2
    if kind is Kind.NORM:  # the formula has counted every pass
        return min(max(cost.read_bytes - sum(map(stored, op.inputs)), 0), data_bytes)
    return 0


def _is_cudnn_norm(op: Op) -> bool:
    """Whether an op is a batch norm of cuDNN in training."""
    return (
        op.base.startswith("aten.cudnn_batch_norm") and len(op.inputs[0].shape) > 1 and _trains(op)
    )


def _is_held(op: Op) -> bool:
    """Whether cuDNN's batch norm keeps a channel on an SM instead of reading it twice."""
    if not _is_cudnn_norm(op) or op.inputs[0].channels_last:
        return False
    return stored(op.inputs[0]) // max(op.inputs[0].shape[1], 1) <= HELD_BYTES


def _access_bytes(op: Op, whole: TensorSpec) -> int:
    """Bytes that a thread of a block with a whole channel moves at a time."""
    paired = _is_held(op) and math.prod(whole.shape[2:]) % 4 == 0
    return max(item_bytes(whole), PAIRED if paired else 0)


def _position(kind: Kind | None) -> int:
    """The position of a kind in STREAM_KINDS; others count as elementwise."""
    return STREAM_KINDS.index(kind if kind in STREAM_KINDS else Kind.ELEMENTWISE)


def _whole(op: Op, outputs: list[TensorSpec]) -> TensorSpec:
    """The tensor whose elements are handled: the output of a lookup or fill, else the largest."""
    tensors = [t for t in op.inputs if t.device != "cpu"] + outputs
    if outputs and (ops.kind(op) is Kind.FILL or (_looks_up(op) and not _adds_up(op))):
        tensors = outputs
    return max(tensors, key=lambda t: t.numel, default=TensorSpec((), "float32"))


def _looks_up(op: Op) -> bool:
    return ops.kind(op) in (Kind.EMBEDDING, Kind.INDEXING)


def _adds_up(op: Op) -> bool:
    """Whether several elements may go to one place."""
    return _looks_up(op) and any(name in op.base for name in _PLACES)


def _atomic_adds(op: Op) -> float:
    """How many elements are added into places, one atomic operation each."""
    if ops.kind(op) is Kind.RESAMPLING:
        return additions(op)
    if not any(name in op.base for name in _ATOMIC):
        return 0
    place = op.outputs[0].shape if op.outputs else ()
    added = (t.numel for t in op.inputs if t.shape != place and "int" not in t.dtype)
    return max(added, default=0) * loop_kernels.atomic_operations(op)


def _channel_blocks(op: Op, whole: TensorSpec, reread: int, by_row: bool) -> int:
    """How many blocks share the work where each takes a whole channel, as in batch norm; else 0.

    Where channels are the fastest dimension, all blocks share every channel. The threads of torch's
    own norms loop (`loop_kernels`).
    """
    if by_row or not reread or len(whole.shape) < 2 or whole.channels_last:
        return 0
    return 0 if "group_norm" in op.base or _is_own_norm(op) else whole.shape[1]


def _footprint_bytes(op: Op, cost: Cost) -> int:
    """Bytes of the tensors that are touched; a tensor that is updated in place counts once."""
    in_place = op.base.endswith("_") and op.inputs[:1] == op.outputs[:1]
    return cost.bytes - (stored(op.outputs[0]) if in_place else 0)


def _accesses(op: Op, whole: TensorSpec, cost: Cost) -> int:
    """Elements to handle.

    In pooling, an element counts once for each window that contains it. Of a tensor of which an op
    writes some slices in place, only these count. Columns are folded by divisions of integers. Of
    lists, all tensors count.
    """
    if _tensors(op) > 1:
        return max(sum(t.numel for t in op.outputs), whole.numel)
    if op.base == "aten.col2im":
        return FOLDED * sum(t.numel for t in (op.inputs[0], op.outputs[0]))
    if op.base == "aten.roll":
        return ROLLED * max(len(integers(op, "shifts")), 1) * whole.numel
    if ops.kind(op) is Kind.RESAMPLING:
        return elements(op)
    if op.base in _SLICES_IN_PLACE:
        return min(whole.numel, cost.written_bytes // max(item_bytes(whole), 1))
    looked_up = loop_kernels.elements(op)
    if looked_up is not None:
        return looked_up
    if ops.kind(op) is not Kind.POOLING or not integers(op, "kernel_size"):
        return whole.numel
    pooled = op.inputs[0] if "backward" in op.base else op.outputs[0]
    if op.base == "aten.avg_pool2d_backward":
        return round(DIVISIONS * whole.numel + SUMMED * pooled.numel * window(op))
    return max(whole.numel, pooled.numel * window(op))


def _tensors(op: Op) -> int:
    """How many tensors a fused op on lists works on; 1 for others."""
    lists = "_foreach" in op.base or "_fused_" in op.base or "_amp_foreach" in op.base
    return max(len(op.outputs), 1) if lists else 1


def _row_width(op: Op, whole: TensorSpec, kind: Kind | None) -> float:
    """Elements that are reduced to one; for ops that reduce nothing, the last dimension."""
    if kind is Kind.REDUCTION or kind is Kind.LOSS:
        out = max((t.numel for t in op.outputs), default=1)
        return whole.numel / max(out, 1)
    if kind is Kind.NORM and whole.shape:
        named = integers(op, "normalized_shape")
        channels = whole.shape[1] if len(whole.shape) > 1 else 1
        return math.prod(named) if named else whole.numel / max(channels, 1)
    return whole.shape[-1] if whole.shape else 1


def _reordered_bytes(op: Op, outputs: list[TensorSpec]) -> int:
    """Bytes of inputs that are stored in another order than the output, and read in strides."""
    if not outputs or not outputs[0].numel:
        return 0
    order = _fastest(outputs[0])
    others = (t for t in op.inputs if t.shape == outputs[0].shape and t.device != "cpu")
    return sum(stored(t) for t in others if _fastest(t) != order)


def _fastest(t: TensorSpec) -> int:
    """The dimension along which elements are neighbours in memory; -1 if all have length 1."""
    real = [i for i, n in enumerate(t.shape) if n > 1]
    if not real:
        return -1
    if t.strides is None:
        return real[-1]
    stored_dims = [i for i in real if t.strides[i]]
    return min(stored_dims, key=lambda i: t.strides[i]) if stored_dims else real[-1]  # type: ignore[index]


def _access(op: Op, kind: Kind | None, outputs: list[TensorSpec]) -> float:
    """How a kernel reaches its operands; only elementwise ops and copies differ here."""
    if _is_own_norm(op) and _trains(op) and outputs and outputs[0].channels_last:
        return CASTS  # torch's own kernels convert each element, and its statistics are float32
    if kind not in (Kind.ELEMENTWISE, Kind.COPY) or not outputs:
        return VECTORS
    if op.base == "aten.roll":
        return STRIDES
    out = outputs[0]
    operands = [t for t in op.inputs if t.device != "cpu"]
    types = {t.dtype for t in operands if t.dtype in FLOATS}
    if kind is Kind.ELEMENTWISE and len(types) > 1:
        return CASTS
    widened = kind is Kind.COPY and any(item_bytes(t) < item_bytes(out) for t in operands)
    if widened or any(t.shape != out.shape or _strides(t) != _strides(out) for t in operands):
        return STRIDES
    return VECTORS


def _strides(t: TensorSpec) -> tuple[int, ...]:
    """The strides of the dimensions that have more than one element."""
    strides = t.strides
    if strides is None:
        strides = tuple(math.prod(t.shape[i + 1 :]) for i in range(len(t.shape)))
    return tuple(stride for stride, n in zip(strides, t.shape, strict=True) if n > 1)


def _rows(op: Op, whole: TensorSpec, kind: Kind | None) -> float:
    """Rows that take a block each, counted once for each kernel that goes row by row.

    In the backward pass one kernel goes through the rows for the input, and one for the weight.
    Many rows are divided among blocks for the weight, which then takes no time of its own; what is
    left costs less than a row of the forward pass (layer_norm_kernel.cu).
    """
    if kind is not Kind.NORM or not ("layer_norm" in op.base or "rms_norm" in op.base):
        return 0
    width = max(_row_width(op, whole, kind), 1)
    rows = whole.numel / width
    if "backward" not in op.base:
        return rows
    return rows * (DIVIDED if rows > MANY_ROWS and width <= NARROW_ROW else 2)


def _kernels(op: Op) -> int:
    """The kernels that an op launches, as they were counted when the model was fitted.

    For the gradient of an embedding bag that was one number. That many indices are sorted by more
    kernels became known later; what they cost is in the learned factor.
    """
    return COUNTED.get(op.base, 1) if "embedding_bag" in op.base else ops.kernels(op)


def _is_own_norm(op: Op) -> bool:
    """Whether an op is a batch norm in torch's own kernels, not in those of cuDNN."""
    return "native_batch_norm" in op.base


def _trains(op: Op) -> bool:
    """Whether a norm computes its statistics, as in training."""
    return bool(op.attr("training", True) and op.attr("train", True))


def _blocks(op: Op, whole: TensorSpec) -> int:
    """Thread blocks that do so little that launching them takes longer.

    A batch norm that only applies its statistics has a block for each channel of each image.
    """
    norm = "batch_norm" in op.base and "backward" not in op.base and not _trains(op)
    if not norm or whole.channels_last or len(whole.shape) < 3:
        return loop_kernels.blocks(op)
    planes = whole.shape[0] * whole.shape[1]
    return min(planes, _MOST_NORM_BLOCKS) if _is_own_norm(op) else planes


def _serial_elements(op: Op) -> float:
    """Elements that one thread computes one after the other.

    The states of connectionist temporal classification follow from those of the time before
    (LossCTC.cu).
    """
    if op.base == "aten.embedding_dense_backward":
        return loop_kernels.scanned(op)
    if op.base in _SCANS:
        times = max((t.shape[0] for t in op.inputs if len(t.shape) == 3), default=0)
        return times * _SCANS[op.base]
    return serial_elements(op) if ops.kind(op) is Kind.RESAMPLING else 0


# Images that are resized: what threads go through, and additions that wait for each other.


_NEIGHBOURS = {"trilinear": 8, "bilinear": 4, "bicubic": 16}
"""How many places the gradient of one interpolated point goes to."""
CROWDING, JOINED = 1.5, 0.35
"""The power with which additions of neighbours to one place slow each other down, and what one of
32 bits takes, relative to one of 16. On our H200, additions of images that are enlarged 2, 8, 28
and 128 times take 2.3, 14, 170 and 1,100 ps."""
APART = 10.0
"""From this enlargement on, additions slow each other down in channels-last, too."""
LINE_BYTES, HIT = 128, 0.12
"""Bytes of a line of L1, and what an element costs that is in the line of the one before, relative
to one that is not. On our H200, planes of one point take 60 ns, those of 50 and more 340 ns."""
BICUBIC = {1: 24.0, 2: 24.0, 4: 190.0}
"""Additions to a single place in the time of an element, by the bytes of one. Of more places, the
square root counts (1 and 8 ns for an addition of 32 and 16 bits on our H200)."""


def is_resized(op: Op) -> bool:
    """Whether an op resizes an image to another size; torch copies those that keep theirs."""
    sizes = [t.shape for t in (op.inputs[0], op.outputs[0])]
    return sizes[0] != sizes[1]


def elements(op: Op) -> int:
    """Points of the larger image of a backward pass, or of the result; none to copy an image."""
    if not is_resized(op):
        return 0
    return op.inputs[0].numel if "backward" in op.base else op.outputs[0].numel


def additions(op: Op) -> float:
    """Atomic additions of a backward pass, or what takes as long; 0 for a forward pass."""
    if "backward" not in op.base or not is_resized(op):
        return 0
    near = next((n for name, n in _NEIGHBOURS.items() if name in op.base), 0)
    return round(near * op.inputs[0].numel * _crowding(op))


def _crowding(op: Op) -> float:
    """How much longer an addition takes where neighbours add to one place, in enlarged images.

    In channels-last, neighbours are other channels and add to other places; those of the next
    points wait for each other only where the image is enlarged much.
    """
    large, small = op.inputs[0], op.outputs[0]
    if "bicubic" in op.base or len(large.shape) < 3 or not small.numel:
        return 1.0  # threads of bicubic kernels go through planes one by one
    joined = 1.0 if item_bytes(large) <= 2 else JOINED
    enlarged = (large.numel / small.numel) ** (1.0 / (len(large.shape) - 2))
    if large.channels_last and small.channels_last:
        return float(joined * max(enlarged / APART, 1.0))
    return float(joined * max(enlarged / 2.0, 1.0) ** CROWDING)


def serial_elements(op: Op) -> float:
    """Elements that one thread computes one after the other.

    Interpolation has one thread for each point of an image; it loops over images and channels
    (UpSampleBilinear2d.cu), whose points are in one line of memory if the image is small.
    """
    image = op.inputs[0]
    if len(image.shape) < 3 or not is_resized(op):
        return 0
    planes = math.prod(image.shape[:2])
    if op.base == "aten.upsample_nearest2d_backward":
        return _nearest_elements(op)
    if "bicubic" in op.base:
        return planes * _bicubic_elements(op)
    smooth = "linear" in op.base and "backward" not in op.base
    if not smooth or image.channels_last:
        return 0
    lines = math.prod(image.shape[2:]) * item_bytes(image) / LINE_BYTES
    return planes * min(HIT + 2 * lines, 1.0)


def _nearest_elements(op: Op) -> float:
    """What a thread of the gradient of an enlarged image adds up: the points around its own.

    In NCHW it also goes through the images of a batch, and neighbours are in one line.
    """
    large, small = op.inputs[0], op.outputs[0]
    window = math.prod(
        _up(a, max(b, 1)) for a, b in zip(large.shape[2:], small.shape[2:], strict=True)
    )
    if large.channels_last and small.channels_last:
        return 0.75 * window
    return 0.55 * window * large.shape[0]


def _bicubic_elements(op: Op) -> int:
    """Elements for each plane of a bicubic interpolation (UpSampleBicubic2d.cu).

    Sixteen neighbours are in few lines of memory or, in channels-last, in as many for each of a
    block's threads. In the backward pass, all points add to 16 places each; additions to one place
    wait for each other.
    """
    image, result = op.inputs[0], op.outputs[0]
    if "backward" not in op.base:
        threads = min(math.prod(result.shape[2:]), 1024)
        return max(16 * threads // 1024, 1) if image.channels_last else 2
    added = 16 * image.numel / max(math.prod(image.shape[:2]), 1)
    apart = BICUBIC[min(item_bytes(image), 4)] * math.sqrt(max(math.prod(result.shape[2:]), 1))
    return max(round(added / apart), 16)


def _up(count: int, size: int) -> int:
    return -(-count // size)
