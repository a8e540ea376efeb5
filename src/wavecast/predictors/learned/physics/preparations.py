"""What torch runs around the kernel of an op: copies to the layout it knows, and further ops."""

from __future__ import annotations

from collections.abc import Iterator

from wavecast import ops
from wavecast.ops.registry import Cost
from wavecast.traces.step import Op, TensorSpec


def copies_first(op: Op) -> bool:
    """Whether torch makes the first input contiguous, because the kernel knows no other layout.

    It does so for softmax, and for the gradient of resized images unless both are in channels-last,
    which bicubic ones never support (SoftMax.cu, UpSampleBilinear2d.cu).
    """
    if not op.inputs or not op.outputs or op.inputs[0].strides is None:
        return False
    if op.base in ("aten._softmax", "aten._log_softmax"):
        return True
    if not (op.base.startswith("aten.upsample") and "backward" in op.base):
        return False
    return "bicubic" in op.base or not op.outputs[0].channels_last


def safe_softmax(op: Op) -> Iterator[tuple[Op, Cost]]:
    """The ops that torch runs for a softmax whose rows may be hidden as a whole (SoftMax.cpp)."""
    scores, out = op.inputs[0], op.outputs[0]
    hidden = TensorSpec(scores.shape, "bool")
    rows = TensorSpec((*scores.shape[:-1], 1), "bool")
    for name, read, written in (
        ("aten._softmax", (scores,), out),
        ("aten.eq.Tensor", (scores,), hidden),
        ("aten.all.dim", (hidden,), rows),
        ("aten.where.self", (rows, out), out),
    ):
        part = Op(name, read, (written,))
        cost = ops.cost_of(part)
        assert cost is not None
        yield part, cost
