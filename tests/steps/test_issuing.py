"""The time of a step from host and GPU times, compared with hand computation and a simulator."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, mm, relu, tensor, view

from wavecast.errors import InvalidInput
from wavecast.hardware.hosts import Host, kernels
from wavecast.steps.player import StepTime, play_one_stream
from wavecast.steps.request import refuse_waits
from wavecast.traces.step import Call, Kernel, Op, Phase

HOST = Host(
    name="test",
    forward_s=10,
    autograd_s=0,
    backward_s=20,
    other_s=30,
    view_s=1,
    module_s=0,
    convolution_s=100,
    kernel_s=2,
    tensor_s=3,
    step_s=0,
    sync_s=5,
)


def issue_s(host: Host, op: Op, phase: Phase = Phase.FORWARD) -> float:
    """The host's time for one call of an op, in the middle of a step."""
    return float(host.issue_times([call(view(2)), call(op, phase)])[1])


def played(issue: list[float], gpu: list[float], syncs: list[int], sync_s: float = 0) -> StepTime:
    return play_one_stream(np.array(issue, float), np.array(gpu, float), syncs, sync_s)


def simulated(issue: list[float], gpu: list[float], syncs: list[int], sync_s: float) -> float:
    """The time between the ends of two late iterations, simulated call by call."""
    host = gpu_free = 0.0
    ends = []
    for _ in range(6):
        for i, (issue_s, gpu_s) in enumerate(zip(issue, gpu, strict=True)):
            host += issue_s
            gpu_free = max(gpu_free, host) + gpu_s
            if i in syncs:
                host = gpu_free = max(host, gpu_free) + sync_s
        ends.append(max(host, gpu_free))
    return [late - early for early, late in pairwise(ends)][-1]


def test_without_a_wait_the_slower_of_host_and_gpu_sets_the_pace() -> None:
    assert played([1, 1, 1], [5, 5, 5], []) == StepTime(15, gpu_s=15, host_s=3)
    assert played([7, 7, 7], [5, 5, 5], []) == StepTime(21, gpu_s=15, host_s=21)


def test_a_wait_at_the_end_leaves_nothing_to_overlap_but_the_step_itself() -> None:
    # Issued at 1, 2, 3; the GPU runs 1-5, 5-6, 6-9.
    assert played([1, 1, 1], [4, 1, 3], [2]).seconds == 9
    # Issued at 4, 8; the GPU runs 4-5, 8-10.
    assert played([4, 4], [1, 2], [1]).seconds == 10


def test_what_follows_the_last_wait_runs_into_the_next_iteration() -> None:
    # From the wait after call 0: issue call 1 (1), call 2 (2), then call 0 of the next (5).
    # The GPU: call 1 at 1-11, call 2 at 11-12, call 0 at 12-13.
    assert played([3, 1, 1], [1, 10, 1], [0]).seconds == 13


def test_two_waits_at_one_call_cost_two_round_trips() -> None:
    assert played([1, 1], [2, 2], [1, 1], sync_s=1).seconds == 5 + 2


def test_who_sets_the_pace_is_named() -> None:
    assert played([1, 1], [9, 9], []).bound_by == "gpu"
    assert played([9, 9], [1, 1], []).bound_by == "host"
    assert played([10], [9.5], []).bound_by == "host"
    assert played([5, 5], [5, 5], [0, 1]).bound_by == "both"


times = st.floats(0, 10, allow_nan=False, allow_subnormal=False)
programs = st.lists(st.tuples(times, times, st.booleans()), min_size=1, max_size=12)


@given(programs, times)
def test_playing_equals_a_simulation_of_many_iterations(
    program: list[tuple[float, float, bool]], sync_s: float
) -> None:
    issue, gpu = [p[0] for p in program], [p[1] for p in program]
    syncs = [i for i, p in enumerate(program) if p[2]]
    expected = simulated(issue, gpu, syncs, sync_s)
    assert played(issue, gpu, syncs, sync_s).seconds == pytest.approx(expected, abs=1e-9)


