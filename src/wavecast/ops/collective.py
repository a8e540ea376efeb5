"""The cost of collectives for one GPU: the traffic of its memory."""

from __future__ import annotations

from wavecast.ops.registry import Cost, Kind, cost, read, written
from wavecast.traces.step import Op


@cost("nccl.*", "c10d.*", "_c10d_functional.*", "c10d_functional.*", kind=Kind.COLLECTIVE)
def _collective(op: Op) -> Cost:
    """The traffic between GPUs depends on their number and is not counted here."""
    return Cost(0, read(op.inputs), written(op.outputs))
