"""Steps as if the products of the blocks were in 8 bits, as Transformer Engine has them.

An input that a norm or an activation made, and a gradient that an activation made, is written in 8
bits by that kernel. Others are cast, with a turned copy, since products in 8 bits read rows only.
Weights are cast once for all micro-batches of a step, and that is left out. The output layer, the
embedding and attention stay in 16 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wavecast import ops
from wavecast.parallel.editing import Edit
from wavecast.parallel.ranks import ModelPart, ParallelStep
from wavecast.parallel.spreading import backward_end
from wavecast.traces.blocks import block_finder
from wavecast.traces.step import Call, Op, Phase, TensorSpec, Trace

_PRODUCTS = ("aten.mm", "aten.addmm", "aten._grouped_mm")
_SCALE = TensorSpec((), "float32")
_ACTIVATIONS = ("gelu", "silu", "activation")
_WRITE_NARROW = {Phase.FORWARD: ("norm", *_ACTIVATIONS), Phase.BACKWARD: _ACTIVATIONS}
"""Parts of the names of kernels that write 8 bits for the product that follows, by phase."""


def in_eight_bits(step: ParallelStep) -> ParallelStep:
    """A spread step whose ranks compute the products of their blocks in 8 bits."""
    groups = tuple(replace(group, parts=tuple(map(_part, group.parts))) for group in step.groups)
    return replace(step, groups=groups)


def _part(part: ModelPart) -> ModelPart:
    last = _trace(part.last)
    return ModelPart(_trace(part.plain), last, backward_end(last))


def _trace(trace: Trace) -> Trace:
    block_of = block_finder(trace)
    edit = Edit(replace(trace, allocations=()))
    before: Call | None = None
    for position, call in enumerate(trace):
        if call.op.base in _PRODUCTS and block_of(call.module):
            edit.insert(position, _casts(call, before))
            edit.replace_op(position, _product(call))
        elif call.op.name.startswith("aten.") and ops.launches(call.op):
            before = call
    return edit.made()


def _casts(call: Call, before: Call | None) -> Iterator[Call]:
    """The cast of a layer's input, or of the gradient of its output, with a turned copy."""
    names = f"{before.op.base} {before.module.rpartition('.')[2]}" if before else ""
    if any(name in names for name in _WRITE_NARROW.get(call.phase, ())):
        return
    left = call.op.inputs[0] if call.op.base == "aten._grouped_mm" else call.op.inputs[-2]
    sums_rows = call.phase is Phase.BACKWARD and left.strides is not None
    if call.phase is Phase.FORWARD or sums_rows:
        made = TensorSpec((2 * left.numel,), "float8_e4m3fn")
        source = TensorSpec((left.numel,), left.dtype)
        yield replace(call, op=Op("aten._to_copy", (source,), (made,)))


def _product(call: Call) -> Op:
    if call.op.base == "aten._grouped_mm":
        return _grouped(call)
    left, right = call.op.inputs[-2:]
    kind = "float8_e4m3fn" if call.phase is Phase.FORWARD else "float8_e5m2"
    first = TensorSpec(left.shape, kind)
    second = TensorSpec(right.shape, "float8_e4m3fn", (1, right.shape[0]))
    return Op("aten._scaled_mm", (first, second, _SCALE, _SCALE), call.op.outputs)


def _grouped(call: Call) -> Op:
    """A grouped product of experts in 8 bits. The ends of its groups stay as they are."""
    left, right, *ends = call.op.inputs
    kind = "float8_e4m3fn" if call.phase is Phase.FORWARD else "float8_e5m2"
    first = TensorSpec(left.shape, kind)
    second = TensorSpec(right.shape, "float8_e4m3fn", right.strides)
    return Op("aten._scaled_grouped_mm", (first, second, *ends), call.op.outputs)
