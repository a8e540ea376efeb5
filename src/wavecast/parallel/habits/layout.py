"""Megatron's layout, position first, in which attention that is not fused reads views."""

from __future__ import annotations

from wavecast.errors import InvalidInput
from wavecast.parallel.habits.flow import Flow
from wavecast.traces.editing import Edit
from wavecast.traces.recomputed import recomputed
from wavecast.traces.step import Op, Phase, Trace


def with_sequence_first(trace: Trace) -> Trace:
    """A rank's step without the copies of queries, keys and values that only matmuls read.

    With the batch first, batched matmuls need these copies. The copy that joins the heads is needed
    in both layouts, and stays.

    Raises:
        InvalidInput: the step has no batched matmul.
    """
    flow = Flow(trace, "sequence_first")
    again = recomputed(trace.calls)
    copies = [
        position
        for position, call in enumerate(trace)
        if call.op.base == "aten.clone"
        and (call.phase is Phase.FORWARD or position in again)
        and _is_for_matmuls(flow, position)
    ]
    if not any(op.base == "aten.bmm" for op in trace.counts):
        raise InvalidInput(
            "sequence_first leaves out the copies of attention that is not fused, and the step has "
            "no such attention (no batched matmul); leave it out"
        )
    edit = Edit(trace)
    for position in copies:
        call = trace.calls[position]
        (copy,), source = call.writes, call.reads[0]
        edit.replace_op(position, Op("aten.view", call.op.inputs, call.op.outputs))
        _keep_until_read(
            edit, trace, trace.values[source].allocation, trace.values[copy].allocation
        )
    gone = {trace.values[trace.calls[p].writes[0]].allocation for p in copies}
    edit.keep_memory(n for n in range(len(trace.allocations)) if n not in gone)
    return edit.trace()


def _is_for_matmuls(flow: Flow, position: int) -> bool:
    """Whether only batched matmuls read the result of a copy."""
    readers = [r for value in flow.trace.calls[position].writes for r in flow.readers(value)]
    return bool(readers) and all(flow.trace.calls[r].op.base == "aten.bmm" for r in readers)


def _keep_until_read(edit: Edit, trace: Trace, source: int | None, copy: int | None) -> None:
    """Let the source of a copy live as long as the copy did."""
    if source is None or copy is None:
        return
    kept, read = trace.allocations[source], trace.allocations[copy]
    if kept.freed is not None:
        until = None if read.freed is None else max(kept.freed, read.freed)
        edit.set_lifetime(source, kept.born, until)
