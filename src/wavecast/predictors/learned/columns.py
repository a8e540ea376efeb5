"""The columns of the op models: the facts about each part of an op that hold on any GPU.

One class per kind of part. A row is an instance of it. Many rows become arrays, one for each field,
under the field's name (`columns_of`). A truth value is 1 or 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, NDArray[np.float64]]
"""The columns of many rows, by their names."""


EQUAL, OF_M, OF_N, OF_K = -1.0, 0.0, 1.0, 2.0
"""Values of `ProductRow.ragged`."""


class ProductRow(NamedTuple):
    """A batch of matmuls, (m, k) @ (k, n).

    The matmuls have equal sizes, or they are groups that split one dimension. The sizes of
    groups are means.
    """

    batch: float
    """How many matmuls, or groups."""
    m: float
    """Rows of the result."""
    n: float
    """Columns of the result."""
    k: float
    """Length of the sums."""
    item_bytes: float
    """Bytes of one element of the operands."""
    moved_bytes: float
    """Bytes of all operands and results, each counted once."""
    unit: float
    """The arithmetic unit, as its number in `gpus.CODES`."""
    alignment: float
    """Elements, at most 16, whose multiples all rows of the three matrices begin at."""
    a_by_columns: float
    """Whether the left matrix is stored by columns."""
    b_by_columns: float
    """Whether the right matrix is stored by columns."""
    ragged: float = EQUAL
    """The dimension that groups split: OF_M, OF_N or OF_K. EQUAL without groups."""
    one_kernel: float = 0.0
    """Whether torch has one kernel for all groups, on GPUs that support it."""


class ConvolutionRow(NamedTuple):
    """One pass of a convolution, as an implicit matmul (Chetlur et al., 2014)."""

    computes: float
    """What the pass computes: FORWARD, OF_IMAGE or OF_WEIGHT."""
    groups: float
    """Groups of channels, which are matmuls of their own."""
    m: float
    """Rows of a group's matmul."""
    n: float
    """Columns of a group's matmul."""
    k: float
    """Length of its sums."""
    item_bytes: float
    """Bytes of one element of the image."""
    unit: float
    """The arithmetic unit, as its number in `gpus.CODES`."""
    converted: float
    """Whether tensor cores need the layout converted to channels-last and back."""
    image_bytes: float
    """Bytes of the images."""
    out_bytes: float
    """Bytes of the outputs."""
    weight_bytes: float
    """Bytes of the filters."""
    taps: float
    """Points of a filter: 9 for 3 x 3."""
    stride_area: float
    """Points of the image for each point of the output, at least 1."""
    channels: float
    """Channels of the image in a group."""
    filters: float
    """Channels of the output in a group."""
    out_points: float
    """Points of one output image."""
    dilated: float
    """Whether the filter is dilated."""
    of_sequences: float
    """Whether its images have one dimension."""
    images: float
    """Images in the batch."""
    channels_last: float
    """Whether a tensor is stored with channels as the fastest dimension."""
    benchmarked: float
    """Whether cuDNN tried its algorithms and took the fastest."""
    by_torch: float
    """Whether torch's own depthwise kernels run, and not cuDNN's."""
    bfloat16: float
    """Whether elements are bfloat16, for which libraries have other kernels than for float16."""
    tf32: float
    """Whether float32 may be rounded to TF32."""
    alignment: float
    """Elements, at most 8, whose multiples rows of images begin at where 1 x 1 filters are matmuls
    of images as they are; 8 for others."""


FORWARD, OF_IMAGE, OF_WEIGHT = 0.0, 1.0, 2.0
"""Values of `ConvolutionRow.computes`: the output, or the gradient of the image or the filters."""


