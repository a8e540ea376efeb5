"""Gradients that matmuls add to those in float32 themselves, as Megatron's fused kernel does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.parallel.gradients import widened
from wavecast.parallel.habits.flow import Flow
from wavecast.traces.blocks import block_finder
from wavecast.traces.editing import Edit
from wavecast.traces.step import Call, Phase, Role, TensorSpec, Trace


def with_fused_accumulation(trace: Trace) -> Trace:
    """A rank's step without the passes that add gradients of matmuls to their float32 sums.

    The matmul reads and writes the sum in place of a gradient in 16 bits. Layers outside of the
    repeated blocks are Megatron's own: they make an empty gradient each time, for autograd. Those
    of Transformer Engine keep one of each shape (`empty_gradients`). Gradients of other layers are
    added as before.

    Raises:
        InvalidInput: the step adds no gradient to a sum in float32.
    """
    flow = Flow(trace, "fused_accumulation")
    sums = {p: w for p, call in enumerate(trace) if (w := _matmul(flow, p, call)) is not None}
    if not sums:
        raise InvalidInput(
            "fused_accumulation lets matmuls add gradients to sums in float32, and the step has "
            "no such sums (it needs weights in bf16 whose optimizer has float32 copies, as "
            "`--weights bf16` gives); leave it out"
        )
    edit, block_of = Edit(trace), block_finder(trace)
    gone = set()
    for position, writer in sums.items():
        matmul, added = trace.calls[writer], trace.calls[position]
        if block_of(matmul.module):
            gone.add(trace.values[matmul.writes[0]].allocation)
        edit.replace(writer, _adding(matmul, added))
    edit.remove(sums)
    edit.keep_memory(n for n in range(len(trace.allocations)) if n not in gone)
    return edit.trace()


def empty_gradients(traces: Iterable[Trace]) -> int:
    """The bytes of the empty gradients that a rank keeps for layers which add up their own.

    Transformer Engine has one of each shape of a weight (`get_dummy_wgrad`).

    Args:
        traces: the parts of the model that the rank has.
    """
    shapes = set()
    for trace in traces:
        block_of = block_finder(trace)
        for call in trace:
            if call.phase is not Phase.BACKWARD or ops.kind(call.op) is not ops.Kind.MATMUL:
                continue
            if any(trace.values[v].gradient_of for v in call.writes) and block_of(call.module):
                shapes.add(call.op.outputs[0].shape[-2:])  # of one expert
    return sum(TensorSpec(shape, "bfloat16").nbytes for shape in shapes)


def with_narrow_sums(trace: Trace) -> Trace:
    """A rank's step whose sums of gradients that are kept in float32 have the type of weights."""
    wide, edit = widened(trace), Edit(trace)
    for number, value in enumerate(trace.values):
        memory = None if value.allocation is None else trace.allocations[value.allocation]
        if memory is None or memory.role is not Role.GRADIENT or memory.born is not None:
            continue
        if value.gradient_of in wide and value.spec.dtype == "float32":
            edit.reshape(number, replace(value.spec, dtype=wide[value.gradient_of].dtype))
    return edit.trace()


def _matmul(flow: Flow, position: int, call: Call) -> int | None:
    """The matmul whose result a call adds to a sum in float32; None if it does not do that."""
    if call.op.base != "aten.add_" or call.phase is not Phase.BACKWARD or len(call.reads) != 2:
        return None
    total, gradient = call.op.inputs[:2]
    if total.dtype != "float32" or gradient.dtype not in ("bfloat16", "float16"):
        return None
    writer = flow.writer(call.reads[1], position)
    if writer is None or ops.kind(flow.trace.calls[writer].op) is not ops.Kind.MATMUL:
        return None
    alone = flow.readers(call.reads[1]) == [position]
    return writer if alone and len(flow.trace.calls[writer].writes) == 1 else None


def _adding(matmul: Call, added: Call) -> Call:
    """The matmul, which writes the sum. It computes in the type of its operands as before."""
    op = replace(matmul.op, outputs=added.op.outputs)
    return replace(matmul, op=op, writes=added.writes)
