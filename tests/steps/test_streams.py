"""The timeline of host, compute and communication streams."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecast.steps.streams import StreamTimes, play_streams
from wavecast.steps.timeline import play
from wavecast.traces.step import Call, Op, Phase


def _call(stream: int = 0, syncs: bool = False) -> Call:
    return Call(Op("aten.mm", (), ()), Phase.BACKWARD, stream=stream, syncs=syncs)


def _wait(stream: int, on: int) -> Call:
    return Call(Op("cuda.stream_wait", (), (), (("stream", on),)), Phase.BACKWARD, stream=stream)


def _play(calls: list[Call], gpu_s: list[float], **options: float) -> StreamTimes:
    return play_streams(calls, np.zeros(len(calls)), np.array(gpu_s), **options)


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
    times = play_streams(calls, issue_s, np.array([1.0, 3.0, 1.0]), sync_s=0.5)
    assert times.begin_s[2] == pytest.approx(times.end_s[1] + 0.5 + 0.1)
    assert times.host_s == pytest.approx(0.8)


@given(
    st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=30),
)
def test_one_stream_without_waits_is_the_plain_timeline(times: list[tuple[float, float]]) -> None:
    issue_s, gpu_s = np.array(times).T
    plain = play(issue_s, gpu_s, ())
    played = play_streams([_call()] * len(times), issue_s, gpu_s)
    assert played.compute_s == pytest.approx(plain.gpu_s)
    # Three iterations may not be enough for the steady state of a GPU that first waits.
    assert played.seconds == pytest.approx(plain.seconds, rel=1e-6, abs=max(issue_s.sum(), 1e-9))


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
    times = _play(calls, gpu_s, slowdown=slowdown)
    streams = np.array([call.stream for call in calls])
    busiest = max(np.array(gpu_s)[streams == s].sum() for s in range(3))
    assert busiest - 1e-9 <= times.seconds <= sum(gpu_s) * (1 + slowdown) + 1e-9
    assert -1e-9 <= times.exposed_s <= times.communication_s + 1e-9