class AttentionRow(NamedTuple):
    """Fused attention, forward or backward."""

    sequences: float
    """Sequences times heads."""
    q_len: float
    """Queries of a sequence."""
    k_len: float
    """Keys of a sequence."""
    head_width: float
    """Elements of a head: the mean of keys and values."""
    attended_share: float
    """Share of all pairs of query and key that the mask leaves."""
    flops: float
    """FLOPs that are executed."""
    moved_bytes: float
    """Bytes of all inputs and outputs, each counted once."""
    unit: float
    """The arithmetic unit, as its number in `gpus.CODES`."""
    backward: float
    """Whether it is the backward pass."""
    efficient: float
    """Whether torch's memory-efficient kernels run."""
    cudnn: float
    """Whether cuDNN's kernels run."""
    biased: float
    """Whether a mask is read from memory in the forward pass; 1 in the backward pass, where the
    shared trees were fitted so."""
    masked: float
    """Whether a mask is read from memory, in either pass."""
    dropout: float
    """Whether weights are dropped, for which each needs a random number, in either pass."""
    of_mask: float
    """Whether the gradient of the mask is written."""
    shared_keys: float
    """Query heads for each head of the keys."""


class RecurrentRow(NamedTuple):
    """The steps of a recurrent layer that must follow each other."""

    steps: float
    """Length of the sequence, on average."""
    batch: float
    """Sequences that run at the same time, on average."""
    inputs: float
    """Width of the first layer's input."""
    hidden: float
    """Width of the state."""
    gates: float
    """Gates of a cell: 4 for an LSTM."""
    layers: float
    """Layers on top of each other."""
    directions: float
    """2 if the sequence is also read backwards in time."""
    item_bytes: float
    """Bytes of one element."""
    unit: float
    """The arithmetic unit, as its number in `gpus.CODES`."""
    backward: float
    """Whether it is the backward pass."""
    moved_bytes: float
    """Bytes of all inputs and outputs, each counted once."""


class StreamRow(NamedTuple):
    """A pass over memory: elementwise, norm, softmax, reduction, copy, optimizer, ..."""

    read_bytes: float
    """Bytes that are read, each counted once."""
    written_bytes: float
    """Bytes that are written."""
    reread_bytes: float
    """Bytes that are read a second time, from L2 if it still holds them."""
    elements: float
    """Elements to handle; a pooled element counts once for each window."""
    flops: float
    """FLOPs."""
    row_width: float
    """Elements that are reduced to one, or the length of the last dimension."""
    tensors: float
    """Tensors in the list of a fused op; 1 for others."""
    reordered_bytes: float
    """Bytes of inputs that are stored in another order than the output."""
    by_row: float
    """Whether rows are read twice one after the other: softmax, layer norm, RMS norm."""
    item_bytes: float
    """Bytes of one element."""
    atomic_adds: float
    """Elements that are added into places with atomic operations."""
    channel_blocks: float
    """Blocks that share the work where each takes a whole channel; 0 without such a limit."""
    footprint_bytes: float
    """Bytes of the tensors that are touched; one that is updated in place counts once."""
    channels_last: float
    """Whether the tensor is stored with channels as the fastest dimension."""
    kind: float
    """The kind of op, as its position in `STREAM_KINDS`."""
    backward: float
    """Whether it is a backward op."""
    access: float
    """How elementwise kernels reach their operands: VECTORS, STRIDES or CASTS."""
    rows: float
    """Rows that take a thread block each, counted once for each kernel that goes row by row."""
    serial_elements: float
    """Elements that one thread computes one after the other."""
    kernels: float
    """Kernels that the op launches."""
    blocks: float
    """Thread blocks that do so little that launching them takes longer."""
    queued_clocks: float
    """Clocks in which one place takes rows that are added to it, one after the other."""
    loop_blocks: float = 0.0
    """Thread blocks of a kernel whose threads loop over values; 0 for other kernels."""
    loop_threads: float = 1.0
    """Threads of such a block."""
    loop_resident: float = 1.0
    """How many such blocks an SM runs at a time."""
    loop_terms: float = 0.0
    """Values that each thread loads, before a sum is divided among blocks."""
    loop_loads: float = 1.0
    """Those of them that it loads at a time."""
    loop_sharing: float = 0.0
    """Threads that add up the partial sums of blocks; 0 if blocks do not share sums."""
    loop_ragged: float = 0.0
    """Whether some of them read partial sums that nobody wrote."""
    access_bytes: float = 0.0
    """Bytes that a thread of a block with a whole channel moves at a time."""
    kept_bytes: float = 0.0
    """Bytes that each SM keeps instead of reading them a second time."""


