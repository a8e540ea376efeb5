"""What one step of a script has, in a few words: micro-batches, samples, precision, compiled."""

from __future__ import annotations

from collections import Counter

from wavecast.ops.costs import cost_of, kind
from wavecast.ops.registry import Kind
from wavecast.traces.step import Trace


def contents(trace: Trace, passes: int) -> str:
    """What a step has, in words: "4 micro-batches, 64 samples, bfloat16 matmuls, compiled".

    Args:
        trace: the step.
        passes: how many backward passes it has.
    """
    parts = [
        f"{passes} backward passes" if passes != 1 else "1 backward pass",
        "" if trace.samples is None else f"{trace.samples} {trace.unit}",
        _precision(trace),
        "compiled" if any(kind(op) is Kind.FUSED for op in trace.counts) else "not compiled",
    ]
    return ", ".join(filter(None, parts))


def _precision(trace: Trace) -> str:
    """The data type in which most FLOPs are computed."""
    flops: Counter[str] = Counter()
    for op, times in trace.counts.items():
        cost = cost_of(op)
        if cost is not None and op.inputs:
            flops[op.inputs[0].dtype] += int(cost.flops) * times
    [(dtype, most), *_] = flops.most_common(1) or [("", 0)]
    return f"mostly {dtype}" if most else ""
