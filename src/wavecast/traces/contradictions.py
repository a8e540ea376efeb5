"""Calls that contradict themselves, such as a view of six elements as eight.

A trace file may say anything, and the rules of ops trust what a call says of its tensors. Where a
rule is applied to a call, what goes wrong is told as an InvalidInput that names the call.
"""

from __future__ import annotations

from wavecast.errors import InvalidInput
from wavecast.traces.step import Call

CONTRADICTIONS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What Python raises where a rule does not fit the tensors or attributes of a call."""


def contradiction(doing: str, call: Call, error: Exception) -> InvalidInput:
    """The error to raise for a call whose tensors and attributes do not fit its op.

    Args:
        doing: what was tried: "sharding".
        call: the call.
        error: what a rule raised.
    """
    shapes = " and ".join(str(tensor.shape) for tensor in call.op.inputs[:3]) or "no tensors"
    made = " and ".join(str(tensor.shape) for tensor in call.op.outputs[:2]) or "nothing"
    return InvalidInput(
        f"{doing} fails at {call.op.base} in {call.module or 'the step'} ({call.phase.value}): it "
        f"makes {made} of {shapes}, which does not fit the op ({type(error).__name__}: {error}); "
        "trace the step again"
    )
