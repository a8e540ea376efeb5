"""Kernels on lists of tensors that a framework calls itself, as Apex does."""

from __future__ import annotations

from dataclasses import replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.hosts import DIRECT
from wavecast.traces.editing import Edit
from wavecast.traces.step import Phase, Trace


def with_direct_lists(trace: Trace) -> Trace:
    """A rank's step whose optimizer works on lists that the framework keeps.

    The kernels themselves are taken to be those of torch.

    Raises:
        InvalidInput: the optimizer works on no lists.
    """
    lists = [
        position
        for position, call in enumerate(trace)
        if call.phase is Phase.OPTIMIZER and ops.kind(call.op) is ops.Kind.OPTIMIZER
    ]
    if not lists:
        raise InvalidInput(
            "direct_lists is for optimizers that work on lists of tensors, and that of this step "
            "works on none; leave it out"
        )
    edit = Edit(trace)
    for position in lists:
        call = trace.calls[position]
        op = replace(call.op, attrs=(*call.op.attrs, (DIRECT, True)))
        edit.replace(position, replace(call, op=op))
    return edit.trace()