class ConcatenationRow(NamedTuple):
    """A `cat` of tensors of one type in one kernel."""

    read_bytes: float
    """Bytes that are read."""
    written_bytes: float
    """Bytes that are written."""
    items: float
    """What threads move one by one: pieces of 16 bytes, or elements."""
    largest_items: float
    """Those of the largest input."""
    launched_items: float
    """What could be moved if all inputs were as large as the largest one."""
    inputs: float
    """How inputs are stored: PIECES, CONTIGUOUS or STRIDED (`concatenations`)."""


class FusedRow(NamedTuple):
    """A kernel in which Inductor or XLA fused several ops."""

    points: float
    """Points of the result, before any list is divided."""
    reduction: float
    """Terms of each sum; 1 without one."""
    read_bytes: float
    """Bytes that are read, each counted once."""
    written_bytes: float
    """Bytes that are written."""
    strided_bytes: float
    """Bytes whose neighbours in the loop are not neighbours in memory."""
    indirect_bytes: float
    """Bytes at places that are read from another tensor."""
    again_bytes: float
    """Bytes that are read a second time after a reduction."""
    atomic_adds: float
    """Elements that are added into places with atomic operations."""
    collisions: float
    """Those of them that neighbours add to the same place."""
    windows: float
    """Points at which a gradient looks through the windows of a pooling."""
    online: float
    """Terms of sums that are rescaled whenever their maximum grows, as in softmax."""
    angles: float
    """Sines and cosines."""
    loads: float
    """Loads of all points together."""
    random: float
    """Random numbers of all points together."""
    flops: float
    """Operations of all points together; a special function counts as several."""
    tensors: float
    """Tensors in the list of a kernel over lists; 1 for others."""
    shape: float
    """How the kernel goes through its points: POINTS, ROWS, LOOPS, LISTS or TILES."""
    inner: float
    """Whether the terms of a sum are neighbours in memory."""
    mixed: float
    """Sums over the other dimension that the same kernel begins."""
    buffers: float
    """Tensors that are read and written."""


POINTS, ROWS, LOOPS, LISTS, TILES = 0.0, 1.0, 2.0, 3.0, 4.0
"""Values of `FusedRow.shape`: no sums; sums held in registers; sums in loops; lists of tensors;
tiles that are turned in shared memory."""

VECTORS, STRIDES, CASTS = 0.0, 1.0, 2.0
"""Values of `StreamRow.access`: how torch's elementwise kernels load their operands.

VECTORS: several elements at once, because all operands have the same strides and type.
STRIDES: one by one, because strides differ, an operand is broadcast, or a copy widens its type.
CASTS: one by one, because an elementwise op has operands of several types.
"""

Row = (
    ProductRow
    | ConvolutionRow
    | AttentionRow
    | RecurrentRow
    | StreamRow
    | ConcatenationRow
    | FusedRow
)

ROW_TYPES: Mapping[str, type[Row]] = {
    "product": ProductRow,
    "grouped": ProductRow,
    "convolution": ConvolutionRow,
    "depthwise": ConvolutionRow,
    "attention": AttentionRow,
    "recurrent": RecurrentRow,
    "stream": StreamRow,
    "concatenation": ConcatenationRow,
    "fused": FusedRow,
    "xla": FusedRow,
    "xla_depthwise": ConvolutionRow,
}
"""The columns of each op model."""


def columns_of(rows: Sequence[Row]) -> Columns:
    """The columns of rows of one kind, of which there is at least one."""
    table = np.array(rows, dtype=np.float64).T.copy()
    return dict(zip(rows[0]._fields, table, strict=True))
