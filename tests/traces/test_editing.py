"""The editor of traces: what is changed, and what follows; any edit leaves a trace that agrees."""

from __future__ import annotations

from dataclasses import replace

from drawn_traces import operators, traces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wavecast.parallel.pipeline import cut
from wavecast.traces.editing import Edit, compacted, without_values
from wavecast.traces.step import Allocation, Call, Op, Phase, Role, TensorSpec, Trace, Value

ROWS = TensorSpec((64, 32), "float32")
HALF = TensorSpec((64, 16), "float32")
FLAT = TensorSpec((2048,), "float32")


def call(
    name: str, reads: tuple[int, ...], writes: tuple[int, ...], graph: int | None = None
) -> Call:
    op = Op(name, (ROWS,) * len(reads), (ROWS,) * len(writes))
    return Call(op, Phase.FORWARD, reads=reads, writes=writes, graph=graph)


def chain() -> Trace:
    """Input 0 becomes 1, 2 and 3, one after the other; each is freed when the next exists."""
    calls = tuple(call(f"aten.{name}", (i,), (i + 1,)) for i, name in enumerate("abc"))
    memory = (
        Allocation(ROWS.nbytes, None, None, Role.INPUT),
        Allocation(ROWS.nbytes, 0, 2, Role.INTERMEDIATE),
        Allocation(ROWS.nbytes, 1, 3, Role.INTERMEDIATE),
        Allocation(ROWS.nbytes, 2, None, Role.INTERMEDIATE),
    )
    return Trace(calls, memory, values=tuple(Value(ROWS, number) for number in range(4)))


def names(trace: Trace) -> str:
    return "".join(each.op.name.removeprefix("aten.") for each in trace)


def lifetimes(trace: Trace) -> list[tuple[int | None, int | None]]:
    return [(memory.born, memory.freed) for memory in trace.allocations]


def test_nothing_changes_without_a_change() -> None:
    assert Edit(chain()).trace() == chain()


def test_memory_is_freed_before_or_after_what_is_inserted() -> None:
    for after_frees, freed in ((True, 2), (False, 3)):
        edit = Edit(without_values(chain()))
        edit.insert(2, [Call(Op("aten.x", (), ()), Phase.FORWARD)], after_frees=after_frees)
        assert edit.trace().allocations[1].freed == freed


def test_memory_follows_a_moved_call() -> None:
    edit = Edit(chain())
    edit.move(1, 3)
    assert names(edit.trace()) == "acb"
    assert lifetimes(edit.trace())[1:3] == [(0, 3), (2, 3)]


def test_a_value_with_another_spec_changes_all_its_calls_and_its_memory() -> None:
    edit = Edit(chain())
    edit.reshape(1, HALF)
    trace = edit.trace()
    assert trace.calls[0].op.outputs == trace.calls[1].op.inputs == (HALF,)
    assert trace.calls[1].op.outputs == (ROWS,)
    assert trace.allocations[1].nbytes == HALF.nbytes


def test_an_op_that_sees_a_value_with_another_spec_sees_a_view_of_it() -> None:
    edit = Edit(chain())
    edit.replace_op(1, Op("aten.x", (FLAT,), (ROWS,)))
    trace = edit.trace()
    assert trace.values[trace.calls[1].reads[0]] == Value(FLAT, 1, view_of=1)
    assert trace.calls[1].writes == (2,)


def test_an_op_with_other_tensors_has_values_only_if_they_are_given() -> None:
    op = Op("aten.x", (ROWS, ROWS), (ROWS,))
    edit = Edit(chain())
    edit.replace_op(1, op)
    edit.replace_op(2, op, reads=(2, 0))
    assert [each.reads for each in edit.trace()] == [(0,), (), (2, 0)]


def test_values_lose_memory_that_is_removed_and_keep_the_rest() -> None:
    edit = Edit(chain())
    edit.free([1])
    assert [value.allocation for value in edit.trace().values] == [0, None, 1, 2]
    edit = Edit(chain())
    edit.keep_memory([3, 0])
    assert [value.allocation for value in edit.trace().values] == [1, None, None, 0]


