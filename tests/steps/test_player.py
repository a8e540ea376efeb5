"""The player of host, compute and communication streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecast.steps.player import Timetable, play_one_stream, play_streams
from wavecast.traces.step import Call, Op, Phase

TIMES = st.lists(
    st.tuples(st.floats(0, 2), st.floats(0, 2), st.booleans()), min_size=1, max_size=12
)


def _call(stream: int = 0, syncs: bool = False) -> Call:
    return Call(Op("aten.mm", (), ()), Phase.BACKWARD, stream=stream, syncs=syncs)


def _wait(stream: int, on: int) -> Call:
    return Call(Op("cuda.stream_wait", (), (), (("stream", on),)), Phase.BACKWARD, stream=stream)


def _play(calls: list[Call], gpu_s: list[float], slowdown: float = 0.0) -> Timetable:
    return play_streams(calls, np.zeros(len(calls)), np.array(gpu_s), (), slowdown=slowdown)


def _one_stream(rows: list[tuple[float, float, bool]], sync_s: float = 0.0) -> Timetable:
    issue_s, gpu_s, _ = np.array(rows, dtype=float).T
    calls = [_call(syncs=syncs) for _, _, syncs in rows]
    return play_streams(calls, issue_s, gpu_s, _syncs(rows), sync_s)


def _syncs(rows: list[tuple[float, float, bool]]) -> list[int]:
    return [index for index, row in enumerate(rows) if row[2]]


def test_a_collective_runs_beside_later_kernels() -> None:
    # Two kernels; the reduction of the first one's gradient runs beside the second.
    calls = [_call(), _wait(1, 0), _call(1), _call(), _wait(0, 1)]
    times = _play(calls, [1.0, 0, 2.0, 3.0, 0])
    assert times.seconds == pytest.approx(4.0)
    assert times.communication_s == pytest.approx(2.0)
    assert times.exposed_s == pytest.approx(0.0)
    assert times.compute_s == pytest.approx(4.0)


def test_what_is_not_hidden_is_exposed() -> None:
    calls = [_call(), _wait(1, 0), _call(1), _call(), _wait(0, 1), _call()]
    times = _play(calls, [1.0, 0, 5.0, 3.0, 0, 1.0])
    assert times.seconds == pytest.approx(7.0)
    assert times.exposed_s == pytest.approx(2.0)


def test_kernels_of_the_next_iteration_hide_a_collective_too() -> None:
    # Nobody waits for the collective, which runs beside the kernel of the next iteration.
    times = _play([_call(), _wait(1, 0), _call(1)], [3.0, 0, 2.0])
    assert times.seconds == pytest.approx(3.0)
    assert times.communication_s == pytest.approx(2.0)
    assert times.exposed_s == pytest.approx(0.0)


def test_kernels_are_slower_beside_a_collective() -> None:
    calls = [_call(), _wait(1, 0), _call(1), _call(), _wait(0, 1)]
    # The kernel of 3 s runs 2 s beside the collective, in which it does 2 / 1.25 = 1.6 s of work.
    times = _play(calls, [1.0, 0, 2.0, 3.0, 0], slowdown=0.25)
    assert times.seconds == pytest.approx(1.0 + 2.0 + 1.4)
    assert times.compute_s == pytest.approx(4.4)


def test_a_wait_for_an_event_does_not_wait_for_what_follows_the_event() -> None:
    record = Call(Op("cuda.event_record", (), (), (("event", 7),)), Phase.BACKWARD, stream=0)
    wait = Call(Op("cuda.stream_wait", (), (), (("event", 7),)), Phase.BACKWARD, stream=1)
    calls = [_call(), record, _call(), wait, _call(1)]
    assert _play(calls, [1.0, 0, 5.0, 0, 2.0]).begin_s[-1] == pytest.approx(1.0)


def test_a_synchronisation_holds_the_host() -> None:
    calls = [_call(), _call(1, syncs=True), _call()]
    issue_s = np.array([0.1, 0.1, 0.1])
    times = play_streams(calls, issue_s, np.array([1.0, 3.0, 1.0]), [1], sync_s=0.5)
    assert times.begin_s[2] == pytest.approx(times.begin_s[1] + times.gpu_s[1] + 0.5 + 0.1)


@given(TIMES, st.floats(0, 1))
def test_the_fast_path_of_one_stream_equals_the_player(
    rows: list[tuple[float, float, bool]], sync_s: float
) -> None:
    issue_s, gpu_s, _ = np.array(rows, dtype=float).T
    fast = play_one_stream(issue_s, gpu_s, _syncs(rows), sync_s)
    table = _one_stream(rows, sync_s)
    assert table.seconds == pytest.approx(fast.seconds, rel=1e-12, abs=1e-12)
    assert table.compute_s == pytest.approx(fast.gpu_s, rel=1e-9, abs=1e-9)
    assert table.communication_s == table.exposed_s == 0


@given(TIMES)
def test_neither_host_nor_gpu_does_two_things_at_once(
    rows: list[tuple[float, float, bool]],
) -> None:
    table = _one_stream(rows)
    for begin_s, length_s in ((table.issued_s, table.issue_s), (table.begin_s, table.gpu_s)):
        assert (begin_s[1:] >= (begin_s + length_s)[:-1] - 1e-9).all()
    assert table.end_s >= table.seconds


@given(TIMES)
def test_no_kernel_begins_before_it_was_issued(rows: list[tuple[float, float, bool]]) -> None:
    table = _one_stream(rows)
    if not table.host_ahead:
        assert (table.begin_s >= table.issued_s + table.issue_s - 1e-9).all()


def test_a_wait_lasts_until_the_gpu_has_finished() -> None:
    table = _one_stream([(1.0, 5.0, True), (1.0, 1.0, False)])
    # Issued at 0, ends at 1; the GPU runs from 1 to 6 while the host waits.
    [wait] = table.waits
    assert wait == pytest.approx((1.0, 6.0))
    assert table.begin_s.tolist() == pytest.approx([1.0, 7.0])
    assert table.seconds == pytest.approx(7.0)


def test_a_host_that_nothing_holds_back_is_ahead() -> None:
    table = _one_stream([(1.0, 2.0, False), (1.0, 2.0, False)])
    assert table.host_ahead
    assert table.begin_s.tolist() == [0.0, 2.0]
    assert table.waits == ()


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.floats(0, 3), st.integers(-1, 2)), min_size=1, max_size=25
    ),
    st.floats(0, 0.5),
)
def test_a_step_lasts_as_long_as_its_busiest_stream_and_no_longer_than_all(
    drawn: list[tuple[int, float, int]], slowdown: float
) -> None:
    calls, gpu_s = [], []
    for stream, seconds, waited in drawn:
        if waited >= 0 and waited != stream:
            calls.append(_wait(stream, waited))
            gpu_s.append(0.0)
        calls.append(_call(stream))
        gpu_s.append(seconds)
    times = _play(calls, gpu_s, slowdown)
    streams = np.array([call.stream for call in calls])
    busiest = max(np.array(gpu_s)[streams == s].sum() for s in range(3))
    assert busiest - 1e-9 <= times.seconds <= sum(gpu_s) * (1 + slowdown) + 1e-9
    assert 0 <= times.exposed_s <= times.communication_s + 1e-9
    assert times.exposed_s + times.compute_s <= times.seconds + 1e-9


def _collective(name: str, stream: int, ranks: int, stride: int = 1) -> Call:
    attrs = (("ranks", ranks), ("stride", stride))
    return Call(Op(f"nccl.{name}", (), (), attrs), Phase.BACKWARD, stream=stream)


@pytest.mark.parametrize(
    ("other", "seconds"),
    [
        (_collective("reduce_scatter", 2, 8), 5.0),  # NCCL has one set of buffers for both
        (_collective("all_reduce", 2, 4, 8), 3.0),  # other ranks
        (_collective("all_to_all", 2, 8), 3.0),  # the communicator of a mixture's experts
    ],
)
def test_collectives_of_one_communicator_run_one_after_the_other(
    other: Call, seconds: float
) -> None:
    times = _play([_collective("all_gather", 1, 8), other, _wait(0, 1), _wait(0, 2)], [3, 2, 0, 0])
    assert times.seconds == pytest.approx(seconds)
