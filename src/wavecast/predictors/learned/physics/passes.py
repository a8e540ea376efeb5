"""Ops that pass over memory, as numbers that know nothing of the GPU."""

from __future__ import annotations

import math

from wavecast import ops
from wavecast.ops import Kind
from wavecast.ops.registry import Cost, integer, integers, item_bytes, stored
from wavecast.traces.step import DTYPE_BYTES, Op, TensorSpec

Numbers = tuple[float, ...]
STREAM = (
    *("read", "written", "again", "elements", "flops", "width", "tensors", "twisted", "by_row"),
    *("item", "atomic", "groups", "footprint", "last", "sort", "backward"),
    *("path", "rows", "serial", "kernels"),
)
SORTS = (
    *(Kind.FILL, Kind.RANDOM, Kind.COPY, Kind.ELEMENTWISE, Kind.OPTIMIZER),
    *(Kind.REDUCTION, Kind.LOSS, Kind.SOFTMAX, Kind.NORM),
    *(Kind.POOLING, Kind.RESAMPLING, Kind.INDEXING, Kind.EMBEDDING),
)
"""Of passes over memory: those that are alike are neighbours, since trees ask for larger ones."""
VECTORS, STRIDES, CASTS = 0.0, 1.0, 2.0
"""How torch's elementwise kernels reach their operands, the `path`: several elements at once where
all are stored alike; one by one where some are stored in another order, are repeated
(TensorIterator's offsets) or come in another type."""
FLOATS = {"float16", "bfloat16", "float32", "float64"}
_PLACES = ("backward", "scatter", "index_put", "index_add")
_ATOMIC = ("index_add", "scatter_add", "scatter_reduce")
"""The others sort first."""
_NEIGHBOURS = {"trilinear": 8, "bilinear": 4, "bicubic": 16}
"""Places that a gradient goes to when it is interpolated."""


def numbers_of(op: Op) -> Numbers:
    """Of an op, in the order of the columns."""
    cost = ops.cost_of(op)
    assert cost is not None
    kind = ops.kind(op)
    outputs = [t for t in op.outputs if t.device != "cpu"]
    whole = _whole(op, outputs)
    by_row = (kind is Kind.SOFTMAX) or "layer_norm" in op.base or "rms_norm" in op.base
    again = 0
    if kind is Kind.NORM and not by_row:  # the formula has counted every pass
        data = 2 if "backward" in op.base else 1
        again = max(cost.read_bytes - sum(map(stored, op.inputs)), 0)
        again = min(again, sum(map(stored, op.inputs[:data])))
    elif by_row:
        first = sum(map(stored, op.inputs[: 2 if "backward" in op.base else 1]))
        again = first if "backward" not in op.base or kind is Kind.SOFTMAX else first // 2
    counted = again if kind is Kind.NORM and (not by_row or "backward" in op.base) else 0
    numbers = (
        *(cost.read_bytes - counted, cost.written_bytes, again, _accesses(op, whole), cost.flops),
        *(_width(op, whole, kind), _lists(op), _twisted(op, outputs), by_row),
        *(DTYPE_BYTES[whole.dtype], _added(op), _blocks(op, whole, again, by_row)),
        *(_footprint(op, cost), whole.channels_last, _sort(kind), "backward" in op.base),
        *(_path(op, kind, outputs), _rows(op, whole, kind), _serial(op), ops.kernels(op)),
    )
    return tuple(map(float, numbers))


def over(whole: TensorSpec, written: int, width: int) -> Numbers:
    """A pass over a tensor, as a convolution's bias is added (in place) or summed."""
    read = stored(whole)
    numbers = {
        **{"read": read, "written": written, "elements": whole.numel, "flops": whole.numel},
        **{"width": width, "tensors": 1, "item": item_bytes(whole), "footprint": read},
        **{"last": whole.channels_last, "sort": SORTS.index(Kind.ELEMENTWISE), "kernels": 1},
    }
    return tuple(float(numbers.get(name, 0)) for name in STREAM)


def _sort(kind: Kind | None) -> int:
    return SORTS.index(kind) if kind in SORTS else SORTS.index(Kind.ELEMENTWISE)


def _whole(op: Op, outputs: list[TensorSpec]) -> TensorSpec:
    """The tensor whose elements are handled: of a lookup or a fill, what comes out."""
    tensors = [t for t in op.inputs if t.device != "cpu"] + outputs
    if outputs and (ops.kind(op) is Kind.FILL or (_looks_up(op) and not _adds_up(op))):
        tensors = outputs
    return max(tensors, key=lambda t: t.numel, default=TensorSpec((), "float32"))


def _looks_up(op: Op) -> bool:
    return ops.kind(op) in (Kind.EMBEDDING, Kind.INDEXING)


def _adds_up(op: Op) -> bool:
    """Whether several elements may go to one place."""
    return _looks_up(op) and any(name in op.base for name in _PLACES)


