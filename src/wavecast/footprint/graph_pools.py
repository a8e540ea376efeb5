"""The memory of CUDA graphs, which torch keeps apart from all other memory.

What is allocated while a graph is recorded comes from a pool of its own. Graphs that run one after
the other share the pool. A replayed graph allocates nothing, so torch does not count the pool as
allocated; but it stays reserved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from wavecast.footprint.workspaces.libraries import first_uses
from wavecast.traces.graphs import compiled_gpu, graphs_of
from wavecast.traces.step import Allocation, Role, Trace


@dataclass(frozen=True)
class Pools:
    """The allocations of a step, by torch's memory pool."""

    ordinary: tuple[Allocation, ...]
    first_uses: tuple[int, ...]
    """The position of the call that first needs each ordinary buffer of a library."""
    in_graphs: tuple[Allocation, ...] = ()


def pools(trace: Trace) -> Pools:
    """The allocations of a step, each in the pool from which torch takes it.

    A library's buffer that a graph needs is allocated for this graph, and lives as long as it.
    """
    ends = _ends(trace)
    if not ends:
        return Pools(trace.allocations, first_uses(trace))
    uses = iter(first_uses(trace))
    ordinary: list[Allocation] = []
    in_graphs: list[Allocation] = []
    times: list[int] = []
    for allocation in trace.allocations:
        born = allocation.born
        if allocation.role is Role.WORKSPACE and born is None:
            first = next(uses, 0)
            if first in ends:
                in_graphs.append(replace(allocation, born=first, freed=ends[first]))
                continue
            times.append(first)
        (in_graphs if born in ends else ordinary).append(allocation)
    return Pools(tuple(ordinary), tuple(times), tuple(in_graphs))


def _ends(trace: Trace) -> dict[int | None, int]:
    """For each call that a CUDA graph replays, the position after the graph's last call.

    None where XLA compiled the step: its graphs use memory that XLA allocated before.
    """
    if compiled_gpu(trace) is not None:
        return {}
    replayed = (graph for graph in graphs_of(trace) if graph.is_replayed)
    return {position: graph.end for graph in replayed for position in graph.members}
