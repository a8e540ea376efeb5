"""FP8: the matmuls of the blocks in 8 bits, as Transformer Engine runs them.

A norm or an activation writes its result in 8 bits for the matmul that reads it. Other operands are
cast once, together with a transposed copy, because matmuls in 8 bits read rows only. Weights are
cast once for all micro-batches of a step; that is not counted. The output layer, the embedding and
attention stay in 16 bits.
"""

from __future__ import annotations

from dataclasses import replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.parallel.habits.flow import ACTIVATIONS, Flow
from wavecast.traces.blocks import block_finder
from wavecast.traces.editing import Edit
from wavecast.traces.step import Call, Op, Phase, Role, TensorSpec, Trace, Value

GROUPED = "aten._grouped_mm"
_SCALED = {
    "aten.mm": "aten._scaled_mm",
    "aten.addmm": "aten._scaled_mm",
    GROUPED: "aten._scaled_grouped_mm",
}
"""Matmuls, and what they are in 8 bits."""
_SCALE = TensorSpec((), "float32")
_FORWARD, _GRADIENT = "float8_e4m3fn", "float8_e5m2"


def with_fp8(trace: Trace) -> Trace:
    """A rank's step whose blocks compute their matmuls in 8 bits.

    Raises:
        InvalidInput: no repeated block has a matmul in 16 bits.
    """
    flow = Flow(trace, "fp8")
    block_of = block_finder(trace)
    edit = Edit(trace)
    scale = edit.add_value(Value(_SCALE))
    narrow: set[int] = set()
    found = False
    for position, call in enumerate(trace):
        if call.op.base not in _SCALED or not call.reads or not block_of(call.module):
            continue
        found = True
        first = 0 if call.op.base == GROUPED else len(call.reads) - 2
        for factor in (first, first + 1):
            source, writer = flow.source(call.reads[factor], position)
            if source in narrow or _is_weight(flow, source, writer):
                continue
            narrow.add(source)
            if not _writes_8_bits(flow, writer):
                _cast(edit, position, call, factor)
        edit.replace(position, _scaled(call, first, scale))
    if not found:
        raise InvalidInput(
            "fp8 runs the matmuls of repeated blocks in 8 bits, and the step has none in a block "
            "(a numbered module, as in a ModuleList)"
        )
    return edit.trace()


def _is_weight(flow: Flow, value: int, writer: int | None) -> bool:
    """Whether a value is a parameter, or its copy in fewer bits."""
    values = flow.trace.values
    if writer is None:
        return bool(values[value].parameter)
    call = flow.trace.calls[writer]
    return call.op.base == "aten._to_copy" and any(
        values[flow.base(read)].parameter for read in call.reads
    )


def _writes_8_bits(flow: Flow, writer: int | None) -> bool:
    """Whether a kernel writes its result in 8 bits: a norm, an activation, or a gate's product."""
    if writer is None:
        return False
    call = flow.trace.calls[writer]
    if ops.kind(call.op) is ops.Kind.NORM:
        return not call.op.base.endswith("_backward")
    return _is_activation(flow, writer)


def _is_activation(flow: Flow, position: int) -> bool:
    """Whether a kernel is an activation or its gradient, or multiplies or joins such results."""
    call = flow.trace.calls[position]
    if call.op.base in ACTIVATIONS:
        return True
    if call.op.base not in ("aten.mul", "aten.cat"):
        return False
    writers = (flow.writer(read, position) for read in call.reads)
    return any(w is not None and flow.trace.calls[w].op.base in ACTIVATIONS for w in writers)


def _cast(edit: Edit, position: int, call: Call, factor: int) -> None:
    """Write an operand in 8 bits, and transposed, before the matmul that reads it first."""
    operand = call.op.inputs[factor]
    copy = TensorSpec((operand.numel,), _FORWARD)
    # Two results of the operand's size, so that it is predicted as a pass over memory.
    op = Op("aten._to_copy", (TensorSpec((operand.numel,), operand.dtype),), (copy, copy))
    both = [edit.allocate(copy.nbytes, Role.INTERMEDIATE, position, position + 1) for _ in range(2)]
    writes = tuple(edit.add_value(Value(copy, memory)) for memory in both)
    reads = (call.reads[factor],)
    edit.insert(position, [Call(op, call.phase, call.module, reads=reads, writes=writes)])


def _scaled(call: Call, first: int, scale: int) -> Call:
    """A matmul in 8 bits. The ends of the groups of a grouped one stay as they are."""
    left, right, *ends = call.op.inputs[first:]
    values = call.reads[first:]
    kind = _FORWARD if call.phase is Phase.FORWARD else _GRADIENT
    if call.op.base == GROUPED:
        operands = (TensorSpec(left.shape, kind), TensorSpec(right.shape, _FORWARD, right.strides))
        op = Op(_SCALED[GROUPED], (*operands, *ends), call.op.outputs)
        return replace(call, op=op, reads=values)
    turned = TensorSpec(right.shape, _FORWARD, (1, right.shape[0]))
    operands = (TensorSpec(left.shape, kind), turned)
    op = Op(_SCALED[call.op.base], (*operands, _SCALE, _SCALE), call.op.outputs)
    return replace(call, op=op, reads=(*values, scale, scale))
