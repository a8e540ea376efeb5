"""The memory of CUDA graphs: reserved, but not counted as allocated."""

from __future__ import annotations

from wavecast.footprint.replay import pools, replay
from wavecast.traces.graphs import CALL, GRAPH_LAUNCH
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace

MIB = 1 << 20
MATRIX = TensorSpec((64, 64), "float32")


def call(name: str, graph: int | None = None) -> Call:
    return Call(Op(name, (MATRIX, MATRIX), (MATRIX,)), Phase.FORWARD, graph=graph)


def graphed(*, launched: bool) -> Trace:
    """Two products and a sum; the products are replayed as a graph, or not."""
    launch = call(GRAPH_LAUNCH if launched else CALL, 0)
    calls = (launch, call("aten.mm", 0), call("aten.mm", 0), call("aten.add"))
    allocations = (
        Allocation(40 * MIB, None, None, Role.PARAMETER),
        Allocation(30 * MIB, 1, 3, Role.INTERMEDIATE),
        Allocation(20 * MIB, 3, None, Role.INTERMEDIATE),
        Allocation(32 * MIB, None, None, Role.WORKSPACE),
    )
    return Trace(calls, allocations)


def test_memory_of_a_graph_is_reserved_but_not_counted_as_allocated() -> None:
    plain, replayed = replay(graphed(launched=False)), replay(graphed(launched=True))
    assert plain.allocated_bytes == (40 + 30 + 32) * MIB
    assert replayed.allocated_bytes == (40 + 20) * MIB
    assert replayed.reserved_bytes == (40 + 20 + 30 + 32) * MIB


def test_a_buffer_of_a_library_lives_as_long_as_the_graph_that_needs_it() -> None:
    parts = pools(graphed(launched=True))
    assert [a.nbytes for a in parts.in_graphs] == [30 * MIB, 32 * MIB]
    assert (parts.in_graphs[-1].born, parts.in_graphs[-1].freed) == (1, 3)
    assert parts.first_uses == ()


def test_a_step_without_graphs_has_one_pool() -> None:
    trace = graphed(launched=False)
    parts = pools(trace)
    assert parts.ordinary == trace.allocations
    assert parts.first_uses == (1,)
    assert not parts.in_graphs


def test_the_pool_and_the_rest_share_the_limit() -> None:
    within = replay(graphed(launched=True), limit_bytes=140 * MIB)
    assert within.reserved_bytes <= 140 * MIB
