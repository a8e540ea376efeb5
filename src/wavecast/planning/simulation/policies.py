"""The policies that a simulation can follow, by name."""

from __future__ import annotations

from collections.abc import Callable

from wavecast.errors import UnknownName
from wavecast.planning.schedule.jobs import Aims, Fleet
from wavecast.planning.simulation import queues
from wavecast.planning.simulation.allocations import AllocationPolicy
from wavecast.planning.simulation.replanning import ReplanningPolicy
from wavecast.planning.simulation.simulator import SchedulingPolicy

_QUEUES: dict[str, Callable[[Fleet, float | None], queues.QueuePolicy]] = {
    "fifo": queues.fifo,
    "fifo-fastest": queues.fifo_aware,
    "gavel-fifo": queues.gavel_fifo,
    "shortest": queues.shortest_first,
    "smallest": queues.smallest_first,
    "deadline": queues.earliest_deadline,
    "in-time": queues.in_time,
    "cheapest": queues.least_cost,
}
NAMES = (*_QUEUES, "max-min", "makespan", "ours")
"""The names of all policies."""


def policy_of(
    name: str, fleet: Fleet, aims: Aims, *, stops: bool = False, round_s: float = queues.ROUND_S
) -> SchedulingPolicy:
    """A policy.

    Args:
        name: one of `NAMES`.
        fleet: the GPUs.
        aims: what our own policy minimises.
        stops: whether running jobs may be stopped for others. Gavel's policies always do.
        round_s: the time between decisions that may stop jobs.

    Raises:
        UnknownName: there is no such policy.
    """
    if name in _QUEUES:
        in_rounds = stops or name == "gavel-fifo"
        return _QUEUES[name](fleet, round_s if in_rounds else None)
    if name in ("max-min", "makespan"):
        return AllocationPolicy(fleet, for_makespan=name == "makespan", round_s=round_s)
    if name == "ours":
        return ReplanningPolicy(fleet, aims, round_s=round_s if stops else None)
    raise UnknownName(f"there is no policy {name!r}; known: {', '.join(NAMES)}")
