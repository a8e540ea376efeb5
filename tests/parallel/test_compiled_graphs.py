"""Compiled steps on several GPUs: where graphs end, and when tensors are exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from wavecast.errors import InvalidInput
from wavecast.parallel.gradients import cut_graphs, gradients, wait
from wavecast.parallel.spreading import spread
from wavecast.parallel.strategy import Parallel
from wavecast.traces.editing import Edit
from wavecast.traces.graphs import CALL, GRAPH_LAUNCH, GUARDS, graphs_of
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace

BLOCKS, INPUTS = 4, 40
WEIGHT = TensorSpec((2048, 2048), "float32")
ROWS = TensorSpec((512, 2048), "float32")
NORM = (("points", 512), ("read_bytes", 8 * 2**20), ("write_bytes", 4 * 2**20))


def kernels(phase: Phase, block: int) -> Iterator[Call]:
    module = f"Net.blocks.{block}"
    yield Call(Op("inductor.pointwise", (ROWS,), (ROWS,), NORM), phase, f"{module}.norm")
    written = WEIGHT if phase is Phase.BACKWARD else ROWS
    yield Call(Op("aten.mm", (ROWS, WEIGHT), (written,)), phase, f"{module}.linear")


def graph(number: int, calls: list[Call], replayed: bool = False) -> Iterator[Call]:
    phase = calls[0].phase
    if phase is Phase.FORWARD:
        yield Call(Op(GUARDS, (), ()), phase, "Net")
    yield Call(Op(CALL, (), (), (("inputs", INPUTS),)), phase, "Net", graph=number)
    if replayed:
        yield Call(Op(GRAPH_LAUNCH, (), ()), phase, "Net", graph=number)
    yield from (replace(call, graph=number) for call in calls)


def compiled_step(replayed: bool = False) -> Trace:
    """A step of equal blocks that is compiled as a whole, with a compiled optimizer."""
    forward = [call for block in range(BLOCKS) for call in kernels(Phase.FORWARD, block)]
    backward = [call for block in range(BLOCKS) for call in kernels(Phase.BACKWARD, 3 - block)]
    attrs = (("points", WEIGHT.numel), ("read_bytes", WEIGHT.nbytes), ("tensors", 1))
    update = Call(Op("inductor.foreach", (WEIGHT,), (WEIGHT,), attrs), Phase.OPTIMIZER)
    calls = [
        *graph(0, forward, replayed),
        *graph(1, backward, replayed),
        *graph(2, [update]),
    ]
    weights = [
        Allocation(WEIGHT.nbytes, None, None, Role.PARAMETER, f"Net.blocks.{block}.linear")
        for block in range(BLOCKS)
    ]
    memory = [
        Allocation(WEIGHT.nbytes, position, None, Role.GRADIENT, call.module)
        for position, call in enumerate(calls)
        if call.phase is Phase.BACKWARD and call.op.name == "aten.mm"
    ]
    return Trace(calls=tuple(calls), allocations=(*weights, *memory))


def names(trace: Trace) -> list[str]:
    return [call.op.name for call in trace]


def of_phase(trace: Trace, phase: Phase) -> list[int]:
    """The number of calls of each graph of a phase."""
    graphs = graphs_of(trace.calls)
    return [g.end - g.begin for g in graphs if trace.calls[g.begin].phase is phase]


@pytest.mark.parametrize("replayed", [False, True])
def test_a_graph_is_found_with_its_marks(replayed: bool) -> None:
    trace = compiled_step(replayed)
    forward, backward, update = graphs_of(trace.calls)
    assert [len(g.marks) for g in (forward, backward)] == [1 + replayed] * 2
    assert of_phase(trace, Phase.FORWARD) == [2 * BLOCKS]
    assert trace.calls[forward.end].phase is Phase.BACKWARD
    assert trace.calls[update.begin].op.name == "inductor.foreach"
    assert backward.end < update.begin


def test_gradients_leave_a_graph_when_it_ends() -> None:
    trace = compiled_step()
    backward = graphs_of(trace.calls)[1]
    assert {g.ready for g in gradients(trace)} == {backward.end - 1}
    inside = [g.ready for g in gradients(trace, inside_graphs=True)]
    assert inside == sorted(set(inside))
    assert [g.module for g in gradients(trace)] == [
        f"Net.blocks.{block}.linear" for block in (3, 2, 1, 0)
    ]


def test_data_parallel_cuts_graphs_at_buckets() -> None:
    step = spread(compiled_step(), Parallel(data=4, bucket_bytes=2 * WEIGHT.nbytes))
    last = step.groups[0].parts[0].last
    # The first bucket holds 1 MiB and so one weight, the second two, the last what is left.
    assert of_phase(last, Phase.BACKWARD) == [2, 4, 2]
    assert len(of_phase(last, Phase.FORWARD)) == 4
    assert sum(of_phase(last, Phase.FORWARD)) == 2 * BLOCKS
    reductions = [p for p, name in enumerate(names(last)) if name == "nccl.all_reduce"]
    ends = [g.end for g in graphs_of(last.calls) if last.calls[g.begin].phase is Phase.BACKWARD]
    assert len(reductions) == 3
    for end, reduction in zip(ends, reductions, strict=True):
        assert not any(call.op.base == "aten.mm" for call in last.calls[end:reduction])
    assert any("DDPOptimizer" in note for note in step.notes)


def test_zero_reduces_when_the_whole_graph_has_ended() -> None:
    last = spread(compiled_step(), Parallel(data=4, shard=1)).groups[0].parts[0].last
    assert of_phase(last, Phase.BACKWARD) == [2 * BLOCKS]
    assert names(last).index("nccl.reduce_scatter") >= graphs_of(last.calls)[1].end


@pytest.mark.parametrize("replayed", [False, True])
def test_fsdp_has_a_graph_for_each_block(replayed: bool) -> None:
    last = spread(compiled_step(replayed), Parallel(data=4, shard=3)).groups[0].parts[0].last
    forward = [g for g in graphs_of(last.calls) if last.calls[g.begin].phase is Phase.FORWARD]
    assert len(forward) == len(of_phase(last, Phase.BACKWARD)) == BLOCKS
    assert names(last).count("nccl.reduce_scatter") == BLOCKS
    assert all(len(graph.marks) == 1 + replayed for graph in forward)
    # All but the first block are gathered before their graph begins, while another one runs.
    gathered = [p for p, name in enumerate(names(last)) if name == "nccl.all_gather"]
    for graph, gather in zip(forward[1:], gathered[1:], strict=False):
        assert gather < graph.begin


def test_a_compiled_optimizer_updates_a_share() -> None:
    last = spread(compiled_step(), Parallel(data=4, shard=3)).groups[0].parts[0].last
    (update,) = (call.op for call in last if call.op.name == "inductor.foreach")
    assert update.attr("read_bytes") == WEIGHT.nbytes // 4
    assert update.attr("tensors") == 1


def test_stages_of_a_pipeline_have_graphs_of_their_own() -> None:
    step = spread(compiled_step(), Parallel(pipeline=2, microbatches=4))
    for group in step.groups:
        last = group.parts[0].last
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            assert sum(of_phase(last, phase)) == BLOCKS


@pytest.mark.parametrize(
    ("axis", "strategy"),
    [
        ("tensor", Parallel(tensor=2)),
        ("context", Parallel(context=2)),
        ("expert", Parallel(data=2, expert=2)),
    ],
)
def test_layers_of_a_compiled_step_are_not_divided(axis: str, strategy: Parallel) -> None:
    with pytest.raises(InvalidInput, match=f"{axis}=2 divides layers, and the step is compiled"):
        spread(compiled_step(), strategy)


def test_what_is_inserted_into_a_graph_belongs_to_it_and_what_follows_it_does_not() -> None:
    trace = compiled_step()
    graph = graphs_of(trace.calls)[0]
    edit = Edit(trace)
    edit.insert(graph.begin + 1, [wait(0, 1, Phase.FORWARD)])
    edit.insert(graph.end, [wait(0, 1, Phase.FORWARD)])
    edit.remove([graph.end - 1])
    assert of_phase(edit.trace(), Phase.FORWARD) == [2 * BLOCKS]
    assert of_phase(edit.trace(), Phase.BACKWARD) == [2 * BLOCKS]


def test_a_part_of_a_graph_has_a_part_of_the_inputs() -> None:
    trace = compiled_step()
    forward = graphs_of(trace)[0]
    parts = cut_graphs(trace, [forward.begin + 2, forward.begin + 6])
    inputs = [call.op.attr("inputs") for call in parts if call.op.name == CALL]
    assert inputs == [10, 20, 10, INPUTS, INPUTS]
    assert of_phase(parts, Phase.FORWARD) == [2, 4, 2]
    assert [call.op for call in parts if call.op.name not in (CALL, GUARDS)] == [
        call.op for call in trace if call.op.name not in (CALL, GUARDS)
    ]