def _added(op: Op) -> int:
    """How many elements are added into places, one atomic operation each."""
    if ops.kind(op) is Kind.RESAMPLING and "backward" in op.base:
        near = next((n for name, n in _NEIGHBOURS.items() if name in op.base), 0)
        return near * op.inputs[0].numel
    if not any(name in op.base for name in _ATOMIC):
        return 0
    place = op.outputs[0].shape if op.outputs else ()
    return max((t.numel for t in op.inputs if t.shape != place and "int" not in t.dtype), default=0)


def _blocks(op: Op, whole: TensorSpec, again: int, by_row: bool) -> int:
    """How many blocks share the work where each takes a whole channel, as batch norm does; 0: any.

    Where channels are the fastest dimension, all blocks share every channel. Group norm has a
    block for each group of each image.
    """
    if by_row or not again or len(whole.shape) < 2 or whole.channels_last:
        return 0
    if "group_norm" in op.base:
        return whole.shape[0] * max(integer(op, "group", 1), 1)
    return whole.shape[1]


def _footprint(op: Op, cost: Cost) -> int:
    """Bytes of the tensors that are touched: what is updated in place is there once."""
    in_place = op.base.endswith("_") and op.inputs[:1] == op.outputs[:1]
    return cost.bytes - (stored(op.outputs[0]) if in_place else 0)


def _accesses(op: Op, whole: TensorSpec) -> int:
    """Elements to handle: a pooling window's as often as windows have them."""
    sides = integers(op, "kernel_size")
    if ops.kind(op) is not Kind.POOLING or not sides:
        return whole.numel
    spatial = 3 if "3d" in op.base else 2
    window = math.prod(sides) if len(sides) > 1 else sides[0] ** spatial
    pooled = op.inputs[0] if "backward" in op.base else op.outputs[0]
    return max(whole.numel, pooled.numel * window)


def _lists(op: Op) -> int:
    """How many tensors a fused op on lists works on; 1 for others."""
    lists = "_foreach" in op.base or "_fused_" in op.base or "_amp_foreach" in op.base
    return max(len(op.outputs), 1) if lists else 1


def _width(op: Op, whole: TensorSpec, kind: Kind | None) -> float:
    """How many elements are reduced to one, where that is what the op does."""
    if kind is Kind.REDUCTION or kind is Kind.LOSS:
        out = max((t.numel for t in op.outputs), default=1)
        return whole.numel / max(out, 1)
    if kind is Kind.NORM and whole.shape:
        named = integers(op, "normalized_shape")
        channels = whole.shape[1] if len(whole.shape) > 1 else 1
        return math.prod(named) if named else whole.numel / max(channels, 1)
    return whole.shape[-1] if whole.shape else 1


def _twisted(op: Op, outputs: list[TensorSpec]) -> int:
    """Bytes of inputs that are stored in another order than the output: access in strides."""
    if not outputs or not outputs[0].numel:
        return 0
    order = _fastest(outputs[0])
    others = (t for t in op.inputs if t.shape == outputs[0].shape and t.device != "cpu")
    return sum(t.nbytes for t in others if _fastest(t) != order)


def _fastest(t: TensorSpec) -> int:
    """The dimension whose neighbours are neighbours in memory."""
    real = [i for i, n in enumerate(t.shape) if n > 1]
    if not real:
        return -1
    if t.strides is None:
        return real[-1]
    stored_dims = [i for i in real if t.strides[i]]
    return min(stored_dims, key=lambda i: t.strides[i]) if stored_dims else real[-1]  # type: ignore[index]


def _path(op: Op, kind: Kind | None, outputs: list[TensorSpec]) -> float:
    """How operands are reached; only elementwise ops and copies differ in it."""
    if kind not in (Kind.ELEMENTWISE, Kind.COPY) or not outputs:
        return VECTORS
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
    """Of the dimensions that have more than one element."""
    strides = t.strides
    if strides is None:
        strides = tuple(math.prod(t.shape[i + 1 :]) for i in range(len(t.shape)))
    return tuple(stride for stride, n in zip(strides, t.shape, strict=True) if n > 1)


def _rows(op: Op, whole: TensorSpec, kind: Kind | None) -> float:
    """Rows that take a block each, in as many kernels as go row by row."""
    if kind is not Kind.NORM or not ("layer_norm" in op.base or "rms_norm" in op.base):
        return 0
    return whole.numel / max(_width(op, whole, kind), 1) * (2 if "backward" in op.base else 1)


def _serial(op: Op) -> int:
    """Elements that a thread makes one after the other: interpolation has a thread for each place
    of an image, whatever the images and channels are (UpSampleBilinear2d.cu)."""
    smooth = "linear" in op.base or "bicubic" in op.base
    if ops.kind(op) is not Kind.RESAMPLING or not smooth or "backward" in op.base:
        return 0
    image = op.inputs[0]
    return 0 if image.channels_last or len(image.shape) < 3 else math.prod(image.shape[:2])
