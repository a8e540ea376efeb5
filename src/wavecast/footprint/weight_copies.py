"""The half-precision copies of weights in traces that were recorded before copies had a role."""

from __future__ import annotations

from collections.abc import Iterator

from wavecast.traces.step import Op, Phase, Role, Trace

_HALF = ("float16", "bfloat16")


def weight_copy_calls(trace: Trace) -> frozenset[int]:
    """The positions of the calls that allocate copies of weights; none if the copies have a role.

    The recorder gives copies `Role.WEIGHT_COPY`. In older traces they are found by what autocast
    does: it casts a weight to half precision in the forward pass, and its gradient of the same
    shape back to float32 in the backward pass. A table of embeddings that is also the last layer
    has no such gradient, but the lookup shows its shape. cuDNN's recurrent layers get one flat copy
    that has half of the bytes of their flat weights.
    """
    if trace.values or any(a.role is Role.WEIGHT_COPY for a in trace.allocations):
        return frozenset()
    flat = {a.nbytes for a in trace.allocations if a.role is Role.PARAMETER}
    shapes = set(_gradient_shapes(trace))
    shapes |= {call.op.inputs[0].shape for call in trace if call.op.base == "aten.embedding"}
    return frozenset(
        position
        for position, call in enumerate(trace)
        if call.phase is Phase.FORWARD
        and (
            (_casts(call.op, ("float32",), _HALF) and call.op.inputs[0].shape in shapes)
            or _is_flat_copy(call.op, flat)
        )
    )


def _gradient_shapes(trace: Trace) -> Iterator[tuple[int, ...]]:
    """The shapes of the weights whose gradients are cast from half precision."""
    gradients = {a.born for a in trace.allocations if a.role is Role.GRADIENT}
    for position in gradients - {None}:
        if position is not None and position < len(trace):
            op = trace.calls[position].op
            if _casts(op, _HALF, ("float32",)):
                yield op.outputs[0].shape


def _casts(op: Op, before: tuple[str, ...], after: tuple[str, ...]) -> bool:
    if op.base != "aten._to_copy" or not op.inputs or not op.outputs:
        return False
    return op.inputs[0].dtype in before and op.outputs[0].dtype in after


def _is_flat_copy(op: Op, weights_bytes: set[int]) -> bool:
    if op.base != "aten.zeros" or not op.outputs:
        return False
    made = op.outputs[0]
    return len(made.shape) == 1 and made.dtype in _HALF and 2 * made.nbytes in weights_bytes
