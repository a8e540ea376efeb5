"""Norms as Triton kernels in autograd functions, which the host takes longer to issue."""

from __future__ import annotations

from dataclasses import replace

from wavecast import ops
from wavecast.errors import InvalidInput
from wavecast.hardware.hosts import FUNCTION
from wavecast.traces.editing import Edit
from wavecast.traces.step import Trace


def with_norms_in_functions(trace: Trace) -> Trace:
    """A rank's step whose norms are issued by autograd functions in Python, in both passes.

    The kernels themselves are taken to be as fast as PyTorch's own.

    Raises:
        InvalidInput: the step has no norms.
    """
    norms = [
        position
        for position, call in enumerate(trace)
        if ops.kind(call.op) is ops.Kind.NORM and ops.launches(call.op)
    ]
    if not norms:
        raise InvalidInput(
            "triton_functions says how norms are issued, and the step has none; leave it out"
        )
    edit = Edit(trace)
    for position in norms:
        call = trace.calls[position]
        op = replace(call.op, attrs=(*call.op.attrs, (FUNCTION, True)))
        edit.replace(position, replace(call, op=op))
    return edit.trace()
