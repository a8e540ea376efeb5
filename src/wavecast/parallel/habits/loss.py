"""Cross entropy whose gradient takes the place of the softmax, as in Megatron's fused kernel."""

from __future__ import annotations

from dataclasses import replace

from wavecast.errors import InvalidInput
from wavecast.parallel.habits.flow import Flow
from wavecast.traces.editing import Edit
from wavecast.traces.step import Op, Trace


def with_fused_loss(trace: Trace) -> Trace:
    """A rank's step in which one kernel writes the gradient of each loss over its softmax.

    Raises:
        InvalidInput: the step has no cross entropy.
    """
    flow, edit = Flow(trace, "fused_loss"), Edit(trace)
    gone: set[int | None] = set()
    for position, call in enumerate(trace):
        if call.op.base != "aten._log_softmax_backward_data" or len(call.reads) != 2:
            continue
        gradient, softmax = call.reads
        writer = flow.writer(gradient, position)
        place, [result] = trace.values[softmax].allocation, call.writes
        if writer is None or trace.calls[writer].op.base != "aten.nll_loss_backward":
            continue
        if place is None or flow.readers(gradient) != [position]:
            continue
        edit.remove([writer])
        op = Op("aten.mul_.Tensor", call.op.inputs[1:], call.op.inputs[1:])
        edit.replace(position, replace(call, op=op, reads=(softmax,), writes=(softmax,)))
        readers = flow.readers(result)
        for reader in readers:
            reads = (softmax if value == result else value for value in trace.calls[reader].reads)
            edit.replace_op(reader, trace.calls[reader].op, tuple(reads))
        edit.set_lifetime(place, trace.allocations[place].born, max(readers, default=position) + 1)
        gone |= {trace.values[gradient].allocation, trace.values[result].allocation}
    if not gone:
        raise InvalidInput(
            "fused_loss is for cross entropy (log_softmax and nll_loss), and the step has none "
            "that it recognises; leave it out"
        )
    edit.free(number for number in gone if number is not None)
    return edit.trace()
