"""What exchanging data between GPUs costs this GPU: its own memory."""

from __future__ import annotations

from wavecast.ops.registry import Cost, Kind, cost, read, written
from wavecast.traces.step import Op


@cost("nccl.*", kind=Kind.COLLECTIVE)
def _exchange(op: Op) -> Cost:
    """What travels between GPUs depends on how many there are, and is not counted."""
    return Cost(0, read(op.inputs), written(op.outputs))