def test_what_is_inserted_into_a_compiled_graph_belongs_to_it() -> None:
    calls = tuple(replace(each, graph=7) for each in chain().calls)
    edit = Edit(replace(chain(), calls=calls))
    for position in (0, 1, 3):
        edit.insert(position, [call("aten.x", (0,), (0,)), call("aten.y", (0,), (0,), graph=1)])
    graphs = [each.graph for each in edit.trace()]
    assert graphs == [None, 1, 7, 7, 1, 7, 7, None, 1]


def test_a_part_of_a_trace_is_counted_from_its_beginning() -> None:
    part = cut(chain(), [1, 2], [2, 3])
    assert names(part) == "bc"
    assert lifetimes(part) == [(0, 2), (1, None)]
    assert [each.reads for each in part] == [(0,), (1,)]
    assert [value.allocation for value in part.values] == [None, 0, 1]
    assert compacted(part) is part


def test_a_part_of_a_trace_keeps_the_bases_of_its_views() -> None:
    whole = chain()
    shown = replace(whole.values[3], view_of=0)
    part = cut(replace(whole, values=(*whole.values[:3], shown)), [2], [3])
    assert [value.view_of for value in part.values] == [None, None, 0]
    assert part.calls[0].writes == (2,)


def check(trace: Trace) -> None:
    """Calls, values and memory agree."""
    for each in trace:
        if each.reads or each.writes:
            used = [trace.values[value].spec for value in (*each.reads, *each.writes)]
            assert used == [*each.op.inputs, *each.op.outputs]
            assert len(each.reads) == len(each.op.inputs)
    for value in trace.values:
        assert value.allocation is None or 0 <= value.allocation < len(trace.allocations)
        assert value.view_of is None or 0 <= value.view_of < len(trace.values)
    for memory in trace.allocations:
        for time in (memory.born, memory.freed):
            assert time is None or 0 <= time <= len(trace)


def covered(trace: Trace) -> set[tuple[int, int]]:
    """The uses of values, by position, at which the memory of the value lives."""
    positions = set()
    for position, each in enumerate(trace):
        for value in (*each.reads, *each.writes):
            index = trace.values[value].allocation
            if index is not None:
                memory = trace.allocations[index]
                begins = memory.born is None or memory.born <= position
                if begins and (memory.freed is None or memory.freed > position):
                    positions.add((position, value))
    return positions


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    """Any changes to any trace."""
    trace = draw(traces())
    edit, count = Edit(trace), len(trace)
    numbers = range(len(trace.values))
    for position in draw(st.lists(st.integers(0, count))):
        reads = tuple(draw(st.lists(st.sampled_from(numbers), max_size=2))) if numbers else ()
        op = Op("aten.x", tuple(trace.values[value].spec for value in reads), ())
        inserted = Call(op, Phase.FORWARD, reads=reads)
        edit.insert(position, [inserted], after_frees=draw(st.booleans()))
    for value in draw(st.lists(st.sampled_from(numbers), unique=True)) if numbers else ():
        edit.reshape(value, draw(st.sampled_from([ROWS, HALF, FLAT])))
    for position in range(count):
        change = draw(st.sampled_from(["none", "remove", "move", "replace"]))
        if change == "remove":
            edit.remove([position])
        elif change == "move":
            edit.move(position, draw(st.integers(0, count)))
        elif change == "replace":
            edit.replace_op(position, draw(operators))
    removed = (
        draw(st.sets(st.sampled_from(range(len(trace.allocations)))))
        if trace.allocations
        else set()
    )
    edit.free(removed)
    return edit


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(edits())
def test_any_edit_leaves_a_trace_that_agrees(edit: Edit) -> None:
    edited = edit.trace()
    check(edited)
    check(compacted(edited))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(traces(), st.data())
def test_memory_lives_during_all_uses_during_which_it_lived(
    trace: Trace, data: st.DataObject
) -> None:
    edit, marker = Edit(trace), Op("aten.inserted", (), ())
    for position in data.draw(st.lists(st.integers(0, len(trace)))):
        edit.insert(position, [Call(marker, Phase.FORWARD)], after_frees=data.draw(st.booleans()))
    edited = edit.trace()
    place = [at for at, each in enumerate(edited) if each.op != marker]
    assert {(place[at], value) for at, value in covered(trace)} <= covered(edited)
