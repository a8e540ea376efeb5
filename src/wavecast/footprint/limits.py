"""Whether a step fits under a limit of reserved memory: one rule for all commands.

torch's allocator gives cached memory back when it meets the limit, so a step may fit although it
would reserve more on a larger GPU. Therefore the step is replayed with the limit in force.
"""

from __future__ import annotations

from wavecast.footprint.allocator import AllocatorFull
from wavecast.footprint.replay import Replay, replay
from wavecast.traces.step import Trace

RESERVE = 0.005
"""The share of the limit that is kept free: on an H200 the allocator's fragmentation was
underestimated by this much."""


def usable_bytes(limit_bytes: int) -> int:
    """The most that a step may reserve under a limit and still be said to fit."""
    return int(limit_bytes * (1 - RESERVE))


def replay_within(trace: Trace, limit_bytes: int, *, expandable: bool = False) -> Replay | None:
    """The allocator's peaks under a limit of reserved memory; None if the step does not fit.

    Args:
        trace: one iteration, with its allocations and workspaces.
        limit_bytes: what the allocator could reserve; the `RESERVE` is taken from it.
        expandable: whether segments grow, as with `expandable_segments:True`.
    """
    try:
        return replay(trace, limit_bytes=usable_bytes(limit_bytes), expandable=expandable)
    except AllocatorFull:
        return None
