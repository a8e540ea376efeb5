"""The stacked weights of experts: those that grouped matmuls read."""

from __future__ import annotations

from wavecast.ops.matmul import GROUPED
from wavecast.traces.step import Phase, Trace


def expert_weights(trace: Trace) -> dict[str, int]:
    """The parameters that are stacked weights of experts, with the number of experts."""
    if not any(op.base in GROUPED for op in trace.counts):
        return {}
    found: dict[str, int] = {}
    source: dict[int, int] = {}
    """The value of which another one is a view or a copy."""
    seen: set[int] = set()
    for call in trace:
        if call.phase is not Phase.FORWARD or not call.reads:
            continue
        seen.update(call.reads)
        if call.op.base not in GROUPED:
            if len(call.reads) == 1:
                source.update((v, call.reads[0]) for v in call.writes if v not in seen)
            seen.update(call.writes)
            continue
        for value, tensor in zip(call.reads[:2], call.op.inputs, strict=False):
            shown: int | None = value
            while shown is not None and not trace.values[shown].parameter:
                shown = source.get(shown, trace.values[shown].view_of)
            if shown is not None and len(tensor.shape) == 3:
                found[trace.values[shown].parameter] = tensor.shape[0]
    return found