def conv(groups: int = 1) -> Op:
    tensors = tensor(1, 8, 4, 4), tensor(8, 8 // groups, 3, 3)
    return Op("aten.convolution", tensors, (tensor(1, 8, 4, 4),), (("groups", groups),))


def foreach(count: int) -> Op:
    many = tuple(tensor(4) for _ in range(count))
    return Op("aten._fused_adamw_", many, many)


def masked() -> Op:
    return Op("aten.masked_fill.Scalar", (tensor(4), tensor(4, dtype="bool")), (tensor(4),))


def lstm(length: int) -> Op:
    states = tensor(1, 2, 8), tensor(1, 2, 8)
    weights = tensor(32, 8), tensor(32, 8), tensor(32), tensor(32)
    return Op(
        "aten._cudnn_rnn",
        (tensor(length, 2, 8), *weights, *states),
        (tensor(length, 2, 8), *states),
        (("mode", 2), ("hidden_size", 8), ("num_layers", 1), ("bidirectional", False)),
    )


@pytest.mark.parametrize(
    ("op", "seconds"),
    [
        pytest.param(mm(), 10, id="an op that launches a kernel"),
        pytest.param(view(4), 1, id="a view"),
        pytest.param(relu(0, 4), 1, id="an op without elements"),
        pytest.param(conv(), 110, id="a convolution"),
        pytest.param(foreach(7), 10 + 7 * 3, id="an op on a list of seven tensors"),
        pytest.param(lstm(6), 10 + 2 * 11, id="a recurrent layer of six steps, two kernels each"),
        pytest.param(lstm(0), 10, id="a recurrent layer without a step"),
        pytest.param(masked(), 10 + 2, id="a copy, then a fill: one kernel more"),
    ],
)
def test_issuing_costs_by_the_sort_of_op(op: Op, seconds: float) -> None:
    assert issue_s(HOST, op) == seconds
    assert HOST.issue_times([call(op), call(view(2)), call(op)]).tolist() == [seconds, 1, seconds]


def test_a_scaled_host_takes_that_many_times_as_long_for_everything() -> None:
    slow = HOST.scaled(2.5)
    for op in (mm(), view(4), conv(), foreach(7), lstm(6)):
        assert issue_s(slow, op) == 2.5 * issue_s(HOST, op)
    assert slow.sync_s == 2.5 * HOST.sync_s
    assert slow.name == "test x2.5"


def test_the_backward_pass_and_optimizers_cost_their_own() -> None:
    assert issue_s(HOST, mm(), Phase.BACKWARD) == 20
    assert issue_s(HOST, conv(), Phase.BACKWARD) == 20 + 2 * 100  # two products
    assert issue_s(HOST, foreach(7), Phase.OPTIMIZER) == 30 + 7 * 3


def test_an_op_outside_of_both_passes_is_one_that_python_calls_and_autograd_does_not_see() -> None:
    host = replace(HOST, autograd_s=5)
    calls = [call(mm(), phase) for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)]
    assert host.issue_times(calls).tolist() == [15, 20, 10]
    assert issue_s(host, mm(), Phase.OTHER) == 10


def test_a_step_and_each_visit_of_a_module_cost_something_beside_the_ops() -> None:
    host = replace(HOST, module_s=1000, step_s=7)
    calls = [
        Call(mm(), Phase.FORWARD, "a"),
        Call(mm(), Phase.FORWARD, "a"),
        Call(mm(), Phase.FORWARD, "b"),
        Call(mm(), Phase.FORWARD, "a"),
        Call(mm(), Phase.BACKWARD, "b"),
    ]
    assert host.issue_times(calls).tolist() == [1017, 10, 1010, 1010, 20]
    assert not len(host.issue_times([]))


def test_without_a_backward_pass_autograd_writes_nothing_down() -> None:
    host = replace(HOST, autograd_s=7)
    inference = [call(mm()), call(view(2))]
    assert host.issue_times(inference).tolist() == [10, 1]
    training = [*inference, call(mm(), Phase.BACKWARD)]
    assert host.issue_times(training).tolist() == [17, 1, 20]


def test_a_graph_is_launched_once_and_no_op_costs_anything() -> None:
    host = replace(HOST, graph_s=5.0, node_s=0.5, launch_s=2.0, sync_s=1.0).graphed()
    calls = [call(mm()), call(view(2)), call(lstm(6)), call(mm(), Phase.BACKWARD)]
    assert host.issue_times(calls).tolist() == [5 + (1 + 12 + 1) * 0.5, 0, 0, 0]
    assert host.trip_s == 3
    assert host.name == "test, as one CUDA graph"
    assert not len(host.issue_times([]))
    by_pass = replace(host, by_pass=True)
    assert by_pass.issue_times(calls).tolist() == [5 + (1 + 12) * 0.5, 0, 0, 5.5]
    assert by_pass.issue_times(calls[:3]).tolist() == [5 + (1 + 12) * 0.5, 0, 0]
    assert by_pass.scaled(2).issue_times(calls[3:]).tolist() == [11]


def test_kernels_are_those_that_were_seen_or_else_those_that_an_op_has() -> None:
    assert kernels([call(mm()), call(view(2)), call(lstm(6))]).tolist() == [1, 0, 12]
    seen = Call(mm(), Phase.FORWARD, kernels=(Kernel("a", 1.0), Kernel("b", 1.0)))
    assert kernels([seen, call(mm()), call(lstm(6))]).tolist() == [2, 0, 0]


def item() -> Call:
    return call(Op("aten._local_scalar_dense", (tensor(),), ()), Phase.OTHER, syncs=True)


def test_a_graph_cannot_wait_for_the_gpu() -> None:
    with pytest.raises(InvalidInput, match=r"_local_scalar_dense, call 2 of 3\. Take the wait"):
        refuse_waits([call(mm()), item(), call(mm())])
    waits = Call(mm(), Phase.FORWARD, "net.0", syncs=True)
    with pytest.raises(InvalidInput, match=r"aten\.mm in net\.0, call 1 of 2"):
        refuse_waits([waits, call(mm())])


def test_what_is_read_after_the_last_work_stays_outside_of_the_graph() -> None:
    refuse_waits([call(mm()), item(), call(view(2)), item()])
    refuse_waits([call(mm()), call(mm())])
    refuse_waits([])


def test_a_wait_costs_the_way_there_and_back() -> None:
    host = replace(HOST, launch_s=2.0, sync_s=1.0)
    assert host.trip_s == 3
    assert host.scaled(2).trip_s == 6
