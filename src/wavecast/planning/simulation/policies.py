"""The policies that a simulation can follow, by name."""

from __future__ import annotations

from collections.abc import Callable

from wavecast.errors import UnknownName
from wavecast.planning.schedule.jobs import Aims, Fleet
from wavecast.planning.simulation import queues
from wavecast.planning.simulation.allocations import ROUND_S, AllocationPolicy
from wavecast.planning.simulation.replanning import ReplanningPolicy
from wavecast.planning.simulation.simulator import SchedulingPolicy

_QUEUES: dict[str, Callable[[Fleet, float | None], queues.QueuePolicy]] = {
    "fifo": queues.fifo,
    "fifo-fastest": queues.fifo_aware,
    "shortest": queues.shortest_first,
    "smallest": queues.smallest_first,
    "deadline": queues.earliest_deadline,
    "cheapest": queues.least_cost,
}
NAMES = (*_QUEUES, "max-min", "makespan", "ours")
"""The names of all policies."""


def policy_of(
    name: str, fleet: Fleet, aims: Aims, *, stops: bool = False, round_s: float = ROUND_S
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
        return _QUEUES[name](fleet, round_s if stops else None)
    if name in ("max-min", "makespan"):
        return AllocationPolicy(fleet, for_makespan=name == "makespan", round_s=round_s)
    if name == "ours":
        return ReplanningPolicy(fleet, aims)
    raise UnknownName(f"there is no policy {name!r}; known: {', '.join(NAMES)}")
