"""What the recording of a measured step lacks, so that its memory is a lower bound.

Early recordings have no tensors that were made before the step, which are weights and
the state of the optimizer. A step that was traced without a GPU always has them.
"""

from __future__ import annotations

from itertools import accumulate

from wavecast import ops
from wavecast.ops import Kind
from wavecast.traces.step import Phase, Role, Trace

_STATEFUL = ("addcdiv", "lerp", "fused_adam")
"""Parts of the names of ops that only an optimizer with a state runs."""
_AS_LARGE = 0.5
"""The least share of its gradients' bytes that the weights of a step have. Gradients of the last
and the next step may live at the same time."""


def unrecorded(trace: Trace) -> tuple[str, ...]:
    """What was not recorded: "weights", "optimizer state", both or nothing."""
    if trace.measurement is None or any(ops.kind(call.op) is Kind.COLLECTIVE for call in trace):
        return ()  # a sharded rank has few weights and large gradients
    held = dict.fromkeys(Role, 0)
    for allocation in trace.allocations:
        held[allocation.role] += allocation.nbytes
    missing = []
    if held[Role.PARAMETER] < _AS_LARGE * _largest_gradients(trace):
        missing.append("weights")
    stateful = any(
        part in call.op.base
        for call in trace
        if call.phase is Phase.OPTIMIZER
        for part in _STATEFUL
    )
    if not held[Role.OPTIMIZER_STATE] and (stateful or missing):
        missing.append("optimizer state")
    return tuple(missing)


def note_of(missing: tuple[str, ...]) -> str:
    """A sentence about what was not recorded."""
    return (
        f"this measurement did not record the {' and the '.join(missing)}, so its memory is a "
        "lower bound and nothing is said about whether it fits; measure the step again"
    )


def _largest_gradients(trace: Trace) -> int:
    """The most bytes of gradients that live at a time."""
    changes = [0] * (len(trace) + 1)
    for allocation in trace.allocations:
        if allocation.role is Role.GRADIENT:
            changes[allocation.born or 0] += allocation.nbytes
            if allocation.freed is not None:
                changes[min(allocation.freed, len(trace))] -= allocation.nbytes
    return max(accumulate(changes))
