"""Activations that are gathered again in the backward pass, as Megatron does it.

With sequence parallelism a matmul reads a gathered tensor, of which each rank has a share. Megatron
keeps the share only, and gathers the tensor again beside another matmul, for the gradient of the
weight (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.parallel.exchanges import COMPUTE, TRANSFERS, wait
from wavecast.traces.editing import Edit
from wavecast.traces.step import Call, Phase, Role, Trace


def with_gathers_again(trace: Trace) -> Trace:
    """A rank's step that keeps no gathered activation from the forward to the backward pass.

    Raises:
        InvalidInput: the backward pass reads no activation that the forward pass has gathered.
    """
    beside = [
        position
        for position, call in enumerate(trace)
        if call.phase is Phase.BACKWARD
        and ops.kind(call.op) in (ops.Kind.MATMUL, ops.Kind.ATTENTION)
    ]
    edit, changed = Edit(trace), False
    for memory, (gather, earlier, later) in _gathered(trace).items():
        if later:
            index = bisect_left(beside, later[0])
            place = beside[index - 1] if index else later[0]
            _gather_again(edit, memory, gather, later, place)
            edit.set_lifetime(memory, trace.allocations[memory].born, earlier[-1] + 1)
            changed = True
    if not changed:
        raise InvalidInput(
            "gathers_again gathers activations again in the backward pass, and that of this step "
            "reads none that the forward pass has gathered; leave it out"
        )
    return edit.trace()


def _gathered(trace: Trace) -> dict[int, tuple[Call, list[int], list[int]]]:
    """The memory that the forward pass gathers: by what, and its users of either pass."""
    gathered: dict[int, tuple[Call, list[int], list[int]]] = {}
    for position, call in enumerate(trace):
        places = {trace.values[value].allocation for value in (*call.reads, *call.writes)}
        for memory in places & gathered.keys():
            assert memory is not None
            _, earlier, later = gathered[memory]
            (earlier if call.phase is Phase.FORWARD else later).append(position)
        gathers = call.op.name == "nccl.all_gather" and call.stream == TRANSFERS
        if gathers and call.phase is Phase.FORWARD and call.writes:
            place = trace.values[call.writes[0]].allocation
            if place is not None:
                gathered[place] = call, [position], []
    return gathered


def _gather_again(edit: Edit, memory: int, gather: Call, later: Sequence[int], beside: int) -> None:
    """Gather memory again beside a kernel, for its users in the backward pass."""
    trace = edit.before
    module = trace.calls[later[0]].module
    again = edit.allocate(
        trace.allocations[memory].nbytes, Role.INTERMEDIATE, beside, later[-1] + 1
    )
    renamed: dict[int, int] = {}

    def moved(value: int) -> int:
        known = trace.values[value]
        if known.allocation != memory:
            return value
        if value not in renamed:
            base = None if known.view_of is None else moved(known.view_of)
            renamed[value] = edit.add_value(replace(known, allocation=again, view_of=base))
        return renamed[value]

    whole = tuple(map(moved, gather.writes))
    issued = replace(gather, phase=Phase.BACKWARD, module=module, writes=whole)
    edit.insert(beside, [wait(TRANSFERS, COMPUTE, Phase.BACKWARD, module), issued])
    edit.insert(later[0], [wait(COMPUTE, TRANSFERS, Phase.BACKWARD, module)])
    for position in later:
        call = trace.calls[position]
        reads, writes = (tuple(map(moved, values)) for values in (call.reads, call.writes))
        edit.replace_op(position, call.op, reads, writes)
